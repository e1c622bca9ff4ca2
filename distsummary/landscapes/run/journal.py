"""The journal of a landscape: keeps every finished chunk on disk, so that no point is evaluated twice.

A journal is an append-only file of frames (see `format.frames`), each of which holds one entry:

- First the header, JSON: {"format": 4, "plan": {part of the landscape's identity: its hash}}.
- Then the chosen engine, JSON: {"choice": {the engine}}.
- Then one entry for each finished chunk of points: JSON, with the worker and its hardware, a line feed, and
  the losses and metrics, as little-endian float64 (points, quantities). A new choice may stand before some of
  these entries, for example after an engine ran out of memory. It voids all chunks before it: one engine must
  compute the whole landscape.

The entry of a chunk holds a hash of the choice that the chunk was computed with: if the frame of a choice is
damaged, its chunks are not mistaken for those of another choice. A chunk is evaluated again if its frame, or
the frame of its choice, is damaged. Opening a journal cuts off an incomplete last frame. Older formats are
refused.
"""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np

from distsummary.base.checked_json import parse_json
from distsummary.base.publish import refuse_unlike_files, rights_in
from distsummary.errors import DamagedFileError, LandscapeError, RunDirError, reason
from distsummary.events.segment import is_live
from distsummary.format.frames import HEADER_BYTES, begins_frame, frame, read_frames, whole_length
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.rundir.run_dir import LANDSCAPE_JOURNAL

FORMAT = 4
LOCK_TRIES, LOCK_WAIT_S = 3, 0.005  # a process that only tests the lock holds it for microseconds
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class JournalHeader(TypedDict):
    """The first entry of a journal: the plan is what identifies the landscape."""

    format: int
    plan: dict[str, str]


