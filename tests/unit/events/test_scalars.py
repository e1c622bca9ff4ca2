"""Scalar events encoded in columns: the bytes of the general way, or nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.events.encode import encode_event
from distsummary.events.frames import frame
from distsummary.events.records import Event, EventIds, Scalars, Shard, Value
from distsummary.events.scalars import FEW, ScalarEncoder, event_of, scalars_of
from tests.unit.events import samples

RUN = "00ff00ff00ff00ff"
NUMBERS = (
    st.floats()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.sampled_from([-0.0, np.float64(0.1), np.float32(np.nan), float("-inf"), 1e-320, -1e300, 2**62 + 1])
)
TAGS = st.lists(samples.TAGS, min_size=1, max_size=6).map(tuple)
COUNTS = st.integers(1, 2**63 - 1 - 100) | st.sampled_from([127, 16383, 2**21 - 1])


def general(seq: int, row: Scalars) -> tuple[bytes, ...]:
    payloads, refused = encode_event(event_of(row), EventIds(RUN, 3, seq))
    assert refused == []
    return tuple(frame(payload) for payload in payloads.values() if payload is not None)


def check(encoder: ScalarEncoder, seqs: list[int], rows: list[Scalars]) -> int:
    """How many were encoded, all in the right bytes."""
    framed = encoder.encode(seqs, rows)
    assert len(framed) == len(rows)
    for seq, row, pair in zip(seqs, rows, framed, strict=True):
        assert pair is None or pair == general(seq, row)
    return len(framed) - framed.count(None)


@given(COUNTS, COUNTS, st.floats(1e-300, 1e300), TAGS, st.data())
def test_scalars_have_the_bytes_of_the_general_way(
    seq: int, step: int, wall_time: float, tags: tuple[str, ...], data: st.DataObject
):
    numbers = st.lists(NUMBERS, min_size=len(tags), max_size=len(tags))
    rows = [Scalars(step, wall_time + n, tags, data.draw(numbers)) for n in range(FEW)]
    assert check(ScalarEncoder(RUN, 3), [seq] * FEW, rows) == FEW


def test_growing_numbers_and_changing_tags_are_sorted_out():
    tags = (("loss",), ("loss", "lr"), ("é" * 60,), ("loss",))
    rows = [Scalars(5 * n, 1.5 + n, tags[n % 4], [n / 7] * len(tags[n % 4])) for n in range(1, 1000)]
    encoder = ScalarEncoder(RUN, 3)
    assert check(encoder, list(range(20, 1019)), rows) == 999
    assert check(encoder, list(range(16000, 16999)), rows) == 999


def test_more_tags_than_are_remembered_are_still_encoded():
    encoder = ScalarEncoder(RUN, 3)
    for number in range(1100):
        assert check(encoder, [9] * FEW, [Scalars(5, 1.5, (f"tag{number}",), [0.5])] * FEW) == FEW


@pytest.mark.parametrize(
    "row",
    [
        Scalars(0, 1.5, ("a",), [1.0]),
        Scalars(-1, 1.5, ("a",), [1.0]),
        Scalars(2**63, 1.5, ("a",), [1.0]),
        Scalars(1, 0.0, ("a",), [1.0]),
        Scalars(1, 1.5, (), []),
        Scalars(1, 1.5, ("",), [1.0]),
        Scalars(1, 1.5, ("x" * 1025,), [1.0]),
        Scalars(1, 1.5, ("\ud800",), [1.0]),
        Scalars(1, 1.5, (5,), [1.0]),  # type: ignore[arg-type]
        Scalars(1, 1.5, tuple(f"{number}" * 100 for number in range(100)), [1.0] * 100),
        Scalars(1, 1.5, ("a",), [10**400]),
        Scalars(1, 1.5, ("a",), ["1"]),  # type: ignore[list-item]
        Scalars(1, 1.5, ("a",), [None]),  # type: ignore[list-item]
        Scalars(1, 1.5, ("a", "b"), [1.0]),
        Scalars(1, 1.5, ("a",), [[1.0]]),  # type: ignore[list-item]
    ],
)
def test_what_is_unusual_is_left_to_the_general_way(row: Scalars):
    assert ScalarEncoder(RUN, 3).encode([1] * 5, [row] * 5) == [None] * 5


def test_events_outside_the_numbering_are_left_to_the_general_way():
    assert ScalarEncoder(RUN, 3).encode([0] * 5, [Scalars(1, 1.5, ("a",), [1.0])] * 5) == [None] * 5


def test_few_events_are_left_to_the_general_way():
    rows = [Scalars(1, 1.5, ("a",), [1.0])] * (FEW - 1)
    assert ScalarEncoder(RUN, 3).encode([1] * len(rows), rows) == [None] * len(rows)


def test_an_event_of_plain_scalars_is_the_same_in_columns():
    values = [Value("scalar", "a", 1.0), Value("scalar", "b", 2), Value("scalar", "c", np.float32(3))]
    event = Event(3, 1.5, values)
    row = scalars_of(event)
    assert row == Scalars(3, 1.5, ("a", "b", "c"), [1.0, 2, 3.0])
    assert event_of(row) == event


@pytest.mark.parametrize(
    "value",
    [
        Value("tensor", "a", np.zeros(2)),
        Value("scalar", "a", "1"),
        Value("scalar", "a", np.array(1.0)),
        Value("scalar", [], 1.0),  # type: ignore[arg-type]
        Value("scalar", "a", 1.0, Shard(global_shape=(2,), offset=(0,))),
    ],
)
def test_an_event_of_anything_else_has_no_columns(value: Any):
    assert scalars_of(Event(1, 1.5, [Value("scalar", "a", 1.0), value])) is None
