"""Reads the files of a run's ranks; keeps scalars in memory, reads other (bulk) values again when needed."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.aggregate.statistics import Floats, Ints
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, TENSORBOARD_PLUGINS, Value
from distsummary.format.wire import read_identity
from distsummary.reading.reader import Damage, ReadEvent, read_directory, read_file
from distsummary.reading.segments import segments
from distsummary.run_dir import RunDir

Bools: TypeAlias = NDArray[np.bool_]

_TENSORBOARD_AT = 1 << 40  # the ordinal (see Origin) of a rank's first event in TensorBoard's format


class BulkKey(NamedTuple):
    """Identifies a bulk value (any value but a scalar); the merged run holds one value for each key."""

    plugin: str
    tag: str
    step: int


class Origin(NamedTuple):
    """Where a value was read; `ordinal` is its event's place in the reading order of the rank's events."""

    attempt: int
    rank: int
    ordinal: int

    def gives_way_to(self, other: "Origin") -> bool:
        """Whether `other`, which was read later, takes the place of this one.

        A later attempt wins, then the lower rank (ranks are read in rising order), then the later event.
        """
        return other.attempt > self.attempt or (other.attempt, other.rank) == (self.attempt, self.rank)


class StepValues(NamedTuple):
    """Values of one step: recorded by one rank, or computed over all ranks (`rank` is -1)."""

    step: int
    rank: int
    values: list[Value]


class Graph(NamedTuple):
    """The graph of the model and when it was recorded (seconds since the epoch)."""

    value: Value
    wall_time: float


class _Columns:
    """All ranks' scalars of one tag, or all events (`numbers` are then wall times), in reading order."""

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
    """The data in the rank directories of one role; damaged parts are skipped and listed in `damage`.

    After a restart, the steps of an attempt count only if they lie before the first step of every later
    attempt, since later attempts repeat the rest. If a rank recorded a value twice for a step, the last one
    counts. An attempt is read from its MindSpore files or, if it has none, from its TensorBoard files.

    Args:
        directories: rank -> its directory.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.damage: list[Damage] = []
        self.run_id = ""
        self.sharded = 0
        self.graph: Graph | None = None
        self._directories = dict(sorted(directories.items()))
        self._others: dict[int, frozenset[Path]] = {}  # rank -> which of its TensorBoard files to read
        self._events = _Columns()
        self._scalars: dict[str, _Columns] = defaultdict(_Columns)
        self._bulk: dict[BulkKey, Origin] = {}
        graph_origin: Origin | None = None
        for rank in self._directories:
            for ordinal, event in self._read(rank, self.damage):
                origin = Origin(event.attempt, rank, ordinal)
                self.run_id = event.run_id or self.run_id
                if event.values and event.values[0].plugin == "graph":  # such an event has no step
                    if graph_origin is None or graph_origin.gives_way_to(origin):
                        graph_origin, self.graph = origin, Graph(event.values[0], event.wall_time)
                    continue
                if event.values and event.values[0].plugin in TENSORBOARD_PLUGINS:  # made again
                    continue
                self._events.append(rank, event.attempt, event.step, event.wall_time)
                for value in event.values:
                    if value.shard is not None:
                        self.sharded += 1
                    elif value.plugin == "scalar":
                        self._scalars[value.tag].append(rank, event.attempt, event.step, value.data)
                    else:
                        key = BulkKey(value.plugin, value.tag, event.step)
                        known = self._bulk.get(key)
                        if known is None or known.gives_way_to(origin):
                            self._bulk[key] = origin
        self._ends = ends_of_attempts(self._events.arrays()[1], self._events.arrays()[2])

    def _read(self, rank: int, skipped: list[Damage]) -> Iterator[tuple[int, ReadEvent]]:
        """A rank's events with their ordinals, which stay the same if the files grow between two readings."""
        directory = self._directories[rank]
        known: set[tuple[str, int]] = set()
        for ordinal, event in enumerate(read_directory(directory, MINDSPORE, "skip", skipped=skipped)):
            known.add((event.run_id, event.attempt))
            yield ordinal, event
        if rank not in self._others:
            others = set()
            for path in segments(directory, TENSORBOARD):
                # An event file has one writer, so all its events have the attempt of the first one. Files
                # of other programs, which have no run id, are read only if the rank has no other files.
                first = next(read_file(path, "skip", skipped=[]), None)
                is_new = first is not None and first.run_id and (first.run_id, first.attempt) not in known
                if not known or is_new:
                    others.add(path)
            self._others[rank] = frozenset(others)
        if files := self._others[rank]:
            damage: list[Damage] = []
            events = read_directory(directory, TENSORBOARD, "skip", skipped=damage)
            yield from enumerate((event for event in events if event.file in files), start=_TENSORBOARD_AT)
            skipped += [item for item in damage if item.file in files]

    @property
    def directories(self) -> Mapping[int, Path]:
        """Rank -> its directory, in rising order."""
        return self._directories

    @property
    def is_empty(self) -> bool:
        """Whether the ranks recorded neither a step nor a graph; they may have a lineage."""
        return self.graph is None and not self._ends

    @property
    def attempts(self) -> tuple[int, ...]:
        """The attempts that recorded something."""
        return tuple(self._ends)

    @property
    def superseded(self) -> int:
        """How many events do not count because a later attempt repeated their steps."""
        _, attempts, steps, _ = self._events.arrays()
        return int(len(steps) - np.count_nonzero(self._survives(attempts, steps)))

    def last_steps(self) -> dict[int, int]:
        """Rank -> its last step that counts, for the ranks with such a step."""
        ranks, attempts, steps, _ = self._events.arrays()
        keep = self._survives(attempts, steps)
        ranks, steps = ranks[keep], steps[keep]
        return {int(rank): int(steps[ranks == rank].max()) for rank in np.unique(ranks)}

    def wall_times(self) -> dict[int, float]:
        """Step -> its latest wall time on any rank, in seconds since the epoch."""
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
        """Ranks and steps int64 (N,), values float64 (N,) of a tag, in recording order."""
        ranks, attempts, steps, values = self._scalars[tag].arrays()
        keep = np.flatnonzero(self._survives(attempts, steps))
        return ranks[keep], steps[keep], values[keep]

    def bulk(self) -> Iterator[StepValues]:
        """The bulk values of all ranks in rising step order, each from the lowest rank that has it.

        Reads the files again. If the steps of a rank always rise, its values are streamed; otherwise they
        are sorted in memory.
        """
        wanted: dict[int, dict[int, set[BulkKey]]] = defaultdict(lambda: defaultdict(set))
        for key, origin in self._bulk.items():
            if key.step < self._ends[origin.attempt]:
                wanted[origin.rank][origin.ordinal].add(key)

        def stream(rank: int, keys: Mapping[int, set[BulkKey]]) -> Iterator[StepValues]:
            last = max(keys)
            for ordinal, event in self._read(rank, []):
                if ordinal in keys:
                    values = {BulkKey(value.plugin, value.tag, event.step): value for value in event.values}
                    yield StepValues(event.step, rank, [v for k, v in values.items() if k in keys[ordinal]])
                if ordinal == last:
                    return

        streams = []
        for rank, keys in sorted(wanted.items()):
            steps = [next(iter(keys[ordinal])).step for ordinal in sorted(keys)]
            found = stream(rank, keys)
            streams.append(found if steps == sorted(steps) else iter(sorted(found, key=attrgetter("step"))))
        return merge(*streams, key=attrgetter("step", "rank"))

    def _survives(self, attempts: Ints, steps: Ints) -> Bools:
        """Whether each event comes before the end of its attempt; bool (N,)."""
        known, which = np.unique(attempts, return_inverse=True)
        ends = np.array([self._ends[attempt] for attempt in known.tolist()], np.float64)
        return np.asarray(steps < ends[which], np.bool_)


def first_free_attempt(run_dir: RunDir, role: str) -> int:
    """One more than the highest attempt in the event files of a role; 0 if there is none.

    Needed for a run whose manifest was removed. An event file has one writer, so its first undamaged frame
    gives the attempt of all its frames; files of other programs have no attempts.
    """
    newest = -1
    for directory in (run_dir.writer_dir(role, 0, 1), *run_dir.rank_dirs(role).values()):
        for dialect in DIALECTS if directory.is_dir() else ():
            for path in segments(directory, dialect):
                first = next((frame for frame in read_frames(path) if frame.damage is None), None)
                if first is not None:
                    with suppress(ValueError):  # the payload is not an event of this package
                        ids = read_identity(first.payload)
                        newest = max(newest, ids.attempt if ids.run_id else -1)
    return newest + 1


def ends_of_attempts(attempts: Ints, steps: Ints) -> dict[int, float]:
    """Attempt -> the lowest step of any later attempt, or inf; `attempts` and `steps` are int64 (N,)."""
    ends: dict[int, float] = {}
    end = np.inf
    for attempt in np.unique(attempts)[::-1].tolist():
        ends[attempt] = float(end)
        end = min(end, float(steps[attempts == attempt].min()))
    return dict(sorted(ends.items()))
