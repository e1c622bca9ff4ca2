"""The lineage of a run: up to four messages (data, training, evaluation, custom) and their events."""

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from distsummary.errors import DamagedFileError, InvalidTypeError
from distsummary.format import wire
from distsummary.format.frames import frame, read_frames
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.records import Event, EventIds, Value

LineageMessage: TypeAlias = (
    lineage_pb2.TrainLineage
    | lineage_pb2.EvaluationLineage
    | lineage_pb2.DatasetGraph
    | lineage_pb2.UserDefinedInfo
)


class _Fields(NamedTuple):
    event: str  # the field of LineageEvent
    state: str  # the field of Lineage


# The fields of each plugin, in the order of the events in MindSpore's lineage files.
_FIELDS = {
    "dataset_graph": _Fields("dataset_graph", "dataset_graph"),
    "custom_lineage_data": _Fields("user_defined_info", "custom"),
    "train_lineage": _Fields("train_lineage", "train"),
    "eval_lineage": _Fields("evaluation_lineage", "evaluation"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The lineage of one run so far. The object is immutable: `updated_lineage` returns a new one."""

    train: lineage_pb2.TrainLineage | None = None
    evaluation: lineage_pb2.EvaluationLineage | None = None
    dataset_graph: lineage_pb2.DatasetGraph | None = None
    custom: lineage_pb2.UserDefinedInfo | None = None

    def to_bytes(self) -> bytes:
        """The lineage as framed events with the wall time 0, for sending it to another process."""
        return b"".join(map(frame, encode_lineage(self, 0.0)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Lineage":
        """The lineage that `to_bytes` encoded; raises DamagedFileError for other bytes."""
        messages: dict[str, Any] = {}  # Any: each field has a class of its own
        end = 0
        for framed in read_frames(io.BytesIO(data)):
            end = framed.end
            problem, decoded = framed.damage, None
            if problem is None:
                try:
                    decoded = decode_lineage_event(framed.payload)
                except DamagedFileError as error:
                    problem = str(error)
            if decoded is None:
                problem = problem or "the event holds no lineage"
                raise DamagedFileError(
                    f"lineage is damaged at byte {framed.offset}: {problem}; send it again"
                )
            (value,) = decoded[1].values
            messages[_FIELDS[value.plugin].state] = value.data
        if end != len(data):
            raise DamagedFileError(f"lineage of {len(data)} bytes is torn at byte {end}; send it again")
        return cls(**messages)


def lineage_values(lineage: Lineage) -> list[Value]:
    """One value for each message of a lineage."""
    messages = {plugin: getattr(lineage, fields.state) for plugin, fields in _FIELDS.items()}
    return [Value(plugin, "", message) for plugin, message in messages.items() if message is not None]


def updated_lineage(lineage: Lineage, value: Value) -> Lineage:
    """The lineage with the message of `value` in place of the older one; custom information is merged."""
    fields = _FIELDS.get(value.plugin)
    if fields is None:
        raise InvalidTypeError(f"{value.plugin} is not a lineage plugin; use one of {', '.join(_FIELDS)}")
    message = value.data
    if value.plugin == "custom_lineage_data":
        message = merge_custom(lineage.custom, message)
    changes: dict[str, Any] = {fields.state: message}  # Any: each field has a class of its own
    return replace(lineage, **changes)


def merge_custom(
    older: lineage_pb2.UserDefinedInfo | None, newer: lineage_pb2.UserDefinedInfo
) -> lineage_pb2.UserDefinedInfo:
    """Merge both messages: one entry for each key, with the newer value, as in MindSpore."""
    entries: dict[str, lineage_pb2.UserDefinedInfo] = {}
    for info in (older, newer):
        if info is not None:
            entries |= {key: entry for key, entry in _custom_entries(info)}
    return lineage_pb2.UserDefinedInfo(user_info=entries.values())


def custom_values(info: lineage_pb2.UserDefinedInfo) -> dict[str, str | int | float]:
    """The texts and numbers of custom information by their keys; groups (map_dict) are left out."""
    found: dict[str, str | int | float] = {}
    for _, entry in _custom_entries(info):
        found |= {**entry.map_int32, **entry.map_str, **entry.map_double}
    return found


def _custom_entries(
    info: lineage_pb2.UserDefinedInfo,
) -> Iterable[tuple[str, lineage_pb2.UserDefinedInfo]]:
    for nested in info.user_info:
        yield from _custom_entries(nested)
    for key, number in info.map_int32.items():
        yield key, lineage_pb2.UserDefinedInfo(map_int32={key: number})
    for key, text in info.map_str.items():
        yield key, lineage_pb2.UserDefinedInfo(map_str={key: text})
    for key, real in info.map_double.items():
        yield key, lineage_pb2.UserDefinedInfo(map_double={key: real})
    for key, group in info.map_dict.items():
        yield key, lineage_pb2.UserDefinedInfo(map_dict={key: group})


def encode_lineage(lineage: Lineage, wall_time: float, ids: EventIds | None = None) -> list[bytes]:
    """The payloads of a lineage file: one event for each message (readers keep one message per event)."""
    return [
        encode_lineage_message(value.plugin, value.data, wall_time, ids) for value in lineage_values(lineage)
    ]


def encode_lineage_message(
    plugin: str, message: LineageMessage, wall_time: float, ids: EventIds | None = None
) -> bytes:
    """The payload of one lineage event. Raises InvalidTypeError if the message does not fit the plugin."""
    event = lineage_pb2.LineageEvent(wall_time=wall_time)
    field = getattr(event, _FIELDS[plugin].event)
    if not isinstance(message, type(field)):
        raise InvalidTypeError(
            f"{plugin} must be a {type(field).__name__}, got {type(message).__name__}; pass that message"
        )
    # Writes the field even if the message is empty.
    field.SetInParent()
    field.CopyFrom(message)
    return event.SerializeToString(deterministic=True) + wire.identity(ids)


def decode_lineage_event(payload: bytes) -> tuple[EventIds, Event] | None:
    """The identity and the message of a lineage event; None for other records; may raise DamagedFileError."""
    try:
        event = lineage_pb2.LineageEvent.FromString(payload)
        ids = wire.read_identity(payload)
    except (DecodeError, ValueError) as error:
        raise DamagedFileError(f"not a lineage event of MindSpore ({error})") from error
    kind = event.WhichOneof("what")
    for plugin, fields in _FIELDS.items():
        if fields.event == kind:
            value = Value(plugin, "", getattr(event, fields.event))
            return ids, Event(event.step, event.wall_time, [value])
    return None
