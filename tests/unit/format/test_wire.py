"""The wire format without message objects: fields, the identity of an event, and what a payload may hold."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.errors import DamagedFileError, InvalidValueError
from distsummary.format import tensorboard_format, wire
from distsummary.format.lineage import decode_lineage_event
from distsummary.format.mindspore_format import decode_event
from distsummary.format.pb import mindspore_lineage_pb2, mindspore_summary_pb2, tensorboard_pb2
from distsummary.format.records import Event, EventIds

IDS = st.builds(
    EventIds,
    st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}"),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**63 - 1),
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


@pytest.mark.parametrize("field", [1001, 1002], ids=["attempt", "seq"])
def test_an_attempt_or_seq_of_more_than_63_bits_is_damage(field):
    event = mindspore_summary_pb2.Event(wall_time=1.0, run_id=1, attempt=0, seq=1, step=1)
    event.summary.value.add(tag="loss", scalar_value=1.0)
    whole = event.SerializeToString()
    assert decode_event(whole + wire.integer(field, 2**63 - 1)) is not None
    with pytest.raises(DamagedFileError, match="more than 63 bits"):
        decode_event(whole + wire.integer(field, 2**63))


@given(st.integers(-(2**63), 2**64 - 1))
def test_numbers_have_the_bytes_of_protobuf(number: int):
    field = {"step": number} if number < 2**63 else {"seq": number}
    event = mindspore_summary_pb2.Event(**field)
    assert event.SerializePartialToString() == wire.integer(2 if number < 2**63 else 1002, number)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_a_number_is_read_back(number: int, rest: bytes):
    encoded = wire.varint(number)
    assert wire.read_varint(b"x" + encoded + rest, 1) == (number, 1 + len(encoded))
    with pytest.raises(ValueError, match="beyond the end"):
        wire.read_varint(encoded[:-1], 0)


# --- what would fill the memory is counted before it is parsed, wherever in the event it stands


EVENT = mindspore_summary_pb2.Event.DESCRIPTOR
MANY = 10_001  # a hundredth of the limit: counting in Python takes its time


def value(field: int, payload: bytes) -> bytes:
    """An event of one value that has `payload` in its field."""
    return wire.delimited(5, wire.delimited(1, wire.text(1, "tag") + wire.delimited(field, payload)))


@pytest.mark.parametrize(
    "payload",
    [
        wire.delimited(5, b"\x0a\x00" * MANY),
        wire.delimited(4, b"\x0a\x00" * MANY),
        value(9, b"\x0a\x00" * MANY),
        value(8, b"\x08\x01" * MANY),
        value(8, wire.delimited(5, b"\x01" * MANY)),
        wire.key(2000, wire.START_GROUP)
        + wire.key(2000, wire.END_GROUP)
        + wire.delimited(5, b"\x0a\x00" * MANY),
    ],
    ids=["values", "nodes", "buckets", "dims", "packed integers", "values after a group"],
)
def test_an_event_of_too_many_objects_is_refused(payload: bytes):
    with pytest.raises(DamagedFileError, match="objects"):
        wire.refuse_bombs(payload + value(4, wire.delimited(4, bytes(wire.SMALL))), EVENT, most=MANY - 1)


@pytest.mark.parametrize(("field", "within"), [(8, 3), (4, 4)])
def test_arrays_of_fixed_width_and_bytes_are_not_counted(field: int, within: int):
    wire.refuse_bombs(value(field, wire.delimited(within, bytes(wire.SMALL))), EVENT, most=MANY - 1)


@pytest.mark.parametrize("head", [b"", b"\x0b" * wire.SMALL, b"\x0a"])
def test_bytes_that_are_not_a_message_are_left_to_the_parser(head: bytes):
    wire.refuse_bombs(head + b"\xff" * wire.SMALL, EVENT)


def test_nesting_ends_somewhere():
    nested = b""
    for _ in range(200):
        nested = wire.delimited(1, nested + wire.delimited(15, bytes(4096)))
    wire.refuse_bombs(wire.delimited(9, nested), mindspore_lineage_pb2.LineageEvent.DESCRIPTOR)


@pytest.mark.parametrize(
    "decode",
    [
        decode_event,
        decode_lineage_event,
        lambda payload: tensorboard_format.decode_event(wire.delimited(5, payload)),
    ],
)
@given(payload=st.binary(max_size=100))
def test_garbage_is_damage_or_an_event_but_never_anything_else(decode, payload):
    try:
        decoded = decode(payload)
    except DamagedFileError:
        return
    assert decoded is None or isinstance(decoded[1], Event)
