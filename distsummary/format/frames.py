"""Encodes and reads TFRecord frames, the envelope of every event, and finds intact frames after damage."""

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, NamedTuple, TypeAlias

import google_crc32c
import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.format.crc import find_headers, masked, masked_crc

# A part of the bytes that one system call writes; a memoryview (format "B") avoids copying a large array.
Part: TypeAlias = bytes | memoryview

MAX_PAYLOAD = 256 << 20  # bytes; the largest event that is written or read
OVERHEAD = 16  # bytes of a frame around its payload
HEADER_BYTES = 12  # bytes of the frame before the payload
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_BLOCK = 1 << 20  # bytes read at a time
_BLOCK_OF_HEADERS = 1 << 16  # bytes read at a time when only headers are read and large payloads are skipped
_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time
_WRONG_LENGTH = "the length has a wrong CRC"
_WRONG_PAYLOAD = "the payload has a wrong CRC"
_FALSE_HEADERS = 64 << 20  # bytes that a search may read in vain, however small the file is
_LARGE = 1 << 14  # bytes; copying a smaller part costs less than writing it separately

_logger = guarded_log(__name__)
if google_crc32c.implementation != "c":
    _logger.warning(
        "google-crc32c runs in pure Python (implementation %r): every event takes a hundred times as long; "
        "install a google-crc32c wheel for this platform",
        google_crc32c.implementation,
    )


class Frame(NamedTuple):
    """One frame of a file: where it starts and ends (bytes), and its payload.

    `damage` says what is wrong with the frame, or is None. A damaged frame whose length cannot be
    trusted has no payload and extends to the end of the file.
    """

    offset: int
    payload: bytes
    damage: str | None
    end: int


@dataclass(frozen=True, slots=True)
class Framed:
    """Frames of equal length, `nbytes` in total, of `count` consecutive events numbered from `first_seq`.

    If there are several frames, they form one part; a single frame may consist of several parts.
    """

    first_seq: int
    count: int
    parts: list[Part]
    nbytes: int

    @property
    def last_seq(self) -> int:
        """The seq of the last event."""
        return self.first_seq + self.count - 1

    def after(self, seq: int) -> "Framed":
        """The frames of events after `seq`, possibly none."""
        return self.slice(max(0, seq + 1 - self.first_seq), self.count)

    def slice(self, start: int, stop: int) -> "Framed":
        """Only the frames with the indices start .. stop-1."""
        if start <= 0 and stop >= self.count:
            return self
        if start >= stop:
            return Framed(self.first_seq + start, 0, [], 0)
        length = self.nbytes // self.count
        part = memoryview(self.parts[0])[start * length : stop * length]
        return Framed(self.first_seq + start, stop - start, [part], len(part))


def frame(payload: bytes) -> bytes:
    """The frame of a payload."""
    # u64 length | u32 masked crc32c(the 8 length bytes) | payload | u32 masked crc32c(payload), little-endian
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))))


