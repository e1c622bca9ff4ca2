"""What the rank directories of a run hold: scalars as columns, bulk values as an index and a stream."""

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.aggregate.statistics import Floats, Ints, last_recorded
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Value
from distsummary.format.wire import read_identity
from distsummary.reading.reader import Damage, ReadEvent, read_directory, read_file
from distsummary.reading.segments import segments
from distsummary.run_dir import RunDir

Bools: TypeAlias = NDArray[np.bool_]

_TENSORBOARD_AT = 1 << 40  # ordinals from here on count the events in TensorBoard's dialect


class BulkKey(NamedTuple):
    """What one rank's value is enough for."""

    plugin: str
    tag: str
    step: int


class Place(NamedTuple):
    """Where a value stands: `ordinal` counts the events of a rank as they are read."""

    attempt: int
    rank: int
    ordinal: int

    def gives_way_to(self, other: "Place") -> bool:
        """Ranks are read from the lowest on: a later attempt wins, then the lower rank, the later event."""
        return other.attempt > self.attempt or (other.attempt, other.rank) == (self.attempt, self.rank)


class Part(NamedTuple):
    """Values of one step, of one rank (-1: of all)."""

    step: int
    rank: int
    values: list[Value]


class Graph(NamedTuple):
    """The graph of the run, and when it was recorded (seconds since the epoch)."""

    value: Value
    wall_time: float


