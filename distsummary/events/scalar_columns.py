"""Reads scalar events as columns (arrays), many frames at a time, and all other events frame by frame."""

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from distsummary.format.crc import crc_changes, masked_crc, unmasked
from distsummary.format.frames import HEADER_BYTES, OVERHEAD, Frame, FrameReader, opened
from distsummary.format.records import DIALECTS
from distsummary.format.scalar_decoder import (
    Column,
    FieldPlaces,
    Octets,
    decode_scalars,
    floats_at,
    numbers_at,
    places_of_fields,
    texts_at,
    varints_at,
)

FEW = 64  # events; fewer than this are read faster frame by frame, unless they are _LARGE together
_LARGE = 1 << 13  # bytes
_FIRST_LOOK = 4 * FEW  # frames that are tried as columns at first
_LONGEST_LOOK = 1 << 13  # the most frames that are tried as columns at once, after earlier successes
_LONGEST_PAUSE = 1 << 17  # the most frames that are read one by one before columns are tried again
_FRAME = 128  # bytes of a frame that counts as one of them
_MAX_LENGTH = 1 << 24  # bytes of an event; larger ones are read frame by frame
_AT_ONCE = 16  # frames that are read at once if they are long, within _LARGEST_BLOCK
_LEAST_BLOCK, _LARGEST_BLOCK = 1 << 18, 1 << 22  # bytes
_SHORT = 1 << 10  # bytes of a frame; the CRCs of shorter ones are computed together
_MAX_LAYOUT_BYTES = 1 << 25  # of the frames whose layouts are remembered
_FIRST_JUMP = 64  # frames of one length that are looked at together
_MAX_HEADERS = 4096  # headers whose frame lengths are cached
_MAX_GROUPS = 8  # the most layouts of fields in a block's frames of the same length
_MIN_GROUP = 32  # frames per layout on average; with fewer, columns cost more than they save
_HEADER = struct.Struct("<QI")


class ScalarColumns(NamedTuple):
    """Events of one attempt that hold only scalars, in the order of their file.

    One element per event, (n,): `seqs`, `steps`, `offsets` and `ends` of its frame (bytes), and `counts`, the
    number of its values, all int64; `wall_times` float64. One element per value, (m,): `numbers` float64 and
    `tag_numbers`, the index of its tag in `tags`.
    """

    run_id: str
    attempt: int
    seqs: Column
    steps: Column
    wall_times: Column
    offsets: Column
    ends: Column
    counts: Column
    numbers: Column
    tag_numbers: Column
    tags: list[str]

    def tag_texts(self) -> Iterable[str]:
        """The tag of each value, (m,)."""
        if len(self.tags) == 1:
            return repeat(self.tags[0], self.numbers.size)
        return map(self.tags.__getitem__, self.tag_numbers.tolist())

    def chosen(self, mask: Column) -> "ScalarColumns":
        """The events where `mask`, bool (n,), is True."""
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


def read_pieces(
    source: str | os.PathLike[str] | BinaryIO,
    dialect: str,
    *,
    start: int = 0,
    resync: bool = False,
) -> Iterator[ScalarColumns | Frame]:
    """The frames that `read_frames` gives, but long runs of scalar events come as columns.

    Columns hold only events whose CRCs are right and that `decode_scalars` decodes. All other events, damaged
    ones included, come as frames.

    Args:
        dialect: the dialect of the file, as `segments.dialect_of` gives it.
        source, start, resync: as in `read_frames`.
    """
    with opened(source) as file:
        reader = FrameReader(file, resync=resync)
        if dialect not in DIALECTS:
            yield from reader.frames(start)
            return
        layouts = _Layouts(dialect)
        walker = _Walker(layouts, _MAX_LENGTH)
        offset, most, pause = start, _FIRST_LOOK, FEW
        while True:
            base, block = reader.window(offset, walker.wanted)
            starts = walker.starts(block, offset - base, most)
            walked, taken = len(starts) - 1, 0
            if not walked and walker.is_cut and not reader.ends_at(base + len(block)):
                # Not even the first frame is whole in this block; the next block holds all of it.
                continue
            columns = layouts.columns(block, base, starts) if _pays(starts, walked) else None
            if columns is not None and _pays(starts, taken := columns.seqs.size):
                yield columns
                offset, pause = base + starts[taken], FEW
            is_few = not _pays(starts, taken)
            if taken < walked or not walked or (walked < most and not walker.is_cut) or is_few:
                # The next frame does not fit the columns: read it alone. If the columns held too few events,
                # read more frames one by one: twice as many each time that this happens again.
                count = 1
                if is_few:
                    count = max(walked, pause)
                    pause = min(2 * count, _LONGEST_PAUSE)
                # A few long frames are as much work as many short ones, so their bytes are limited as well.
                enough = offset + _FRAME * count
                for frame in islice(reader.frames(offset), count):
                    yield frame
                    offset, count = frame.end, count - 1
                    if offset >= enough:
                        break
                else:
                    # Fewer frames than were asked for: the file has no more.
                    if count:
                        return
            # A look of which only a part became columns was too long: begin with a short one again.
            most = min(4 * most, _LONGEST_LOOK) if taken in (0, walked) else _FIRST_LOOK


