"""Scalar events as packed rows and back."""

import math
from typing import Any

import numpy as np
import pytest

from distsummary.format.records import Event, Scalars, Shard, Value
from distsummary.format.scalar_rows import FLUSH, Item, events_of, joined, row_of, row_struct, size_of


def scalar_event(step: int, **numbers: Any) -> Event:
    return Event(step, 1.5 + step, [Value("scalar", tag, number) for tag, number in numbers.items()])


def test_an_event_of_plain_scalars_is_the_same_as_a_row():
    event = scalar_event(3, a=1.0, b=2, c=np.float32(3), d=True)
    row = row_of(event)
    assert row is not None
    assert list(events_of(Scalars(*row))) == [event]
    assert Scalars(*row).size == 1


@pytest.mark.parametrize("text", ["x" * 1000, "大" * 500], ids=["ascii", "wide"])
def test_a_text_counts_with_its_bytes(text: str):
    event = Event(1, 1.5, [Value("text", "note", text)])
    assert size_of(event) >= 1000


def test_numbers_keep_every_bit():
    numbers = [-0.0, math.inf, -math.inf, 5e-324, 1.7e308, 0.1]
    row = row_of(Event(-(2**63), -1.5, [Value("scalar", "x", number) for number in numbers]))
    assert row is not None
    [back] = events_of(Scalars(*row))
    assert [value.data.hex() for value in back.values] == [number.hex() for number in numbers]
    assert (back.step, back.wall_time) == (-(2**63), -1.5)


@pytest.mark.parametrize(
    "value",
    [
        Value("tensor", "a", np.zeros(2)),
        Value("scalar", "a", "1"),
        Value("scalar", "a", None),
        Value("scalar", "a", np.array(1.0)),
        Value("scalar", "a", 10**400),
        Value("scalar", [], 1.0),  # type: ignore[arg-type]
        Value("scalar", "a", 1.0, Shard(global_shape=(2,), offset=(0,))),
    ],
)
def test_an_event_of_anything_else_is_no_row(value: Value):
    assert row_of(Event(1, 1.5, [Value("scalar", "a", 1.0), value])) is None


def test_a_step_beyond_64_bits_is_no_row():
    assert row_of(scalar_event(2**63, a=1.0)) is None


def test_neighbours_of_the_same_tags_become_one_item_and_the_order_stays():
    tensor = Event(4, 0.0, [Value("tensor", "t", np.zeros(2))])
    events = [scalar_event(1, a=1.0), scalar_event(2, a=2.0), scalar_event(3, b=3.0), tensor, tensor]
    events += [scalar_event(5, b=5.0)]
    items: list[Item] = [(event, 0) for event in events]
    items += [(("b",), row_struct(1).pack(1.5, step, 0.5)) for step in (6, 7)]  # equal tags, another tuple
    found = joined(items, lambda event: event)
    assert [item.size if isinstance(item, Scalars) else "event" for item in found] == [
        2, 1, "event", "event", 3,
    ]  # fmt: skip
    unpacked = [e for item in found for e in ([item] if isinstance(item, Event) else events_of(item))]
    assert [event.step for event in unpacked] == [1, 2, 3, 4, 4, 5, 6, 7]


def test_a_queue_gives_events_of_one_frame_with_their_copies_waited_for():
    graph = Value("graph", "g", b"")
    late = Event(1, 0.0, [Value("scalar", "a", "late"), graph])
    arrived = Event(1, 0.0, [Value("scalar", "a", 2.0), graph])
    found = joined([(late, 0), (FLUSH, 0)], lambda event: arrived if event is late else event)
    assert found[0] == Event(1, 0.0, [graph])
    assert isinstance(found[1], Scalars)
    assert [e.values for e in events_of(found[1])] == [[Value("scalar", "a", 2.0)]]
    assert len(found) == 2


def test_a_row_is_as_long_as_it_says():
    assert row_struct(3).size == 16 + 3 * 8
