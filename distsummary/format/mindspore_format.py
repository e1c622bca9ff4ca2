"""Values to and from the bytes of the MindSpore dialect (`*_MS` and `*_lineage` files)."""

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format import wire
from distsummary.format.frames import Part
from distsummary.format.records import Array, Event, EventIds, Histogram, Image, Landscape, Shard, Value
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.pb import mindspore_summary_pb2 as summary_pb2

VERSION = "MindSpore.Event:1"
DATA_TYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8,
    "uint64": 9, "float16": 10, "float32": 11, "float64": 12,
}  # fmt: skip
# 0x0a | length of the rest | 0x09 | f64 left | 0x11 | f64 width | 0x18 | (varint count), little-endian
_BUCKET = struct.Struct("<BBBdBdB")
_DTYPES = {number: np.dtype(name) for name, number in DATA_TYPES.items()}


# --- encoding: each function returns what protobuf's SerializeToString would


def encode_version(wall_time: float, ids: EventIds | None = None) -> bytes:
    """The payload of a file's first record."""
    return b"".join((wire.double(1, wall_time), wire.text(3, VERSION), wire.identity(ids)))


def encode_summary(
    step: int, wall_time: float, values: Iterable[bytes], ids: EventIds | None = None
) -> bytes:
    """The payload of one summary event; `values` come from `encode_value`. The step is written even if 0."""
    return b"".join(summary_parts(step, wall_time, [[value] for value in values], ids))


def summary_parts(
    step: int, wall_time: float, values: Iterable[list[Part]], ids: EventIds | None = None
) -> list[Part]:
    """The same in parts; `values` come from `value_parts`, of which nothing is copied."""
    head = wire.double(1, wall_time) + wire.integer(2, step)
    summary = [part for value in values for part in wire.message(1, value)]
    return [head, *wire.message(5, summary), wire.identity(ids)]


def encode_graph(graph: bytes, wall_time: float, ids: EventIds | None = None) -> bytes:
    """The payload of a graph event, which has no step; `graph` is a serialised GraphProto."""
    return b"".join((wire.double(1, wall_time), wire.delimited(4, graph), wire.identity(ids)))


def encode_value(value: Value) -> bytes:
    """A `Summary.Value`; `data` is finished: a float, an array, Histogram, Image or Landscape."""
    return b"".join(value_parts(value))


def value_parts(value: Value) -> list[Part]:
    """The same in parts: a tensor's float32 numbers and a PNG stand in it where they lie in memory."""
    body = _VALUE_ENCODERS[value.plugin](value.data)
    shard = [] if value.shard is None else [_encode_shard(value.shard)]
    return [wire.text(1, value.tag), *body, *shard]


def _scalar_parts(scalar: float) -> list[Part]:
    return [wire.single(3, scalar)]


def encode_tensor(array: Array) -> bytes:
    """A `TensorProto`: float32 values whatever the dtype, which `data_type` keeps.

    Raises InvalidTypeError for complex, object and other dtypes that MindSpore has no number for.
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
    numbers = to_float32(array).reshape(-1).data.cast("B")  # reshape copies what is not in C order
    return [head, *wire.message(3, [numbers])]


def to_float32(array: Array) -> Array:
    """The array as little-endian float32; what exceeds the range becomes infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype("<f4", copy=False)


def image_parts(image: Image) -> list[Part]:
    """The image field of a `Summary.Value`, the same in both dialects."""
    sizes = wire.integer(1, image.height) + wire.integer(2, image.width) + wire.integer(3, image.colorspace)
    return wire.message(4, [sizes, *wire.message(4, [memoryview(image.encoded)])])


def _histogram_parts(histogram: Histogram) -> list[Part]:
    parts: list[Part] = []
    rows = zip(histogram.left.tolist(), histogram.width.tolist(), histogram.counts.tolist(), strict=True)
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


_VALUE_ENCODERS: dict[str, Callable[[Any], list[Part]]] = {  # Any: what the plugin's data is
    "scalar": _scalar_parts,
    "tensor": lambda array: wire.message(8, _tensor_parts(array)),
    "histogram": _histogram_parts,
    "image": image_parts,
    "landscape": _landscape_parts,
}


