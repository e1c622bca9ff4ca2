"""RunRows: the rows of the runs below a directory, which reads again only what has changed.

The row of a run that is over is kept next to its event files, in `seg-row.idx`, and holds as long as no file
of the run changes.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from distsummary.base.checked_json import prepared
from distsummary.base.guard import guarded_log
from distsummary.base.publish import file_system_time, replacing
from distsummary.base.terminal import doing
from distsummary.errors import MissingFileError, RunDirError
from distsummary.events.index import is_index
from distsummary.events.segments import stamp_of
from distsummary.rundir.run_dir import MANIFEST
from distsummary.runs.recorded_run import NO_MANIFEST
from distsummary.runs.run_row import RunRow, read_first, with_events

logger = guarded_log(__name__)

DEPTH = 8  # directories below the given one that are looked into
ROW = "seg-row.idx"  # as an index of an event file, it is made again when it is gone
VERSION = 2  # of it
PAUSE = 4  # a run that continues is read again after so many times the time that this took
_MOST_ROW = 1 << 20  # bytes
_MOST_FILES = 100_000  # of one run that are looked at
_OVER = ("finished", "failed", "interrupted", "lost", NO_MANIFEST)  # states that no time changes
_INSIDE = ("ckpt_dir", "landscape", "eval")  # directories of a run that hold no runs
_OF_EVENTS = ("goodput", "metrics", "spark", "step")


class RunRows:
    """The rows of the runs below a directory.

    Args:
        directory: one with run dirs in it or below.
        uses_index: read and write `seg-row.idx` and the indexes of event files.
    """

    def __init__(self, directory: str | os.PathLike[str], *, uses_index: bool = True) -> None:
        self.base, self._uses_index = Path(directory), uses_index
        self._entries: dict[Path, _Entry] = {}
        self._now, self._next_s = 0.0, 0.0  # of the last look: its time, and when the next one is due

    def read(self, *, budget_s: float = math.inf) -> list[RunRow]:
        """The rows, the newest first.

        Args:
            budget_s: for so many seconds event files are read, the newest run first; rows that this does not
                reach are not whole, and the next call continues with them, at first without another look at
                all files.

        Raises MissingFileError if there is no such directory, or no run in it.
        """
        is_pending = any(not entry.row.is_whole for entry in self._entries.values())
        if not (is_pending and time.monotonic() < self._next_s):
            self._look()
        found = sorted(self._entries.items(), key=lambda one: one[1].row.started or 0.0, reverse=True)
        begin_s = time.monotonic()
        for number, (place, entry) in enumerate(found, 1):
            if not entry.row.is_whole and time.monotonic() - begin_s < budget_s:
                doing("reading run", number, len(found))
                self._complete(place, entry)
        return [entry.row for _, entry in found]

    def _look(self) -> None:
        """Look at the files of all runs, and read the first part of the rows that may have changed."""
        begin_s = time.monotonic()
        if not self.base.is_dir():
            kind = "a file" if self.base.exists() else "missing"
            raise MissingFileError(f"{self.base} is {kind}; name a directory")
        self._now = file_system_time(self.base)
        before, self._entries = self._entries, {}
        for place in _places(self.base, DEPTH):
            self._entries[place] = self._looked_at(place, before.get(place))
        if not self._entries:
            raise MissingFileError(
                f"{self.base} holds no runs: no directory with a {MANIFEST} or with event files in it or "
                f"{DEPTH} levels below; name the directory that the run dirs are in"
            )
        end_s = time.monotonic()
        self._next_s = end_s + PAUSE * (end_s - begin_s)

    def _looked_at(self, place: Path, entry: "_Entry | None") -> "_Entry":
        """The entry of a run, with the first part of its row read again if anything may have changed."""
        if entry is not None and time.monotonic() < entry.next_s:
            return entry
        stamp, size = _stamp(place)
        if entry is not None and entry.stamp == stamp and entry.row.state in _OVER:
            return entry
        path = place.relative_to(self.base).as_posix()
        if (row := self._kept(place, stamp)) is not None:
            return _Entry(replace(row, path=path, folder=place.name), stamp)
        row = read_first(path, place, now=self._now, size_bytes=size)
        if entry is not None:
            # Until its event files are read again, it has what they said before.
            row = replace(row, **{name: getattr(entry.row, name) for name in _OF_EVENTS})
        return _Entry(row, stamp)

    def _complete(self, place: Path, entry: "_Entry") -> None:
        """Read the second part of a row, and keep it."""
        begin_s = time.monotonic()
        entry.row = with_events(entry.row, place, now=self._now, uses_index=self._uses_index)
        if entry.row.state in _OVER:
            self._keep(place, entry)
        else:
            end_s = time.monotonic()
            entry.next_s = end_s + PAUSE * (end_s - begin_s)

    def _kept(self, place: Path, stamp: str) -> RunRow | None:
        """The row that was kept, if it is of the files as they are."""
        if not self._uses_index:
            return None
        # Where there is none, or it is damaged, the row is read from the files of the run.
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError):
            with open(place / ROW, "rb") as file:
                kept = json.loads(file.read(_MOST_ROW))
            if kept["version"] == VERSION and kept["stamp"] == stamp:
                return msgspec.convert(kept["row"], prepared(RunRow))
        return None

    def _keep(self, place: Path, entry: "_Entry") -> None:
        if not self._uses_index or not os.access(place, os.W_OK | os.X_OK):
            return
        text = json.dumps({"version": VERSION, "stamp": entry.stamp, "row": msgspec.to_builtins(entry.row)})
        try:
            if len(text) <= _MOST_ROW:
                with replacing(place / ROW, is_durable=False) as temporary, open(temporary, "xb") as file:
                    file.write(text.encode())
        except RunDirError as error:
            logger.debug("no row of %s: %s", place, error)


@dataclass(slots=True)
class _Entry:
    """A row and the stamp of its files.

    `next_s`: by the monotonic clock, when the row of a run that continues is read again.
    """

    row: RunRow
    stamp: str
    next_s: float = 0.0


def _places(directory: Path, depth: int) -> Iterator[Path]:
    """The run dirs, and directories with event files outside of runs; links are not followed."""
    files, children = [], []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    children.append(entry.name)
                else:
                    files.append(entry.name)
    except OSError:
        # What may not be read hides no other run.
        return
    is_run = MANIFEST in files or any(stamp_of(name) is not None for name in files)
    if is_run:
        yield directory
    for name in sorted(children) if depth else ():
        # A run may lie in the directory of another, but the directories of its ranks are no runs.
        is_part = is_run and (name in _INSIDE or "rank_" in name or name.startswith("export_"))
        if not name.startswith(".") and not is_part:
            yield from _places(directory / name, depth - 1)


def _stamp(place: Path) -> tuple[str, int]:
    """A text that is another one when a file of the run has changed, and the bytes of all its files.

    Without indexes, which readers write; other runs in its directory are no part of it.
    """
    found: list[tuple[str, int, int]] = []
    size = 0
    directories = [os.fspath(place)]
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not os.path.exists(os.path.join(entry.path, MANIFEST)):
                        directories.append(entry.path)
                    continue
                if not is_index(entry.name):
                    stat = entry.stat(follow_symlinks=False)
                    size += stat.st_size
                    found.append((entry.path[len(directories[0]) :], stat.st_size, stat.st_mtime_ns))
        if len(found) > _MOST_FILES:
            break
    return hashlib.blake2b(repr(sorted(found)).encode(), digest_size=16).hexdigest(), size
