"""One event to the payloads of every dialect; what the dialects share is computed once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.checks import check_choice, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.frames import MAX_PAYLOAD, Part
from distsummary.format.histogram import count_histogram
from distsummary.format.mindspore_format import DATA_TYPES
from distsummary.format.png import encode_image
from distsummary.format.records import (
    DIALECTS,
    PLUGINS,
    SUMMARY_PLUGINS,
    Array,
    Event,
    EventIds,
    Histogram,
    Image,
    Landscape,
    Value,
)
from distsummary.pb import mindspore_anf_ir_pb2 as anf_ir_pb2

MAX_TAG = 1024  # bytes
_ENVELOPE = 256  # bytes of an event beside its values, and of
_VALUE_ENVELOPE = 16  # a value beside its encoding: more than there ever are
_VALUE_ENCODERS: dict[str, Callable[[Value], list[Part] | None]] = {
    "mindspore": mindspore_format.value_parts,
    "tensorboard": tensorboard_format.value_parts,
}


class Refusal(NamedTuple):
    """A value that was not written, and why."""

    plugin: str
    tag: str
    reason: str


def encode_event(
    event: Event,
    ids: EventIds | None,
    dialects: tuple[str, ...] = DIALECTS,
    *,
    mindspore_compat: bool = False,
    max_payload: int = MAX_PAYLOAD,
) -> tuple[dict[str, bytes | None], list[Refusal]]:
    """The payload of an event in each of `dialects`, None where it has nothing to say; and what was refused.

    A bad value costs that value only. A summary whose values were all refused is still an event of the
    MindSpore dialect, as MindSpore writes it: it keeps the numbering whole. Lineage is a state with a file
    of its own (`lineage.encode_lineage`): a value of it is refused here. A graph stands alone in
    its event (`records.split_event`): beside other values it is refused.

    Args:
        event: values may hold arrays, finished records or anything with `result()`.
        ids: written into each payload; None writes what MindSpore itself would.
        dialects: of "mindspore" and "tensorboard".
        mindspore_compat: histogram edges and image scaling as MindSpore computes them.
        max_payload: a value that would make the event larger (bytes) is refused, since no reader takes it.
    """
    payloads, refused = event_parts(
        event, ids, dialects, mindspore_compat=mindspore_compat, max_payload=max_payload
    )
    return {name: None if parts is None else b"".join(parts) for name, parts in payloads.items()}, refused


def event_parts(
    event: Event,
    ids: EventIds | None,
    dialects: tuple[str, ...] = DIALECTS,
    *,
    mindspore_compat: bool = False,
    max_payload: int = MAX_PAYLOAD,
) -> tuple[dict[str, list[Part] | None], list[Refusal]]:
    """The same as `encode_event` with each payload in parts, for `frames.frame_parts` and `os.writev`.

    Arrays of float32 and encoded pictures are not copied: they must not change before the parts are written.
    """
    refused: list[Refusal] = []
    encoded: dict[str, list[list[Part]]] = {dialect: [] for dialect in dialects}
    graph: bytes | None = None
    room = {dialect: max_payload - _ENVELOPE for dialect in dialects}
    for value in event.values:
        try:
            if value.plugin not in PLUGINS:  # asked first, since the check itself is slow
                check_choice("the plugin of a value", value.plugin, PLUGINS)
            if value.plugin == "graph":
                _refuse_company(event)
                graph = _finish_graph(_resolve(value.data))
                _take_room(room, {dialect: [graph] for dialect in dialects})
                continue
            finished = finish_value(value, mindspore_compat=mindspore_compat, max_payload=max_payload)
            parts = {dialect: _VALUE_ENCODERS[dialect](finished) for dialect in dialects}
            _take_room(room, parts)
        except Exception as error:  # reported: a device copy or an array of others may fail in any way
            refused.append(Refusal(value.plugin, str(value.tag), f"{type(error).__name__}: {error}"))
        else:
            for dialect, part in parts.items():
                if part is not None:
                    encoded[dialect].append(part)
    payloads = {dialect: _payload(dialect, event, ids, encoded[dialect], graph) for dialect in dialects}
    return payloads, refused


def finish_value(value: Value, *, mindspore_compat: bool = False, max_payload: int = MAX_PAYLOAD) -> Value:
    """The same value with finished data: a float, an array, Histogram, Image or Landscape.

    Raises InvalidTypeError or InvalidValueError for what the plugin cannot hold, and what `result()` raises.
    """
    check_type("the tag of a value", value.tag, str)
    length = len(value.tag.encode())
    if not 0 < length <= MAX_TAG:
        raise InvalidValueError(f"a tag must have 1 to {MAX_TAG} bytes, got {length}; choose another name")
    if value.plugin not in SUMMARY_PLUGINS:
        raise InvalidValueError(
            f"{value.plugin} is lineage, kept whole in a file of its own; it is no part of a summary"
        )
    data = _resolve(value.data)
    match value.plugin:
        case "scalar":
            data = _finish_scalar(data)
        case "tensor":
            data = _finish_tensor(data, max_payload)
        case "histogram" if not isinstance(data, Histogram):
            data = count_histogram(data, mindspore_compat=mindspore_compat)
        case "image" if not isinstance(data, Image):
            data = encode_image(data, mindspore_compat=mindspore_compat)
        case "landscape":
            _check_landscape(data)
    return value._replace(data=data)


def _resolve(data: Any) -> Any:  # Any: whatever a framework gives, checked by what finishes it
    return data.result() if hasattr(data, "result") else data


def _finish_scalar(data: Any) -> float:
    if isinstance(data, (int, float)):
        return float(data)
    array = np.asarray(data)
    if array.dtype.kind not in "biuf":
        raise InvalidTypeError(
            f"a scalar must be a number, got {type(data).__name__}; convert it with float()"
        )
    if array.size != 1:
        raise InvalidValueError(
            f"a scalar must be one number, got the shape {array.shape}; reduce it or record a tensor"
        )
    return float(array.reshape(-1)[0])


def _finish_tensor(data: Any, max_payload: int) -> Array:
    array = np.asarray(data)
    if array.dtype.name not in DATA_TYPES:
        raise InvalidTypeError(
            f"a tensor must be one of {', '.join(DATA_TYPES)}, got {array.dtype}; "
            "convert it (bfloat16 to float32)"
        )
    if array.size * 4 > max_payload:
        raise InvalidValueError(
            f"a tensor of {array.size} elements takes {array.size * 4} bytes, more than the {max_payload} of "
            "an event; record a part of it or its histogram"
        )
    return array


def _check_landscape(data: Any) -> None:
    check_type("the data of a landscape", data, Landscape)
    if data.z.shape != data.y.shape + data.x.shape:
        raise InvalidValueError(
            f"z of a landscape must have the shape (len(y), len(x)) = {data.y.shape + data.x.shape}, "
            f"got {data.z.shape}; transpose it"
        )
    if not data.path_x.shape == data.path_y.shape == data.path_z.shape:
        raise InvalidValueError(
            "path_x, path_y and path_z of a landscape must be equally long, got "
            f"{data.path_x.shape}, {data.path_y.shape} and {data.path_z.shape}; give one point per checkpoint"
        )


def _finish_graph(data: Any) -> bytes:
    check_type("the data of a graph", data, bytes)
    try:
        anf_ir_pb2.GraphProto.FromString(data)
    except DecodeError as error:
        raise InvalidValueError(f"the data of a graph must be a serialised GraphProto ({error})") from error
    return bytes(data)


def _refuse_company(event: Event) -> None:
    if len(event.values) > 1:
        raise InvalidValueError(
            f"a graph must be alone in its event, got {len(event.values)} values; use records.split_event"
        )


def _take_room(room: dict[str, int], parts: Mapping[str, list[Part] | None]) -> None:
    """Take what the parts need from the room in each dialect, or raise and take nothing."""
    needs = {d: sum(map(len, part)) + _VALUE_ENVELOPE for d, part in parts.items() if part is not None}
    for dialect, need in needs.items():
        if need > room[dialect]:
            raise InvalidValueError(
                f"the value needs {need} bytes, and the event has {room[dialect]} left; record less at a step"
            )
    for dialect, need in needs.items():
        room[dialect] -= need


def _payload(
    dialect: str, event: Event, ids: EventIds | None, values: list[list[Part]], graph: bytes | None
) -> list[Part] | None:
    if dialect == "tensorboard":
        if not values:
            return None
        return tensorboard_format.summary_parts(event.step, event.wall_time, values, ids)
    if graph is not None:
        return [mindspore_format.encode_graph(graph, event.wall_time, ids)]
    if event.values and all(value.plugin not in SUMMARY_PLUGINS for value in event.values):
        return None
    return mindspore_format.summary_parts(event.step, event.wall_time, values, ids)
