"""Events of scalars read in columns, many frames at a time: the mirror image of `scalars.ScalarEncoder`."""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from distsummary.format.crc import crc_changes, unmasked
from distsummary.format.frames import HEADER_BYTES
from distsummary.format.layouts import Columns, Layout, Octets, layout_of, numbers_at, texts_at, varints_at

_MAX_LAYOUTS = 8  # of frames of one length in a block, and
_MIN_ROWS = 32  # frames of one layout on average: below, columns cost more than they spare


class ScalarColumns(NamedTuple):
    """Events of one attempt that hold scalars alone, in the order of their file.

    For each event, (n,): `seqs`, `steps` int64, `wall_times` float64, `offsets` and `ends` of its frame
    (bytes) int64, `counts` of its values. For each value, (m,): `numbers` float64, `tag_numbers` into `tags`.
    """

    run_id: str
    attempt: int
    seqs: Columns
    steps: Columns
    wall_times: Columns
    offsets: Columns
    ends: Columns
    counts: Columns
    numbers: Columns
    tag_numbers: Columns
    tags: list[str]

    def tag_texts(self) -> Iterable[str]:
        """The tag of each value, (m,)."""
        if len(self.tags) == 1:
            return repeat(self.tags[0], self.numbers.size)
        return map(self.tags.__getitem__, self.tag_numbers.tolist())

    def chosen(self, mask: Columns) -> "ScalarColumns":
        """The events where `mask`, bool (n,), is set."""
        values = np.repeat(mask, self.counts)
        return self._replace(
            seqs=self.seqs[mask],
            steps=self.steps[mask],
            wall_times=self.wall_times[mask],
            offsets=self.offsets[mask],
            ends=self.ends[mask],
            counts=self.counts[mask],
            numbers=self.numbers[values],
            tag_numbers=self.tag_numbers[values],
        )


class _Part(NamedTuple):
    """Frames of one layout: their places among all (r,), bytes (r, length) and tag numbers (r, values)."""

    layout: Layout
    places: Columns
    rows: Octets
    tag_numbers: Columns


