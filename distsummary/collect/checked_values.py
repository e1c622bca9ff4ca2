"""Checks and copies a value that a user records under a name, before it is queued."""

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.frames import MAX_PAYLOAD
from distsummary.format.png import layout_of
from distsummary.format.records import PLUGINS, Landscape, Value
from distsummary.frameworks.base import ArraySpec, framework_of, spec_of
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir
from distsummary.pb import mindspore_lineage_pb2 as lineage
from distsummary.training.values import check_tag, scalar

LINEAGE_CLASSES: dict[str, type] = {
    "dataset_graph": lineage.DatasetGraph,
    "train_lineage": lineage.TrainLineage,
    "eval_lineage": lineage.EvaluationLineage,
    "custom_lineage_data": lineage.UserDefinedInfo,
}
# The rest of an event, 8 KiB, is for the tag, the shape, a shard's position (up to 64 axes) and other fields.
MAX_VALUE_BYTES = MAX_PAYLOAD - (8 << 10)
_REMEDIES = {  # kind of dtype -> advice for the user
    "f": "convert it to float64",
    "c": "record its absolute value, or its real and imaginary parts",
    "M": "convert it to a number of seconds",
    "m": "convert it to a number of seconds",
    "V": "record its fields one by one",
}


class OnlyExported:
    """The copy of a tensor that a .npy file can hold but an event cannot."""

    __slots__ = ("_copy",)

    def __init__(self, copy: Any) -> None:  # Any: what the framework's `snapshot` returns
        self._copy = copy

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return int(self._copy.nbytes)

    def result(self) -> Any:
        """The copied array."""
        return self._copy.result()


def checked_value(plugin: object, name: object, value: object, *, exports: bool = False) -> Value:
    """A checked `Value` of a plugin (the kind of value), with arrays copied; does not wait for a device.

    Args:
        plugin: one of `records.PLUGINS`, in any case.
        name: the tag; ignored for graphs and lineage.
        value: for "scalar", a number or a tensor of one element; for "tensor", "histogram" and "image", an
            array as `checked_copy` describes, with at least one dimension for the first two; for "landscape",
            a `records.Landscape`; for "text", a str that takes at most MAX_VALUE_BYTES in UTF-8; for "graph",
            bytes of a ModelProto or GraphProto; for a lineage plugin, its protobuf message.
        exports: whether tensors are also exported as .npy files: see `checked_copy`.

    Raises:
        InvalidTypeError: the value is of a type that the plugin cannot hold.
        InvalidValueError: the plugin is unknown, the name is bad, or the value has a wrong shape or size.
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
    if kind == "text":
        return Value(kind, name, _checked_text(name, value))
    if kind == "scalar":
        return Value(kind, name, scalar(f"the scalar {name!r}", value))
    framework = framework_of(value)
    if not framework.is_tensor(value):
        raise InvalidTypeError(
            f"the {kind} {name!r} must be an array or a tensor, got {type(value).__name__}"
        )
    tensor: Any = value
    if kind != "image" and not tensor.shape:
        raise InvalidValueError(f"the {kind} {name!r} must have at least one dimension; record a scalar")
    return Value(kind, name, checked_copy(kind, name, tensor, exports=exports), framework.shard(tensor))


def checked_copy(
    plugin: str, name: str, tensor: Any, *, exports: bool = False, mindspore_compat: bool = False
) -> Any:
    """Copies an array or tensor as it is now, for a `Value` of the plugin tensor, histogram or image.

    All three accept bool, integers and floats of up to 64 bits, and the small floats of torch and ml_dtypes
    (bfloat16, float8 ...), which become float32. A tensor takes 4 bytes per element in its event, whatever
    its dtype, and at most MAX_VALUE_BYTES. An image must have one of `png.LAYOUTS`; uint8 is kept exactly.

    Args:
        exports: also accept tensors that only a .npy file can hold (complex, long double, text, times,
            structs, and tensors too large for an event), as OnlyExported.
        mindspore_compat: histogram edges are in the dtype of the tensor, as in MindSpore; the histogram is
            therefore counted later on the host, not on the tensor's device.

    Raises:
        InvalidTypeError: the dtype cannot be recorded. InvalidValueError: the shape or size is wrong.
    """
    framework, field = framework_of(tensor), f"the {plugin} {name!r}"
    spec = spec_of(field, tensor)
    if plugin == "tensor" and exports and not spec.dtype.hasobject and not _fits_event(spec):
        return OnlyExported(framework.snapshot(tensor))
    if not is_real(spec.dtype):
        remedy = _REMEDIES.get(spec.dtype.kind, "convert it to numbers")
        raise InvalidTypeError(
            f"{field} must be bool, integer or float of up to 64 bits, got {spec.dtype}; {remedy}"
        )
    if plugin == "image":
        try:
            layout_of(spec.shape)
        except InvalidValueError as error:
            raise InvalidValueError(f"{field}: {error}") from error
    elif plugin == "tensor" and not _fits_event(spec):
        raise InvalidValueError(
            f"{field} of shape {spec.shape} takes {4 * math.prod(spec.shape)} bytes, more than the "
            f"{MAX_VALUE_BYTES} of an event; record a part of it or its histogram, or export tensors with "
            'export_options={"tensor_format": "npy"}'
        )
    elif plugin == "histogram" and not mindspore_compat:
        return framework.histogram(tensor)
    return framework.snapshot(tensor)


def _checked_text(name: str, value: object) -> str:
    field = f"the text {name!r}"
    if isinstance(value, (bytes, bytearray)):
        raise InvalidTypeError(f"{field} must be str, got {type(value).__name__}; decode it: value.decode()")
    if not isinstance(value, str):
        raise InvalidTypeError(f"{field} must be str, got {type(value).__name__}; convert it with str()")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{field} cannot be written as UTF-8: character {error.start} is the surrogate "
            f'{value[error.start]!r}; replace it: value.encode(errors="replace").decode()'
        ) from error
    if size > MAX_VALUE_BYTES:
        raise InvalidValueError(
            f"{field} takes {size} bytes, more than the {MAX_VALUE_BYTES} of an event; record a part of it"
        )
    return str.__str__(value)  # a plain str: a subclass may be unknown to the collector's process


def graph_bytes(value: object) -> bytes:
    """The serialised GraphProto, from bytes of a GraphProto or of a ModelProto that contains one."""
    if not isinstance(value, (bytes, bytearray)):
        raise InvalidTypeError(
            f"a graph must be bytes of a ModelProto or GraphProto, got {type(value).__name__}; serialise it"
        )
    data = bytes(value)
    # Field 1 is a number in a ModelProto, but holds the nodes in a GraphProto. So a ModelProto's bytes never
    # parse as a GraphProto with nodes.
    try:
        if anf_ir.GraphProto.FromString(data).node:
            return data
    except DecodeError:
        pass  # the bytes may be a ModelProto
    try:
        model = anf_ir.ModelProto.FromString(data)
    except DecodeError as error:
        raise InvalidValueError(f"a graph must be bytes of a ModelProto or GraphProto: {error}") from error
    if not model.graph.node:
        raise InvalidValueError("a graph must have nodes, got a ModelProto or GraphProto without nodes")
    return model.graph.SerializeToString()


def _check_class(plugin: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise InvalidTypeError(
            f"the value of {plugin} must be a {expected.__name__}, got {type(value).__name__}"
        )


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of `dtype` can be recorded: bool, integers and floats of up to 64 bits."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def _fits_event(spec: ArraySpec) -> bool:
    return is_real(spec.dtype) and 4 * math.prod(spec.shape) <= MAX_VALUE_BYTES
