"""The protobuf wire format: encodes fields and checks payloads without message objects."""

import math
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from mmap import mmap
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from distsummary.errors import DamagedFileError, InvalidValueError
from distsummary.format.frames import Part
from distsummary.format.records import EventIds, Shard, Value

Descriptor: TypeAlias = Any  # its class depends on the implementation of protobuf

MAX_OBJECTS = 1 << 20  # messages, strings and integers of one event; each costs tens of bytes of memory
SMALL = 1 << 19  # bytes; a smaller payload cannot hold enough objects to matter

VARINT, FIXED64, LENGTH_DELIMITED, START_GROUP, END_GROUP, FIXED32 = range(6)
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_ONE_BYTE = [bytes([number]) for number in range(0x80)]
_UINT64 = (1 << 64) - 1


def varint(number: int) -> bytes:
    """`number` as a varint; a negative number as its 64-bit two's complement (ten bytes), as in protobuf."""
    # Nearly always one byte.
    if 0 <= number <= 0x7F:
        return _ONE_BYTE[number]
    # Two or three bytes, as for most steps: this takes 0.7 times as long as the loop.
    if 0 < number <= 0x3FFF:
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
    """The key of a field: its number and wire type."""
    return varint(field << 3 | wire_type)


def integer(field: int, number: int) -> bytes:
    """An int32, int64, uint32, uint64, bool or enum field."""
    return key(field, VARINT) + varint(number)


def double(field: int, number: float) -> bytes:
    """A double field."""
    return key(field, FIXED64) + struct.pack("<d", number)


def single(field: int, number: float) -> bytes:
    """A float field; numbers too large for float32 become infinite."""
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
    """A message field whose payload is given in parts; no part is copied."""
    parts = list(parts)
    return [key(field, LENGTH_DELIMITED) + varint(sum(map(len, parts))), *parts]


def shard(place: Shard) -> bytes:
    """The field 1000 of a value, in both dialects: which part of a tensor it holds. Not packed."""
    sizes = [integer(1, size) for size in place.global_shape]
    return delimited(1000, b"".join([*sizes, *(integer(2, first) for first in place.offset)]))


def text(field: int, string: str) -> bytes:
    """A string field."""
    return delimited(field, string.encode())


