"""Encodes and decodes values and events of the TensorBoard dialect (`tfevents` files)."""

import math
from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError
from distsummary.format import wire
from distsummary.format.frames import Part
from distsummary.format.mindspore_format import (
    audio_parts,
    decode_audio,
    decode_image,
    decode_shard,
    image_parts,
    to_float32,
)
from distsummary.format.norms import decode_norms, encode_norms
from distsummary.format.pb import tensorboard_pb2
from distsummary.format.pb.tensorboard_custom_scalars_pb2 import Layout
from distsummary.format.pb.tensorboard_hparams_pb2 import HParamsPluginData
from distsummary.format.records import (
    CURVE_ROWS,
    CUSTOM_SCALARS,
    HPARAMS,
    Array,
    Event,
    EventIds,
    Histogram,
    Value,
)

VERSION = "brain.Event:2"
_MAX_FILLED = 8 << 20  # elements that a single number may fill: a small file must not fill the memory
_START = 1  # SessionLog.START, see `encode_session_start`
_FLOAT, _STRING = 1, 7  # TensorFlow's DT_FLOAT and DT_STRING
_TENSOR, _BLOB_SEQUENCE = 2, 3  # DataClass of TensorBoard: how the data of a value are kept
# A text is a string tensor without dimensions: TensorBoard would show one with dimensions as a table.
_TEXT_SHAPE = wire.integer(1, _STRING) + wire.delimited(2, b"")
_TEXT_METADATA = wire.delimited(9, wire.delimited(1, wire.text(1, "text")))
_LAYOUT_METADATA = wire.delimited(9, wire.delimited(1, wire.text(1, CUSTOM_SCALARS)))
_CURVES = "pr_curves"
# Hyperparameters are in the metadata of a value, whose tensor has the shape (0,).
_NO_NUMBERS = wire.integer(1, _FLOAT) + wire.delimited(2, wire.delimited(2, b""))


# --- encoding: each function returns the same bytes as protobuf's SerializeToString


def encode_version(wall_time: float, ids: EventIds | None = None) -> bytes:
    """The payload of a file's first record."""
    return b"".join((_head(0, wall_time), wire.text(3, VERSION), wire.identity(ids)))


def encode_session_start(step: int, wall_time: float, ids: EventIds | None = None) -> bytes:
    """The payload that begins a session: from `step` on, TensorBoard hides what earlier sessions wrote."""
    log = wire.integer(1, _START)
    return b"".join((_head(step, wall_time), wire.delimited(7, log), wire.identity(ids)))


def summary_parts(
    step: int, wall_time: float, values: Iterable[list[Part]], ids: EventIds | None = None
) -> list[Part]:
    """The payload of one summary event in parts; `values` come from `value_parts` and are not copied."""
    summary = [part for value in values for part in wire.message(1, value)]
    return [_head(step, wall_time), *wire.message(5, summary), wire.identity(ids)]


def graph_parts(graph: Iterable[Part], wall_time: float, ids: EventIds | None = None) -> list[Part]:
    """The payload of a graph event, which has the step 0; `graph` is a serialised GraphDef in parts."""
    return [_head(0, wall_time), *wire.message(4, graph), wire.identity(ids)]


def value_parts(value: Value) -> list[Part] | None:
    """The bytes of a `Summary.Value` in parts, for each kind that this dialect has; None for others.

    The bytes of a PNG are not copied.
    """
    head = wire.text(1, value.tag)
    match value.plugin:
        case "scalar":
            return [head, wire.single(2, value.data)]
        case "image":
            described = _described("images", _BLOB_SEQUENCE, value)
            return [head, *image_parts(value.data), *described, *_shard(value)]
        case "histogram":
            # Counts only finite values. If there are none, writes one empty bin: readers need a bin.
            histogram: Histogram = value.data
            is_empty = not histogram.left.size
            right = np.zeros(1) if is_empty else histogram.left + histogram.width
            counts = np.zeros(1) if is_empty else histogram.counts
            invalid = histogram.nan_count + histogram.pos_inf_count + histogram.neg_inf_count
            fields = (
                _double(1, histogram.min or 0.0),
                _double(2, histogram.max or 0.0),
                _double(3, float(histogram.count - invalid)),
                _double(4, histogram.sum or 0.0),
                wire.delimited(6, right.astype("<f8").tobytes()),
                wire.delimited(7, counts.astype("<f8").tobytes()),
            )
            described = _described("histograms", _TENSOR, value)
            return [head, *wire.message(5, fields), *described, *_shard(value)]
        case "text":
            return [head, wire.delimited(8, _TEXT_SHAPE + wire.text(8, value.data)), _TEXT_METADATA]
        case "audio":
            return [head, *audio_parts(6, value.data)]
        case "pr_curve":
            return [head, *_curve_parts(value.data)]
        case "norms":
            return [head, *wire.message(1004, encode_norms(value.data))]
        case "hparams":
            content = value.data.SerializeToString(deterministic=True)
            plugin = wire.text(1, HPARAMS) + wire.delimited(2, content)
            return [head, wire.delimited(8, _NO_NUMBERS), wire.delimited(9, wire.delimited(1, plugin))]
        case "custom_scalars":
            layout = value.data.SerializeToString(deterministic=True)
            return [head, wire.delimited(8, _TEXT_SHAPE + wire.delimited(8, layout)), _LAYOUT_METADATA]
    return None


