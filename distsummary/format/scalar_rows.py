"""Packs scalar events as rows of bytes, the cheapest form to queue, and turns queued items into batches."""

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from distsummary.format.records import SIZED_PLUGINS, Event, Scalars, Value, nbytes_of, split_event

# A row: f64 wall_time | i64 step | one f64 number for each tag; all little-endian.
HEAD_BYTES = 16
Row: TypeAlias = tuple[tuple[str, ...], bytes]  # the tags, and one row
Item: TypeAlias = tuple[Any, Any]  # an item of a queue: a Row, or (Event, its size in bytes)
NUMBER_BYTES = 8
ITEM_BYTES = 128  # bytes of memory that an item of a queue takes, in addition to its row or values
ROW_BYTES = HEAD_BYTES + ITEM_BYTES  # of an item with a row, in addition to its numbers
SCALAR_BYTES = 64  # that each value of an event takes, in addition to its array
FLUSH = Event(0, 0.0, [])  # marks a place in a queue where the writer thread must flush its writer
MAX_PACKERS = 1024  # the most sets of tags for which a caller caches `row_struct(...).pack`
_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))


@lru_cache(maxsize=1024)
def row_struct(tags: int) -> struct.Struct:
    """Packs (wall_time, step, *numbers) for `tags` tags; non-numbers raise struct.error or OverflowError."""
    return struct.Struct(f"<dq{tags}d")


@lru_cache(maxsize=1024)
def row_dtype(tags: int) -> np.dtype[Any]:
    """The NumPy dtype of a row: wall_time, step and numbers (tags,)."""
    return np.dtype([("wall_time", "<f8"), ("step", "<i8"), ("numbers", "<f8", (tags,))])


def row_of(event: Event) -> Row | None:
    """The event as a row if it holds nothing but plain scalars, else None."""
    tags, numbers = [], []
    for plugin, tag, number, shard, _ in event.values:
        if plugin != "scalar" or shard is not None or type(number) not in _NUMBERS or type(tag) is not str:
            return None
        tags.append(tag)
        numbers.append(number)
    try:
        return tuple(tags), row_struct(len(tags)).pack(event.wall_time, event.step, *numbers)
    except (struct.error, OverflowError):
        return None


def events_of(scalars: Scalars) -> Iterator[Event]:
    """Unpack rows to events, with an object for each value."""
    for wall_time, step, *numbers in row_struct(len(scalars.tags)).iter_unpack(scalars.rows):
        values = [Value("scalar", tag, number) for tag, number in zip(scalars.tags, numbers, strict=True)]
        yield Event(step, wall_time, values)


def size_of(event: Event) -> int:
    """The bytes of memory that an event takes in addition to ITEM_BYTES."""
    sized = [value.data for value in event.values if value.plugin in SIZED_PLUGINS]
    return SCALAR_BYTES * len(event.values) + sum(map(nbytes_of, sized))


def joined(items: Iterable[Item], finished: Callable[[Event], Event]) -> list[Event | Scalars]:
    """The items of a queue as the events and Scalars of a Batch, in the same order.

    `finished` waits for an event's device copies; the event is then split into events of one frame each.
    Adjacent rows with the same tags become one Scalars.
    """
    found: list[Event | Scalars] = []
    tags: tuple[str, ...] | None = None
    rows: list[bytes] = []
    for head, body in items:
        # The usual case: a loop that records the same scalars at each step.
        if head is tags:
            rows.append(body)
            continue
        parts: list[Event | Row]
        if isinstance(body, bytes):
            parts = [(head, body)]
        else:
            parts = [row_of(part) or part for part in split_event(finished(head)) if part.values]
        for part in parts:
            if tags is not None and (isinstance(part, Event) or part[0] != tags):
                found.append(Scalars(tags, b"".join(rows)))
                tags = None
            if isinstance(part, Event):
                found.append(part)
            elif tags is None:
                tags, rows = part[0], [part[1]]
            else:
                rows.append(part[1])
    if tags is not None:
        found.append(Scalars(tags, b"".join(rows)))
    return found
