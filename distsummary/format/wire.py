"""The protobuf wire format, as far as the hot messages need it: fields to bytes without message objects."""

import math
import struct
from collections.abc import Iterable
from functools import lru_cache

from distsummary.errors import InvalidValueError
from distsummary.format.frames import Part
from distsummary.format.records import EventIds

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_ONE_BYTE = [bytes([number]) for number in range(0x80)]
_UINT64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """`number` as a varint; negative ones as the 64-bit two's complement (ten bytes), as protobuf does."""
    if 0 <= number <= 0x7F:  # nearly always
        return _ONE_BYTE[number]
    if 0 < number <= 0x3FFF:  # two and three bytes, as most steps take: 0.7 of the loop's time
        return bytes((number & 0x7F | 0x80, number >> 7))
    if 0 < number <= 0x1FFFFF:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    number &= _UINT64
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@lru_cache(maxsize=256)
def key(field: int, wire_type: int) -> bytes:
    """What stands before a field: its number and wire type."""
    return varint(field << 3 | wire_type)


def integer(field: int, number: int) -> bytes:
    """An int32, int64, uint32, uint64, bool or enum field."""
    return key(field, VARINT) + varint(number)


def double(field: int, number: float) -> bytes:
    """A double field."""
    return key(field, FIXED64) + struct.pack("<d", number)


def single(field: int, number: float) -> bytes:
    """A float field; what exceeds float32 becomes infinite."""
    try:
        return key(field, FIXED32) + struct.pack("<f", number)
    except OverflowError:
        return key(field, FIXED32) + struct.pack("<f", math.copysign(math.inf, number))


def fixed64(field: int, number: int) -> bytes:
    """A fixed64 field."""
    return key(field, FIXED64) + struct.pack("<Q", number)


def delimited(field: int, payload: bytes) -> bytes:
    """A string, bytes, message or packed field."""
    return b"".join((key(field, LENGTH_DELIMITED), varint(len(payload)), payload))


def message(field: int, parts: Iterable[Part]) -> list[Part]:
    """A message field whose payload is in parts, none of which is copied."""
    parts = list(parts)
    return [key(field, LENGTH_DELIMITED) + varint(sum(map(len, parts))), *parts]


def text(field: int, string: str) -> bytes:
    """A string field."""
    return delimited(field, string.encode())


def identity(ids: EventIds | None) -> bytes:
    """Fields 1000 to 1002 of an event of either dialect; nothing for None.

    Every other reader skips these numbers. A seq of 0 is left out: version records and lineage have none.
    Raises InvalidValueError for a run id that is not 16 hex digits.
    """
    if ids is None:
        return b""
    owner = _owner(ids.run_id, ids.attempt)
    return owner + integer(1002, ids.seq) if ids.seq else owner


@lru_cache(maxsize=64)
def _owner(run_id: str, attempt: int) -> bytes:
    return fixed64(1000, parse_run_id(run_id)) + integer(1001, attempt)


def read_identity(payload: bytes) -> EventIds:
    """The identity in an event of any dialect; an empty run id, 0 and 0 for an event of another writer.

    Raises ValueError when the payload is no protobuf message.
    """
    found = {1000: 0, 1001: 0, 1002: 0}
    position = 0
    while position < len(payload):
        head, position = _read_varint(payload, position)
        field, wire_type = head >> 3, head & 7
        start = position
        if wire_type == VARINT:
            number, position = _read_varint(payload, position)
        elif wire_type == LENGTH_DELIMITED:
            length, position = _read_varint(payload, position)
            number, position = 0, position + length
        elif wire_type in _WIDTHS:
            position += _WIDTHS[wire_type]
            number = int.from_bytes(payload[start:position], "little")
        else:
            raise ValueError(f"wire type {wire_type} at byte {start} of an event is unknown")
        if field in found:
            found[field] = number
    if position > len(payload):
        raise ValueError("a field goes beyond the end of its event")
    return EventIds(f"{found[1000]:016x}" if found[1000] else "", found[1001], found[1002])


def _read_varint(payload: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position behind it."""
    number = shift = 0
    while True:
        if position >= len(payload) or shift > 63:
            raise ValueError("a number goes beyond the end of its event")
        byte = payload[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7


def parse_run_id(run_id: str) -> int:
    """The 64 bits of a run id; raises InvalidValueError unless it is 16 hex digits."""
    try:
        if len(run_id) != 16:
            raise ValueError(run_id)
        return int.from_bytes(bytes.fromhex(run_id), "big")
    except ValueError:
        raise InvalidValueError(
            f"run_id must be 16 hex digits, got {run_id!r}; take the one of run.json"
        ) from None
