"""Protobuf messages that a user records: graphs, lineage and landscapes, of MindSpore's classes or of ours.

MindSpore has its own classes for the same messages. The functions therefore recognise a message by its name
in the .proto file, and not by its class. They raise InvalidTypeError for anything but such a message, and
InvalidValueError for one that does not parse.
"""

from typing import Any

from google.protobuf.message import DecodeError, EncodeError, Message

from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.format.mindspore_format import decode_landscape
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.records import Landscape

LINEAGE_CLASSES: dict[str, type[Message]] = {
    "dataset_graph": lineage_pb2.DatasetGraph,
    "train_lineage": lineage_pb2.TrainLineage,
    "eval_lineage": lineage_pb2.EvaluationLineage,
    "custom_lineage_data": lineage_pb2.UserDefinedInfo,
}


def graph_bytes(value: object) -> bytes:
    """The serialised GraphProto, from a GraphProto, a ModelProto that contains one, or bytes of either."""
    if not isinstance(value, (bytes, bytearray)) and _kind(value) not in ("GraphProto", "ModelProto"):
        raise InvalidTypeError(
            f"a graph must be a ModelProto or GraphProto, or bytes of one, got {type(value).__name__}"
        )
    data = bytes(value) if isinstance(value, (bytes, bytearray)) else _serialised("a graph", value)
    # Field 1 is a number in a ModelProto, but holds the nodes in a GraphProto. So a ModelProto's bytes never
    # parse as a GraphProto with nodes.
    try:
        if anf_ir.GraphProto.FromString(data).node:
            return data
    except (DecodeError, UnicodeDecodeError):
        # The bytes may be a ModelProto. UnicodeDecodeError is raised by protobuf's implementation in Python,
        # which MindSpore chooses.
        pass
    try:
        model = anf_ir.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"a graph must be bytes of a ModelProto or GraphProto: {error}") from error
    if not model.graph.node:
        raise InvalidValueError("a graph must have nodes, got a ModelProto or GraphProto without nodes")
    return model.graph.SerializeToString()


def lineage_message(plugin: str, value: object) -> Message:
    """A copy of the message of a lineage plugin, in our class."""
    expected = LINEAGE_CLASSES[plugin]
    field, wanted = f"the value of {plugin}", expected.DESCRIPTOR.name
    if _kind(value) != wanted:
        raise InvalidTypeError(
            f"{field} must be a protobuf message {wanted}, got {_kind(value) or type(value).__name__}"
        )
    try:
        return expected.FromString(_serialised(field, value))
    except DecodeError as error:
        raise InvalidValueError(f"{field} is not MindSpore's {wanted}: {error}") from error


def landscape_of(field: str, value: object) -> Landscape:
    """The Landscape itself, or the one in a LossLandscape message."""
    if isinstance(value, Landscape):
        return value
    if _kind(value) != "LossLandscape":
        raise InvalidTypeError(
            f"{field} must be a Landscape or a LossLandscape message, got {type(value).__name__}"
        )
    try:
        return decode_landscape(summary_pb2.LossLandscape.FromString(_serialised(field, value)))
    except (DecodeError, DamagedFileError) as error:
        raise InvalidValueError(f"{field} is not MindSpore's LossLandscape: {error}") from error


def _kind(message: object) -> str:
    """The name that its .proto file gives to the kind of a message; "" if it is no message."""
    return str(getattr(getattr(type(message), "DESCRIPTOR", None), "name", ""))


def _serialised(field: str, message: Any) -> bytes:
    try:
        return bytes(message.SerializeToString())
    except EncodeError as error:
        raise InvalidValueError(f"{field} is not complete: {error}; set these fields") from error