def _pays(starts: list[int], count: int) -> bool:
    """Whether columns of the first `count` frames save time."""
    return count >= FEW or (count > 0 and starts[count] - starts[0] >= _LARGE)


class _Walker:
    """Finds, from headers, adjacent frames that may be scalar events; caches each header's frame length.

    Attributes:
        wanted: how many bytes of the file the next block should hold, for its longest frames so far.
        is_cut: whether the last search ended at a frame that is not whole in the block.
    """

    def __init__(self, layouts: "_Layouts", max_length: int) -> None:
        self._layouts, self._max_length = layouts, max_length
        self._lengths: dict[bytes, int] = {}  # header -> length of the frame
        self.wanted, self.is_cut = _LEAST_BLOCK, False

    def starts(self, block: bytes, position: int, most: int) -> list[int]:
        """The offsets of up to `most` whole frames from `position` on, and the end of the last one."""
        lengths, size = self._lengths, len(block)
        length_of = lengths.get
        starts = [position]
        before, jump = b"", _FIRST_JUMP
        self.is_cut = False
        while len(starts) <= most:
            header = block[position : position + HEADER_BYTES]
            length = length_of(header)
            if header == before and length is not None:
                # Frames of one length in a row: look at many together.
                count = min(jump, most + 1 - len(starts), (size - position) // length)
                same = _same_headers(block, position, length, count, header) if count else 0
                starts += range(position + length, position + same * length + 1, length)
                position += same * length
                jump = 4 * jump if same == count else _FIRST_JUMP
                before = b""
                continue
            before = header
            # A new header: check that its frame is whole and holds scalars, once for all frames that have it.
            if length is None:
                if len(header) < HEADER_BYTES:
                    self.is_cut = True
                    break
                payload_length, crc = _HEADER.unpack(header)
                length = OVERHEAD + payload_length
                end = position + length
                if payload_length > self._max_length or crc != masked_crc(header[:8]):
                    break
                several = min(_AT_ONCE * length, max(length, _LARGEST_BLOCK))
                self.wanted = max(self.wanted, several)
                if end > size:
                    self.is_cut = True
                    break
                if not self._layouts.holds_scalars(block[position:end]):
                    break
                if len(lengths) >= _MAX_HEADERS:
                    lengths.clear()
                lengths[header] = length
            position += length
            if position > size:
                self.is_cut = True
                break
            starts.append(position)
        return starts


def _same_headers(block: bytes, position: int, length: int, count: int, header: bytes) -> int:
    """How many of `count` frames of `length` bytes each, from `position` on, have this header in a row."""
    octets = np.frombuffer(block, np.uint8, count * length, position).reshape(count, length)
    same = (octets[:, :HEADER_BYTES] == np.frombuffer(header, np.uint8)).all(axis=1)
    return count if same.all() else int(same.argmin())


class _Group(NamedTuple):
    """Frames with the same layout of fields. `places` (r,): their indices; `frames` (r, length): their bytes.

    `tag_numbers` (r, values): the tag of each value, as a number from `_Tags`.
    """

    fields: FieldPlaces
    places: Column
    frames: Octets
    tag_numbers: Column


class _Tags(dict[bytes, int]):
    """Encoded tag -> its index in `texts`, which has the tags in the order of appearance; -1 if not UTF-8.

    With `like`, it begins with the tags of another one, whose list it shares until it gets a tag of its own.
    """

    def __init__(self, like: "_Tags | None" = None) -> None:
        super().__init__(like or ())
        self.texts: list[str] = [] if like is None else like.texts
        self._is_shared = like is not None

    def __missing__(self, encoded: bytes) -> int:
        # Copied before it gets a tag of its own: the shared list belongs to a layout that is remembered.
        if self._is_shared:
            self.texts, self._is_shared = [*self.texts], False
        try:
            self.texts.append(encoded.decode())
            self[encoded] = len(self.texts) - 1
        except UnicodeDecodeError:
            self[encoded] = -1
        return self[encoded]


class _Known(NamedTuple):
    """A layout, a frame that has it, and the tags of that frame, also as numbers."""

    fields: FieldPlaces
    like: Octets
    tags: _Tags
    tag_numbers: Column


class _Layouts:
    """Turns frames of scalars into columns; remembers the layout of the last frames of each length."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._known: dict[int, _Known] = {}  # length of a frame -> the last layout
        self._known_bytes = 0

    def holds_scalars(self, frame: bytes) -> bool:
        """Whether `decode_scalars` decodes a frame."""
        # A long frame is decoded only once: its layout, which `columns` needs then, is remembered.
        if len(frame) >= _SHORT:
            return self._layout(np.frombuffer(frame, np.uint8)) is not None
        return decode_scalars(frame[HEADER_BYTES:-4], self._dialect) is not None

    def columns(self, block: bytes, base: int, starts: list[int]) -> ScalarColumns | None:
        """The events of adjacent frames in `block`, up to the first frame that does not fit.

        A frame does not fit if its CRC is wrong, if `decode_scalars` does not decode it, if it belongs to
        another attempt than the first frame, or if the frames have too many different layouts.

        Args:
            base: where the block begins in the file.
            starts: where each frame begins in the block, and where the last one ends; headers must be valid.

        Returns:
            None if the first frame does not fit, or if the frames differ so much that columns save no time.
        """
        bounds = np.array(starts, np.int64)
        lengths = np.diff(bounds)
        different = np.unique(lengths)
        # Each layout has costs of its own: too many, for so many frames or bytes, save nothing.
        most = max(lengths.size // _MIN_GROUP, int(bounds[-1] - bounds[0]) // (4 * _LARGE), 1)
        if different.size > most:
            return None
        octets = np.frombuffer(block, np.uint8)
        # The tags of the first frame come first, so that columns with the same tags share one list of them.
        first_known = self._layout(octets[bounds[0] : bounds[1]])
        tags = _Tags(None if first_known is None else first_known.tags)
        groups: list[_Group] = []
        for length in different.tolist():
            places = np.flatnonzero(lengths == length)
            at = bounds[:-1][places]
            # Adjacent frames are viewed where they are; others are copied together.
            if at[-1] - at[0] == length * (at.size - 1):
                frames = octets[at[0] : at[-1] + length].reshape(-1, length)
            else:
                frames = sliding_window_view(octets, length)[at]
            groups += self._groups(places, frames, tags, first_known)
            if len(groups) > most:
                return None
        first = next((group for group in groups if group.places.size and group.places[0] == 0), None)
        if first is None:
            return None
        groups = [group for group in groups if group.fields.owner == first.fields.owner]
        # One place more than there are frames, so that `stop` is the number of frames if all of them fit.
        fits = np.zeros(lengths.size + 1, np.bool_)
        for group in groups:
            fits[group.places] = True
        stop = int(fits.argmin())
        kept = []
        for group in groups:
            count = int(group.places.searchsorted(stop))
            if count:
                kept.append(_Group(group.fields, *(column[:count] for column in group[1:])))
        return _joined(kept, bounds + base, tags.texts)

    def _groups(self, places: Column, frames: Octets, tags: _Tags, first: _Known | None) -> Iterator[_Group]:
        """Groups the intact frames among `frames`, which have equal lengths, by their layout of fields.

        `tags` begins with those of `first`.
        """
        for _ in range(_MAX_GROUPS):
            if not places.size:
                return
            # The first frame that is left gives the next layout; if it has none, it alone is left out.
            known = self._layout(frames[0])
            if known is None:
                places, frames = places[1:], frames[1:]
                continue
            fields, like = known.fields, known.like
            differences = frames ^ like
            varying = np.bitwise_or.reduce(differences, axis=0)
            # Which frames have their fields in the same places as this one, bool (n,).
            others = differences[:, fields.constant & (varying != 0)].any(axis=1)
            longer = (differences[:, fields.high_bits & (varying > 0x7F)] > 0x7F).any(axis=1)
            fits = np.logical_not(others | longer)
            # The places are only a guess for a damaged frame: it is left out by its CRC.
            stored = unmasked(numbers_at(frames, frames.shape[1] - 4, "<u4"))
            good = fits & (stored == _crcs(frames, like, differences, varying))
            if good.any():
                its_places, its_frames = _where(good, places, frames)
                # Only tags that vary are looked up frame by frame; the others are those of the layout.
                numbers = np.empty((len(its_frames), len(fields.encoded)), np.int32)
                changed = _changed_tags(fields, varying)
                for value in changed:
                    texts = texts_at(its_frames, *fields.tags[value].tolist())
                    numbers[:, value] = np.fromiter(map(tags.__getitem__, texts), np.int32, len(texts))
                if known is first and not changed:
                    numbers[:] = known.tag_numbers
                else:
                    same = np.delete(np.arange(len(fields.encoded)), changed)
                    numbers[:, same] = [tags[fields.encoded[value]] for value in same.tolist()]
                # -1 stands for a tag that is not UTF-8: such a frame does not fit.
                is_text = numbers.min(axis=1, initial=0) >= 0
                yield _Group(fields, *_where(is_text, its_places, its_frames, numbers))
            places, frames = _where(~fits, places, frames)

    def _layout(self, frame: Octets) -> _Known | None:
        """The layout of a frame, with its tags; None if it cannot be decoded."""
        known = self._known.get(frame.size)
        fields: FieldPlaces | None = None
        if known is not None:
            fields, difference = known.fields, frame ^ known.like
            if difference[fields.constant].any() or (difference[fields.high_bits] > 0x7F).any():
                fields = None
            elif not _changed_tags(fields, difference):
                return known
            else:
                encoded = [frame[start:stop].tobytes() for start, stop in fields.tags.tolist()]
                fields = fields._replace(encoded=encoded)
        fields = fields or places_of_fields(frame.tobytes(), self._dialect)
        if fields is None:
            return None
        if self._known_bytes > _MAX_LAYOUT_BYTES:
            self._known.clear()
            self._known_bytes = 0
        tags = _Tags()
        numbers = np.array([tags[encoded] for encoded in fields.encoded], np.int32)
        self._known[frame.size] = _Known(fields, frame.copy(), tags, numbers)
        self._known_bytes += frame.size
        return self._known[frame.size]


def _changed_tags(fields: FieldPlaces, varying: Octets) -> list[int]:
    """Which values have tags of which some byte of `varying`, uint8 (length,), is not zero."""
    before = np.concatenate(([0], np.cumsum(varying != 0)))[fields.tags]
    changed: list[int] = np.flatnonzero(before[:, 1] > before[:, 0]).tolist()
    return changed


def _crcs(frames: Octets, like: Octets, differences: Octets, varying: Octets) -> Column:
    """The CRCs of the payloads of frames of one length, uint32 (n,).

    `differences`, uint8 (n, length), is `frames` XOR `like`; `varying`, uint8 (length,), their OR.
    """
    payload = slice(HEADER_BYTES, frames.shape[1] - 4)
    crc_of = google_crc32c.value
    if frames.shape[1] >= _SHORT:
        return np.array([crc_of(one) for one in frames[:, payload]], np.uint32)
    return np.uint32(crc_of(like[payload])) ^ crc_changes(
        differences[:, payload], np.flatnonzero(varying[payload])
    )


def _where(mask: Column, *columns: Column) -> tuple[Column, ...]:
    """The entries of the columns where the mask is True; nothing is copied if it is True everywhere."""
    return columns if mask.all() else tuple(column[mask] for column in columns)


def _joined(groups: list[_Group], bounds: Column, tags: list[str]) -> ScalarColumns:
    """The events of all groups in the order of their frames; the groups belong to one attempt."""
    count = sum(group.places.size for group in groups)
    seqs, steps, counts = (np.zeros(count, np.int64) for _ in range(3))
    wall_times = np.empty(count)
    for fields, places, frames, _ in groups:
        seqs[places] = varints_at(frames, fields.seq)
        steps[places] = varints_at(frames, fields.step)
        wall_times[places] = numbers_at(frames, HEADER_BYTES + 1, "<f8")
        counts[places] = len(fields.encoded)
    # Where the values of each event begin: the values of several groups are interleaved.
    firsts = np.cumsum(counts) - counts
    numbers = np.empty(int(counts.sum()))
    tag_numbers = np.empty(numbers.size, np.int32)
    for fields, places, frames, tag_columns in groups:
        found = floats_at(frames, fields.numbers)
        if len(groups) == 1:
            numbers, tag_numbers = found.reshape(-1), tag_columns.reshape(-1)
        else:
            at = firsts[places][:, np.newaxis] + np.arange(len(fields.encoded))
            numbers[at], tag_numbers[at] = found, tag_columns
    return ScalarColumns(
        *groups[0].fields.owner,
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