def _described(plugin: str, data_class: int, value: Value) -> list[Part]:
    """The metadata of a value with a description; without its data class, the data server drops it."""
    if not value.description:
        return []
    metadata = (
        wire.delimited(1, wire.text(1, plugin)),
        wire.text(3, value.description),
        wire.integer(4, data_class),
    )
    return [wire.delimited(9, b"".join(metadata))]


def _curve_parts(curve: Array) -> list[Part]:
    """A PR curve (6, T) as float32, in whose metadata T is."""
    shape = b"".join(wire.delimited(2, wire.integer(1, size)) for size in curve.shape)
    tensor = (
        wire.integer(1, _FLOAT),
        wire.delimited(2, shape),
        wire.delimited(4, to_float32(curve).tobytes()),
    )
    plugin = wire.text(1, _CURVES) + wire.delimited(2, wire.integer(2, curve.shape[1]))
    metadata = wire.delimited(1, plugin) + wire.integer(4, _TENSOR)
    return [wire.delimited(8, b"".join(tensor)), wire.delimited(9, metadata)]


def _shard(value: Value) -> list[Part]:
    return [] if value.shard is None else [wire.shard(value.shard)]


def _head(step: int, wall_time: float) -> bytes:
    return _double(1, wall_time) + (wire.integer(2, step) if step else b"")


def _double(field: int, number: float) -> bytes:
    """A double field; empty for 0.0, which proto3 omits, but not for -0.0."""
    encoded = wire.double(field, number)
    return encoded if any(encoded[-8:]) else b""


# --- decoding


def session_start(payload: bytes) -> int | None:
    """The step from which on TensorBoard hides what earlier sessions wrote, if the record begins a session.

    Raises DecodeError.
    """
    message = tensorboard_pb2.Event.FromString(payload)
    return int(message.step) if message.session_log.status == _START else None


def decode_event(payload: bytes) -> tuple[EventIds, Event] | None:
    """The identity and values of a summary or graph event; None for a version or session record.

    A graph becomes the bytes of a GraphProto, as everywhere in events. Skips values of kinds that
    `records.Value` does not know (meshes ...). Raises DamagedFileError.
    """
    try:
        message = tensorboard_pb2.Event.FromString(payload)
        if message.HasField("graph_def"):
            from distsummary.format import mindspore_graph, tensorboard_graph
            from distsummary.format.pb.tensorboard_graph_pb2 import GraphDef

            wire.refuse_bombs(message.graph_def, GraphDef.DESCRIPTOR)
            graph = Value("graph", "", mindspore_graph.encode(tensorboard_graph.decode(message.graph_def)))
            return wire.read_identity(payload), Event(message.step, message.wall_time, [graph])
        if not message.HasField("summary"):
            return None
        values = [decoded for value in message.summary.value if (decoded := _decode_value(value))]
        return wire.read_identity(payload), Event(message.step, message.wall_time, values)
    except (DecodeError, ValueError) as error:
        raise DamagedFileError(f"not an event of TensorBoard ({error})") from error


