"""What an event file holds, as columns: its events, the scalars of each tag, where other values stand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.events.rank_stream import Owner
from distsummary.events.reader import Damage, ReadEvent, newer_version, read_pieces_of
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.format.records import TENSORBOARD_PLUGINS, Shard

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]

EVENT_COLUMNS = {"owner": np.int32, "seq": np.int64, "step": np.int64, "wall_time": np.float64}
_KEPT = 1 << 20  # numbers of a progression at most that are kept
_MAX_ROWS = 4096  # events collected one by one before they become arrays


class Column(Protocol):
    """An array (n,) that is in memory, in an index file, or given by a rule."""

    @property
    def size(self) -> int:
        """n."""

    def load(self) -> Array:
        """The array; raises `index.DamagedIndexError` if it is in an index file that is damaged."""

    def take(self, at: Array) -> Array:
        """The elements with the indices `at`; raises as `load`."""


class MemoryColumn(NamedTuple):
    """A column in memory."""

    array: Array

    @property
    def size(self) -> int:
        """n."""
        return self.array.size

    def load(self) -> Array:
        """The array itself."""
        return self.array

    def take(self, at: Array) -> Array:
        """See Column."""
        return np.asarray(self.array[at])


class Progression(NamedTuple):
    """The column first, first + stride, first + 2 * stride and so on: steps, seqs and indices mostly are."""

    first: int
    stride: int
    length: int

    @property
    def size(self) -> int:
        """n."""
        return self.length

    def load(self) -> Array:
        """As int64 (n,)."""
        make = _progression if self.length <= _KEPT else _progression.__wrapped__
        return make(*self)

    def take(self, at: Array) -> Array:
        """See Column."""
        return at.astype(np.int64) * self.stride + self.first


@lru_cache(4)
def _progression(first: int, stride: int, length: int) -> Array:
    """The numbers of a progression, kept for the other ranks, which mostly have the same."""
    found = np.arange(length, dtype=np.int64) * stride + first
    found.flags.writeable = False
    return found


class Series(NamedTuple):
    """The scalars of one tag: for each its value, float32, and the index of its event in the part."""

    events: Column
    values: Column


class Places(NamedTuple):
    """The values of one tag that are no scalars: for each the index of its event, and where its frame lies.

    `shards`: the index in `FileContents.shards` of the slice that the value is, -1 for a whole value.
    """

    events: Column
    offsets: Column
    ends: Column
    shards: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """What an event file holds up to byte `end`, from where another part ended; n events in file order.

    Attributes:
        events: columns of n elements: `owner` (the index in `owners`), `seq`, `step` and `wall_time` (seconds
            since the epoch).
        lows: of each owner the lowest step of its events, without graphs and TensorBoard's own pages, which
            have no step; inf without any.
        scalars: by tag, in the order of the first values. others: by plugin and tag.
        damage: the damaged places that were skipped.
    """

    end: int
    owners: tuple[Owner, ...] = ()
    lows: tuple[float, ...] = ()
    shards: tuple[Shard, ...] = ()
    events: Mapping[str, Column] = field(default_factory=dict)
    scalars: Mapping[str, Series] = field(default_factory=dict)
    others: Mapping[tuple[str, str], Places] = field(default_factory=dict)
    damage: tuple[Damage, ...] = ()

    @property
    def size(self) -> int:
        """n."""
        return self.events["step"].size if self.events else 0


def scan(path: Path, start: int = 0) -> FileContents:
    """Read a file from byte `start` (0, or the `end` of an earlier part) to its last whole event.

    Damage is skipped; at the end of the file it is not damage yet, for the file may be growing. If the format
    is a newer one, that is reported as damage of the first byte. Raises MissingFileError.
    """
    damage: list[Damage] = []
    built = _Builder()
    for piece in read_pieces_of(path, "tail", start=start, skipped=damage):
        if isinstance(piece, ScalarColumns):
            built.add_columns(piece)
        else:
            built.add_event(piece)
    if start == 0 and (text := newer_version(path)):
        damage.insert(0, Damage(path, 0, text))
    return built.part(start, damage)


def joined(parts: Sequence[FileContents]) -> FileContents:
    """Parts that follow one another in a file as one."""
    if len(parts) == 1:
        return parts[0]
    owners: dict[Owner, float] = {}
    shards: dict[Shard, int] = {}
    events: dict[str, list[Array]] = {name: [] for name in EVENT_COLUMNS}
    scalars: dict[str, list[Sequence[Array]]] = {}
    others: dict[tuple[str, str], list[Sequence[Array]]] = {}
    first = 0
    for part in parts:
        for owner, low in zip(part.owners, part.lows, strict=True):
            owners[owner] = min(low, owners.get(owner, np.inf))
        # Each part counts its owners and shards from 0: translate their numbers into those of the whole. The
        # last of `numbers` is what -1, for no shard, selects.
        places = np.array([*map([*owners].index, part.owners)], np.int32)
        numbers = np.array([*(shards.setdefault(shard, len(shards)) for shard in part.shards), -1], np.int64)
        for name, column in part.events.items():
            events[name].append(places[column.load()] if name == "owner" else column.load())
        for tag, series in part.scalars.items():
            scalars.setdefault(tag, []).append((series.events.load() + first, series.values.load()))
        for key, found in part.others.items():
            columns = (found.events.load() + first, found.offsets.load(), found.ends.load())
            others.setdefault(key, []).append((*columns, numbers[found.shards.load()]))
        first += part.size
    return FileContents(
        end=parts[-1].end,
        owners=tuple(owners),
        lows=tuple(owners.values()),
        shards=tuple(shards),
        events={name: column_of(np.concatenate(found)) for name, found in events.items()},
        scalars={tag: Series(*_concatenated(found)) for tag, found in scalars.items()},
        others={key: Places(*_concatenated(found)) for key, found in others.items()},
        damage=tuple(one for part in parts for one in part.damage),
    )


def column_of(array: Array) -> Column:
    """The array as a column; whole numbers in equal distances take no memory."""
    if array.dtype.kind == "i" and array.size:
        stride = int(array[1]) - int(array[0]) if array.size > 1 else 0
        if array.size < 3 or (np.diff(array) == stride).all():
            return Progression(int(array[0]), stride, array.size)
    return MemoryColumn(array)


def _concatenated(found: Iterable[Sequence[Array]]) -> Iterable[Column]:
    return (column_of(np.concatenate(columns)) for columns in zip(*found, strict=True))


class _Builder:
    """Collects the events of a file, in columns and one by one."""

    def __init__(self) -> None:
        self._owners: dict[Owner, float] = {}
        self._shards: dict[Shard, int] = {}
        self._tags: dict[str, int] = {}
        self._last_tags: list[str] | None = None
        self._last_numbers = np.empty(0, np.int32)
        self._count = 0
        self._end = 0
        self._events: list[tuple[Array, ...]] = []
        self._scalars: list[tuple[Array, Array, Array]] = []  # tag number, event, value
        self._rows: list[tuple[int, int, int, float]] = []
        self._numbers: list[tuple[int, int, float]] = []
        self._others: dict[tuple[str, str], list[tuple[int, int, int, int]]] = {}

    def add_columns(self, columns: ScalarColumns) -> None:
        # What was added one by one comes before these in the file.
        self._flush()
        size = columns.steps.size
        owner = self._owner((columns.run_id, columns.attempt), float(columns.steps.min()))
        owners = np.full(size, owner, np.int32)
        self._events.append((owners, columns.seqs, columns.steps, columns.wall_times))
        # Consecutive columns mostly share one list of tags, whose numbers are then known.
        if columns.tags is not self._last_tags:
            self._last_tags = columns.tags
            self._last_numbers = np.array([self._tag(tag) for tag in columns.tags], np.int32)
        numbers = self._last_numbers
        at = np.repeat(np.arange(self._count, self._count + size), columns.counts)
        # A signalling NaN becomes a quiet one, without a warning.
        with np.errstate(invalid="ignore"):
            self._scalars.append((numbers[columns.tag_numbers], at, columns.numbers.astype(np.float32)))
        self._count += size
        self._end = int(columns.ends[-1])

    def add_event(self, event: ReadEvent) -> None:
        first = event.values[0].plugin if event.values else ""
        has_step = first not in ("graph", *TENSORBOARD_PLUGINS)
        owner = self._owner((event.run_id, event.attempt), event.step if has_step else np.inf)
        self._rows.append((owner, event.seq, event.step, event.wall_time))
        for value in event.values:
            if value.plugin == "scalar" and value.shard is None:
                self._numbers.append((self._tag(value.tag), self._count, value.data))
            else:
                shard = -1
                if value.shard is not None:
                    shard = self._shards.setdefault(value.shard, len(self._shards))
                place = (self._count, event.offset, event.end, shard)
                self._others.setdefault((value.plugin, value.tag), []).append(place)
        self._count += 1
        self._end = event.end
        if len(self._rows) >= _MAX_ROWS:
            self._flush()

    def part(self, start: int, damage: Sequence[Damage]) -> FileContents:
        """All that was added."""
        self._flush()
        if not self._events:
            return FileContents(end=start, damage=tuple(damage))
        columns = map(np.concatenate, zip(*self._events, strict=True))
        scalars: dict[str, Series] = {}
        if self._scalars:
            tags, events, values = map(np.concatenate, zip(*self._scalars, strict=True))
            # Sort by tag, and within a tag in the order of the file. uint16 is sorted in a third of the time.
            if len(self._tags) < 1 << 16:
                tags = tags.astype(np.uint16)
            order = np.argsort(tags, kind="stable")
            counts = np.bincount(tags, minlength=len(self._tags))
            events, values = events[order], values[order]
            # Mostly each of these events has all tags: then all series share one column of events.
            if (counts == counts[0]).all() and (events.reshape(counts.size, -1) == events[: counts[0]]).all():
                column = column_of(events[: counts[0]])
                rows = values.reshape(counts.size, -1)
                scalars = {
                    tag: Series(column, MemoryColumn(row)) for tag, row in zip(self._tags, rows, strict=True)
                }
            else:
                places = zip(*(np.split(found, np.cumsum(counts)) for found in (events, values)), strict=True)
                for tag, (of_tag, numbers) in zip(self._tags, places, strict=False):
                    # Columns may name tags of frames that did not fit them.
                    if numbers.size:
                        scalars[tag] = Series(column_of(of_tag), MemoryColumn(numbers))
        return FileContents(
            end=self._end,
            owners=tuple(self._owners),
            lows=tuple(self._owners.values()),
            shards=tuple(self._shards),
            events=dict(zip(EVENT_COLUMNS, map(column_of, columns), strict=True)),
            scalars=scalars,
            others={
                key: Places(*map(column_of, np.array(rows, np.int64).T)) for key, rows in self._others.items()
            },
            damage=tuple(damage),
        )

    def _owner(self, owner: Owner, low: float) -> int:
        known = self._owners.get(owner)
        self._owners[owner] = low if known is None else min(low, known)
        return 0 if len(self._owners) == 1 else [*self._owners].index(owner)

    def _tag(self, tag: str) -> int:
        return self._tags.setdefault(tag, len(self._tags))

    def _flush(self) -> None:
        """Turn what was added one by one into arrays."""
        if self._rows:
            dtypes = EVENT_COLUMNS.values()
            columns = zip(*self._rows, strict=True)
            self._events.append(tuple(map(np.array, columns, dtypes)))
            self._rows.clear()
        if self._numbers:
            tags, events, values = zip(*self._numbers, strict=True)
            with np.errstate(over="ignore"):
                numbers = np.array(values, np.float64).astype(np.float32)
            self._scalars.append((np.array(tags, np.int32), np.array(events, np.int64), numbers))
            self._numbers.clear()
