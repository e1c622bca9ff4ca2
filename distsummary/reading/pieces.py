"""A file in pieces: runs of scalar events in columns, and everything else frame by frame."""

import os
import struct
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from distsummary.format.crc import masked_crc
from distsummary.format.frames import HEADER_BYTES, MAX_PAYLOAD, OVERHEAD, Frame, FrameReader, opened
from distsummary.format.records import DIALECTS
from distsummary.format.scalar_decoder import quick_event
from distsummary.reading.scalar_columns import ScalarColumns, scalar_columns

FEW = 64  # events together; fewer cost less in the general way
_AT_FIRST = 4 * FEW  # frames that are looked at together, more where that went well,
_AT_MOST = 1 << 13
_LONGEST_PAUSE = 1 << 17  # frames until columns are tried again where they never paid
_MAX_LENGTH = 1 << 12  # bytes of an event; a larger one goes the general way
_MAX_HEADERS = 4096
_HEADER = struct.Struct("<QI")


def read_pieces(
    source: str | os.PathLike[str] | BinaryIO,
    dialect: str,
    *,
    start: int = 0,
    max_payload: int = MAX_PAYLOAD,
    resync: bool = False,
) -> Iterator[ScalarColumns | Frame]:
    """The same as `read_frames`, with events of scalars alone in columns wherever many stand together.

    In columns are events of CRCs checked that `quick_event` reads, and nothing else: what is damaged or
    unusual comes as a frame.

    Args:
        dialect: of the file, as `reader.dialect_of` has it.
        source, start, max_payload, resync: as in `read_frames`.
    """
    with opened(source) as file:
        reader = FrameReader(file, max_payload, resync=resync)
        if dialect in DIALECTS:
            yield from _read_pieces(reader, _Walker(dialect, min(max_payload, _MAX_LENGTH)), start)
        else:
            yield from reader.frames(start)


def _read_pieces(reader: FrameReader, walker: "_Walker", offset: int) -> Iterator[ScalarColumns | Frame]:
    most, pause = _AT_FIRST, FEW
    while True:
        base, block = reader.window(offset)
        starts = walker.starts(block, offset - base, most)
        walked, taken = len(starts) - 1, 0
        columns = scalar_columns(block, base, starts, walker.dialect) if walked >= FEW else None
        if columns is not None and (taken := columns.seqs.size) >= FEW:
            yield columns
            offset, pause = base + starts[taken], FEW
        if taken < walked or walked < most:
            # Behind columns stands a frame that is none of theirs; where they do not pay, so do the others.
            count = 1
            if taken < FEW:
                count = max(walked, pause)
                pause = min(2 * count, _LONGEST_PAUSE)
            for frame in islice(reader.frames(offset), count):
                yield frame
                offset, count = frame.end, count - 1
            if count:
                return
        most = min(4 * most, _AT_MOST) if taken in (0, walked) else _AT_FIRST


class _Walker:
    """Goes from frame to frame as long as they may be events of scalars, whose headers it knows."""

    def __init__(self, dialect: str, max_length: int) -> None:
        self.dialect, self._max_length = dialect, max_length
        self._lengths: dict[bytes, int] = {}  # of a frame, by its header

    def starts(self, block: bytes, position: int, most: int) -> list[int]:
        """Where each of up to `most` whole frames begins from `position` on, and where the last one ends."""
        length_of, size = self._lengths.get, len(block)
        starts = [position]
        for _ in range(most):
            length = length_of(block[position : position + HEADER_BYTES])
            if length is None:
                length = self._learn(block, position)
            position += length
            if not length or position > size:
                break
            starts.append(position)
        return starts

    def _learn(self, block: bytes, position: int) -> int:
        """The length of a frame with a new header, 0 unless it is a whole one of scalars."""
        header = block[position : position + HEADER_BYTES]
        if len(header) < HEADER_BYTES:
            return 0
        payload_length, crc = _HEADER.unpack(header)
        end: int = position + OVERHEAD + payload_length
        if payload_length > self._max_length or end > len(block) or crc != masked_crc(header[:8]):
            return 0
        if quick_event(block[position + HEADER_BYTES : end - 4], self.dialect) is None:
            return 0
        if len(self._lengths) >= _MAX_HEADERS:
            self._lengths.clear()
        self._lengths[header] = end - position
        return end - position
