"""Encodes events as frames of each format: many scalar events at a time, other events one by one.

Work that the formats share (PNG bytes, bin counts) is done once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from distsummary.base.checks import check_choice, check_text, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format import mindspore_format, tensorboard_format, wire
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.frames import MAX_PAYLOAD, Framed, Part, frame_parts
from distsummary.format.histogram import count_histogram
from distsummary.format.mindspore_format import DATA_TYPES
from distsummary.format.pb.tensorboard_custom_scalars_pb2 import Layout
from distsummary.format.pb.tensorboard_hparams_pb2 import HParamsPluginData
from distsummary.format.records import (
    CURVE_ROWS,
    CUSTOM_SCALARS,
    DIALECTS,
    HPARAMS,
    LINEAGE_PLUGINS,
    MAX_TAG_BYTES,
    MINDSPORE,
    NORMS,
    PLUGINS,
    SUMMARY_PLUGINS,
    TENSORBOARD,
    TENSORBOARD_EVENT,
    TENSORBOARD_PLUGINS,
    Audio,
    Event,
    EventIds,
    Histogram,
    Image,
    Landscape,
    Scalars,
    Value,
    is_removable,
)
from distsummary.format.scalar_encoder import ScalarEncoder
from distsummary.format.scalar_rows import events_of

_ENVELOPE = 256  # upper bound of an event's bytes without its values
_VALUE_ENVELOPE = 16  # upper bound of a value's bytes without its encoding
_MESSAGES = {HPARAMS: HParamsPluginData, CUSTOM_SCALARS: Layout, TENSORBOARD_EVENT: bytes}
_ALONE = ("graph", TENSORBOARD_EVENT)  # these fill an event
_VALUE_ENCODERS: dict[str, Callable[[Value], list[Part] | None]] = {
    "mindspore": mindspore_format.value_parts,
    "tensorboard": tensorboard_format.value_parts,
}
_GRAPH_ENCODERS = {
    "mindspore": mindspore_format.graph_parts,
    "tensorboard": tensorboard_format.graph_parts,
}


class Refusal(NamedTuple):
    """A value that was not written, and why."""

    plugin: str
    tag: str
    reason: str


def encode_event(
    event: Event,
    ids: EventIds | None,
    formats: tuple[str, ...] = DIALECTS,
    *,
    compatibility: Compatibility = OURS,
) -> tuple[dict[str, bytes | None], list[Refusal]]:
    """The payload of an event in each format (None if the format cannot show it), and the refused values.

    A bad value, or one that would make the event too large, does not affect the others. A summary whose
    values were all refused is still written in the MindSpore format, as MindSpore does, so that the seqs have
    no gaps. Lineage values are refused here, because lineage is written to a file of its own
    (`lineage.encode_lineage`). A graph, and an event of TensorBoard, must be the only value of its event
    (`records.split_event`).

    Args:
        event: its values hold arrays on the host or records such as Histogram; copies from a device must have
            ended.
        ids: written into each payload; with None the payload equals what MindSpore itself writes.
        formats: some of "mindspore" and "tensorboard".
        compatibility: whether histograms and images are those of MindSpore.
    """
    payloads, refused = event_parts(event, ids, formats, compatibility=compatibility)
    return {name: None if parts is None else b"".join(parts) for name, parts in payloads.items()}, refused


def event_parts(
    event: Event,
    ids: EventIds | None,
    formats: tuple[str, ...] = DIALECTS,
    *,
    compatibility: Compatibility = OURS,
) -> tuple[dict[str, list[Part] | None], list[Refusal]]:
    """The same as `encode_event`, with each payload in parts for `frames.frame_parts` and `os.writev`.

    Arrays of float32 and encoded pictures are not copied: they must not change before the parts are written.
    """
    refused: list[Refusal] = []
    encoded: dict[str, list[list[Part]]] = {dialect: [] for dialect in formats}
    whole: dict[str, list[Part] | None] = {}  # the payloads of an event whose value fills it
    room = {dialect: MAX_PAYLOAD - _ENVELOPE for dialect in formats}
    for value in event.values:
        try:
            # Checked here first, because check_choice is slow.
            if value.plugin not in PLUGINS and value.plugin not in TENSORBOARD_PLUGINS:
                check_choice("the plugin of a value", value.plugin, PLUGINS)
            parts: dict[str, list[Part] | None]
            if value.plugin in _ALONE:
                if len(event.values) > 1:
                    raise InvalidValueError(
                        f"a {value.plugin} must be alone in its event, got {len(event.values)} values; "
                        "use records.split_event"
                    )
                check_type(f"the data of a {value.plugin}", value.data, bytes)
            if value.plugin == "graph":
                from distsummary.format import mindspore_graph, tensorboard_graph

                graph = mindspore_graph.decode(value.data)
                drawn = {
                    dialect: tensorboard_graph.encode(graph) if dialect == TENSORBOARD else value.data
                    for dialect in formats
                }
                parts = {d: _GRAPH_ENCODERS[d]([data], event.wall_time, ids) for d, data in drawn.items()}
            elif value.plugin == TENSORBOARD_EVENT:
                parts = {d: [value.data, wire.identity(ids)] for d in formats if d == TENSORBOARD}
            else:
                finished = finish_value(value, compatibility=compatibility)
                shown_in = _dialects_of(value.plugin, formats)
                parts = {dialect: _VALUE_ENCODERS[dialect](finished) for dialect in shown_in}
            needs = {
                d: sum(map(len, part)) + _VALUE_ENVELOPE for d, part in parts.items() if part is not None
            }
            for dialect, need in needs.items():
                if need > room[dialect]:
                    raise InvalidValueError(
                        f"the value needs {need} bytes, but the event has only {room[dialect]} left; "
                        "record less at a step"
                    )
        except Exception as error:
            # Becomes a refusal: another library's array may raise anything.
            refused.append(Refusal(value.plugin, str(value.tag), f"{type(error).__name__}: {error}"))
            continue
        # Only now, since a value that does not fit into one dialect is in none.
        for dialect, need in needs.items():
            room[dialect] -= need
        if value.plugin in _ALONE:
            whole = parts
            continue
        for dialect, part in parts.items():
            if part is not None:
                encoded[dialect].append(part)

    payloads: dict[str, list[Part] | None] = {}
    # Values that were all refused still leave a summary, so that the seqs have no gaps.
    holds_summary = not event.values or any(value.plugin in SUMMARY_PLUGINS for value in event.values)
    for dialect, values in encoded.items():
        if (payload := whole.get(dialect)) is not None:
            payloads[dialect] = payload
        elif dialect == "tensorboard":
            payloads[dialect] = (
                tensorboard_format.summary_parts(event.step, event.wall_time, values, ids) if values else None
            )
        elif holds_summary:
            payloads[dialect] = mindspore_format.summary_parts(event.step, event.wall_time, values, ids)
        else:
            payloads[dialect] = None
    return payloads, refused


def _dialects_of(plugin: str, formats: tuple[str, ...]) -> tuple[str, ...]:
    """The dialects that have the values of a plugin: norms, which no viewer shows, are in one only."""
    if plugin in TENSORBOARD_PLUGINS:
        return tuple(dialect for dialect in formats if dialect == TENSORBOARD)
    return (MINDSPORE,) if plugin == NORMS and MINDSPORE in formats else formats


def finish_value(value: Value, *, compatibility: Compatibility = OURS) -> Value:
    """The same value with its data as a float, an array, Histogram, Image, Landscape, text or Audio.

    Raises InvalidTypeError or InvalidValueError for data that the plugin cannot hold.
    """
    check_type("the tag of a value", value.tag, str)
    length = len(value.tag.encode())
    if not 0 < length <= MAX_TAG_BYTES:
        raise InvalidValueError(
            f"a tag must have 1 to {MAX_TAG_BYTES} bytes, got {length}; choose another name"
        )
    if value.plugin in TENSORBOARD_PLUGINS:
        check_type(f"the data of {value.plugin}", value.data, _MESSAGES[value.plugin])
        return value
    if value.plugin not in SUMMARY_PLUGINS:
        raise InvalidValueError(
            f"{value.plugin} is lineage, which has its own file; it cannot be part of a summary"
        )
    data = value.data
    match value.plugin:
        case "scalar":
            if not isinstance(data, (int, float)):
                data = np.asarray(data)
                if data.dtype.kind not in "biuf":
                    raise InvalidTypeError(
                        f"a scalar must be a number, got {type(value.data).__name__}; convert it with float()"
                    )
                if data.size != 1:
                    raise InvalidValueError(
                        f"a scalar must be one number, got the shape {data.shape}; "
                        "reduce it or record a tensor"
                    )
                data = data.reshape(-1)[0]
            data = float(data)
        case "tensor":
            data = np.asarray(data)
            if data.dtype.name not in DATA_TYPES:
                raise InvalidTypeError(
                    f"a tensor must be one of {', '.join(DATA_TYPES)}, got {data.dtype}; "
                    "convert it (bfloat16 to float32)"
                )
            # Checked before a copy is made: files hold each element as float32.
            if data.size * 4 > MAX_PAYLOAD:
                raise InvalidValueError(
                    f"a tensor of {data.size} elements takes {data.size * 4} bytes, more than the "
                    f"{MAX_PAYLOAD} of an event; record a part of it or its histogram"
                )
        case "histogram" if not isinstance(data, Histogram):
            data = count_histogram(data, compatibility=compatibility, fixed=value.shard is not None)
        case "image" if not isinstance(data, Image):
            from distsummary.format.png import encode_image

            data = encode_image(data, compatibility=compatibility)
        case "landscape":
            check_type("the data of a landscape", data, Landscape)
            if data.z.shape != data.y.shape + data.x.shape:
                raise InvalidValueError(
                    "z of a landscape must have the shape (len(y), len(x)) = "
                    f"{data.y.shape + data.x.shape}, got {data.z.shape}; transpose it"
                )
            if not data.path_x.shape == data.path_y.shape == data.path_z.shape:
                raise InvalidValueError(
                    "path_x, path_y and path_z of a landscape must be equally long, got "
                    f"{data.path_x.shape}, {data.path_y.shape} and {data.path_z.shape}; "
                    "give one point per checkpoint"
                )
        case "text":
            check_type("the data of a text", data, str)
            check_text(f"the text {value.tag!r}", data)
        case "audio":
            check_type("the data of an audio", data, Audio)
        case "pr_curve":
            data = np.asarray(data, np.float32)
            if data.ndim != 2 or len(data) != len(CURVE_ROWS):
                raise InvalidValueError(
                    f"a PR curve must have the shape ({len(CURVE_ROWS)}, T), got {data.shape}; its rows are "
                    f"{', '.join(CURVE_ROWS)}"
                )
    return value._replace(data=data)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The frames of some events in each format, in order; events that a format cannot show have none in it.

    Lineage has no frames here: it is written as a whole to a file of its own. `bulk`: the seqs of the events
    with bulk values that may be removed later.
    """

    framed: dict[str, list[Framed]]
    lineage: list[Value] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    bulk: set[int] = field(default_factory=set)


