"""Decodes events that hold only scalars (as most events do) directly from bytes, without message objects."""

import struct
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.format.frames import HEADER_BYTES
from distsummary.format.records import MINDSPORE, TENSORBOARD, Value
from distsummary.format.wire import read_varint

# All writers give such an event this layout (fields in the order of their numbers, keys in hexadecimal):
#   09 f64 wall_time | 10 varint step | 2a length { 0a length { 0a length tag | 1d or 15 f32 } ... }
#   and our writers add the identity: c1 3e u64 run_id | c8 3e varint attempt | d0 3e varint seq
# An event that differs from this in any byte is left to protobuf.
_SCALAR_KEYS = {MINDSPORE: 0x1D, TENSORBOARD: 0x15}  # keys of the f32, field 3 (MindSpore) or 2
_OWNER_KEYS = (b"\xc1\x3e", b"\xc8\x3e")
_OWNER_BYTES = 13  # run id and attempt
_MAX_VARINT = 9  # bytes; a longer varint is a negative number
_DOUBLE = struct.Struct("<d")
_SINGLE = struct.Struct("<f")
_new = tuple.__new__  # takes half the time of a NamedTuple's own constructor
_NOBODY = ("", 0, 0)  # run id, attempt and seq of an event that has no identity
_text = lru_cache(maxsize=1 << 15)(bytes.decode)  # the same tags come again and again

# Run id, attempt, seq, step, wall time, values: the fields of EventIds and Event, as one plain tuple.
Fields: TypeAlias = tuple[str, int, int, int, float, list[Value]]


def decode_scalars(payload: bytes, dialect: str) -> Fields | None:
    """Decode an event of scalars as the dialect's `decode_event` does; None if it has another layout."""
    scalar_key = _SCALAR_KEYS.get(dialect)
    if scalar_key is None or payload[:1] != b"\x09" or len(payload) < 20:
        return None
    try:
        wall_time = _DOUBLE.unpack_from(payload, 1)[0]
        position, step = 9, 0
        if payload[9] == 0x10:
            step, position = read_varint(payload, 10)
            if position > 10 + _MAX_VARINT:
                return None
        if payload[position] != 0x2A:
            return None
        length, position = payload[position + 1], position + 2
        if length > 0x7F:
            length, position = read_varint(payload, position - 1)
        end = position + length
        if end > len(payload):
            return None
        values: list[Value] = []
        while position < end:
            size, tag_size = payload[position + 1], payload[position + 3]
            number = position + 4 + tag_size
            # Only values whose lengths take one byte each are decoded here.
            if size != tag_size + 7 or size > 0x7F or payload[number] != scalar_key:
                return None
            if payload[position] != 0x0A or payload[position + 2] != 0x0A:
                return None
            tag = _text(payload[position + 4 : number])
            values.append(_new(Value, ("scalar", tag, _SINGLE.unpack_from(payload, number + 1)[0], None, "")))
            position = number + 5
        if position != end:
            return None
        # Without an identity: another program wrote the event.
        if end == len(payload):
            return (*_NOBODY, step, wall_time, values)
        owner = _owner(payload[end : end + _OWNER_BYTES])
        if owner is None:
            return None
        seq, end = 0, end + _OWNER_BYTES
        if payload[end : end + 2] == b"\xd0\x3e":
            start = end + 2
            seq, end = read_varint(payload, start)
            if end > start + _MAX_VARINT:
                return None
        return (*owner, seq, step, wall_time, values) if end == len(payload) else None
    except (IndexError, struct.error, ValueError):
        # Truncated, or a tag that is not UTF-8.
        return None


@lru_cache(maxsize=64)
def _owner(encoded: bytes) -> tuple[str, int] | None:
    """Run id and attempt from fields 1000 and 1001; None for other fields, or if the attempt exceeds 127."""
    if len(encoded) < _OWNER_BYTES or (encoded[:2], encoded[10:12]) != _OWNER_KEYS or encoded[12] > 0x7F:
        return None
    run_id = int.from_bytes(encoded[2:10], "little")
    return f"{run_id:016x}" if run_id else "", encoded[12]


# --- decoding many frames at once; their bytes differ only inside the fields


