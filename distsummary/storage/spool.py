"""Spool: what the ranks of one host write of a run on its own disk, and what of it was not sent yet."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from distsummary.base.checked_json import parse_json
from distsummary.errors import DistSummaryError
from distsummary.events.segment import is_live
from distsummary.events.segments import is_shortened
from distsummary.rundir.attempts import ENDED
from distsummary.rundir.run_dir import MANIFEST, RANK_MANIFEST, SHIP_BYTES, RunDir
from distsummary.rundir.run_records import RankRecord

GROW, PART, WHOLE, GONE = "grow", "part", "whole", "gone"
PART_BYTES = 4 << 20  # of a file in one Change
CHANGE_BYTES = 200  # about what a Change takes beside its data
_EVENTS = re.compile(r"events\.summary\.\d|tfevents\.\d")  # only whole frames are appended to these
OF_THE_RUN = (MANIFEST, "alerts.jsonl")  # files that no rank writes
# What is sent first: small files, then events, then what says that the events are all there, then bulk.
_SMALL, _EVENT, _END, _BULK = range(4)


class Change(NamedTuple):
    """Bytes of a file from `at` on.

    `name` is the path below the run dir. `kind`: GROW, bytes that are appended; PART, and WHOLE for the last
    one, of a file that is replaced; GONE, the file was removed. `mode`: its rights.
    """

    name: str
    kind: str
    at: int = 0
    data: bytes = b""
    mode: int = 0o644


class Sent(NamedTuple):
    """Which state of a file was sent, and how many bytes of it."""

    inode: int
    size: int
    changed_ns: int
    to: int


def grows(name: str) -> bool:
    """Whether a file is an event file, by its name: it grows while it is the newest of its writer."""
    return _EVENTS.search(os.path.basename(name)) is not None


def is_small(name: str) -> bool:
    """Whether a file in the directory of a rank is a small one, which the rank replaces or removes."""
    return name.endswith((".json", ".txt")) and name not in OF_THE_RUN


class Spool:
    """Looks for what the ranks of this host wrote; what is not committed is found again.

    Of a directory that is held, all files are sent. Of others, such as of a rank that has moved to another
    host, only event files are: they have names of their own, and no one else writes them.

    Args:
        base: the directory, which has the structure of a run dir.

    Attributes:
        bulk_bytes: so much of large files, such as checkpoints, is sent; those beyond stay here, in `kept`.
    """

    def __init__(self, base: Path) -> None:
        self._run_dir = RunDir(base)
        self.base = base
        self.bulk_bytes = SHIP_BYTES
        self.kept: set[str] = set()
        self._bulk: dict[str, int] = {}  # bytes of the large files that are sent
        self._held: set[str] = set()
        self._sent: dict[str, Sent] = {}

    def hold(self, directory: str, lengths: Mapping[str, int], others: Iterable[str]) -> None:
        """From now on send all files of a rank's directory.

        Of its event files, `lengths` have arrived, and of others, the home has those that are named.
        """
        self._held.add(directory)
        for name in others:
            self._sent.setdefault(name, Sent(0, -1, 0, 0))
        for name, length in lengths.items():
            with suppress(OSError):
                found = os.stat(self.base / name)
                # A ship that was killed has sent these bytes, or those of the file that this one replaced.
                if is_shortened(self.base / name):
                    continue
                self._sent.setdefault(name, Sent(found.st_ino, -1, 0, min(length, found.st_size)))

    def again(self, names: list[str]) -> None:
        """Send these files from their beginning: what arrived of them is not there any more."""
        for name in names:
            self._sent.pop(name, None)

    def changes(self, most: int) -> tuple[list[Change], dict[str, Sent | None]]:
        """What to send, about `most` bytes, and what to commit when it has arrived."""
        found: list[Change] = []
        sent: dict[str, Sent | None] = {}
        names = dict(self._files())
        for name in self._sent.keys() - names.keys():
            if os.path.dirname(name) in self._held or not grows(name):
                found.append(Change(name, GONE))
            sent[name] = None
        self.kept &= names.keys()
        # A list comes behind what it lists; event files have names in the order in which they were written.
        for name, _ in sorted(names.items(), key=lambda item: (item[1], is_small(item[0]), item[0])):
            if most <= 0:
                break
            if names[name] == _BULK and not is_small(name) and not self._has_room(name):
                continue
            with suppress(FileNotFoundError):
                for change, state in self._of(name, most):
                    found.append(change)
                    sent[name] = state
                    most -= len(change.data) + CHANGE_BYTES
        return found, sent

    def commit(self, sent: Mapping[str, Sent | None]) -> None:
        """What `changes` returned has arrived."""
        for name, state in sent.items():
            if state is None:
                self._sent.pop(name, None)
                self._bulk.pop(name, None)
            else:
                self._sent[name] = state

    def touched_s(self) -> float:
        """When a rank arrived here, or a file of the run came or went, in seconds since the epoch."""
        return os.stat(self.base).st_ctime

    def is_written(self) -> bool:
        """Whether a rank writes an event file here, which it locks, also one that has called no ship."""
        try:
            return any(grows(path.name) and is_live(path) for path in self.base.rglob("*"))
        except FileNotFoundError:
            return True  # who writes has just replaced or removed it

    def remove(self) -> None:
        """Remove the directory: all of it has arrived."""
        shutil.rmtree(self.base)

    def _has_room(self, name: str) -> bool:
        """Whether a large file is sent; which ones, is decided in the order in which they are found."""
        if name not in self._bulk:
            with suppress(FileNotFoundError):
                size = os.stat(self.base / name).st_size
                if sum(self._bulk.values()) + size > self.bulk_bytes:
                    self.kept.add(name)
                    return False
                self._bulk[name] = size
                self.kept.discard(name)
        return True

    def _of(self, name: str, most: int) -> Iterator[tuple[Change, Sent]]:
        with open(self.base / name, "rb") as file:
            now = os.fstat(file.fileno())
            old = self._sent.get(name)
            state = (now.st_ino, now.st_size, now.st_mtime_ns)
            if old == Sent(*state, now.st_size):
                return
            is_event = grows(name) and not is_shortened(self.base / name, file)
            # A file that was replaced is another one; one that grows stays the same, unless it is shorter.
            is_same = old is not None and (
                old.inode == now.st_ino and old.to <= now.st_size if is_event else old[:3] == state
            )
            at = old.to if is_same and old is not None else 0
            file.seek(at)
            while True:
                data = file.read(min(PART_BYTES, now.st_size - at))
                end = at + len(data)
                is_last = end >= now.st_size or not data
                kind = GROW if is_event else WHOLE if is_last else PART
                yield Change(name, kind, at, data, now.st_mode & 0o777), Sent(*state, end)
                at, most = end, most - len(data) - CHANGE_BYTES
                if is_last or most <= 0:
                    return

    def _files(self) -> Iterator[tuple[str, int]]:
        """The files to send, with what they are."""
        places = {*self._held, "ckpt_dir"}
        places |= {path.name for role in ("train", "eval") for path in self._run_dir.rank_dirs(role).values()}
        for place in sorted(places):
            is_held = place in self._held or place == "ckpt_dir"
            for name in self._below(place, is_deep=bool(place)):
                if is_held or grows(name):
                    yield name, self._kind_of(name, place)

    def _below(self, place: str, *, is_deep: bool) -> Iterator[str]:
        try:
            with os.scandir(self.base / place) as entries:
                for entry in entries:
                    name = f"{place}/{entry.name}" if place else entry.name
                    # Temporary files, and locks.
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if is_deep or entry.name.startswith("export_"):
                            yield from self._below(name, is_deep=True)
                    elif entry.is_file(follow_symlinks=False) and name not in OF_THE_RUN:
                        yield name
        except (FileNotFoundError, NotADirectoryError):
            return

    def _kind_of(self, name: str, place: str) -> int:
        directory, base = os.path.split(name)
        if grows(name):
            return _EVENT
        if directory != place or place == "ckpt_dir":
            return _BULK
        if base == RANK_MANIFEST:
            return _END if self._has_ended(name) else _SMALL
        return _SMALL if is_small(base) else _END

    def _has_ended(self, name: str) -> bool:
        """Whether a rank reports its end: who reads that may merge its events, so these are sent before."""
        try:
            data = (self.base / name).read_bytes()
            attempts = parse_json(data, RankRecord, name=name, remedy="")["attempts"]
        except (OSError, DistSummaryError):
            return True
        return bool(attempts) and attempts[-1]["state"] in ENDED
