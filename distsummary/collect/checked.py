"""A value that a user hands over by name, checked and copied before it goes on its way."""

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.events.records import PLUGINS, Landscape, Value
from distsummary.frameworks.base import framework_of
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir
from distsummary.pb import mindspore_lineage_pb2 as lineage
from distsummary.training.values import check_tag, scalar

LINEAGE_CLASSES: dict[str, type] = {
    "dataset_graph": lineage.DatasetGraph,
    "train_lineage": lineage.TrainLineage,
    "eval_lineage": lineage.EvaluationLineage,
    "custom_lineage_data": lineage.UserDefinedInfo,
}


def checked_value(plugin: object, name: object, value: object) -> Value:
    """The value of a plugin; arrays are copied, device tensors without waiting for the device.

    Args:
        plugin: one of `records.PLUGINS`, in any case.
        name: the tag; of no consequence for graphs and lineage.
        value: scalar: a number or a tensor of one element. tensor, histogram: an array or tensor of one or
            more dimensions. image: (N, C, H, W) with 1 or 3 channels. landscape: `records.Landscape`. graph:
            bytes of a ModelProto or GraphProto. The lineage plugins: their protobuf message.

    Raises:
        InvalidTypeError: the value is of a type that the plugin cannot hold.
        InvalidValueError: the plugin is unknown, the name is no name, or the value has a wrong shape.
    """
    kind = plugin.lower() if isinstance(plugin, str) else plugin
    if kind not in PLUGINS or not isinstance(kind, str):
        raise InvalidValueError(f"plugin must be one of {list(PLUGINS)}, got {plugin!r}")
    if kind in LINEAGE_CLASSES:
        _check_class(kind, value, LINEAGE_CLASSES[kind])
        return Value(kind, "", value)
    if kind == "graph":
        return Value(kind, name if isinstance(name, str) else "", graph_bytes(value))
    if not isinstance(name, str) or not name:
        raise InvalidValueError(f"the name of a {kind} must be text that is not empty, got {name!r}")
    check_tag(name)
    if kind == "landscape":
        _check_class(kind, value, Landscape)
        return Value(kind, name, value)
    if kind == "scalar":
        return Value(kind, name, scalar(f"the scalar {name!r}", value))
    framework = framework_of(value)
    if not framework.is_tensor(value):
        raise InvalidTypeError(
            f"the {kind} {name!r} must be an array or a tensor, got {type(value).__name__}"
        )
    tensor: Any = value
    _check_dtype(kind, name, tensor)
    _check_shape(kind, name, tuple(tensor.shape))
    return Value(kind, name, framework.snapshot(tensor), framework.shard(tensor))


def graph_bytes(value: object) -> bytes:
    """The serialised GraphProto in bytes of a GraphProto or of a ModelProto around one."""
    if not isinstance(value, (bytes, bytearray)):
        raise InvalidTypeError(
            f"a graph must be bytes of a ModelProto or GraphProto, got {type(value).__name__}; serialise it"
        )
    data = bytes(value)
    # A ModelProto begins with a number where a GraphProto has its nodes: it never parses as one with nodes.
    try:
        if anf_ir.GraphProto.FromString(data).node:
            return data
    except DecodeError:
        pass  # the other message may fit
    try:
        model = anf_ir.ModelProto.FromString(data)
    except DecodeError as error:
        raise InvalidValueError(f"a graph must be bytes of a ModelProto or GraphProto: {error}") from error
    if not model.graph.node:
        raise InvalidValueError("a graph must have nodes, got a ModelProto or GraphProto without any")
    return model.graph.SerializeToString()


def _check_class(plugin: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise InvalidTypeError(
            f"the value of {plugin} must be a {expected.__name__}, got {type(value).__name__}"
        )


def _check_dtype(plugin: str, name: str, tensor: Any) -> None:
    dtype = tensor.dtype
    is_numeric = (
        dtype.kind in "biuf" and dtype.itemsize <= 8
        if isinstance(dtype, np.dtype)
        else "complex" not in str(dtype)
    )
    if not is_numeric:
        raise InvalidTypeError(
            f"the {plugin} {name!r} must be bool, integer or float of up to 64 bits, got {dtype}; convert it"
        )


def _check_shape(plugin: str, name: str, shape: tuple[int, ...]) -> None:
    if plugin != "image":
        if not shape:
            raise InvalidValueError(
                f"the {plugin} {name!r} must have at least one dimension; record a scalar"
            )
    elif len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape:
        raise InvalidValueError(
            f"the image {name!r} must have shape (N, C, H, W), not empty, with 1 or 3 channels, got {shape}"
        )
