"""RankStream: the events of one directory, each once, from the files that count, while these grow."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from distsummary.events.deduplicate import Seen
from distsummary.events.reader import Damage, Piece, read_pieces_of
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.events.segments import dialect_of, is_shortened, segments
from distsummary.format import tensorboard_format
from distsummary.format.frames import read_frames
from distsummary.format.records import MINDSPORE, TENSORBOARD
from distsummary.format.wire import read_identity

Owner: TypeAlias = tuple[str, int]  # run id and attempt; ("", 0) if another program wrote the file

HEAD_FRAMES = 4  # in which a session starts: torch writes the version twice before
_UNREADABLE = ("unreadable", -1)  # in the place of an owner: the file counts, and whoever reads it fails
_SETTLED_S = 3.0  # a directory that has not changed for this long is not listed again until it changes


def owner_of(path: Path) -> Owner | None:
    """Whose an event file is, by its first intact frame, since a file has one writer; None without one.

    Raises OSError.
    """
    first = next((frame for frame in read_frames(path, resync=True) if frame.damage is None), None)
    if first is None:
        return None
    try:
        ids = read_identity(first.payload)
    except ValueError:
        # The payload is not an event of this package.
        return "", 0
    return (ids.run_id, ids.attempt) if ids.run_id else ("", 0)


def session_start(path: Path) -> float:
    """The step from which on a file of TensorBoard's dialect replaces those before it; inf for none.

    Its writer, such as torch's SummaryWriter with `purge_step`, says so before the first value.
    """
    if dialect_of(path) == TENSORBOARD:
        with suppress(DecodeError, OSError):
            for one in islice(read_frames(path, resync=True), HEAD_FRAMES):
                if one.damage is None and (step := tensorboard_format.session_start(one.payload)) is not None:
                    return step
    return math.inf


def files_of_attempt(
    directory: str | os.PathLike[str], dialect: str, run_id: str, attempt: int
) -> list[Path]:
    """The files of one dialect that hold an attempt's events, oldest first; raises OSError."""
    return [path for path in segments(Path(directory), dialect) if owner_of(path) == (run_id, attempt)]


