"""Scalar events encoded in columns: the bytes of the general way, or nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distsummary.format import scalar_encoder
from distsummary.format.encode import encode_event
from distsummary.format.frames import frame
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, EventIds, Scalars, Value
from distsummary.format.scalar_encoder import ScalarEncoder
from distsummary.format.scalar_rows import events_of, row_of, row_struct
from tests.unit.format import samples

RUN = "00ff00ff00ff00ff"
NUMBERS = st.floats() | st.sampled_from([-0.0, float("-inf"), 1e-320, -1e300, 3.4028236e38, 2.0**62 + 1])
TAGS = st.lists(samples.TAGS, min_size=1, max_size=6).map(tuple)
COUNTS = st.integers(1, 2**63 - 1 - 100) | st.sampled_from([127, 16383, 2**21 - 1])


def rows(tags: tuple[str, ...], table: list[tuple[float, int, list[float]]]) -> Scalars:
    pack = row_struct(len(tags)).pack
    return Scalars(tags, b"".join(pack(wall_time, step, *numbers) for wall_time, step, numbers in table))


def general(seq: int, event: Event, dialect: str) -> bytes:
    payloads, refused = encode_event(event, EventIds(RUN, 3, seq), (dialect,))
    assert refused == []
    payload = payloads[dialect]
    assert payload is not None
    return frame(payload)


def check(encoder: ScalarEncoder, first_seq: int, scalars: Scalars, dialects=DIALECTS) -> int:
    """How many were encoded, all in the right bytes and order."""
    events = list(events_of(scalars))
    encoded = place = 0
    for stretch in encoder.encode(first_seq, scalars):
        assert stretch.start == place
        place = stretch.stop
        if stretch.framed is None:
            continue
        encoded += stretch.stop - stretch.start
        assert tuple(stretch.framed) == dialects
        for dialect, framed in stretch.framed.items():
            numbered = range(stretch.start, stretch.stop)
            expected = b"".join(general(first_seq + n, events[n], dialect) for n in numbered)
            assert b"".join(framed.parts) == expected
            assert (framed.first_seq, framed.count) == (first_seq + stretch.start, len(numbered))
            assert framed.nbytes == len(expected)
    assert place == len(events)
    return encoded


@settings(max_examples=30)
@given(COUNTS, COUNTS, st.floats(1e-300, 1e300), TAGS, st.integers(1, 12), st.data())
def test_scalars_have_the_bytes_of_the_general_way(seq, step, wall_time, tags, count, data):
    numbers = st.lists(NUMBERS, min_size=len(tags), max_size=len(tags))
    scalars = rows(tags, [(wall_time + n, step + n, data.draw(numbers)) for n in range(count)])
    encoded = check(ScalarEncoder(RUN, 3, DIALECTS), seq, scalars)
    assert encoded == count or count < 8  # few that exceed float32 go the general way


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_single_dialect_is_the_same(dialect: str):
    scalars = rows(("a", "b"), [(1.5, n, [n / 3, -n]) for n in range(120, 140)])
    assert check(ScalarEncoder(RUN, 3, (dialect,)), 16380, scalars, (dialect,)) == 20


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize(
    ("tags", "wall_time", "step"),
    [
        (("a",), 1.5, 0), (("a",), 1.5, -1), (("a",), 0.0, 1), ((), 1.5, 1), (("",), 1.5, 1),
        (("x" * 1025,), 1.5, 1), (("\ud800",), 1.5, 1),
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_the_general_way(tags, wall_time: float, step: int, count: int):
    scalars = rows(tags, [(wall_time, step, [1.0] * len(tags))] * count)
    stretches = list(ScalarEncoder(RUN, 3, DIALECTS).encode(1, scalars))
    assert all(stretch.framed is None for stretch in stretches)
    assert stretches[-1].stop == count


@pytest.mark.parametrize(("tags", "count"), [(100, 3), (300, 30), (1_000, 1), (1_000, 12), (10_000, 2)])
def test_events_of_any_number_of_tags_have_the_bytes_of_the_general_way(tags: int, count: int):
    names = tuple(f"layer{n // 10}/metric_{n % 10}" for n in range(tags))
    table = [(1e9 + n, 120 + n, [n + k / 7 for k in range(tags)]) for n in range(count)]
    assert check(ScalarEncoder(RUN, 3, DIALECTS), 16_380, rows(names, table)) == count


def test_an_event_that_readers_may_refuse_is_left_to_the_general_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scalar_encoder, "MAX_LENGTH", 150)
    scalars = rows(tuple("abcdefghijklmnop"), [(1.5, 1, [1.0] * 16)])
    assert [stretch.framed for stretch in ScalarEncoder(RUN, 3, DIALECTS).encode(1, scalars)] == [None]


def test_an_unusual_row_among_others_costs_only_itself():
    table = [(1.5, step, [1.0]) for step in (1, 2, 3, 0, 4, 5, 6)]
    assert check(ScalarEncoder(RUN, 3, DIALECTS), 1, rows(("a",), table)) == 6


def test_numbers_of_numpy_and_python_are_packed_alike():
    event = Event(1, 1.5, [Value("scalar", "a", np.float32(0.1)), Value("scalar", "b", 7)])
    row = row_of(event)
    assert row is not None
    assert check(ScalarEncoder(RUN, 3, (MINDSPORE, TENSORBOARD)), 1, Scalars(*row)) == 1
