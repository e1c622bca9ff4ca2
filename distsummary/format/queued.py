"""What stands in the queue of a writer thread: events with their bytes, and scalars packed to rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from distsummary.format.records import BULK_PLUGINS, Event, Scalars, split_event
from distsummary.format.scalar_rows import events_of

ITEM_BYTES = 256  # what an item counts in the budget beside its arrays, and all of a row
MAX_ROW_BYTES = 160  # a longer row is counted as an event
SCALAR_BYTES = 64  # what a value without an array counts in the budget
FLUSH = Event(0, 0.0, [])  # in the queue: flush the inner writer here

Item: TypeAlias = tuple[Any, Any]  # an event and its bytes (int), or a Row (told by the class of the second)


def events_in(item: Item) -> Iterator[Event]:
    """The event of an item."""
    head, body = item
    return events_of(Scalars(head, body)) if isinstance(body, bytes) else iter([head])


def size_of(event: Event) -> int:
    """What an event counts in the budget, beside ITEM_BYTES."""
    bulk = [value.data for value in event.values if value.plugin in BULK_PLUGINS]
    return SCALAR_BYTES * len(event.values) + sum(int(getattr(data, "nbytes", 0)) for data in bulk)


def as_written(items: Sequence[Item], resolved: Callable[[Event], Event]) -> Iterator[Event | Scalars]:
    """Events of one frame each, their device copies waited for by `resolved`; rows of one kind joined."""
    tags: tuple[str, ...] | None = None
    rows: list[bytes] = []
    for head, body in items:
        if head is tags:
            rows.append(body)
            continue
        if tags is not None:
            yield Scalars(tags, b"".join(rows))
            tags, rows = None, []
        if isinstance(body, bytes):
            tags, rows = head, [body]
        else:
            yield from (part for part in split_event(resolved(head)) if part.values)
    if tags is not None:
        yield Scalars(tags, b"".join(rows))
