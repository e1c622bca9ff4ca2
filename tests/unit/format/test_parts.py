"""What would fill the memory is counted before it is parsed, wherever in the event it stands."""

import pytest

from distsummary.errors import DamagedFileError
from distsummary.format import parts, wire
from distsummary.format.parts import refuse_bombs
from distsummary.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.pb import mindspore_summary_pb2 as summary_pb2

EVENT = summary_pb2.Event.DESCRIPTOR
MANY, SMALL = 10_001, 1000


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the code, a hundred times lower: counting in Python takes its time."""
    monkeypatch.setattr(parts, "MAX_PARTS", MANY - 1)
    monkeypatch.setattr(parts, "SMALL", SMALL)


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
    ],
    ids=["values", "nodes", "buckets", "dims", "packed integers"],
)
def test_an_event_of_too_many_parts_is_refused(payload: bytes):
    with pytest.raises(DamagedFileError, match="parts"):
        refuse_bombs(payload, EVENT)


def test_large_numbers_and_bytes_are_no_parts():
    refuse_bombs(value(8, wire.delimited(3, bytes(8 * MANY))), EVENT)
    refuse_bombs(value(4, wire.delimited(4, bytes(8 * MANY))), EVENT)


@pytest.mark.parametrize("garbage", [b"\xff" * SMALL, b"\x0b" * SMALL, b"\x0a" + b"\xff" * SMALL])
def test_what_is_no_message_is_left_to_the_parser(garbage: bytes):
    refuse_bombs(garbage, EVENT)


def test_nesting_ends_somewhere():
    nested = b""
    for _ in range(200):
        nested = wire.delimited(1, nested + wire.delimited(15, bytes(4096)))
    refuse_bombs(wire.delimited(9, nested), lineage_pb2.LineageEvent.DESCRIPTOR)