class _Columns:
    """One tag's scalars, or the events, of all ranks in the order of reading: four numbers for each."""

    __slots__ = ("attempts", "numbers", "ranks", "steps")

    def __init__(self) -> None:
        self.ranks, self.attempts, self.steps = array("q"), array("q"), array("q")
        self.numbers = array("d")

    def append(self, rank: int, attempt: int, step: int, number: float) -> None:
        self.ranks.append(rank)
        self.attempts.append(attempt)
        self.steps.append(step)
        self.numbers.append(number)

    def arrays(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Ranks, attempts, steps and numbers, each (N,)."""
        ranks, attempts, steps, numbers = map(
            np.asarray, (self.ranks, self.attempts, self.steps, self.numbers)
        )
        return ranks, attempts, steps, numbers


class RankFiles:
    """One role's rank directories, read at construction; damage is left out and listed.

    When a run was restarted, the steps of an attempt count up to the first step of a later one: what came
    behind was computed anew. A step that a rank recorded twice counts as recorded last.

    Args:
        directories: by rank. An attempt is read in MindSpore's dialect, in TensorBoard's if it has no other.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.damage: list[Damage] = []
        self.run_id = ""
        self.sharded = 0
        self.graph: Graph | None = None
        self._directories = dict(sorted(directories.items()))
        self._others: dict[int, frozenset[Path]] = {}  # by rank: the files in TensorBoard's dialect to read
        self._events = _Columns()  # their numbers are wall times
        self._scalars: dict[str, _Columns] = defaultdict(_Columns)
        self._bulk: dict[BulkKey, Place] = {}
        self._graph_place: Place | None = None
        for rank in self._directories:
            for ordinal, event in self._read(rank, self.damage):
                self._take(Place(event.attempt, rank, ordinal), event)
        self._ends = ends_of_attempts(self._events.arrays()[1], self._events.arrays()[2])

    def _read(self, rank: int, skipped: list[Damage]) -> Iterator[tuple[int, ReadEvent]]:
        """The events by their ordinals, which stay when the files grow between two readings."""
        directory = self._directories[rank]
        known: set[tuple[str, int]] = set()
        for ordinal, event in enumerate(read_directory(directory, MINDSPORE, "skip", skipped=skipped)):
            known.add(_owner(event))
            yield ordinal, event
        if rank not in self._others:
            found = segments(directory, TENSORBOARD)
            self._others[rank] = frozenset(path for path in found if _has_another_owner(path, known))
        others = self._others[rank]
        if others:
            damage: list[Damage] = []
            events = read_directory(directory, TENSORBOARD, "skip", skipped=damage)
            yield from enumerate((event for event in events if event.file in others), start=_TENSORBOARD_AT)
            skipped += [item for item in damage if item.file in others]

    def _take(self, place: Place, event: ReadEvent) -> None:
        self.run_id = event.run_id or self.run_id
        if event.values and event.values[0].plugin == "graph":  # stands alone and has no step
            if self._graph_place is None or self._graph_place.gives_way_to(place):
                self._graph_place, self.graph = place, Graph(event.values[0], event.wall_time)
            return
        self._events.append(place.rank, place.attempt, event.step, event.wall_time)
        for value in event.values:
            if value.shard is not None:
                self.sharded += 1
            elif value.plugin == "scalar":
                self._scalars[value.tag].append(place.rank, place.attempt, event.step, value.data)
            else:
                key = BulkKey(value.plugin, value.tag, event.step)
                known = self._bulk.get(key)
                if known is None or known.gives_way_to(place):
                    self._bulk[key] = place

    @property
    def attempts(self) -> tuple[int, ...]:
        """The attempts that recorded anything."""
        return tuple(self._ends)

    @property
    def superseded(self) -> int:
        """How many events a later attempt made void."""
        _, attempts, steps, _ = self._events.arrays()
        return int(len(steps) - np.count_nonzero(self._survives(attempts, steps)))

    def last_steps(self) -> dict[int, int]:
        """The last step of each rank that has one."""
        ranks, attempts, steps, _ = self._events.arrays()
        keep = self._survives(attempts, steps)
        ranks, steps = ranks[keep], steps[keep]
        return {int(rank): int(steps[ranks == rank].max()) for rank in np.unique(ranks)}

    def wall_times(self) -> dict[int, float]:
        """Step to the wall time of its latest rank, in seconds since the epoch."""
        _, attempts, steps, times = self._events.arrays()
        keep = self._survives(attempts, steps)
        order = np.argsort(steps[keep], kind="stable")
        unique, starts = np.unique(steps[keep][order], return_index=True)
        latest = np.maximum.reduceat(times[keep][order], starts) if len(unique) else np.empty(0)
        return dict(zip(unique.tolist(), latest.tolist(), strict=True))

    def scalar_tags(self) -> list[str]:
        """The tags of the scalars, sorted."""
        return sorted(self._scalars)

    def scalars(self, tag: str) -> tuple[Ints, Ints, Floats]:
        """Ranks, steps int64 (N,) and values float64 (N,) of a tag, one for each rank and step."""
        ranks, attempts, steps, values = self._scalars[tag].arrays()
        keep = np.flatnonzero(self._survives(attempts, steps))
        keep = keep[last_recorded(ranks[keep], steps[keep])]
        return ranks[keep], steps[keep], values[keep]

    def bulk(self) -> Iterator[Part]:
        """The union of the ranks' bulk values in rising step order, each of the lowest rank that has it.

        The files are read anew. A rank whose steps rise is streamed; others are sorted in memory.
        """
        wanted: dict[int, dict[int, set[BulkKey]]] = defaultdict(lambda: defaultdict(set))
        for key, place in self._bulk.items():
            if key.step < self._ends[place.attempt]:
                wanted[place.rank][place.ordinal].add(key)
        streams = []
        for rank, keys in sorted(wanted.items()):
            stream = self._bulk_of(rank, keys)
            steps = [next(iter(keys[ordinal])).step for ordinal in sorted(keys)]
            streams.append(stream if steps == sorted(steps) else iter(sorted(stream, key=attrgetter("step"))))
        return merge(*streams, key=attrgetter("step", "rank"))

    def _bulk_of(self, rank: int, wanted: Mapping[int, set[BulkKey]]) -> Iterator[Part]:
        last = max(wanted)
        for ordinal, event in self._read(rank, []):
            if ordinal in wanted:
                values = {BulkKey(value.plugin, value.tag, event.step): value for value in event.values}
                yield Part(event.step, rank, [v for key, v in values.items() if key in wanted[ordinal]])
            if ordinal == last:
                return

    def _survives(self, attempts: Ints, steps: Ints) -> Bools:
        known, which = np.unique(attempts, return_inverse=True)
        ends = np.array([self._ends[attempt] for attempt in known.tolist()], np.float64)
        return np.asarray(steps < ends[which], np.bool_)


def first_free_attempt(run_dir: RunDir, role: str) -> int:
    """The attempt after all that ranks of a role, or a merge of them, recorded; 0 if there are none.

    Counted from the event files, for a run whose manifest was removed: each segment has one writer, so that
    the first sound frame tells the attempt of all. Files of other programs hold none.
    """
    newest = -1
    for directory in (run_dir.writer_dir(role, 0, 1), *run_dir.rank_dirs(role).values()):
        for dialect in DIALECTS if directory.is_dir() else ():
            for path in segments(directory, dialect):
                first = next((frame for frame in read_frames(path) if frame.damage is None), None)
                if first is not None:
                    with suppress(ValueError):  # a payload that is no event of ours
                        ids = read_identity(first.payload)
                        newest = max(newest, ids.attempt if ids.run_id else -1)
    return newest + 1


def ends_of_attempts(attempts: Ints, steps: Ints) -> dict[int, float]:
    """Attempt to the first step (inf for none) of all later ones, where it ends; both int64 (N,)."""
    ends: dict[int, float] = {}
    end = np.inf
    for attempt in np.unique(attempts)[::-1].tolist():
        ends[attempt] = float(end)
        end = min(end, float(steps[attempts == attempt].min()))
    return dict(sorted(ends.items()))


def _owner(event: ReadEvent) -> tuple[str, int]:
    return event.run_id, event.attempt


def _has_another_owner(segment: Path, known: Collection[tuple[str, int]]) -> bool:
    """Whether a segment, which has one owner, holds what `known` do not; another program's only if alone."""
    first = next(read_file(segment, "skip", skipped=[]), None)
    return not known or (first is not None and first.run_id != "" and _owner(first) not in known)