def _decode_value(value: tensorboard_pb2.Summary.Value) -> Value | None:
    shard = decode_shard(value)
    match value.WhichOneof("value"):
        case "simple_value":
            return Value("scalar", value.tag, value.simple_value)
        case "image":
            image = decode_image(value.image, value.image.encoded_image_string)
            return Value("image", value.tag, image, shard)
        case "histo":
            return Value("histogram", value.tag, _decode_histogram(value.histo), shard)
        case "audio":
            return Value("audio", value.tag, decode_audio(value.audio))
        case "norms":
            return Value("norms", value.tag, decode_norms(value.norms))
        case "tensor" if value.metadata.plugin_data.plugin_name == "text":
            text = _decode_text(value.tensor)
            return None if text is None else Value("text", value.tag, text)
        # Of torch, only the metadata has something.
        case "tensor" | None if value.metadata.plugin_data.plugin_name == HPARAMS:
            content = value.metadata.plugin_data.content
            wire.refuse_bombs(content, HParamsPluginData.DESCRIPTOR)
            return Value(HPARAMS, value.tag, HParamsPluginData.FromString(content))
        case "tensor" if value.metadata.plugin_data.plugin_name == CUSTOM_SCALARS:
            if len(value.tensor.string_val) != 1:
                raise DamagedFileError(
                    f"a layout of custom scalars has {len(value.tensor.string_val)} strings instead of one"
                )
            [layout] = value.tensor.string_val
            wire.refuse_bombs(layout, Layout.DESCRIPTOR)
            return Value(CUSTOM_SCALARS, value.tag, Layout.FromString(layout))
        case "tensor":
            # Scalars of TensorFlow 2 and torch, and any other tensor of floats.
            plugin = value.metadata.plugin_data.plugin_name
            array = _decode_tensor(value.tensor)
            if array is not None and plugin == _CURVES and array.ndim == 2 and len(array) == len(CURVE_ROWS):
                return Value("pr_curve", value.tag, array)
            if array is None or plugin not in ("", "scalars", "tensor"):
                return None
            if array.size == 1 and plugin != "tensor":
                return Value("scalar", value.tag, float(array.reshape(-1)[0]))
            return Value("tensor", value.tag, array)
    return None


def _decode_histogram(histo: tensorboard_pb2.HistogramProto) -> Histogram:
    """The first to the last non-empty bin, with min and max as outer edges, as TensorBoard shows them."""
    limits, counts = np.array(histo.bucket_limit), np.array(histo.bucket)
    if limits.shape != counts.shape:
        raise DamagedFileError(f"a histogram has {limits.size} limits for {counts.size} counts")
    # The comparison is false for NaN too.
    if not (np.abs(np.append(counts, histo.num)) < 2.0**63).all():
        raise DamagedFileError("the counts of a histogram are not all numbers below 2**63")
    filled = np.flatnonzero(counts)
    if not filled.size:
        empty = np.empty(0)
        return Histogram(left=empty, width=empty, counts=empty.astype(np.int64), count=int(histo.num))
    first, last = filled[0], filled[-1]
    edges = np.concatenate(([histo.min], limits[first:last], [histo.max]))
    return Histogram(
        left=edges[:-1],
        width=np.diff(edges),
        counts=counts[first : last + 1].astype(np.int64),
        count=int(histo.num),
        min=histo.min,
        max=histo.max,
        sum=histo.sum,
    )


def _decode_text(tensor: tensorboard_pb2.TensorProto) -> str | None:
    """The text of a tensor of strings; None for other dtypes.

    TensorBoard shows a tensor with dimensions as a table; here, each row of it becomes a line, with " | "
    between its cells. With three dimensions or more, only the first table is taken, as in TensorBoard. Raises
    ValueError for bytes that are not UTF-8.
    """
    if tensor.dtype != _STRING:
        return None
    cells = [cell.decode() for cell in tensor.string_val]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    # A single string fills the whole shape.
    if len(cells) == 1:
        return cells[0]
    if len(cells) != math.prod(shape):
        raise DamagedFileError(f"a text of the shape {tuple(shape)} has {len(cells)} strings")
    columns = max(1, shape[-1]) if len(shape) > 1 else 1
    rows = [" | ".join(cells[at : at + columns]) for at in range(0, len(cells), columns)]
    return "\n".join(rows[: shape[-2]] if len(shape) > 2 else rows)


def _decode_tensor(tensor: tensorboard_pb2.TensorProto) -> Array | None:
    """The tensor as float32 or float64; None for other dtypes."""
    stored = {1: ("<f4", tensor.float_val), 2: ("<f8", tensor.double_val)}.get(tensor.dtype)
    if stored is None:
        return None
    dtype, numbers = stored
    flat = np.frombuffer(tensor.tensor_content, dtype) if tensor.tensor_content else np.array(numbers, dtype)
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    # A single number fills the whole shape.
    if flat.size == 1 and 0 <= math.prod(shape) <= _MAX_FILLED:
        return np.broadcast_to(flat.reshape(()), shape)
    if flat.size != math.prod(shape):
        raise DamagedFileError(f"a tensor of the shape {shape} has {flat.size} numbers")
    return flat.reshape(shape)
