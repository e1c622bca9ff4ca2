"""TFRecord frames: the envelope of every event in every file."""

import logging
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO, NamedTuple

import google_crc32c

MAX_PAYLOAD = 64 << 20  # bytes; what a reader allocates at most for one event
OVERHEAD = 16  # bytes of a frame around its payload
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

_logger = logging.getLogger(__name__)
if google_crc32c.implementation != "c":
    _logger.warning(
        "google-crc32c runs in pure Python (implementation %r): every event costs a hundred times more; "
        "install a google-crc32c wheel for this platform",
        google_crc32c.implementation,
    )


class Frame(NamedTuple):
    """One frame of a file: where it starts and ends (bytes), and what it holds.

    `damage` says what is wrong with it. A damaged frame whose length cannot be trusted has no payload and
    ends where the file ends.
    """

    offset: int
    payload: bytes
    damage: str | None
    end: int


def masked_crc(data: bytes) -> int:
    """TFRecord's rotated and shifted CRC32C (tensorflow/core/lib/hash/crc32c.h)."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """The payload in its envelope."""
    # u64 length | u32 masked crc32c(the 8 length bytes) | payload | u32 masked crc32c(payload), little-endian
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))))


def read_frames(
    source: str | os.PathLike[str] | BinaryIO, *, start: int = 0, max_payload: int = MAX_PAYLOAD
) -> Iterator[Frame]:
    """The frames of a file from byte `start` on (the end of an earlier frame), damaged ones marked.

    A torn last frame, one that the end of the file cuts, is not yielded: the file may be growing, and a
    later call with `start` at the end of the last frame reads on. A length is believed only if its CRC is
    right, and no more is allocated than the file holds and `max_payload` bytes.
    """
    with _opened(source) as file:
        size = file.seek(0, os.SEEK_END)
        offset = start
        while (header := _read_header(file, offset, size, max_payload)) is not None:
            end = size if header.length is None else offset + OVERHEAD + header.length
            if header.damage is not None:
                yield Frame(offset, b"", header.damage, end)
            elif (frame := _read_body(file, offset, end)) is not None:
                yield frame
            else:
                return  # somebody cut the file meanwhile
            offset = end


def whole_length(path: str | os.PathLike[str]) -> int:
    """Bytes up to the end of the last whole frame if the file ends in a torn one, else the size of the file.

    What is wrong before the end is damage, which cutting does not mend: then the answer is the size, too.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        offset = 0
        while offset < size:
            header = _read_header(file, offset, size, MAX_PAYLOAD)
            if header is None:
                return offset
            offset = size if header.length is None else offset + OVERHEAD + header.length
        return size


def _opened(source: str | os.PathLike[str] | BinaryIO) -> AbstractContextManager[BinaryIO]:
    return open(source, "rb") if isinstance(source, (str, os.PathLike)) else nullcontext(source)


class _Header(NamedTuple):
    """`length` of the payload in bytes, None when it cannot be trusted."""

    length: int | None
    damage: str | None = None


def _read_header(file: BinaryIO, offset: int, size: int, max_payload: int) -> _Header | None:
    """The header at `offset`; None at the end of the file, also when the end tears the frame."""
    file.seek(offset)
    header = file.read(_HEADER.size) if offset + _HEADER.size <= size else b""
    if len(header) < _HEADER.size:
        return None
    length, crc = _HEADER.unpack(header)
    if crc != masked_crc(header[:8]):
        return _Header(None, "the length has a wrong CRC")
    fits = offset + OVERHEAD + length <= size
    if length > max_payload:
        damage = f"the event claims {length} bytes, more than the {max_payload} allowed"
        return _Header(length if fits else None, damage)
    return _Header(length) if fits else None


def _read_body(file: BinaryIO, offset: int, end: int) -> Frame | None:
    """The frame from `offset` to `end`, of which the header has been read."""
    body = file.read(end - offset - _HEADER.size)
    if len(body) < end - offset - _HEADER.size:
        return None
    payload = body[: -_CRC.size]
    intact = _CRC.unpack(body[-_CRC.size :])[0] == masked_crc(payload)
    return Frame(offset, payload, None if intact else "the payload has a wrong CRC", end)
