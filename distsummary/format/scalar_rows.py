"""Scalar events as packed rows: what the most frequent events cost least in, from the loop to the file."""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from distsummary.format.records import Event, Scalars, Value

# A row: f64 wall_time | i64 step | f64 number, one for each tag, little-endian.
HEAD_BYTES = 16
Row: TypeAlias = tuple[tuple[str, ...], bytes]  # the tags, and one row
_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))


@lru_cache(maxsize=1024)
def row_struct(tags: int) -> struct.Struct:
    """Packs (wall_time, step, *numbers) for so many tags; struct.error or OverflowError for what is none."""
    return struct.Struct(f"<dq{tags}d")


@lru_cache(maxsize=1024)
def row_dtype(tags: int) -> np.dtype[Any]:
    """The same row for NumPy: wall_time, step, numbers (tags,)."""
    return np.dtype([("wall_time", "<f8"), ("step", "<i8"), ("numbers", "<f8", (tags,))])


def row_of(event: Event) -> Row | None:
    """The event as a row when it holds plain scalars alone, else None."""
    tags, numbers = [], []
    for plugin, tag, number, shard in event.values:
        if plugin != "scalar" or shard is not None or type(number) not in _NUMBERS or type(tag) is not str:
            return None
        tags.append(tag)
        numbers.append(number)
    try:
        return tuple(tags), row_struct(len(tags)).pack(event.wall_time, event.step, *numbers)
    except (struct.error, OverflowError):
        return None


def events_of(scalars: Scalars) -> Iterator[Event]:
    """The same events with an object for each value."""
    for wall_time, step, *numbers in row_struct(len(scalars.tags)).iter_unpack(scalars.rows):
        values = [Value("scalar", tag, number) for tag, number in zip(scalars.tags, numbers, strict=True)]
        yield Event(step, wall_time, values)


def packed(items: Iterable[Event | Scalars]) -> list[Event | Scalars]:
    """The same events in the same order; neighbours that hold scalars of the same tags become one item."""
    joined: list[Event | Scalars] = []
    tags: tuple[str, ...] | None = None
    rows: list[bytes] = []

    def end_rows() -> None:
        nonlocal tags
        if tags is not None:
            joined.append(Scalars(tags, b"".join(rows)))
        tags = None
        rows.clear()

    for item in items:
        row = item if isinstance(item, Scalars) else row_of(item)
        if row is None or row[0] != tags:
            end_rows()
        if row is None:
            joined.append(item)
        else:
            tags = row[0]
            rows.append(row[1])
    end_rows()
    return joined