def identity(ids: EventIds | None) -> bytes:
    """The encoded identity of an event (fields 1000 to 1002 in both dialects); empty if `ids` is None.

    Other readers skip these fields. A seq of 0 is left out: version records and lineage have no seq.
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
    """The identity in an event of any dialect; EventIds("", 0, 0) if another program wrote the event.

    Raises ValueError if the payload is not a protobuf message, or for an attempt or seq of more than 63 bits.
    """
    found = {1000: 0, 1001: 0, 1002: 0}
    position = 0
    while position < len(payload):
        head, position = read_varint(payload, position)
        field, wire_type = head >> 3, head & 7
        start = position
        if wire_type == VARINT:
            number, position = read_varint(payload, position)
        elif wire_type == LENGTH_DELIMITED:
            length, position = read_varint(payload, position)
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
    if max(found[1001], found[1002]) >= 1 << 63:
        raise ValueError(f"the attempt {found[1001]} or the seq {found[1002]} has more than 63 bits")
    return EventIds(f"{found[1000]:016x}" if found[1000] else "", found[1001], found[1002])


def read_varint(payload: bytes | mmap, position: int) -> tuple[int, int]:
    """The varint at `position` and the position after it; ValueError if it does not end within ten bytes."""
    try:
        number = payload[position]
        # Nearly always one byte.
        if number < 0x80:
            return number, position + 1
        number &= 0x7F
        for shift in range(7, 70, 7):
            position += 1
            octet = payload[position]
            number |= (octet & 0x7F) << shift
            if octet < 0x80:
                return number, position + 1
    except IndexError:
        pass
    raise ValueError("a number goes beyond the end of its message")


def parse_run_id(run_id: str) -> int:
    """The 64 bits of a run id; raises InvalidValueError unless the run id is 16 hex digits."""
    try:
        if len(run_id) != 16:
            raise ValueError(run_id)
        return int.from_bytes(bytes.fromhex(run_id), "big")
    except ValueError:
        raise InvalidValueError(
            f"run_id must be 16 hex digits, got {run_id!r}; use the one in run.json"
        ) from None


# --- checks of payloads, before and after parsing


def refuse_bombs(payload: bytes, message: Descriptor, most: int | None = None) -> None:
    """Raise DamagedFileError for a payload that the parser would turn into more than `most` objects.

    None means MAX_OBJECTS.

    Two bytes can encode an empty message, which takes fifty bytes once parsed: 256 MiB would fill gigabytes.
    A payload that is not a message passes this check, since the parser will refuse it.
    """
    if len(payload) < SMALL:
        return
    most = MAX_OBJECTS if most is None else most
    try:
        left = _count(payload, 0, len(payload), message, most, _MAX_DEPTH)
    except ValueError:
        # Not a message: the parser stops here too, before it creates too many objects.
        return
    if left < 0:
        raise DamagedFileError(
            f"the event of {len(payload)} bytes holds more than {most} objects; no writer makes such an event"
        )


_MAX_DEPTH = 100  # of nested messages: protobuf's own limit
_FIXED_TYPES = {
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
}
_BYTE_TYPES = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


class _Kind(NamedTuple):
    """What a length-delimited field holds: a message, packed integers, or neither."""

    message: Descriptor | None
    is_packed: bool


@lru_cache(maxsize=256)
def _kinds(message: Descriptor) -> dict[int, _Kind]:
    """A dict from the number of each field of a message to the kind of the field."""
    return {
        field.number: _Kind(field.message_type, field.type not in _FIXED_TYPES | _BYTE_TYPES)
        for field in message.fields
    }


def _count(payload: bytes, position: int, end: int, message: Descriptor, left: int, depth: int) -> int:
    """How many of the `left` allowed objects remain after this message; negative if it holds more.

    Raises ValueError if the payload is not a message.
    """
    kinds = _kinds(message)
    while position < end and left >= 0 and depth:
        head, position = read_varint(payload, position)
        wire_type = head & 7
        left -= 1
        if wire_type == VARINT:
            _, position = read_varint(payload, position)
        elif wire_type in _WIDTHS:
            position += _WIDTHS[wire_type]
        elif wire_type == LENGTH_DELIMITED:
            length, start = read_varint(payload, position)
            position = start + length
            kind = kinds.get(head >> 3)
            if position > end or kind is None:
                continue
            if kind.message is not None:
                left = _count(payload, start, position, kind.message, left, depth - 1)
            elif kind.is_packed:
                left -= length
        elif wire_type not in (START_GROUP, END_GROUP):
            # Not a group, which the parser skips to read what follows.
            raise ValueError(f"wire type {wire_type} at byte {position} of an event is unknown")
    return left


def refuse_bad_text(values: Iterable[Value]) -> None:
    """Raise DamagedFileError for a tag, a text, or a string of a lineage message that is not UTF-8.

    The parser does not check this: it checks the strings of proto2 only when they are accessed.
    """
    try:
        for value in values:
            texts: Iterable[str | bytes] = ()
            # Data that were not decoded are None.
            if value.plugin == "text" and value.data is not None:
                texts = (value.data,)
            elif value.plugin == "audio" and value.data is not None:
                texts = (value.data.content_type,)
            elif isinstance(value.data, Message):
                texts = _texts_in(value.data)
            for text in (value.tag, *texts):
                if not isinstance(text, str):
                    raise DamagedFileError(f"a text of the event is not UTF-8: {text!r}")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"a text of the event is not UTF-8: {error}") from error


def _texts_in(message: Message) -> Iterator[str | bytes]:
    """Every string of a message and of its nested messages; a string that is not UTF-8 is given as bytes."""
    for field, found in message.ListFields():
        items: Iterable[Any] = [found]  # Any: the content of any field
        if hasattr(found, "items"):
            items = [part for pair in found.items() for part in pair]
        elif hasattr(found, "extend") or hasattr(found, "add"):
            items = found
        for item in items:
            if isinstance(item, Message):
                yield from _texts_in(item)
            elif isinstance(item, str) or (isinstance(item, bytes) and field.type != field.TYPE_BYTES):
                yield item