def frame_parts(payload: Iterable[Part]) -> list[Part]:
    """Frame a payload given in parts, as parts for `os.writev`; large parts are not copied."""
    parts = joined(payload)
    length = struct.pack("<Q", sum(map(len, parts)))
    crc = 0
    # google_crc32c rejects a memoryview, but accepts a NumPy array that views it.
    for part in parts:
        crc = google_crc32c.extend(crc, part if isinstance(part, bytes) else np.frombuffer(part, np.uint8))
    return joined((length, _CRC.pack(masked_crc(length)), *parts, _CRC.pack(masked(crc))))


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same bytes with adjacent small parts joined; large parts are not copied."""
    merged: list[Part] = []
    small: list[Part] = []
    for part in parts:
        if len(part) < _LARGE:
            small.append(part)
        else:
            merged += [b"".join(small), part] if small else [part]
            small = []
    return [*merged, b"".join(small)] if small else merged


def read_frames(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    start: int = 0,
    resync: bool = False,
) -> Iterator[Frame]:
    """The frames of a file from byte `start` on (0 or the end of a frame); damaged frames are marked.

    A torn frame (cut off by the end of the file) is not yielded: the file may be growing, and a later call
    with `start` at the end of the last frame continues there. A length is trusted only if its CRC is right.
    No allocation exceeds the rest of the file or MAX_PAYLOAD bytes.

    With `resync`, a damaged frame whose length cannot be trusted ends where the next intact frame begins, if
    there is one, and a torn frame followed by an intact one is reported as damage. The work of the search
    is bounded by the size of the file.
    """
    with opened(source) as file:
        yield from FrameReader(file, resync=resync).frames(start)


class FrameReader:
    """Reads the frames of an open file from a given byte on; caches the block that it read last."""

    def __init__(self, file: BinaryIO, *, resync: bool) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)
        self._search = _Search(file, self._size) if resync else None
        self._base, self._block = 0, b""

    def window(self, offset: int, least: int) -> tuple[int, bytes]:
        """A block of the file that contains `offset`: the position where it begins, and its bytes.

        It holds at least `least` bytes from `offset` on, or all bytes up to the end of the file.
        """
        wanted_end = min(offset + least, self._size)
        if self._base <= offset and wanted_end <= self._base + len(self._block):
            return self._base, self._block
        return self._read(offset, max(_BLOCK, least))

    def ends_at(self, position: int) -> bool:
        """Whether the file has no bytes after `position`."""
        return position >= self._size

    def _read(self, offset: int, length: int = _BLOCK) -> tuple[int, bytes]:
        self._base = offset
        self._block = _read_at(self._file, offset, max(0, min(length, self._size - offset)))
        return self._base, self._block

    def frames(self, offset: int) -> Iterator[Frame]:
        """The frames from `offset` on, as in `read_frames`."""
        crc_of = google_crc32c.value
        size, search = self._size, self._search
        # A block holds many frames: begin with the one that was read last.
        base, block = self._base, self._block
        if base > offset:
            base, block = offset, b""
        while offset + _HEADER.size <= size:
            if offset + _HEADER.size > base + len(block):
                base, block = self._read(offset)
                if len(block) < _HEADER.size:
                    # The file was truncated in the meantime.
                    return
            length, crc = _HEADER.unpack_from(block, offset - base)
            end = offset + OVERHEAD + length
            damage = None if crc == _length_crc(length) else _WRONG_LENGTH
            if damage is None and length > MAX_PAYLOAD:
                damage = f"the event claims {length} bytes, more than the {MAX_PAYLOAD} allowed"
            if damage is not None or end > size:
                # Nothing but the next intact frame shows where such a frame ends.
                if damage == _WRONG_LENGTH or end > size:
                    following = None if search is None else search.next_frame(offset + 1)
                    if following is None and damage is None:
                        # Torn: the file may be growing.
                        return
                    end = size if following is None else following
                yield Frame(
                    offset, b"", damage or f"the event claims {length} bytes, beyond the file's end", end
                )
            elif end <= base + len(block):
                payload = block[offset - base + _HEADER.size : end - base - _CRC.size]
                # `masked_crc`, inlined because reading spends most of its time here.
                found = crc_of(payload)
                found = ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
                intact = _CRC.unpack_from(block, end - base - _CRC.size)[0] == found
                if not intact and search is not None:
                    end = search.true_end(offset, end)
                yield _new(Frame, (offset, payload, None if intact else _WRONG_PAYLOAD, end))
            elif length > _BLOCK // 2:
                large = _read_body(self._file, offset, end)
                if large is None:
                    # Truncated in the meantime.
                    return
                if large.damage is not None and search is not None:
                    end = search.true_end(offset, end)
                yield large._replace(end=end)
            elif base == offset:
                # Truncated meanwhile: otherwise the block, which starts here, would hold the frame.
                return
            else:
                # The frame crosses the end of this block.
                base, block = offset, b""
                continue
            offset = end


class _Search:
    """Finds the next intact frame after damage; reads at most 2 * size + 64 MiB of payloads."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._budget_bytes = 2 * size + _FALSE_HEADERS
        self._base = self._end = 0  # the byte range that was searched last
        self._found: list[tuple[int, int]] = []  # offset and payload length for each valid header there

    def next_frame(self, start: int, stop: int | None = None) -> int | None:
        """The offset of the first frame between `start` and `stop` whose two CRCs are right."""
        stop = self._size if stop is None else stop
        while start < stop:
            if not self._base <= start < self._end:
                # A bit more than a block, for a header that begins at the last byte of it.
                length = min(_BLOCK + _HEADER.size - 1, self._size - start)
                found = find_headers(_read_at(self._file, start, length), MAX_PAYLOAD)
                self._base, self._end = start, min(start + _BLOCK, self._size)
                self._found = [(start + position, length) for position, length in found]
            for place in range(bisect_left(self._found, (start, 0)), len(self._found)):
                offset, length = self._found[place]
                if offset >= stop:
                    return None
                end = offset + OVERHEAD + length
                if end > self._size or length > self._budget_bytes:
                    continue
                # What looks like a header may be none, and claim any length: the budget limits such reads.
                self._budget_bytes -= length
                candidate = _read_body(self._file, offset, end)
                if candidate is not None and candidate.damage is None:
                    return offset
            start = self._end
        return None

    def true_end(self, offset: int, end: int) -> int:
        """The real end of a frame from `offset` to `end` whose payload has a wrong CRC.

        It is before `end` if the frame was torn and another program appended to the file: the appended frames
        then lie inside the torn one.
        """
        following = self.next_frame(offset + 1, end)
        return end if following is None else following