def journals(directory: Path) -> list[Path]:
    """The journals in a directory, sorted by name, without symbolic links; raises OSError if unreadable."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    return [directory / name for name in sorted(names) if LANDSCAPE_JOURNAL.fullmatch(name)]


class _Chunk(TypedDict):
    plane: int
    kind: str
    row: int
    columns: list[int]


class _Entry(TypedDict, total=False):
    choice: dict[str, Any]
    of: str
    chunk: _Chunk
    worker: str
    seconds: float
    on: str


class Journal:
    """An open journal; one process at a time holds it.

    Args:
        path: the file; created if absent.
        identity: the identity of the landscape, see `landscape_identity`; a journal of another
            landscape is refused.
        resume: False starts again, whatever the file holds.

    Attributes:
        results: the finished chunks, with their quantities float64 (points, quantities).
        choice: the engine choice of the results, from `EngineChoice.to_dict`; None until a choice is entered.
        hardware: the names of the hardware that computed the results.

    Raises:
        LandscapeError: another process holds the journal, or it belongs to another landscape.
        DamagedFileError: the file is no journal.
        RunDirError: the file cannot be opened or locked, or an entry cannot be written; earlier entries stay.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: Mapping[str, str], *, resume: bool = True
    ) -> None:
        self.path = Path(path)
        self.results: dict[Chunk, Array] = {}
        self.choice: dict[str, Any] | None = None
        self.hardware: list[str] = []
        self._descriptor = -1
        try:
            refuse_unlike_files(self.path)
            # Another process may remove the file before it is locked; then a new one is opened.
            while not self._lock():
                self.close()
            if not resume:
                os.ftruncate(self._descriptor, 0)
            with open(self.path, "rb") as file:
                is_journal = begins_frame(file.read(HEADER_BYTES))
            # An incomplete last frame is cut off, but a file that is no journal stays as it is.
            if is_journal:
                os.ftruncate(self._descriptor, whole_length(self.path))
            self._read(identity)
            if not os.fstat(self._descriptor).st_size:
                try:
                    self._append({"format": FORMAT, "plan": dict(identity)})
                except BaseException:
                    self.remove()
                    raise
        except BaseException:
            self.close()
            raise

    def _lock(self) -> bool:
        """Open and lock the file; False if another process removed it before the lock was taken."""
        try:
            self._descriptor = os.open(self.path, _FLAGS, 0o666 & rights_in(self.path.parent))
        except OSError as error:
            raise RunDirError(
                f"{self.path} cannot be opened: {reason(error)}, or write to another run_dir"
            ) from error
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_WAIT_S)
            except OSError as error:
                # Not every file system has locks.
                raise RunDirError(
                    f"{self.path} cannot be locked: {error.strerror}; write to a run_dir elsewhere"
                ) from error
        else:
            raise LandscapeError(
                f"{self.path} is held by another process that draws this landscape; "
                "wait for that process or end it"
            )
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _read(self, identity: Mapping[str, str]) -> None:
        """Check the header and read every undamaged frame after it."""
        frames = read_frames(self.path, resync=True)
        header = next(frames, None)
        if header is None:
            return
        try:
            if header.damage:
                raise DamagedFileError(f"its header is damaged: {header.damage}")
            known = parse_json(header.payload, JournalHeader, name="its header")
            if known["format"] != FORMAT:
                raise DamagedFileError(f"its format is {known['format']}")
            found = known["plan"]
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{self.path} is not a landscape's journal ({error}); remove it, or use resume=False"
            ) from error
        if changed := sorted(n for n in {*identity, *found} if identity.get(n) != found.get(n)):
            raise LandscapeError(
                f"{self.path} is the journal of another landscape, with other {', '.join(changed)}; "
                "give the arguments that it was begun with, or resume=False to start again"
            )
        for payload in (framed.payload for framed in frames if framed.damage is None):
            line, _, data = payload.partition(b"\n")
            try:
                entry = parse_json(line, _Entry, name="it", is_finite=False)
                if "choice" in entry:
                    self._begin_with(entry["choice"])
                elif entry["of"] == _choice_hash(self.choice):
                    fields = entry["chunk"]
                    chunk = Chunk(**{**fields, "columns": tuple(fields["columns"])})
                    self.results[chunk] = np.frombuffer(data, "<f8").reshape(len(chunk), -1)
                    self._note_hardware(entry["on"])
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedFileError(
                    f"{self.path} has an entry that cannot be read ({error}); use resume=False to start again"
                ) from error

    def enter_choice(self, choice: Mapping[str, Any]) -> None:
        """Enter the engine choice of the next chunks; drop earlier chunks. A failed write changes nothing."""
        self._append({"choice": dict(choice)})
        self._begin_with(dict(choice))

    def _begin_with(self, choice: dict[str, Any]) -> None:
        self.choice, self.hardware = choice, []
        self.results.clear()

    def _note_hardware(self, name: str) -> None:
        if name not in self.hardware:
            self.hardware.append(name)

    def enter(
        self, chunk: Chunk, measured: Array, *, worker: str = "", seconds: float = 0.0, on: str = ""
    ) -> None:
        """Enter a finished chunk: its quantities, float64 (points, quantities), worker, time and hardware."""
        values = np.ascontiguousarray(measured, "<f8")
        entry = {
            "chunk": asdict(chunk),
            "of": _choice_hash(self.choice),
            "worker": worker,
            "seconds": round(seconds, 6),
            "on": on,
        }
        self._append(entry, values.tobytes())
        self.results[chunk] = values
        self._note_hardware(on)

    def _append(self, entry: Mapping[str, Any], data: bytes = b"") -> None:
        framed = frame(json.dumps(entry).encode() + b"\n" + data)
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, framed) < len(framed):
                # The write was too short because the disk is full.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            # The journal must not end with a part of a frame, after which more would be appended.
            os.ftruncate(self._descriptor, end)
            raise RunDirError(
                f"{self.path} cannot be written: {reason(error)}; "
                f"the same call then continues from the {sum(map(len, self.results))} finished points"
            ) from error

    def remove(self) -> None:
        """Close and remove the file, after its landscape has been saved."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the file for other processes; a second call does nothing."""
        if self._descriptor >= 0:
            # Not every file system has locks. Where there are some, a forked child may keep the file open.
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the journal, and remove it if it has no finished chunk."""
        if self._descriptor >= 0 and not self.results:
            self.remove()
        self.close()


def _choice_hash(choice: Mapping[str, Any] | None) -> str:
    """The hash of an engine choice, which each chunk computed with it has in its entry."""
    return hashlib.blake2b(json.dumps(choice, sort_keys=True).encode(), digest_size=8).hexdigest()


def leftover_journals(own: Path, identity: Mapping[str, str]) -> str:
    """A message about the journals of other, stopped landscapes next to `own`; "" if there are none.

    It says what differs in each journal: "unknown" if the header cannot be read or was written by another
    version. Journals that a process holds are left out.
    """
    found = []
    for path in journals(own.parent):
        try:
            if path == own or is_live(path):
                continue
        except OSError:
            # The journal has just been removed, or access to it is denied.
            continue
        try:
            header = next(read_frames(path), None)
            known = {}
            if header is not None and not header.damage:
                known = parse_json(header.payload, JournalHeader, name=path.name)["plan"]
        except (OSError, DamagedFileError):
            known = {}
        is_like = known.keys() == identity.keys()
        differing = [name for name in identity if known[name] != identity[name]] if is_like else []
        found.append(f"{path.name} ({', '.join(differing) or 'unknown'})")
    if not found:
        return ""
    return (
        f"{own.parent} also holds points of other landscapes that were stopped (in brackets: what differs "
        f"from this one): {', '.join(found)}; to resume one of them, repeat the call that began it; "
        "resume=False removes none of them: delete the files that you do not want"
    )
