"""Encodes and decodes values and events of the MindSpore dialect (`*_MS` files)."""

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format import wire
from distsummary.format.frames import Part
from distsummary.format.histogram import coarser, fixed_edges, fixed_part
from distsummary.format.norms import decode_norms, encode_norms
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.records import (
    CURVE_ROWS,
    Array,
    Audio,
    Event,
    EventIds,
    Histogram,
    Image,
    Landscape,
    Shard,
    Value,
)

VERSION = "MindSpore.Event:1"
DATA_TYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8,
    "uint64": 9, "float16": 10, "float32": 11, "float64": 12,
}  # fmt: skip
# A bin: 0x0a | length of the rest | 0x09 | f64 left | 0x11 | f64 width | 0x18; the varint count follows
_BUCKET = struct.Struct("<BBBdBdB")
MAX_BUCKETS = 90  # per histogram; MindInsight drops a histogram that has more
# The fields of values that take long to decode -> their plugins.
_BULK_FIELDS = {
    "tensor": "tensor", "histogram": "histogram", "image": "image", "loss_landscape": "landscape",
    "text": "text", "audio": "audio", "pr_curve": "pr_curve", "norms": "norms",
}  # fmt: skip
_DTYPES = {number: np.dtype(name) for name, number in DATA_TYPES.items()}


# --- encoding: each function returns the same bytes as protobuf's SerializeToString


def encode_version(wall_time: float, ids: EventIds | None = None) -> bytes:
    """The payload of a file's first record."""
    return b"".join((wire.double(1, wall_time), wire.text(3, VERSION), wire.identity(ids)))


def summary_parts(
    step: int, wall_time: float, values: Iterable[list[Part]], ids: EventIds | None = None
) -> list[Part]:
    """The payload of one summary event in parts; `values` come from `value_parts` and are not copied.

    A step of 0 is written too.
    """
    head = wire.double(1, wall_time) + wire.integer(2, step)
    summary = [part for value in values for part in wire.message(1, value)]
    return [head, *wire.message(5, summary), wire.identity(ids)]


def graph_parts(graph: Iterable[Part], wall_time: float, ids: EventIds | None = None) -> list[Part]:
    """The payload of a graph event, which has no step; `graph` is a serialised GraphProto in parts."""
    return [wire.double(1, wall_time), *wire.message(4, graph), wire.identity(ids)]


def value_parts(value: Value) -> list[Part]:
    """The bytes of a `Summary.Value` in parts; float32 tensors in C order and PNG bytes are not copied.

    The data of `value` are those that `encode.finish_value` returns.
    """
    head = wire.text(1, value.tag)
    match value.plugin:
        case "scalar":
            parts: list[Part] = [head, wire.single(3, value.data)]
        case "tensor":
            parts = [head, *wire.message(8, _tensor_parts(value.data))]
        case "histogram":
            parts = [head, *_histogram_parts(value.data)]
        case "image":
            parts = [head, *image_parts(value.data)]
        case "landscape":
            parts = [head, *_landscape_parts(value.data)]
        case "text":
            parts = [head, wire.text(1001, value.data)]
        case "audio":
            parts = [head, *audio_parts(1002, value.data)]
        case "pr_curve":
            parts = [head, *wire.message(1003, _tensor_parts(value.data))]
        case "norms":
            parts = [head, *wire.message(1004, encode_norms(value.data))]
        case _:
            raise KeyError(value.plugin)
    if value.shard is not None:
        parts.append(wire.shard(value.shard))
    return parts


def encode_tensor(array: Array) -> bytes:
    """The bytes of a `TensorProto`: the values as float32, and the code of the original dtype.

    Raises InvalidTypeError for complex, object and other dtypes that MindSpore has no code for.
    """
    return b"".join(_tensor_parts(array))


def _tensor_parts(array: Array) -> list[Part]:
    array = np.asarray(array)
    data_type = DATA_TYPES.get(array.dtype.name)
    if data_type is None:
        raise InvalidTypeError(
            f"a tensor must be one of {', '.join(DATA_TYPES)}, got {array.dtype}; "
            "convert it (bfloat16 to float32)"
        )
    dims = b"".join([wire.integer(1, size) for size in array.shape])
    head = dims + wire.integer(2, data_type)
    if not array.size:
        return [head]
    # `reshape` copies an array only if it is not in C order.
    numbers = to_float32(array).reshape(-1).data.cast("B")
    return [head, *wire.message(3, [numbers])]


