"""Events of scalars read straight from their bytes, without message objects: most events are nothing else."""

import struct
from functools import lru_cache
from typing import TypeAlias

from distsummary.format.records import MINDSPORE, TENSORBOARD, Value

# The layout that all writers make of such an event (fields in the order of their numbers):
#   09 f64 wall_time | 10 varint step | 2a length { 0a length { 0a length tag | 1d or 15 f32 } ... }
#   and ours also the identity: c1 3e u64 run_id | c8 3e varint attempt | d0 3e varint seq
# Whatever differs in one byte is left to protobuf.
_SCALAR_KEYS = {MINDSPORE: 0x1D, TENSORBOARD: 0x15}  # field 3 or 2, four bytes
_OWNER_KEYS = (b"\xc1\x3e", b"\xc8\x3e")
_DOUBLE = struct.Struct("<d")
_SINGLE = struct.Struct("<f")
_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time
_NOBODY = ("", 0, 0)

# run id, attempt, seq, step, wall time, values: the fields of EventIds and Event, not yet put into them
Fields: TypeAlias = tuple[str, int, int, int, float, list[Value]]


def quick_event(payload: bytes, dialect: str) -> Fields | None:
    """What `decode_event` of the dialect makes of an event of scalars; None for any other."""
    scalar_key = _SCALAR_KEYS.get(dialect)
    if scalar_key is None or payload[:1] != b"\x09" or len(payload) < 20:
        return None
    try:
        return _read(payload, scalar_key)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def _read(payload: bytes, scalar_key: int) -> Fields | None:
    wall_time = _DOUBLE.unpack_from(payload, 1)[0]
    position, step = 9, 0
    if payload[9] == 0x10:
        step, position = _varint(payload, 10)
    if payload[position] != 0x2A:
        return None
    position += 2
    length = payload[position - 1]
    if length > 0x7F:
        length, position = _varint(payload, position - 1)
    end = position + length
    if end > len(payload):
        return None
    values: list[Value] = []
    while position < end:
        size, tag_size = payload[position + 1], payload[position + 3]
        number = position + 4 + tag_size
        if size != tag_size + 7 or size > 0x7F or payload[number] != scalar_key:
            return None
        if payload[position] != 0x0A or payload[position + 2] != 0x0A:
            return None
        tag = _text(payload[position + 4 : number])
        scalar = ("scalar", tag, _SINGLE.unpack_from(payload, number + 1)[0], None)
        values.append(_new(Value, scalar))
        position = number + 5
    if position != end:
        return None
    ids = _NOBODY if end == len(payload) else _identity(payload, end)
    return None if ids is None else (*ids, step, wall_time, values)


def _identity(payload: bytes, position: int) -> tuple[str, int, int] | None:
    owner = _owner(payload[position : position + 13])
    if owner is None:
        return None
    seq, end = 0, position + 13
    if payload[end : end + 2] == b"\xd0\x3e":
        seq, end = _varint(payload, end + 2)
    return (*owner, seq) if end == len(payload) else None


@lru_cache(maxsize=64)
def _owner(encoded: bytes) -> tuple[str, int] | None:
    """Run id and attempt of the fields 1000 and 1001; None for other fields, and attempts from 128 on."""
    if len(encoded) < 13 or (encoded[:2], encoded[10:12]) != _OWNER_KEYS or encoded[12] > 0x7F:
        return None
    run_id = int.from_bytes(encoded[2:10], "little")
    return f"{run_id:016x}" if run_id else "", encoded[12]


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """A number below 2**63 and the position behind it; IndexError for a longer one."""
    number = payload[position]
    position += 1
    if number < 0x80:
        return number, position
    number &= 0x7F
    for shift in range(7, 63, 7):
        octet = payload[position]
        position += 1
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, position
    raise IndexError("a negative number, or none")


@lru_cache(maxsize=4096)
def _text(encoded: bytes) -> str:
    return encoded.decode()