class RankStream:
    """The events of a rank, or of a merged run: those that `read` has not returned yet, each once.

    An attempt is read from its MindSpore files or, if it has none, from its TensorBoard files; files of other
    programs in TensorBoard's dialect only if there are no others. An event that was written twice counts
    once. An incomplete event at the end of a file is left for the next `read`. A file from which bulk values
    were removed is read again from its beginning.

    Args:
        directory: where the files are; it may appear later.
        owner: the attempt to read; None: all of them, the ones in MindSpore's files first.
        bulk: see `reader.read_pieces_of`.
        belongs: which files are looked at, by their path.

    Attributes:
        damage: the damaged places that were skipped.
        is_at_end: whether the last `read` reached the end of the files.
    """

    def __init__(
        self,
        directory: Path,
        owner: Owner | None = None,
        *,
        bulk: bool = True,
        belongs: Callable[[Path], bool] = lambda path: True,
    ) -> None:
        self.directory = directory
        self.damage: list[Damage] = []
        self.is_at_end = False
        self._owner, self._bulk, self._belongs = owner, bulk, belongs
        self._owners: dict[Path, Owner] = {}  # of the files
        self._seen = Seen()
        self._files: list[Path] = []
        self._ends: dict[Path, int] = {}  # file -> up to where it has been read
        self._sizes: dict[Path, int] = {}  # file -> its size when its end was reached
        self._inodes: dict[Path, int] = {}
        self._newest: Path | None = None  # the files before this one have been read to their ends
        self._changed_ns, self._changed_s = -1, 0.0  # the directory's time of change, and when it was noticed

    def files(self) -> list[Path]:
        """The files that count now: MindSpore's, then TensorBoard's, each oldest first.

        A file that cannot be read counts. Raises FileNotFoundError if there is no directory.
        """
        found = [path for path in segments(self.directory, MINDSPORE) if self._belongs(path)]
        if self._owner is not None and (own := [path for path in found if self._is_own(path)]):
            return own
        others = [path for path in segments(self.directory, TENSORBOARD) if self._belongs(path)]
        if others:
            owners = {owner for owner in map(self._owner_of, found) if owner is not None}
            others = [path for path in others if not owners or self._is_other(path, owners)]
        return [*found, *others] if self._owner is None else [path for path in others if self._is_own(path)]

    def _is_own(self, path: Path) -> bool:
        return self._owner_of(path) in (self._owner, _UNREADABLE)

    def _owner_of(self, path: Path) -> Owner | None:
        if path not in self._owners:
            try:
                owner = owner_of(path)
            except FileNotFoundError:
                # Removed since the directory was listed.
                return None
            except OSError:
                return _UNREADABLE
            if owner is None:
                # Its first record is still to come, so nothing is remembered.
                return None
            self._owners[path] = owner
        return self._owners[path]

    def _is_other(self, path: Path, owners: set[Owner]) -> bool:
        """Whether a file of TensorBoard's dialect is of an attempt of ours that is not among `owners`."""
        owner = self._owner_of(path)
        return owner is not None and bool(owner[0]) and owner not in owners

    def read(self, limit: int = sys.maxsize, *, mode: str = "tail") -> Iterator[tuple[Path, Piece]]:
        """What has been added, with its file: at most `limit` events; long runs of scalars as ScalarColumns.

        Args:
            limit: at least 1.
            mode: "tail", or "skip" if the files do not grow: what is damaged at their ends is damage then.

        Raises OSError; what was returned before is not returned again.
        """
        self.is_at_end = False
        for file in (files := self._growing()):
            # The file may have been removed since it was listed.
            with suppress(FileNotFoundError):
                found = file.stat()
                if self._inodes.setdefault(file, found.st_ino) != found.st_ino:
                    self._inodes[file] = found.st_ino
                    # What was read of it is in `_seen`, but its damage is where it was no more.
                    if is_shortened(file):
                        self._ends[file] = self._sizes[file] = 0
                        self.damage[:] = [one for one in self.damage if one.file != file]
                size, start = found.st_size, self._ends.get(file, 0)
                # Nothing was added since: an incomplete event at its end is still incomplete.
                if size <= max(start, self._sizes.get(file, 0)):
                    continue
                pieces = read_pieces_of(file, mode, start=start, skipped=self.damage, bulk=self._bulk)
                for piece in pieces:
                    # `_ends` is set before the piece is given out: a caller who stops continues after it.
                    if isinstance(piece, ScalarColumns):
                        if piece.seqs.size > limit:
                            piece = piece.chosen(np.arange(piece.seqs.size) < limit)
                        limit, self._ends[file] = limit - piece.seqs.size, int(piece.ends[-1])
                    else:
                        limit, self._ends[file] = limit - 1, piece.end
                    if (new := self._new(piece)) is not None:
                        yield file, new
                    if not limit:
                        return
                self._sizes[file] = size
        self.is_at_end = True
        # The writer of an attempt does not return to a file that is not the newest.
        if files and self._owner is not None:
            self._newest = files[-1]

    def _new(self, piece: Piece) -> Piece | None:
        """The events of a piece that were not read before and are of the attempt; None: there are none."""
        if self._owner not in (None, (piece.run_id, piece.attempt)):
            return None
        if not isinstance(piece, ScalarColumns):
            return piece if self._seen.add(piece.run_id, piece.attempt, piece.seq) else None
        is_new = self._seen.add_all(piece.run_id, piece.attempt, piece.seqs)
        if is_new.all():
            return piece
        return piece.chosen(is_new) if is_new.any() else None

    def _growing(self) -> list[Path]:
        """The files that may have something new."""
        try:
            changed_ns = self.directory.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        now_s = time.monotonic()
        if changed_ns != self._changed_ns:
            self._changed_ns, self._changed_s = changed_ns, now_s
        # Listed for a while after each change: a clock too coarse may hide a second one.
        if now_s - self._changed_s < _SETTLED_S:
            self._files = self.files()
        if self._newest in self._files:
            return self._files[self._files.index(self._newest) :]
        return self._files