class EventEncoder:
    """Encodes the events of one attempt as frames.

    Args:
        run_id, attempt: written into every event, with its sequence number.
        formats: the formats of the frames.
        compatibility: whether histograms and images are those of MindSpore.
    """

    def __init__(
        self, run_id: str, attempt: int, formats: tuple[str, ...], *, compatibility: Compatibility = OURS
    ) -> None:
        self._run_id, self._attempt, self._formats = run_id, attempt, formats
        self._compatibility = compatibility
        self._scalars = ScalarEncoder(run_id, attempt, formats)

    def encode(self, first_seq: int, events: Iterable[Event | Scalars]) -> Encoded:
        """The frames of events first_seq, first_seq + 1, ...; large arrays are referenced, not copied."""
        encoded = Encoded({dialect: [] for dialect in self._formats})
        seq = first_seq
        for item in events:
            if isinstance(item, Scalars):
                for stretch in self._scalars.encode(seq, item):
                    if stretch.framed is None:
                        unusual = islice(events_of(item), stretch.start, stretch.stop)
                        for number, event in enumerate(unusual, seq + stretch.start):
                            self._add_event(encoded, number, event)
                    else:
                        for dialect, framed in stretch.framed.items():
                            encoded.framed[dialect].append(framed)
                seq += item.size
            else:
                if item.values and item.values[0].plugin in LINEAGE_PLUGINS:
                    encoded.lineage.extend(item.values)
                else:
                    self._add_event(encoded, seq, item)
                seq += 1
        return encoded

    def _add_event(self, encoded: Encoded, seq: int, event: Event) -> None:
        ids = EventIds(self._run_id, self._attempt, seq)
        payloads, refused = event_parts(event, ids, self._formats, compatibility=self._compatibility)
        encoded.refused.extend(refused)
        if any(map(is_removable, event.values)):
            encoded.bulk.add(seq)
        for dialect, payload in payloads.items():
            if payload is not None:
                parts = frame_parts(payload)
                encoded.framed[dialect].append(Framed(seq, 1, parts, sum(map(len, parts))))
