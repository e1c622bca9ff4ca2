"""Reads the files of a run's ranks twice: for an index of their chunks, then by windows of rising steps.

Memory does not grow with the steps: a chunk of the index stands for hundreds of events, and a window holds
about WINDOW scalars. Of other values (bulk values), large ones are read again when they are written.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distsummary.aggregate.rank_columns import (
    GRAPH,
    WINDOW,
    Bools,
    ColumnBuffer,
    RankColumns,
    RecordedGraph,
    TagNumbers,
    Window,
    has_place,
    window_of,
)
from distsummary.aggregate.statistics import Ints
from distsummary.base.terminal import doing
from distsummary.events.deduplicate import ends_of_attempts
from distsummary.events.rank_stream import RankStream, owner_of
from distsummary.events.reader import Damage, ReadEvent, read_pieces_of
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.events.segments import segments
from distsummary.format.records import DIALECTS
from distsummary.rundir.run_dir import RunDir

_MIN_CHUNK, _MAX_CHUNK = 1 << 11, 1 << 13  # values, unless those of _FEW events are more
_FEW = 128  # events; columns of fewer take more time
_MIN_BYTES, _MAX_BYTES = 1 << 16, 1 << 20  # of a chunk, unless a single event is larger
_ALL_BYTES = 1 << 26  # of the chunks that are read at a time, if there are not too many ranks for that
_KEPT_BYTES = 1 << 18  # the bulk values of a larger event are read again


class EventRange(NamedTuple):
    """Adjacent events of one attempt in a file of a rank: bytes `start` to `end`, steps `low` to `high`.

    `number` counts the chunks of a rank in the order of its recording. `low` <= `high` are the lowest and the
    highest step; the steps need not rise.
    """

    rank: int
    number: int
    file: Path
    attempt: int
    start: int
    end: int
    events: int
    low: int
    high: int


class RankDirectories:
    """The data in the rank directories of one role; damaged parts are skipped and listed in `damage`.

    After a restart, the steps of an attempt count only if they lie before the first step of every later
    attempt, since later attempts repeat the rest. If a rank recorded a value twice for a step, the last one
    counts. An attempt is read from its MindSpore files or, if it has none, from its TensorBoard files.

    `superseded`, the number of events that do not count because a later attempt repeated their steps, and
    `last_steps`, rank -> its last step that counts, are known when all windows have been read.

    Args:
        directories: rank -> its directory.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.damage: list[Damage] = []
        self.run_id = ""
        self.superseded = 0
        self.last_steps: dict[int, int] = {}
        self.graph: RecordedGraph | None = None
        self._graph_attempt = -1
        self._directories = dict(sorted(directories.items()))
        self._tags = TagNumbers()
        self._chunks: list[EventRange] = []
        # The more ranks, the smaller the chunks: one of each rank has to be in memory at a time.
        ranks = max(1, len(self._directories))
        most = max(_MIN_CHUNK, min(_MAX_CHUNK, WINDOW // ranks))
        most_bytes = max(_MIN_BYTES, min(_MAX_BYTES, _ALL_BYTES // ranks))
        for count, rank in enumerate(self._directories):
            doing("looking through rank", count + 1, len(self._directories))
            index, stream = _Index(rank, most, most_bytes), RankStream(self._directories[rank])
            for file, piece in stream.read(mode="skip"):
                self.run_id = piece.run_id or self.run_id
                if isinstance(piece, ScalarColumns):
                    index.add_columns(file, piece)
                    self._tags.add(piece.tags)
                elif piece.values and piece.values[0].plugin == GRAPH:
                    # Such an event has no step.
                    self._note_graph(rank, piece)
                elif has_place(piece):
                    index.add_event(file, piece)
                    self._tags.add(
                        value.tag
                        for value in piece.values
                        if value.plugin == "scalar" and value.shard is None
                    )
            self._chunks += index.chunks()
            self.damage += stream.damage
        lows = np.array([chunk.low for chunk in self._chunks], np.int64)
        self._ends = ends_of_attempts(np.array([chunk.attempt for chunk in self._chunks], np.int64), lows)

    def _note_graph(self, rank: int, event: ReadEvent) -> None:
        """Keep the graph if it is of a later attempt, or of the same one and the same rank."""
        if self.graph is None or event.attempt > self._graph_attempt or self.graph.rank == rank:
            self._graph_attempt = event.attempt
            self.graph = RecordedGraph(rank, event.values[0], event.wall_time)

    @property
    def directories(self) -> Mapping[int, Path]:
        """Rank -> its directory, in rising order."""
        return self._directories

    @property
    def is_empty(self) -> bool:
        """Whether the ranks recorded neither a step nor a graph; they may have a lineage."""
        return self.graph is None and not self._chunks

    @property
    def attempts(self) -> tuple[int, ...]:
        """The attempts that recorded something."""
        return tuple(self._ends)

    def attempt_of(self, step: int) -> int:
        """The attempt whose events count at a step."""
        return next(attempt for attempt, end in self._ends.items() if step < end)

    def of_attempt(self, attempt: int, steps: Ints) -> Bools:
        """At which steps the events of an attempt count."""
        earlier = [end for other, end in self._ends.items() if other < attempt]
        found: Bools = (steps < self._ends[attempt]) & (steps >= max(earlier, default=-np.inf))
        return found

    @property
    def first_repeated(self) -> float:
        """The first step that a later attempt has repeated, inf if there was one attempt."""
        return min(self._ends.values(), default=np.inf)

    def scalar_tags(self) -> list[str]:
        """The tags of the scalars, sorted."""
        return sorted(self._tags)

    def windows(self) -> Iterator[Window]:
        """All steps that count, in windows of rising steps.

        A window holds about WINDOW scalars; it holds more if more chunks overlap: of a rank whose steps fall,
        or of many ranks, since each has a chunk of at least 2,048 values.
        """
        self.superseded, self.last_steps = 0, {}
        waiting = sorted(self._chunks, key=attrgetter("low", "rank", "number"), reverse=True)
        parts = ColumnBuffer()
        loaded, wanted, low = 0, WINDOW, np.inf
        while waiting or parts:
            # Read until a window is full, and then each chunk that may still have the lowest step.
            if waiting and (loaded < wanted or waiting[-1].low <= low):
                chunk = waiting.pop()
                doing("reading part", len(self._chunks) - len(waiting), len(self._chunks))
                if (part := self._load(chunk)) is not None:
                    parts.add(part)
                    loaded, low = loaded + part.size, min(low, part.low)
                continue
            # No chunk that is still to be read has a step below this one.
            safe = waiting[-1].low if waiting else np.inf
            # Windows end where attempts do, so that each is of one attempt.
            for end in sorted({*(end for end in self._ends.values() if end < safe), safe}):
                for group in parts.take(end):
                    yield window_of(self.attempt_of(group[0].low), group, [*self._tags])
            loaded, low = parts.size, parts.low
            # Dividing the parts takes time for each of them: only when twice as many scalars have come.
            wanted = max(WINDOW, 2 * loaded)

    def _load(self, chunk: EventRange) -> RankColumns | None:
        """The events of a chunk that count, None if there are none."""
        end = self._ends[chunk.attempt]
        if chunk.low >= end:
            self.superseded += chunk.events
            return None
        pieces = read_pieces_of(chunk.file, "skip", start=chunk.start, end=chunk.end, skipped=self.damage)
        whole = RankColumns.of(chunk.rank, chunk.number, pieces, self._tags, _KEPT_BYTES)
        part = whole.before(end) if whole is not None else None
        if whole is not None and part is not whole:
            self.superseded += len(whole.steps) - (0 if part is None else len(part.steps))
        if part is not None:
            self.last_steps[chunk.rank] = max(part.high, self.last_steps.get(chunk.rank, part.high))
        return part


class _Index:
    """Divides what a rank recorded into chunks of `most` values, or of _FEW events if that is more."""

    def __init__(self, rank: int, most: int, most_bytes: int) -> None:
        self._rank, self._most, self._most_bytes = rank, most, most_bytes
        self._chunks: list[EventRange] = []
        self._values = 0  # in the last chunk

    def chunks(self) -> list[EventRange]:
        """The chunks in recording order."""
        return self._chunks

    def add_event(self, file: Path, event: ReadEvent) -> None:
        """Add an event to the last chunk, or to a new one."""
        place = event.offset, event.end
        self._add(file, event.attempt, *place, 1, len(event.values), event.step, event.step)

    def add_columns(self, file: Path, columns: ScalarColumns) -> None:
        """Add events; a gap between two of them, where something was read before, divides chunks."""
        gaps = np.flatnonzero(columns.offsets[1:] != columns.ends[:-1]) + 1
        size = len(columns.steps)
        each = -(-len(columns.numbers) // size)
        most = max(_FEW, self._most // each)
        bounds = np.unique(np.concatenate((np.arange(0, size, most), gaps, [size])))
        for start, end in pairwise(bounds.tolist()):
            steps = columns.steps[start:end]
            place = int(columns.offsets[start]), int(columns.ends[end - 1])
            lowest, highest = int(steps.min()), int(steps.max())
            self._add(file, columns.attempt, *place, end - start, each * (end - start), lowest, highest)

    def _add(
        self, file: Path, attempt: int, start: int, end: int, events: int, values: int, low: int, high: int
    ) -> None:
        if self._chunks:
            last = self._chunks[-1]
            is_next = (last.file, last.attempt, last.end) == (file, attempt, start)
            is_few = self._values + values <= self._most or last.events + events <= _FEW
            if is_next and is_few and end - last.start <= self._most_bytes:
                self._values += values
                self._chunks[-1] = last._replace(
                    end=end, events=last.events + events, low=min(last.low, low), high=max(last.high, high)
                )
                return
        number, self._values = len(self._chunks), values
        self._chunks.append(EventRange(self._rank, number, file, attempt, start, end, events, low, high))


def first_free_attempt(run_dir: RunDir, role: str) -> int:
    """One more than the highest attempt in the event files of a role; 0 if there is none.

    Needed for a run whose manifest was removed. Files of other programs have no attempts.
    """
    newest = -1
    for directory in (run_dir.writer_dir(role, 0, 1), *run_dir.rank_dirs(role).values()):
        for dialect in DIALECTS if directory.is_dir() else ():
            owners = map(owner_of, segments(directory, dialect))
            newest = max([newest, *(owner[1] for owner in owners if owner is not None and owner[0])])
    return newest + 1
