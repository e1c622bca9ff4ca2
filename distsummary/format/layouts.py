"""Where the fields of a frame of scalars lie: the same in all frames whose other bytes are the same."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.format.frames import HEADER_BYTES
from distsummary.format.scalar_decoder import quick_event

Octets: TypeAlias = NDArray[np.uint8]
Columns: TypeAlias = NDArray[Any]  # int64 or float64
_OWNER_BYTES = 13  # run id and attempt


class Layout(NamedTuple):
    """The places (bytes from the frame's beginning) of what differs from event to event.

    `varints` says where a byte has its high bit fixed, `constant` where all of it is: bool (length of a
    frame). A frame with these bits as in the first one of a layout is read as that one.
    """

    owner: tuple[str, int]  # run id and attempt
    step: range
    seq: range
    tags: list[range]
    numbers: list[int]
    constant: NDArray[np.bool_]
    varints: NDArray[np.bool_]


def layout_of(frame: bytes, dialect: str) -> Layout | None:
    """The layout of a frame, None where `quick_event` does not read its payload."""
    fields = quick_event(frame[HEADER_BYTES:-4], dialect)
    if fields is None:
        return None
    run_id, attempt, _, _, _, values = fields
    position = HEADER_BYTES + 9
    step = range(position, position)
    if frame[position] == 0x10:
        step = _varint(frame, position + 1)
    position = _varint(frame, step.stop + 1).stop  # the summary's key and length
    tags, numbers = [], []
    for _ in values:
        tags.append(range(position + 4, position + 4 + frame[position + 3]))
        numbers.append(tags[-1].stop + 1)
        position = numbers[-1] + 4
    end = len(frame) - 4
    seq = range(min(position + _OWNER_BYTES + 2, end), end)
    varints = np.zeros(len(frame), np.bool_)
    for span in (step, seq):
        varints[span.start : span.stop] = True
    constant = ~varints
    for span in (range(HEADER_BYTES + 1, HEADER_BYTES + 9), *tags, *(range(n, n + 4) for n in numbers)):
        constant[span.start : span.stop] = False
    constant[end:] = False
    return Layout((run_id, attempt), step, seq, tags, numbers, constant, varints)


def _varint(frame: bytes, start: int) -> range:
    stop = start
    while frame[stop] > 0x7F:
        stop += 1
    return range(start, stop + 1)


def numbers_at(rows: Octets, place: int, dtype: str) -> Columns:
    """The number of a dtype that stands at `place` in each of the frames, uint8 (n, length), contiguous."""
    return np.ndarray((len(rows),), dtype, rows.data, place, (rows.shape[1],))


def varints_at(rows: Octets, span: range) -> Columns:
    """The varints that take just `span` in each of the frames; 0 for an empty span."""
    numbers = np.zeros(len(rows), np.int64)
    for shift, place in enumerate(span):
        numbers |= (rows[:, place] & np.uint8(0x7F)).astype(np.int64) << np.int64(7 * shift)
    return numbers


def texts_at(rows: Octets, span: range) -> list[bytes]:
    """The bytes of `span` in each of the frames."""
    if not span:
        return [b""] * len(rows)
    texts = np.ndarray((len(rows),), f"V{len(span)}", rows.data, span.start, (rows.shape[1],))
    found: list[bytes] = texts.tolist()
    return found