def to_float32(array: Array) -> Array:
    """The array as little-endian float32; numbers beyond its range become infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype("<f4", copy=False)


def image_parts(image: Image) -> list[Part]:
    """The image field of a `Summary.Value`, the same in both dialects."""
    sizes = wire.integer(1, image.height) + wire.integer(2, image.width) + wire.integer(3, image.colorspace)
    return wire.message(4, [sizes, *wire.message(4, [memoryview(image.encoded)])])


def audio_parts(field: int, audio: Audio) -> list[Part]:
    """The audio field of a `Summary.Value`, whose number is another one in each dialect."""
    sizes = wire.single(1, audio.rate) + wire.integer(2, audio.channels) + wire.integer(3, audio.frames)
    content = wire.message(4, [memoryview(audio.encoded)])
    return wire.message(field, [sizes, *content, wire.text(5, audio.content_type)])


def _histogram_parts(histogram: Histogram) -> list[Part]:
    parts: list[Part] = []
    is_fixed = histogram.first_fixed is not None
    # MindInsight gets few enough buckets; all fixed ones follow in fields that only we read.
    shown = coarser(histogram, MAX_BUCKETS) if is_fixed else histogram
    rows = zip(shown.left.tolist(), shown.width.tolist(), shown.counts.tolist(), strict=True)
    for left, width, count in rows:
        counted = wire.varint(count)
        parts += _BUCKET.pack(0x0A, 19 + len(counted), 0x09, left, 0x11, width, 0x18), counted
    parts.append(wire.integer(2, histogram.nan_count))
    parts.append(wire.integer(3, histogram.pos_inf_count))
    parts.append(wire.integer(4, histogram.neg_inf_count))
    for field, number in ((5, histogram.max), (6, histogram.min), (7, histogram.sum)):
        if number is not None:
            parts.append(wire.double(field, number))
    parts.append(wire.integer(8, histogram.count))
    if histogram.first_fixed is not None:
        counts = b"".join(map(wire.varint, histogram.counts.tolist()))
        parts += wire.integer(1000, histogram.first_fixed), wire.delimited(1001, counts)
    return wire.message(9, [b"".join(parts)])


def _landscape_parts(landscape: Landscape) -> list[Part]:
    message = summary_pb2.LossLandscape()
    _set_point(message.landscape, landscape.x, landscape.y, landscape.z)
    if landscape.intervals:
        message.loss_path.intervals.extend(landscape.intervals)
        _set_point(message.loss_path.points, landscape.path_x, landscape.path_y, landscape.path_z)
    message.metadata.decomposition = landscape.decomposition
    message.metadata.unit = landscape.unit
    message.metadata.step_per_epoch = landscape.step_per_epoch
    x, y, z = landscape.convergence_point
    _set_point(message.convergence_point, np.array([x]), np.array([y]), np.array([z]))
    return wire.message(10, [message.SerializeToString()])


def _set_point(point: summary_pb2.LossLandscape.Point, x: Array, y: Array, z: Array) -> None:
    for field, array in ((point.x, x), (point.y, y), (point.z, z)):
        field.MergeFromString(encode_tensor(array))


# --- decoding


def decode_event(payload: bytes, *, bulk: bool = True) -> tuple[EventIds, Event] | None:
    """The identity and values of a summary or graph event; None for a version or explanation record.

    A graph event has the step 0. Raises DamagedFileError.

    Args:
        bulk: False: the data of bulk values and norms, which take most of the time, are None.
    """
    try:
        message = summary_pb2.Event.FromString(payload)
        ids = wire.read_identity(payload)
        if message.HasField("graph_def"):
            graph = Value("graph", "", message.graph_def.SerializeToString())
            return ids, Event(message.step, message.wall_time, [graph])
        if not message.HasField("summary"):
            return None
        values = [decoded for value in message.summary.value if (decoded := _decode_value(value, bulk))]
        return ids, Event(message.step, message.wall_time, values)
    except (DecodeError, ValueError) as error:
        raise DamagedFileError(f"not an event of MindSpore ({error})") from error


def _decode_value(value: summary_pb2.Summary.Value, bulk: bool) -> Value | None:
    shard = decode_shard(value)
    kind = value.WhichOneof("value")
    if not bulk and kind in _BULK_FIELDS:
        return Value(_BULK_FIELDS[kind], value.tag, None, shard)
    match kind:
        case "scalar_value":
            return Value("scalar", value.tag, value.scalar_value, shard)
        case "tensor":
            return Value("tensor", value.tag, decode_tensor(value.tensor), shard)
        case "histogram":
            return Value("histogram", value.tag, _decode_histogram(value.histogram), shard)
        case "image":
            image = decode_image(value.image, value.image.encoded_image)
            return Value("image", value.tag, image, shard)
        case "loss_landscape":
            return Value("landscape", value.tag, decode_landscape(value.loss_landscape), shard)
        case "text":
            return Value("text", value.tag, value.text, shard)
        case "audio":
            return Value("audio", value.tag, decode_audio(value.audio), shard)
        case "pr_curve":
            curve = decode_tensor(value.pr_curve)
            if curve.ndim != 2 or len(curve) != len(CURVE_ROWS):
                raise DamagedFileError(f"a PR curve has the shape {curve.shape}")
            return Value("pr_curve", value.tag, curve, shard)
        case "norms":
            return Value("norms", value.tag, decode_norms(value.norms), shard)
    return None


def decode_shard(value: Any) -> Shard | None:
    """The place of a value in a whole array, which both dialects hold alike; None for a whole one."""
    if not value.HasField("shard"):
        return None
    return Shard(global_shape=tuple(value.shard.global_shape), offset=tuple(value.shard.offset))


def decode_image(message: Any, encoded: bytes) -> Image:
    """An image, which both dialects hold alike but for the name of its bytes."""
    return Image(height=message.height, width=message.width, colorspace=message.colorspace, encoded=encoded)


def decode_audio(message: Any) -> Audio:
    """The sound of an Audio message of either dialect."""
    return Audio(
        rate=message.sample_rate,
        channels=message.num_channels,
        frames=message.length_frames,
        encoded=message.encoded_audio_string,
        content_type=message.content_type,
    )


def decode_tensor(tensor: anf_ir_pb2.TensorProto) -> Array:
    """The float32 numbers of a tensor message as an array of the original dtype; integer dtypes clip them.

    A message without any field becomes an empty array of shape (0,). Raises DamagedFileError if the numbers
    do not fill the shape.
    """
    flat = np.array(tensor.float_data, dtype=np.float32)
    shape = tuple(tensor.dims) if flat.size or tensor.ByteSize() else (0,)
    if min(shape, default=0) < 0 or flat.size != math.prod(shape):
        raise DamagedFileError(f"a tensor of the shape {shape} has {flat.size} numbers")
    dtype = _DTYPES.get(tensor.data_type, flat.dtype)
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return flat.astype(dtype, copy=False).reshape(shape)
    # A plain cast would wrap a maximum that float32 rounded up.
    limits = np.iinfo(dtype)
    inside = (flat > float(limits.min)) & (flat < float(limits.max))
    whole = np.where(inside, flat, 0).astype(dtype)
    whole[flat >= float(limits.max)] = limits.max
    whole[flat <= float(limits.min)] = limits.min
    return whole.reshape(shape)


def decode_landscape(message: summary_pb2.LossLandscape) -> Landscape:
    """A landscape message as a Landscape; raises DamagedFileError like `decode_tensor`."""
    grid, path, end = message.landscape, message.loss_path.points, message.convergence_point
    # Each tensor has 0 or 1 numbers: their sum is the number, or 0.
    x, y, z = (float(decode_tensor(point).sum()) for point in (end.x, end.y, end.z))
    return Landscape(
        x=decode_tensor(grid.x),
        y=decode_tensor(grid.y),
        z=decode_tensor(grid.z),
        decomposition=message.metadata.decomposition,
        unit=message.metadata.unit,
        step_per_epoch=message.metadata.step_per_epoch,
        convergence_point=(x, y, z),
        intervals=tuple(message.loss_path.intervals),
        path_x=decode_tensor(path.x),
        path_y=decode_tensor(path.y),
        path_z=decode_tensor(path.z),
    )


def _decode_histogram(message: summary_pb2.Summary.Histogram) -> Histogram:
    """The histogram of a message; in fixed buckets if it has them."""
    measured: dict[str, Any] = {
        "count": message.count,
        "nan_count": message.nan_count,
        "pos_inf_count": message.pos_inf_count,
        "neg_inf_count": message.neg_inf_count,
        "min": message.min if message.HasField("min") else None,
        "max": message.max if message.HasField("max") else None,
        "sum": message.sum if message.HasField("sum") else None,
    }
    if message.HasField("first_fixed"):
        first, counts = message.first_fixed, np.array(message.fixed_counts, np.int64)
        if not 0 <= first <= first + len(counts) < len(fixed_edges()):
            raise DamagedFileError(
                f"{len(counts)} fixed buckets from number {first} on: there are not so many"
            )
        return fixed_part(first, counts, **measured)
    return Histogram(
        left=np.array([bucket.left for bucket in message.buckets], np.float64),
        width=np.array([bucket.width for bucket in message.buckets], np.float64),
        counts=np.array([bucket.count for bucket in message.buckets], np.int64),
        **measured,
    )
