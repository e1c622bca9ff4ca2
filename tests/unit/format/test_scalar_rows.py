"""Scalar events as packed rows and back."""

import math
from typing import Any

import numpy as np
import pytest

from distsummary.format.records import Event, Scalars, Shard, Value
from distsummary.format.scalar_rows import events_of, packed, row_of, row_struct


def scalar_event(step: int, **numbers: Any) -> Event:
    return Event(step, 1.5 + step, [Value("scalar", tag, number) for tag, number in numbers.items()])


def test_an_event_of_plain_scalars_is_the_same_as_a_row():
    event = scalar_event(3, a=1.0, b=2, c=np.float32(3), d=True)
    row = row_of(event)
    assert row is not None
    assert list(events_of(Scalars(*row))) == [event]
    assert Scalars(*row).size == 1


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
    items = packed(events)
    assert [item.size if isinstance(item, Scalars) else "event" for item in items] == [
        2,
        1,
        "event",
        "event",
        1,
    ]
    unpacked = [e for item in items for e in ([item] if isinstance(item, Event) else events_of(item))]
    assert [event.step for event in unpacked] == [1, 2, 3, 4, 4, 5]
    again = packed(items)
    assert [item.size for item in again if isinstance(item, Scalars)] == [2, 1, 1]


def test_a_row_is_as_long_as_it_says():
    assert row_struct(3).size == 16 + 3 * 8
