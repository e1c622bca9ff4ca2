"""Reads the bulk values (histograms, images, texts ...) of one step from the files of their ranks."""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from distsummary.aggregate.added_norms import AddedNorms
from distsummary.aggregate.rank_tail import FileRange
from distsummary.aggregate.step_events import recorded_by
from distsummary.aggregate.waiting import GRAPH, BulkKey, PendingBulk
from distsummary.events.reader import Damage, ReadEvent, read_file
from distsummary.events.shards import AddedShards
from distsummary.format.records import NORMS, Value, is_part

_MAX_PLACES = 4096  # whose last position is remembered
_MAX_KEPT = 1 << 18  # bytes of an event that is kept for its step, and not read again


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where the bulk values of one step are: whole ones, and each rank's part of histograms and norms."""

    whole: dict[BulkKey, PendingBulk] = field(default_factory=dict)
    shards: dict[BulkKey, dict[int, FileRange]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.whole or self.shards)


class BulkReader:
    """Reads values where they are; a place that holds many steps is read once if they are asked in order.

    Args:
        norms: adds up the norms of ranks. attempt: that of all steps.

    Attributes:
        missing: how many values were not there: the rank's writer refused them or had no room for them.
        sharded: how many shards were left out, because they could not be put together.
    """

    def __init__(self, norms: AddedNorms, attempt: int) -> None:
        self.missing = self.sharded = 0
        self._norms, self._attempt = norms, attempt
        self._next: OrderedDict[
            FileRange, ReadEvent | int
        ]  # the first event after the last step, or its offset
        self._next = OrderedDict()

    def values(self, step: int, wanted: Wanted) -> list[Value]:
        """The values of a step: shards put together, then whole ones; those that are missing are counted."""
        by_place: dict[FileRange, dict[tuple[BulkKey, bool], int]] = {}
        for key, places in wanted.shards.items():
            for rank, place in places.items():
                by_place.setdefault(place, {})[key, True] = rank
        for key, bulk in wanted.whole.items():
            by_place.setdefault(bulk.place, {})[key, False] = bulk.rank
        added = {key: AddedShards() for key in wanted.shards if key[0] != NORMS}
        norms: dict[int, Any] = {}
        whole: dict[BulkKey, Value] = {}
        for place, ranks in sorted(by_place.items(), key=lambda item: min(item[1].values())):
            found = self._read(place, step)
            if not found.keys() >= ranks.keys() and place in self._next:
                del self._next[place]  # the values of this step came after those of a later one
                found = self._read(place, step)
            for (key, is_shard), rank in ranks.items():
                value = found.get((key, is_shard))
                if value is None:
                    self.missing += 1
                elif value.plugin == NORMS:
                    norms[rank] = value.data
                elif is_shard:
                    added[key].add(value)
                else:
                    whole[key] = recorded_by(value, step, rank)
        values: list[Value] = []
        for key, one in added.items():
            together = one.whole()
            if together is None:
                self.sharded += len(wanted.shards[key])
            else:
                values.append(together)
        values += self._norms.values(step, self._attempt, norms)
        return [*values, *(whole[key] for key in wanted.whole if key in whole)]

    def _read(self, place: FileRange, step: int) -> dict[tuple[BulkKey, bool], Value]:
        """What a place holds of a step, the last value of each key; a graph belongs to every step."""
        found: dict[tuple[BulkKey, bool], Value] = {}
        skipped: list[Damage] = []
        kept = self._next.pop(place, place.start)
        start = kept if isinstance(kept, int) else kept.end
        read = read_file(place.file, "skip", start=start, end=place.end, skipped=skipped)
        with suppress(OSError):  # what cannot be read is missing, and holds up nothing else
            for event in read if isinstance(kept, int) else chain((kept,), read):
                is_graph = bool(event.values) and event.values[0].plugin == GRAPH[0]
                if event.step > step and not is_graph:
                    is_small = event.end - event.offset <= _MAX_KEPT
                    self._next[place] = event if is_small else event.offset
                    if len(self._next) > _MAX_PLACES:
                        self._next.popitem(last=False)
                    break
                if event.step == step or is_graph:
                    for value in event.values:
                        key = GRAPH if is_graph else (value.plugin, value.tag)
                        found[key, is_part(value)] = value
        return found