def _encode_shard(shard: Shard) -> bytes:
    shape = b"".join([wire.integer(1, size) for size in shard.global_shape])
    return wire.delimited(1000, shape + b"".join([wire.integer(2, first) for first in shard.offset]))


# --- decoding


def decode_event(payload: bytes) -> tuple[EventIds, Event] | None:
    """The identity and values of a summary or graph event; None for a version or explanation record.

    A graph event has the step 0. Raises DamagedFileError.
    """
    try:
        message = summary_pb2.Event.FromString(payload)
        ids = wire.read_identity(payload)
        if message.HasField("graph_def"):
            graph = Value("graph", "", message.graph_def.SerializeToString())
            return ids, Event(message.step, message.wall_time, [graph])
        if not message.HasField("summary"):
            return None
        values = [_decode_value(value) for value in message.summary.value]
        return ids, Event(message.step, message.wall_time, [value for value in values if value is not None])
    except (DecodeError, ValueError) as error:
        raise DamagedFileError(f"not an event of MindSpore ({error})") from error


def _decode_value(value: summary_pb2.Summary.Value) -> Value | None:
    shard = None
    if value.HasField("shard"):
        shard = Shard(global_shape=tuple(value.shard.global_shape), offset=tuple(value.shard.offset))
    match value.WhichOneof("value"):
        case "scalar_value":
            return Value("scalar", value.tag, value.scalar_value, shard)
        case "tensor":
            return Value("tensor", value.tag, decode_tensor(value.tensor), shard)
        case "histogram":
            return Value("histogram", value.tag, _decode_histogram(value.histogram), shard)
        case "image":
            image = value.image
            picture = Image(
                height=image.height,
                width=image.width,
                colorspace=image.colorspace,
                encoded=image.encoded_image,
            )
            return Value("image", value.tag, picture, shard)
        case "loss_landscape":
            return Value("landscape", value.tag, _decode_landscape(value.loss_landscape), shard)
    return None


def decode_tensor(tensor: anf_ir_pb2.TensorProto) -> Array:
    """The float32 values of the wire in the dtype that they came from; what int64 lost stays lost.

    A tensor that was left out is an empty one, shape (0,). Raises DamagedFileError when the numbers do not
    fill the shape.
    """
    flat = np.array(tensor.float_data, dtype=np.float32)
    shape = tuple(tensor.dims) if tensor.ByteSize() else (0,)
    if min(shape, default=0) < 0 or flat.size != math.prod(shape):
        raise DamagedFileError(f"a tensor of the shape {shape} has {flat.size} numbers")
    return _from_float32(flat, _DTYPES.get(tensor.data_type, flat.dtype)).reshape(shape)


def _from_float32(flat: Array, dtype: np.dtype[Any]) -> Array:
    """To `dtype`; integers saturate, where a plain cast of a rounded-up maximum would wrap."""
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return flat.astype(dtype)
    limits = np.iinfo(dtype)
    inside = (flat > float(limits.min)) & (flat < float(limits.max))
    whole = np.where(inside, flat, 0).astype(dtype)
    whole[flat >= float(limits.max)] = limits.max
    whole[flat <= float(limits.min)] = limits.min
    return whole


def _decode_histogram(message: summary_pb2.Summary.Histogram) -> Histogram:
    return Histogram(
        left=np.array([bucket.left for bucket in message.buckets], np.float64),
        width=np.array([bucket.width for bucket in message.buckets], np.float64),
        counts=np.array([bucket.count for bucket in message.buckets], np.int64),
        count=message.count,
        nan_count=message.nan_count,
        pos_inf_count=message.pos_inf_count,
        neg_inf_count=message.neg_inf_count,
        min=message.min if message.HasField("min") else None,
        max=message.max if message.HasField("max") else None,
        sum=message.sum if message.HasField("sum") else None,
    )


def _decode_landscape(message: summary_pb2.LossLandscape) -> Landscape:
    grid, path, end = message.landscape, message.loss_path.points, message.convergence_point
    x, y, z = (float(decode_tensor(point).sum()) for point in (end.x, end.y, end.z))  # of one number, or none
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
