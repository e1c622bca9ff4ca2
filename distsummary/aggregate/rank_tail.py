"""Follows the event files of one rank's attempt while they grow; nothing is read twice."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from distsummary.events.reader import Damage, Piece, ReadEvent, read_pieces_of
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.events.segments import segments
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS
from distsummary.format.scalar_rows import row_dtype
from distsummary.format.wire import read_identity

_SETTLED_S = 3.0  # a directory that has not changed for this long is not listed again until it changes


class FileRange(NamedTuple):
    """Where an event or a batch of them lies: the bytes `start` to `end` of a file."""

    file: Path
    start: int
    end: int


class RankTail:
    """The new events of one rank, poll by poll; it never waits.

    The files of the attempt are read in MindSpore's dialect or, if there are none, in TensorBoard's. An
    incomplete event at the end of a file is left for the next poll.

    Args:
        directory: the rank's directory; it may appear later.
        run_id, attempt: whose events to read; those of others are left out.

    Attributes:
        damage: the damaged places that were skipped.
        is_at_end: whether the last `read` reached the end of the files.
    """

    def __init__(self, directory: Path, run_id: str, attempt: int) -> None:
        self.directory = directory
        self.damage: list[Damage] = []
        self.is_at_end = False
        self._owner = (run_id, attempt)
        self._files: list[Path] = []
        self._owns: dict[Path, bool] = {}  # whether a file is of the attempt, by its first record
        self._ends: dict[Path, int] = {}  # file -> up to where it has been read
        self._sizes: dict[Path, int] = {}  # file -> its size when its end was reached
        self._known: Path | None = None  # the files before this one are known to their ends
        self._changed_ns, self._changed_s = -1, 0.0  # the directory's time of change, and when it was noticed

    def reported(self, name: str, end: int) -> FileRange | None:
        """Note that everything up to byte `end` of the file `name`, and in older files, has been reported.

        Returns the place of what was reported last: the part that was not known before.
        """
        if not name:
            return None
        file = self.directory / name
        start = self._ends.get(file, 0)
        self._known, self._ends[file] = file, max(start, end)
        return FileRange(file, start, end)

    def read(self, limit: int) -> list[Piece]:
        """At most `limit` events that have not been returned yet; raises OSError, and repeats them then."""
        found: list[Piece] = []
        ends, sizes = dict[Path, int](), dict[Path, int]()
        files = self._listed()
        for file in files:
            with suppress(FileNotFoundError):  # removed since it was listed
                size = file.stat().st_size
                start = self._ends.get(file, 0)
                if size <= max(start, self._sizes.get(file, 0)):
                    continue
                for piece in read_pieces_of(file, "tail", start=start, skipped=self.damage):
                    if isinstance(piece, ScalarColumns):
                        if piece.seqs.size > limit:
                            piece = piece.chosen(np.arange(piece.seqs.size) < limit)
                        limit -= piece.seqs.size
                        ends[file] = int(piece.ends[-1])
                    else:
                        limit -= 1
                        ends[file] = piece.end
                    if (piece.run_id, piece.attempt) == self._owner:
                        found.append(piece)
                    if not limit:
                        break
                if not limit:
                    break
                sizes[file] = size
        self._ends.update(ends)
        self._sizes.update(sizes)
        self.is_at_end = limit > 0
        if files and self.is_at_end:  # a writer does not return to a file after it has begun another one
            self._known = files[-1]
        return found

    def _listed(self) -> list[Path]:
        """The files that may have something new, in the order of their stamps."""
        try:
            changed_ns = self.directory.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        now_s = time.monotonic()
        if changed_ns != self._changed_ns:
            self._changed_ns, self._changed_s = changed_ns, now_s
        if now_s - self._changed_s < _SETTLED_S:  # a clock too coarse may hide a second change
            self._files = self._own_files()
        if self._known in self._files:
            return self._files[self._files.index(self._known) :]
        return self._files

    def _own_files(self) -> list[Path]:
        for dialect in DIALECTS:
            found = [file for file in segments(self.directory, dialect) if self._is_own(file)]
            if found:
                return found
        return []

    def _is_own(self, file: Path) -> bool:
        if file not in self._owns:
            frame = next((frame for frame in read_frames(file) if frame.damage is None), None)
            if frame is None:  # its first record is still to come
                return False
            try:
                ids = read_identity(frame.payload)
            except ValueError:  # another program's
                return self._owns.setdefault(file, False)
            self._owns[file] = (ids.run_id, ids.attempt) == self._owner
        return self._owns[file]


def rows_in(columns: ScalarColumns) -> Iterator[tuple[int, float, tuple[str, ...], bytes]]:
    """Step, wall time, tags and packed row (see `scalar_rows`) of each event."""
    rows: list[tuple[tuple[str, ...], bytes]] = [((), b"")] * columns.seqs.size
    firsts = np.cumsum(columns.counts) - columns.counts
    for count in np.unique(columns.counts).tolist():
        events = np.flatnonzero(columns.counts == count)
        at = firsts[events][:, None] + np.arange(count)
        which = columns.tag_numbers[at]
        if (which == which[0]).all():  # nearly always
            patterns, pattern_of = which[:1], np.zeros(len(events), np.int64)
        else:
            patterns, pattern_of = np.unique(which, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns.tolist()):
            mine = np.flatnonzero(pattern_of == number)
            table = np.empty(len(mine), row_dtype(count))
            table["wall_time"] = columns.wall_times[events[mine]]
            table["step"] = columns.steps[events[mine]]
            table["numbers"] = columns.numbers[at[mine]]
            packed, size = table.tobytes(), table.itemsize
            tags = tuple(columns.tags[tag] for tag in pattern)
            for place, event in enumerate(events[mine].tolist()):
                rows[event] = tags, packed[place * size : (place + 1) * size]
    heads = zip(columns.steps.tolist(), columns.wall_times.tolist(), rows, strict=True)
    return ((step, wall_s, tags, packed) for step, wall_s, (tags, packed) in heads)


def place_of(event: ReadEvent) -> FileRange:
    """Where an event was read."""
    return FileRange(event.file, event.offset, event.end)
