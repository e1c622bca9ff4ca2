"""Reads the files of a run's ranks twice: for an index of their chunks, then by windows of rising steps.

Memory does not grow with the steps: a chunk of the index stands for hundreds of events, and a window holds
about WINDOW scalars. Of other values (bulk values), large ones are read again when they are written.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.aggregate.statistics import Floats, Ints, RecordedScalars
from distsummary.base.terminal import doing
from distsummary.errors import DamagedFileError
from distsummary.events.deduplicate import ends_of_attempts
from distsummary.events.rank_stream import RankStream, owner_of
from distsummary.events.reader import Damage, ReadEvent, decode_frame
from distsummary.events.scalar_columns import ScalarColumns, read_pieces
from distsummary.events.segments import dialect_of, segments
from distsummary.format.frames import Frame, read_frames
from distsummary.format.records import (
    DIALECTS,
    TENSORBOARD_PLUGINS,
    Value,
    is_part,
)
from distsummary.rundir.run_dir import RunDir

WINDOW = 1 << 18  # scalars that are merged at a time, unless the ranks' chunks overlap more
_MIN_CHUNK, _MAX_CHUNK = 1 << 11, 1 << 13  # values, unless those of _FEW events are more
_FEW = 128  # events; columns of fewer take more time
_MIN_BYTES, _MAX_BYTES = 1 << 16, 1 << 20  # of a chunk, unless a single event is larger
_ALL_BYTES = 1 << 26  # of the chunks that are read at a time, if there are not too many ranks for that
_KEPT_BYTES = 1 << 18  # the bulk values of a larger event are read again

Bools: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]
_NOTHING = tuple(np.empty(0, dtype) for dtype in (np.int64, np.float64, np.int64, np.int64, np.float64))


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


class BulkPlace(NamedTuple):
    """Where a bulk value stands: the bytes `start` to `end` of a file are the frame of its event.

    `value` is the value itself, None if its event is large; `room` is what it takes, in scalars.
    """

    step: int
    rank: int
    number: int  # of its chunk
    start: int
    end: int
    file: Path
    plugin: str
    tag: str
    is_shard: bool
    value: Value | None
    room: int


class RecordedGraph(NamedTuple):
    """The graph of the model and when it was recorded (seconds since the epoch)."""

    value: Value
    wall_time: float


class Window(NamedTuple):
    """All that ranks recorded at some steps.

    `steps` int64 (S,), rising; `times` float64 (S,): the latest wall time of each step on any rank, in
    seconds since the epoch. `scalars`: rank by rank in recording order. `bulk`: by step and rank, then in
    recording order; of each plugin, tag and step the value of the lowest rank that has it, or the shards of
    all ranks.
    """

    steps: Ints
    times: Floats
    scalars: RecordedScalars
    bulk: list[BulkPlace]


class RankDirectories:
    """The data in the rank directories of one role; damaged parts are skipped and listed in `damage`.

    After a restart, the steps of an attempt count only if they lie before the first step of every later
    attempt, since later attempts repeat the rest. If a rank recorded a value twice for a step, the last one
    counts. An attempt is read from its MindSpore files or, if it has none, from its TensorBoard files.

    `superseded`, the number of events that do not count because a later attempt repeated their steps, and
    `last_steps`, rank -> its last step that counts, are known when all windows have been read. In `sharded`
    the caller counts the shards that it leaves out.

    Args:
        directories: rank -> its directory.
    """

    def __init__(self, directories: Mapping[int, Path]) -> None:
        self.damage: list[Damage] = []
        self.run_id = ""
        self.superseded = self.sharded = 0
        self.last_steps: dict[int, int] = {}
        self.graph: RecordedGraph | None = None
        self._graph_attempt = self._graph_rank = -1
        self._directories = dict(sorted(directories.items()))
        self._tags: dict[str, int] = {}  # tag of a scalar -> its number
        self._chunks: list[EventRange] = []
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
                    for tag in piece.tags:
                        self._number(tag)
                elif piece.values and piece.values[0].plugin == "graph":  # such an event has no step
                    self._note_graph(rank, piece)
                elif not piece.values or piece.values[0].plugin not in TENSORBOARD_PLUGINS:  # made again
                    index.add_event(file, piece)
                    for value in piece.values:
                        if value.plugin == "scalar" and value.shard is None:
                            self._number(value.tag)
            self._chunks += index.chunks()
            self.damage += stream.damage
        lows = np.array([chunk.low for chunk in self._chunks], np.int64)
        self._ends = ends_of_attempts(np.array([chunk.attempt for chunk in self._chunks], np.int64), lows)

    def _note_graph(self, rank: int, event: ReadEvent) -> None:
        """Keep the graph if it is of a later attempt, or of the same one and the same rank."""
        if self.graph is None or event.attempt > self._graph_attempt or self._graph_rank == rank:
            self._graph_attempt, self._graph_rank = event.attempt, rank
            self.graph = RecordedGraph(event.values[0], event.wall_time)

    def _number(self, tag: str) -> int:
        return self._tags.setdefault(tag, len(self._tags))

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
        parts: list[_Part] = []
        loaded, wanted, low = 0, WINDOW, np.inf
        while waiting or parts:
            if waiting and (loaded < wanted or waiting[-1].low <= low):
                chunk = waiting.pop()
                doing("reading part", len(self._chunks) - len(waiting), len(self._chunks))
                part = self._load(chunk)
                if part is not None:
                    parts.append(part)
                    loaded, low = loaded + part.size, min(low, part.low)
                continue
            safe = waiting[-1].low if waiting else np.inf  # no step before it comes any more
            parts.sort(key=attrgetter("rank", "number"))
            for step in _cuts(parts, safe):
                if taken := [part for part in (part.before(step) for part in parts) if part.size]:
                    yield self._window(taken)
                parts = [rest for rest in (part.since(step) for part in parts) if rest.size]
            loaded = sum(part.size for part in parts)
            low = min((part.low for part in parts), default=np.inf)
            # Dividing the parts takes time for each of them: only when twice as many scalars have come.
            wanted = max(WINDOW, 2 * loaded)

    def _load(self, chunk: EventRange) -> "_Part | None":
        """The events of a chunk that count, None if there are none."""
        end = self._ends[chunk.attempt]
        if chunk.low >= end:
            self.superseded += chunk.events
            return None
        part = _Part.read(chunk, self._number, self.damage)
        if chunk.high >= end:
            kept = part.before(end)
            self.superseded += len(part.steps) - len(kept.steps)
            part = kept
        if len(part.steps):
            last = int(part.steps.max())
            self.last_steps[chunk.rank] = max(last, self.last_steps.get(chunk.rank, last))
        return part

    def _window(self, parts: "list[_Part]") -> Window:
        """All parts as one; they are sorted by rank and number."""
        steps = np.concatenate([part.steps for part in parts])
        order = np.argsort(steps, kind="stable")
        changes = np.flatnonzero(np.diff(steps[order], prepend=steps[order[0]] - 1))
        times = np.concatenate([part.times for part in parts])[order]
        ranks = np.repeat([part.rank for part in parts], [len(part.values) for part in parts])
        scalars = RecordedScalars(
            [*self._tags],
            np.concatenate([part.which for part in parts]).astype(np.int64),
            ranks,
            np.concatenate([part.value_steps for part in parts]),
            np.concatenate([part.values for part in parts]),
        )
        bulk = _chosen(bulk for part in parts for bulk in part.bulk)
        return Window(steps[order[changes]], np.maximum.reduceat(times, changes), scalars, bulk)

    def values(self, found: Iterable[BulkPlace]) -> Iterator[tuple[BulkPlace, Value]]:
        """The values themselves, in the same order; those of one event one after the other read it once."""
        for (file, start, end), group in groupby(found, key=attrgetter("file", "start", "end")):
            same_event = list(group)
            if all(bulk.value is not None for bulk in same_event):
                yield from ((bulk, bulk.value) for bulk in same_event if bulk.value is not None)
                continue
            with open(file, "rb") as opened:
                opened.seek(start)
                [frame] = read_frames(BytesIO(opened.read(end - start)))
            decoded = decode_frame(frame, dialect_of(file), file)
            assert decoded is not None  # it was decoded before
            values = {(value.plugin, value.tag): value for value in decoded[1].values}  # the last ones
            for bulk in same_event:
                yield bulk, values[bulk.plugin, bulk.tag]


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


class _Part(NamedTuple):
    """Events of a range: `steps` int64 (E,), `times` float64 (E,); `scalars` (V,) and `bulk`."""

    rank: int
    number: int
    steps: Ints
    times: Floats
    which: Ints
    value_steps: Ints
    values: Floats
    bulk: list[BulkPlace]

    @property
    def size(self) -> int:
        """How much there is to keep, in scalars."""
        return len(self.steps) + len(self.values) + sum(bulk.room for bulk in self.bulk)

    @property
    def low(self) -> int:
        """The lowest step."""
        return int(self.steps.min())

    @classmethod
    def read(cls, chunk: EventRange, number_of: Callable[[str], int], damage: list[Damage]) -> "_Part":
        """Read a chunk again."""
        with open(chunk.file, "rb") as file:
            file.seek(chunk.start)
            octets = BytesIO(file.read(chunk.end - chunk.start))
        dialect = dialect_of(chunk.file)
        events: list[tuple[Ints, Floats]] = []
        scalars: list[tuple[Ints, Ints, Floats]] = []
        bulk: list[BulkPlace] = []
        pieces = read_pieces(octets, dialect, resync=True)
        for is_columns, some in groupby(pieces, lambda piece: isinstance(piece, ScalarColumns)):
            if is_columns:
                for piece in some:
                    assert isinstance(piece, ScalarColumns)
                    events.append((piece.steps, piece.wall_times))
                    numbers = np.array([number_of(tag) for tag in piece.tags], np.int64)
                    steps = np.repeat(piece.steps, piece.counts)
                    scalars.append((numbers[piece.tag_numbers], steps, piece.numbers))
                continue
            pairs: list[tuple[int, float]] = []
            rows: list[tuple[int, int, float]] = []
            for frame in some:
                assert isinstance(frame, Frame)
                try:
                    decoded = decode_frame(frame, dialect, chunk.file)
                except DamagedFileError as error:  # since it was read for the index
                    damage.append(Damage(chunk.file, chunk.start + frame.offset, str(error)))
                    continue
                if decoded is None:
                    continue
                step, wall_time, values = decoded[1]
                pairs.append((step, wall_time))
                for value in values:
                    if value.plugin == "scalar" and value.shard is None:
                        rows.append((number_of(value.tag), step, value.data))
                    else:
                        place = chunk.start + frame.offset, chunk.start + frame.end, chunk.file
                        names = value.plugin, value.tag, is_part(value)
                        is_kept = len(frame.payload) <= _KEPT_BYTES
                        room = len(frame.payload) // (8 * len(values)) if is_kept else 0
                        kept = value if is_kept else None
                        bulk.append(BulkPlace(step, chunk.rank, chunk.number, *place, *names, kept, 1 + room))
            of_events = np.array(pairs, [("step", np.int64), ("time", np.float64)])
            of_scalars = np.array(rows, [("which", np.int64), ("step", np.int64), ("value", np.float64)])
            events.append((of_events["step"], of_events["time"]))
            scalars.append((of_scalars["which"], of_scalars["step"], of_scalars["value"]))
        columns: list[Any] = list(map(_joined, (*zip(*events, strict=True), *zip(*scalars, strict=True))))
        return cls(chunk.rank, chunk.number, *(columns or _NOTHING), bulk)  # type: ignore[call-arg]

    def before(self, step: float) -> "_Part":
        """What has a step below `step`."""
        return self._where(
            self.steps < step, self.value_steps < step, [b for b in self.bulk if b.step < step]
        )

    def since(self, step: float) -> "_Part":
        """What has a step of at least `step`."""
        later = [bulk for bulk in self.bulk if bulk.step >= step]
        return self._where(self.steps >= step, self.value_steps >= step, later)

    def _where(self, events: Bools, scalars: Bools, bulk: list[BulkPlace]) -> "_Part":
        if events.all():
            return self
        return self._replace(
            steps=self.steps[events],
            times=self.times[events],
            which=self.which[scalars],
            value_steps=self.value_steps[scalars],
            values=self.values[scalars],
            bulk=bulk,
        )


def _cuts(parts: Sequence[_Part], safe: float) -> list[float]:
    """Rising steps that divide what comes before `safe`, the last of them, into about WINDOW scalars each."""
    low, high = min(part.low for part in parts), max(int(part.steps.max()) for part in parts)
    count = -(-sum(part.size for part in parts) // WINDOW)
    span = int(min(safe, high + 1)) - low
    return [*sorted({low + span * number // count for number in range(1, count)} - {low}), safe]


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _chosen(found: Iterable[BulkPlace]) -> list[BulkPlace]:
    """Of each plugin, tag and step the whole value of the lowest rank or, if there is none, all shards.

    Args:
        found: by rank, then in recording order. If a rank recorded a value twice, the last one counts.
    """
    wholes: dict[tuple[str, str, int], BulkPlace] = {}
    shards: dict[tuple[str, str, int], dict[int, BulkPlace]] = defaultdict(dict)
    for bulk in found:
        key = bulk.plugin, bulk.tag, bulk.step
        if bulk.is_shard:
            shards[key][bulk.rank] = bulk
        elif key not in wholes or wholes[key].rank == bulk.rank:
            wholes[key] = bulk
    parts = (part for key, by_rank in shards.items() if key not in wholes for part in by_rank.values())
    return sorted((*wholes.values(), *parts), key=attrgetter("step", "rank", "number", "start"))


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
