"""Numbered events to their frames in every dialect: scalars in columns, everything else one by one."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from distsummary.format.encode import Refusal, event_parts
from distsummary.format.frames import Framed, frame_parts
from distsummary.format.records import LINEAGE_PLUGINS, Event, EventIds, Scalars, Value
from distsummary.format.scalar_encoder import ScalarEncoder
from distsummary.format.scalar_rows import events_of, packed


@dataclass(frozen=True, slots=True)
class Encoded:
    """Frames by dialect, in the order of the events; a dialect lacks those that it has nothing for.

    Lineage has no frames: it is a state, kept whole in a file of its own.
    """

    framed: dict[str, list[Framed]]
    lineage: list[Value] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class EventEncoder:
    """Frames of one attempt's events.

    Args:
        run_id, attempt: the identity in every event.
        dialects: the frames wanted.
        mindspore_compat: histogram edges and image scaling as MindSpore computes them.
    """

    def __init__(
        self, run_id: str, attempt: int, dialects: tuple[str, ...], *, mindspore_compat: bool = False
    ) -> None:
        self._run_id, self._attempt, self._dialects = run_id, attempt, dialects
        self._mindspore_compat = mindspore_compat
        self._scalars = ScalarEncoder(run_id, attempt, dialects)

    def encode(self, first_seq: int, events: Iterable[Event | Scalars]) -> Encoded:
        """The frames of events first_seq, first_seq + 1, ...; they hold large arrays where these lie."""
        encoded = Encoded({dialect: [] for dialect in self._dialects})
        seq = first_seq
        for item in packed(events):
            if isinstance(item, Scalars):
                self._add_scalars(encoded, seq, item)
                seq += item.size
            else:
                if item.values and item.values[0].plugin in LINEAGE_PLUGINS:
                    encoded.lineage.extend(item.values)
                else:
                    self._add_event(encoded, seq, item)
                seq += 1
        return encoded

    def _add_scalars(self, encoded: Encoded, first_seq: int, scalars: Scalars) -> None:
        events: list[Event] = []
        for stretch in self._scalars.encode(first_seq, scalars):
            if stretch.framed is None:
                events = events or list(events_of(scalars))
                for number in range(stretch.start, stretch.stop):
                    self._add_event(encoded, first_seq + number, events[number])
            else:
                for dialect, framed in stretch.framed.items():
                    encoded.framed[dialect].append(framed)

    def _add_event(self, encoded: Encoded, seq: int, event: Event) -> None:
        ids = EventIds(self._run_id, self._attempt, seq)
        payloads, refused = event_parts(event, ids, self._dialects, mindspore_compat=self._mindspore_compat)
        encoded.refused.extend(refused)
        for dialect, payload in payloads.items():
            if payload is not None:
                parts = frame_parts(payload)
                encoded.framed[dialect].append(Framed(seq, 1, parts, sum(map(len, parts))))