class _Tags(dict[bytes, int]):
    """The number of each tag, in the order of their coming; -1 for bytes that are no text."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, encoded: bytes) -> int:
        try:
            self.texts.append(encoded.decode())
            self[encoded] = len(self.texts) - 1
        except UnicodeDecodeError:
            self[encoded] = -1
        return self[encoded]


def scalar_columns(block: bytes, base: int, starts: list[int], dialect: str) -> ScalarColumns | None:
    """The events of the frames that stand in `block` one behind the other, up to the first unusual one.

    Unusual is a frame with a wrong CRC, one that `quick_event` does not read, of another attempt than the
    first, or of one layout too many.

    Args:
        base: where the block begins in the file.
        starts: where each frame begins in the block, and where the last one ends; their headers are right.
        dialect: of the file.

    Returns:
        None if the first one is unusual, or if the frames are so different that columns would not pay.
    """
    bounds = np.array(starts, np.int64)
    lengths = np.diff(bounds)
    found = np.unique(lengths)
    if found.size * _MIN_ROWS > lengths.size:
        return None
    tags = _Tags()
    parts: list[_Part] = []
    for length in found.tolist():
        places = np.flatnonzero(lengths == length)
        parts += _parts(places, _rows(block, bounds[:-1][places], length), dialect, tags)
        if len(parts) * _MIN_ROWS > lengths.size:
            return None
    first = next((part for part in parts if part.places.size and part.places[0] == 0), None)
    if first is None:
        return None
    parts = [part for part in parts if part.layout.owner == first.layout.owner]
    is_usual = np.zeros(lengths.size + 1, np.bool_)
    for part in parts:
        is_usual[part.places] = True
    parts = [_up_to(part, int(is_usual.argmin())) for part in parts]
    return _joined([part for part in parts if part.places.size], bounds + base, tags.texts)


def _rows(block: bytes, starts: Columns, length: int) -> Octets:
    """The frames that begin at `starts`, uint8 (n, length), contiguous."""
    octets = np.frombuffer(block, np.uint8)
    if starts[-1] - starts[0] == length * (starts.size - 1):
        return octets[starts[0] : starts[-1] + length].reshape(-1, length)
    rows: Octets = sliding_window_view(octets, length)[starts]
    return rows


def _parts(places: Columns, rows: Octets, dialect: str, tags: _Tags) -> Iterator[_Part]:
    """The intact frames by their layouts; each layout is that of the first frame that is left."""
    for _ in range(_MAX_LAYOUTS):
        if not places.size:
            return
        layout = layout_of(rows[0].tobytes(), dialect)
        if layout is None:
            places, rows = places[1:], rows[1:]
            continue
        differences = rows ^ rows[0]
        varying = np.bitwise_or.reduce(differences, axis=0)
        fits = _fits(differences, varying, layout)
        good = fits & _intact(rows, differences, varying)
        if good.any():
            found = _where(good, places, rows)
            numbers = _tag_numbers(found[1], varying, layout, tags)
            yield _Part(layout, *_where(numbers.min(axis=1, initial=0) >= 0, *found, numbers))
        places, rows = _where(~fits, places, rows)


def _where(mask: Columns, *columns: Columns) -> tuple[Columns, ...]:
    """The columns where the mask is set; nothing is copied if it is everywhere."""
    return columns if mask.all() else tuple(column[mask] for column in columns)


def _fits(differences: Octets, varying: Octets, layout: Layout) -> Columns:
    """Which frames have the layout of the first one, bool (n,)."""
    others = differences[:, layout.constant & (varying != 0)].any(axis=1)
    longer = (differences[:, layout.varints & (varying > 0x7F)] > 0x7F).any(axis=1)
    return np.logical_not(others | longer)


def _intact(rows: Octets, differences: Octets, varying: Octets) -> Columns:
    """Which frames hold the CRC of their payload, bool (n,)."""
    payload = slice(HEADER_BYTES, rows.shape[1] - 4)
    first = np.uint32(google_crc32c.value(rows[0, payload].tobytes()))
    crcs = first ^ crc_changes(differences[:, payload], np.flatnonzero(varying[payload]))
    intact: Columns = unmasked(numbers_at(rows, payload.stop, "<u4")) == crcs
    return intact


def _tag_numbers(rows: Octets, varying: Octets, layout: Layout, tags: _Tags) -> Columns:
    """The numbers of the tags, int32 (n, values)."""
    numbers = np.empty((len(rows), len(layout.tags)), np.int32)
    for value, span in enumerate(layout.tags):
        if varying[span.start : span.stop].any():
            texts = texts_at(rows, span)
            numbers[:, value] = np.fromiter(map(tags.__getitem__, texts), np.int32, len(texts))
        else:
            numbers[:, value] = tags[rows[0, span.start : span.stop].tobytes()]
    return numbers


def _up_to(part: _Part, stop: int) -> _Part:
    """The frames before the place `stop`."""
    count = int(part.places.searchsorted(stop))
    return _Part(part.layout, part.places[:count], part.rows[:count], part.tag_numbers[:count])


def _joined(parts: list[_Part], bounds: Columns, tags: list[str]) -> ScalarColumns:
    """The parts in the order of their frames, all of one owner; the first of them is never empty."""
    count = sum(part.places.size for part in parts)
    seqs, steps, counts = (np.zeros(count, np.int64) for _ in range(3))
    wall_times = np.empty(count)
    for layout, places, rows, _ in parts:
        seqs[places] = varints_at(rows, layout.seq)
        steps[places] = varints_at(rows, layout.step)
        wall_times[places] = numbers_at(rows, HEADER_BYTES + 1, "<f8")
        counts[places] = len(layout.numbers)
    firsts = np.cumsum(counts) - counts
    numbers = np.empty(int(counts.sum()))
    tag_numbers = np.empty(numbers.size, np.int32)
    for layout, places, rows, tag_columns in parts:
        for value, place in enumerate(layout.numbers):
            with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
                numbers[firsts[places] + value] = numbers_at(rows, place, "<f4")
            tag_numbers[firsts[places] + value] = tag_columns[:, value]
    return ScalarColumns(
        *parts[0].layout.owner,
        seqs,
        steps,
        wall_times,
        bounds[:count],
        bounds[1 : count + 1],
        counts,
        numbers,
        tag_numbers,
        tags,
    )
