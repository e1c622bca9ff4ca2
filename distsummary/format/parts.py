"""How many objects a protobuf message would become, counted in its bytes before anything is allocated."""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from distsummary.errors import DamagedFileError

Descriptor: TypeAlias = Any  # protobuf has another class of them in each of its implementations

MAX_PARTS = 1 << 20  # messages, strings and integers of one event; each costs tens of bytes of memory
SMALL = 1 << 19  # bytes; a payload below cannot hold enough to matter
_DEPTH = 100  # protobuf's own limit
_FIXED_WIDTHS = {1: 8, 5: 4}  # wire type -> bytes
_WIDE = {
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
}
_LEAVES = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


class _Kind(NamedTuple):
    """What a length-delimited field holds: a message, packed integers, or bytes."""

    message: Descriptor | None
    is_packed: bool


_Kinds: TypeAlias = dict[int, _Kind]


def refuse_bombs(payload: bytes, message: Descriptor) -> None:
    """Raise DamagedFileError for a payload that would become more than MAX_PARTS objects.

    Two bytes can be an empty message of fifty: 64 MiB of them would fill gigabytes. Bytes that are no message
    are left to the parser, which refuses them.
    """
    if len(payload) >= SMALL and _count(payload, 0, len(payload), message, MAX_PARTS, _DEPTH) < 0:
        raise DamagedFileError(
            f"the event of {len(payload)} bytes holds more than {MAX_PARTS} parts; no writer makes such ones"
        )


def _count(payload: bytes, position: int, end: int, message: Descriptor, left: int, depth: int) -> int:
    """What is left of the allowed parts behind this message; below 0 when they do not do."""
    kinds = _kinds(message)
    while position < end and left >= 0 and depth:
        key, position = _varint(payload, position, end)
        wire_type = key & 7
        left -= 1
        if wire_type == 0:
            _, position = _varint(payload, position, end)
        elif wire_type in _FIXED_WIDTHS:
            position += _FIXED_WIDTHS[wire_type]
        elif wire_type == 2:
            length, start = _varint(payload, position, end)
            position = start + length
            kind = kinds.get(key >> 3)
            if position > end or kind is None:
                continue
            if kind.message is not None:
                left = _count(payload, start, position, kind.message, left, depth - 1)
            elif kind.is_packed:
                left -= length
        else:
            return left  # no message
    return left


@lru_cache(maxsize=256)
def _kinds(message: Descriptor) -> _Kinds:
    return {
        field.number: _Kind(field.message_type, field.type not in _WIDE | _LEAVES) for field in message.fields
    }


def _varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and the position behind it; 0 and the end for a number without one."""
    number = shift = 0
    while position < end and shift <= 63:
        octet = payload[position]
        position += 1
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, position
        shift += 7
    return 0, end
