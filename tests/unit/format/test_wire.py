"""The identity of an event, written and read without message objects."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.errors import InvalidValueError
from distsummary.format import wire
from distsummary.format.records import EventIds
from distsummary.pb import mindspore_summary_pb2, tensorboard_pb2

IDS = st.builds(
    EventIds,
    st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**64 - 1),
)


@given(IDS)
def test_both_dialects_carry_the_identity_in_the_same_bytes(ids: EventIds):
    for event in (mindspore_summary_pb2.Event.FromString(wire.double(1, 1.0) + wire.identity(ids)),
                  tensorboard_pb2.Event.FromString(wire.identity(ids))):  # fmt: skip
        assert (f"{event.run_id:016x}", event.attempt, event.seq) == ids


@given(IDS, st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.text())
def test_the_identity_is_found_behind_any_other_field(ids: EventIds, wall_time: float, step: int, text: str):
    event = mindspore_summary_pb2.Event(wall_time=wall_time, step=step, version=text)
    assert wire.read_identity(event.SerializeToString() + wire.identity(ids)) == ids


def test_an_event_of_another_writer_has_no_identity():
    event = mindspore_summary_pb2.Event(wall_time=1.0, step=3)
    assert wire.read_identity(event.SerializeToString()) == EventIds("", 0, 0)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_read_but_never_breaks(payload: bytes):
    with contextlib.suppress(ValueError):
        assert isinstance(wire.read_identity(payload), EventIds)


@pytest.mark.parametrize("run_id", ["", "12", "x" * 16, "0" * 17, "00 11 22 33 44 5"])
def test_a_run_id_that_is_not_16_hex_digits_is_refused(run_id: str):
    with pytest.raises(InvalidValueError, match="16 hex digits"):
        wire.identity(EventIds(run_id, 0, 1))


@given(st.integers(-(2**63), 2**64 - 1))
def test_numbers_have_the_bytes_of_protobuf(number: int):
    field = {"step": number} if number < 2**63 else {"seq": number}
    event = mindspore_summary_pb2.Event(**field)
    assert event.SerializePartialToString() == wire.integer(2 if number < 2**63 else 1002, number)
