"""What ranks recorded, in columns; by rising steps it becomes windows, which are merged."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import DamagedFileError
from distsummary.events.reader import Piece, ReadEvent, read_file, values_in
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.events.segments import is_shortened
from distsummary.format.records import LINEAGE_PLUGINS, TENSORBOARD_PLUGINS, Value, is_part

WINDOW = 1 << 18  # scalars that are merged at a time, unless the parts of the ranks overlap more
_PLACE = 16  # scalars that take as much memory as the place of a bulk value
GRAPH = "graph"
_LEFT_OUT = frozenset((GRAPH, *LINEAGE_PLUGINS, *TENSORBOARD_PLUGINS))  # have no step, or are made again

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]


class RecordedScalars(NamedTuple):
    """N recorded scalars; those of one rank in the order in which it recorded them.

    `tags`: names, each once. `which` int64 (N,): the index of each scalar's tag in `tags`; `ranks`, `steps`
    int64 (N,); `values` float64 (N,).
    """

    tags: Sequence[str]
    which: Ints
    ranks: Ints
    steps: Ints
    values: Floats


def has_place(event: ReadEvent) -> bool:
    """Whether a merged run has values of an event."""
    return any(value.plugin not in _LEFT_OUT for value in event.values)


def room_of(piece: Piece) -> int:
    """About how much memory the events of a piece take, in scalars; bulk values, which stay shortly, less."""
    if isinstance(piece, ScalarColumns):
        return int(piece.seqs.size + piece.numbers.size)
    return 1 + len(piece.values) + (piece.end - piece.offset >> 6)


class TagNumbers(dict[str, int]):
    """Tag -> its number; one that is asked for the first time gets the next one."""

    def __missing__(self, tag: str) -> int:
        number = self[tag] = len(self)
        return number


class BulkPlace(NamedTuple):
    """Where a bulk value stands: the bytes `start` to `end` of a file are the frame of its event.

    `number` is that of its part. The value is read when it is written.
    """

    step: int
    rank: int
    number: int
    start: int
    end: int
    file: Path
    plugin: str
    tag: str
    is_shard: bool


class RecordedGraph(NamedTuple):
    """The graph of the model, and by which rank and when it was recorded (seconds since the epoch)."""

    rank: int
    value: Value
    wall_time: float


class RankColumns(NamedTuple):
    """A part of what one rank recorded, of steps from `low` to `high`; parts are numbered in its order.

    `steps` int64 (E,), `times` float64 (E,), in seconds since the epoch: of each event. `which`,
    `value_steps` int64 (V,), `values` float64 (V,): of each scalar the number of its tag, its step, itself.
    `size`: how much there is to keep, in scalars.
    """

    rank: int
    number: int
    low: int
    high: int
    size: int
    steps: Ints
    times: Floats
    which: Ints
    value_steps: Ints
    values: Floats
    bulk: list[BulkPlace]

    @classmethod
    def of(
        cls,
        rank: int,
        number: int,
        pieces: Iterable[Piece],
        numbers: "TagNumbers",
    ) -> "RankColumns | None":
        """The events of pieces that have a place in a merged run; None if there are none.

        `numbers`: of the tags; new ones are added.
        """
        columns: list[tuple[Array, ...]] = []
        bulk: list[BulkPlace] = []
        # Columns are taken whole, events one by one; both stay in recording order.
        for is_columns, some in groupby(pieces, lambda piece: isinstance(piece, ScalarColumns)):
            if is_columns:
                columns += [_columns_of(piece, numbers) for piece in some if isinstance(piece, ScalarColumns)]
                continue
            steps: list[int] = []
            times: list[float] = []
            counts: list[int] = []  # of the scalars
            which: list[int] = []
            values: list[float] = []
            for event in some:
                assert isinstance(event, ReadEvent)
                before, bulk_before = len(values), len(bulk)
                for value in event.values:
                    if value.plugin == "scalar" and value.shard is None:
                        which.append(numbers[value.tag])
                        values.append(value.data)
                    elif value.plugin not in _LEFT_OUT:
                        place = event.step, rank, number, event.offset, event.end, event.file
                        bulk.append(BulkPlace(*place, value.plugin, value.tag, is_part(value)))
                # An event of which nothing is merged leaves no step either.
                if len(values) > before or len(bulk) > bulk_before:
                    steps.append(event.step)
                    times.append(event.wall_time)
                    counts.append(len(values) - before)
            if steps:
                of_events, of_tags = np.array(steps, np.int64), np.array(which, np.int64)
                value_steps = np.repeat(of_events, counts)
                columns.append(
                    (of_events, np.array(times), of_tags, value_steps, np.array(values, np.float64))
                )
        if not columns:
            return None
        events, event_times, tags, scalar_steps, scalars = map(_joined, zip(*columns, strict=True))
        return _part(rank, number, events, event_times, tags, scalar_steps, scalars, bulk)

    def before(self, step: float) -> "RankColumns | None":
        """What has a step below `step`."""
        if self.high < step:
            return self
        if self.low >= step:
            return None
        earlier = [bulk for bulk in self.bulk if bulk.step < step]
        return self._where(self.steps < step, self.value_steps < step, earlier)

    def since(self, step: float) -> "RankColumns | None":
        """What has a step of at least `step`."""
        if self.low >= step:
            return self
        if self.high < step:
            return None
        later = [bulk for bulk in self.bulk if bulk.step >= step]
        return self._where(self.steps >= step, self.value_steps >= step, later)

    def divided(self, is_chosen: Bools) -> "tuple[RankColumns | None, RankColumns | None]":
        """The scalars whose tags, by their numbers, are chosen, and everything else."""
        chosen = is_chosen[self.which]
        if not chosen.any():
            return None, self
        if chosen.all() and not self.bulk:
            return self, None
        # A step belongs to both sides if both have values of it; bulk values go with the rest.
        of_bulk = np.array([bulk.step for bulk in self.bulk], np.int64)
        rest_steps = np.concatenate((self.value_steps[~chosen], of_bulk))
        return (
            self._where(np.isin(self.steps, self.value_steps[chosen]), chosen, []),
            self._where(np.isin(self.steps, rest_steps), ~chosen, self.bulk),
        )

    def _where(self, events: Bools, scalars: Bools, bulk: list[BulkPlace]) -> "RankColumns":
        columns = (
            self.steps[events], self.times[events],
            self.which[scalars], self.value_steps[scalars], self.values[scalars],
        )  # fmt: skip
        return _part(self.rank, self.number, *columns, bulk)


def _part(
    rank: int,
    number: int,
    steps: Ints,
    times: Floats,
    which: Ints,
    value_steps: Ints,
    values: Floats,
    bulk: list[BulkPlace],
) -> RankColumns:
    low, high = (int(steps[0]),) * 2 if len(steps) == 1 else (int(steps.min()), int(steps.max()))
    size = len(steps) + len(values) + _PLACE * len(bulk)
    return RankColumns(rank, number, low, high, size, steps, times, which, value_steps, values, bulk)


def _columns_of(columns: ScalarColumns, numbers: TagNumbers) -> tuple[Array, ...]:
    which = np.array([numbers[tag] for tag in columns.tags], np.int64)[columns.tag_numbers]
    value_steps = np.repeat(columns.steps, columns.counts)
    return columns.steps, columns.wall_times, which, value_steps, columns.numbers


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class ColumnBuffer:
    """The parts of all ranks that are not merged yet."""

    def __init__(self) -> None:
        self._parts: list[RankColumns] = []
        self.size = 0  # how much there is, in scalars

    def add(self, part: RankColumns) -> None:
        """Keep a part."""
        self._parts.append(part)
        self.size += part.size

    def middle(self) -> int:
        """The middle one of the steps."""
        steps = np.unique(np.concatenate([part.steps for part in self._parts]))
        return int(steps[len(steps) // 2])

    def take(self, floor: float) -> Iterator[list[RankColumns]]:
        """Take the steps below `floor`, rising, divided into groups of about WINDOW scalars.

        The parts of a group are sorted by rank and number.
        """
        due = [part for part in self._parts if part.low < floor]
        rest = [part for part in self._parts if part.low >= floor]
        self._parts = rest + _some(part.since(floor) for part in due)
        self.size = sum(part.size for part in self._parts)
        due = sorted(_some(part.before(floor) for part in due), key=attrgetter("rank", "number"))
        if not due:
            return
        low, high = min(part.low for part in due), max(part.high for part in due)
        # Divide the range of the steps, not the scalars: steps must not be torn between groups.
        count, span = -(-sum(part.size for part in due) // WINDOW), high + 1 - low
        for step in sorted({low + span * number // count for number in range(1, count)} - {low}):
            if group := _some(part.before(step) for part in due):
                yield group
            due = _some(part.since(step) for part in due)
        yield due


def _some(parts: Iterable[RankColumns | None]) -> list[RankColumns]:
    return [part for part in parts if part is not None]


class Window(NamedTuple):
    """All that ranks recorded at some steps of one attempt.

    `steps` int64 (S,), rising; `times` float64 (S,): the latest wall time of each step on any rank, in
    seconds since the epoch. `scalars`: rank by rank in recording order. `bulk`: by step and rank, then in
    recording order; of each plugin, tag and step the value of the lowest rank that has it, or the shards of
    all ranks.
    """

    attempt: int
    steps: Ints
    times: Floats
    scalars: RecordedScalars
    bulk: list[BulkPlace]


def window_of(attempt: int, parts: Sequence[RankColumns], tags: Sequence[str]) -> Window:
    """All of some parts, at least one, which are sorted by rank and number; `tags` are by their numbers."""
    steps = np.concatenate([part.steps for part in parts])
    # Of each step, the latest time of any rank.
    order = np.argsort(steps, kind="stable")
    changes = np.flatnonzero(np.diff(steps[order], prepend=steps[order[0]] - 1))
    times = np.maximum.reduceat(np.concatenate([part.times for part in parts])[order], changes)
    which = np.concatenate([part.which for part in parts])
    # Only tags that occur are named, so they get other numbers here.
    used = np.flatnonzero(np.bincount(which, minlength=len(tags)))
    place = np.zeros(len(tags), np.int64)
    place[used] = np.arange(len(used))
    scalars = RecordedScalars(
        [tags[number] for number in used.tolist()],
        place[which],
        np.repeat([part.rank for part in parts], [len(part.values) for part in parts]),
        np.concatenate([part.value_steps for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
    return Window(
        attempt, steps[order[changes]], times, scalars, _chosen(b for part in parts for b in part.bulk)
    )


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


def by_event(places: Iterable[BulkPlace]) -> Iterator[list[BulkPlace]]:
    """The places in the same order, with those of one event that follow one another in one list."""
    return (list(group) for _, group in groupby(places, key=attrgetter("file", "start", "end")))


def values_at(places: Sequence[BulkPlace]) -> list[tuple[BulkPlace, Value]]:
    """The values at places of one event, without those that `keep_bytes` has removed since.

    Raises DamagedFileError or OSError if the file no longer holds what it held.
    """
    file, start, end, step = places[0].file, places[0].start, places[0].end, places[0].step
    wanted = {(place.plugin, place.tag) for place in places}
    # If an event holds a tag twice, the last value counts.
    values, failure = dict[tuple[str, str], Value](), None
    try:
        values = {(value.plugin, value.tag): value for value in values_in(file, start, end, step)}
    except DamagedFileError as error:
        failure = error
    if wanted - values.keys():
        if not is_shortened(file):
            text = f"{file} no longer holds {places[0].tag!r} at byte {start}; it was changed"
            raise failure or DamagedFileError(text)
        # What was not removed, such as norms, is at another place.
        for event in read_file(file, "skip", skipped=[]):
            if event.step == step:
                values |= {(value.plugin, value.tag): value for value in event.values}
    found_at = ((place, values.get((place.plugin, place.tag))) for place in places)
    return [(place, value) for place, value in found_at if value is not None]