Octets: TypeAlias = NDArray[np.uint8]
Column: TypeAlias = NDArray[Any]  # int64 or float64


class FieldPlaces(NamedTuple):
    """Where the fields of a frame of scalars lie, in bytes from the beginning of the frame.

    `tags` holds where each tag begins and ends, int64 (values, 2), `encoded` the tags themselves; `numbers`
    where each number begins, int64 (values,).

    Another frame has its fields in the same places if its bytes are equal where `constant` is true, and its
    bytes' high bits are equal where `high_bits` is true (varints may differ, but not their lengths). Both
    are bool (length of a frame,).
    """

    owner: tuple[str, int]  # run id and attempt
    step: range
    seq: range
    tags: NDArray[np.int64]
    encoded: list[bytes]
    numbers: NDArray[np.int64]
    constant: NDArray[np.bool_]
    high_bits: NDArray[np.bool_]


def places_of_fields(frame: bytes, dialect: str) -> FieldPlaces | None:
    """The places of the fields in `frame`; None if `decode_scalars` cannot decode the frame's payload."""
    fields = decode_scalars(frame[HEADER_BYTES:-4], dialect)
    if fields is None:
        return None
    run_id, attempt, _, _, _, values = fields
    position = HEADER_BYTES + 9
    step = range(position, position)
    if frame[position] == 0x10:
        step = range(position + 1, read_varint(frame, position + 1)[1])
    # Skip the key and the length of the summary.
    _, position = read_varint(frame, step.stop + 1)
    bounds = []
    for _ in values:
        end = position + 4 + frame[position + 3]
        bounds.append((position + 4, end))
        position = end + 5
    tags = np.array(bounds, np.int64).reshape(-1, 2)
    numbers = tags[:, 1] + 1
    end = len(frame) - 4
    seq = range(min(position + _OWNER_BYTES + 2, end), end)
    # The high bits of varints give their lengths; everything else in them may vary, as may all numbers, the
    # CRC and the bytes of tags.
    high_bits = np.zeros(len(frame), np.bool_)
    for span in (step, seq):
        high_bits[span.start : span.stop] = True
    constant = ~high_bits
    constant[HEADER_BYTES + 1 : HEADER_BYTES + 9] = False
    constant[end:] = False
    for byte in range(4):
        constant[numbers + byte] = False
    changes = np.zeros(len(frame), np.int8)
    changes[tags[:, 0]] += 1
    np.subtract.at(changes, tags[:, 1], 1)
    constant[np.cumsum(changes) > 0] = False
    encoded = [frame[start:stop] for start, stop in bounds]
    return FieldPlaces((run_id, attempt), step, seq, tags, encoded, numbers, constant, high_bits)


def numbers_at(frames: Octets, place: int, dtype: str) -> Column:
    """The numbers of `dtype` at byte `place` of all frames; `frames` is uint8 (n, length), contiguous."""
    return np.ndarray((len(frames),), dtype, frames.data, place, (frames.shape[1],))


def floats_at(frames: Octets, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """The float32 at each of `places` (m,) of all frames: float64 (n, m); `frames` as in `numbers_at`."""
    count, length = frames.shape
    # The float32 that begins at each byte of a frame: they overlap.
    floats = np.ndarray((count, length - 3), "<f4", frames.data, 0, (length, 1))
    # A signalling NaN becomes a quiet one, without a warning.
    with np.errstate(invalid="ignore"):
        return floats[:, places].astype(np.float64)


def varints_at(frames: Octets, span: range) -> Column:
    """The varint that fills the bytes `span` of each frame; 0 if the span is empty."""
    numbers = np.zeros(len(frames), np.int64)
    for shift, place in enumerate(span):
        numbers |= (frames[:, place] & np.uint8(0x7F)).astype(np.int64) << np.int64(7 * shift)
    return numbers


def texts_at(frames: Octets, start: int, stop: int) -> list[bytes]:
    """The bytes start .. stop-1 of each frame."""
    if start == stop:
        return [b""] * len(frames)
    texts = np.ndarray((len(frames),), f"V{stop - start}", frames.data, start, (frames.shape[1],))
    found: list[bytes] = texts.tolist()
    return found