def _read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


@lru_cache(maxsize=1024)
def _length_crc(length: int) -> int:
    """The CRC of a length, as the header stores it; cached, since most events share a few lengths."""
    return masked_crc(struct.pack("<Q", length))


def whole_length(path: str | os.PathLike[str]) -> int:
    """The length of a file in bytes, without what follows its last whole frame: a torn one, or foreign bytes.

    If frames follow a damage, its size is returned, since cutting its end would not repair it.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        offset = base = 0
        block = b""
        while offset + _HEADER.size <= size:
            if offset + _HEADER.size > base + len(block):
                base, block = offset, _read_at(file, offset, _BLOCK_OF_HEADERS)
                if len(block) < _HEADER.size:
                    # The file was truncated in the meantime.
                    return offset
            length, crc = _HEADER.unpack_from(block, offset - base)
            if crc != _length_crc(length):
                follow = read_frames(file, start=offset, resync=True)
                return offset if all(frame.damage for frame in follow) else size
            if offset + OVERHEAD + length > size:
                # A torn frame, unless it claims more than any writer of ours would write.
                return offset if length <= MAX_PAYLOAD else size
            offset += OVERHEAD + length
        return offset


def begins_frame(data: bytes) -> bool:
    """Whether bytes may be the beginning of a frame: the CRC of its length is right, or missing."""
    if len(data) < _HEADER.size:
        return True
    length, crc = _HEADER.unpack_from(data)
    return bool(crc == _length_crc(length))


def opened(source: str | os.PathLike[str] | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """A context with the open file of a path, closed on exit; a file that is already open stays open."""
    return open(source, "rb") if isinstance(source, (str, os.PathLike)) else nullcontext(source)


def _read_body(file: BinaryIO, offset: int, end: int) -> Frame | None:
    """The frame from `offset` to `end`, whose header is right; None if the file has been truncated."""
    payload = _read_at(file, offset + _HEADER.size, end - offset - OVERHEAD)
    crc = file.read(_CRC.size)
    if len(crc) < _CRC.size:
        return None
    intact = _CRC.unpack(crc)[0] == masked_crc(payload)
    return Frame(offset, payload, None if intact else _WRONG_PAYLOAD, end)
