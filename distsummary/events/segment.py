"""One event file: appends whole frames, undoes failed appends, cuts off an incomplete last frame."""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path

from distsummary.base.guard import guarded_log
from distsummary.base.publish import temporary_name
from distsummary.errors import RunDirError, reason
from distsummary.events.files import MAX_BYTES, MAX_PARTS, Files
from distsummary.events.segments import SegmentName, all_event_files, next_stamp, source_of
from distsummary.format.frames import Framed, Part, begins_frame, joined, whole_length

_TORN_NAME = re.compile(r"torn-(\d+)\.bin")
_MAX_CLASHES = 100

logger = guarded_log(__name__)


def cut_torn_tails(directory: Path, files: Files) -> list[Path]:
    """Move incomplete last frames of files without a live writer to `torn-<n>.bin`; returns the cut files."""
    # MindInsight would try to read such a frame again and again, forever.
    return [path for path in all_event_files(directory) if cut_torn_tail(path, files)]


def cut_torn_tail(path: Path, files: Files) -> bool:
    """Move a file's incomplete last frame to `torn-<n>.bin`; False if it has none or has a live writer."""
    if whole_length(path) == path.stat().st_size:
        return False
    descriptor = files.open_dead(path)
    if descriptor is None:
        return False
    try:
        # Measured again under the lock: a writer may have completed the frame.
        length = whole_length(path)
        tail = os.pread(descriptor, os.fstat(descriptor).st_size - length, length)
        if not tail:
            return False
        directory = path.parent
        taken = [int(match[1]) for p in directory.iterdir() if (match := _TORN_NAME.fullmatch(p.name))]
        try:
            kept = files.create(directory / f"torn-{max(taken, default=-1) + 1}.bin")
            try:
                files.write(kept, [tail])
            finally:
                files.close(kept)
        except OSError as error:
            # A full disk does not prevent the cut itself, which needs no space. But bytes that are no
            # beginning of a frame are another program's: they are not removed without a copy.
            if not begins_frame(tail):
                logger.warning("%d foreign bytes stay in %s: %s", len(tail), path, error)
                return False
            logger.warning("%d bytes of a torn frame in %s are not kept: %s", len(tail), directory, error)
        files.truncate(descriptor, length)
        return True
    finally:
        files.close(descriptor)


def has_live_writer(directory: Path, source: str, files: Files | None = None) -> bool:
    """Whether a process holds an event file of this source open for writing, on any machine.

    It shows by the lock of `Files.create`, as far as the file system shares locks between machines.
    """
    files = files or Files()
    for path in all_event_files(directory) if directory.is_dir() else []:
        if source_of(path.name) == source:
            descriptor = files.open_dead(path)
            if descriptor is None:
                return True
            files.close(descriptor)
    return False


class Segment:
    """An open event file. A failed append is undone; if that fails too, the file is dead (not used any more).

    Args:
        keeps_unsynced: keep appended data in memory until they are durable; `rescue` needs them.

    Raises RunDirError if no new file can be created in the directory.
    """

    def __init__(self, path: Path, files: Files, *, keeps_unsynced: bool = False) -> None:
        self.path = path
        self.length = self.synced_length = 0
        self.is_dead = False
        self.is_empty = True  # no events yet
        self.opened = files.now()
        self._files = files
        self._keeps_unsynced = keeps_unsynced
        self._unsynced: list[Framed] = []
        self._lost: OSError | None = None  # the error of a failed sync
        self._descriptor = files.create(path)

    def append(self, data: bytes) -> None:
        """Write whole frames without marking the file as having events; raises what `extend` raises."""
        self._write([data])
        self.length += len(data)
        if self._keeps_unsynced:
            self._unsynced.append(Framed(0, 0, [data], len(data)))

    def extend(self, framed: Sequence[Framed]) -> None:
        """Write frames in one call; after an OSError the file contains none of them, or is dead."""
        self._write(joined(part for frames in framed for part in frames.parts))
        self.length += sum(frames.nbytes for frames in framed)
        self.is_empty = False
        if self._keeps_unsynced:
            self._unsynced += framed

    def _write(self, parts: list[Part]) -> None:
        # A failed write is undone by cutting the file to `length`, so nothing else may have changed it.
        found = self._files.status(self._descriptor)
        if not found.st_nlink or found.st_size != self.length:
            self.is_dead = True
            if not found.st_nlink:
                raise OSError(errno.ENOENT, "the event file was removed", str(self.path))
            raise OSError(errno.EIO, "another process changed the event file", str(self.path))
        try:
            self._write_all(self._descriptor, parts)
        except OSError as error:
            # Not the file, whose name changes when it is opened again.
            error.filename = str(self.path.parent)
            try:
                self._files.truncate(self._descriptor, self.length)
            except OSError:
                # The torn frame stays; the next writer's `cut_torn_tails` removes it.
                self.is_dead = True
            raise

    def lost(self) -> str:
        """What another process has taken from the file; empty if nothing. Raises OSError."""
        found = self._files.status(self._descriptor)
        if not found.st_nlink:
            return f"{self.path} was removed, with the events in it"
        if found.st_size < self.length:
            return f"{self.path} was cut from {self.length:,} to {found.st_size:,} bytes by another process"
        return ""

    def _write_all(self, descriptor: int, parts: list[Part]) -> None:
        while parts:
            written = self._files.write(descriptor, leading(parts[:MAX_PARTS], MAX_BYTES))
            self._files.written_bytes += written
            parts = remaining(parts, written)

    def sync(self) -> None:
        """Make appended data durable; after an OSError the file is dead: the kernel may have dropped data."""
        if self._lost is not None:
            # Another sync would succeed although data was lost.
            raise self._lost
        # More may be appended during the sync, which does not cover it.
        length, count = self.length, len(self._unsynced)
        # Nothing is new. A dead file is synced all the same: a failed append may have left frames in it.
        if length == self.synced_length and not self.is_dead:
            return
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            self.is_dead, self._lost = True, error
            raise
        self.synced_length = length
        del self._unsynced[:count]

    def rescue(self) -> None:
        """After a failed sync, replace this file with a durable one that holds everything that was appended.

        At any time exactly one of the two files has the name `path`, so no event is lost or doubled.
        Raises OSError if the new file cannot be written; the call may be repeated, also after `close`.
        """
        if not self.path.exists():
            return
        temporary = temporary_name(self.path.parent)
        descriptor = self._files.create(temporary)
        try:
            # Only what an earlier sync made durable is read from the file; the rest is still in memory.
            with open(self.path, "rb") as file:
                durable = file.read(self.synced_length)
            parts = joined([durable, *(part for frames in self._unsynced for part in frames.parts)])
            self._write_all(descriptor, parts)
            self._files.sync(descriptor)
            self._files.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                self._files.close(descriptor)
        self._unsynced.clear()
        self._lost, self.synced_length = None, self.length

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1


def leading(parts: list[Part], most: int) -> list[Part]:
    """The first `most` bytes of `parts`."""
    for number, part in enumerate(parts):
        if len(part) > most:
            return [*parts[:number], memoryview(part)[:most]]
        most -= len(part)
    return parts


def remaining(parts: list[Part], taken: int) -> list[Part]:
    """The rest of `parts` after the first `taken` bytes have been written."""
    for number, part in enumerate(parts):
        if taken < len(part):
            return [memoryview(part)[taken:], *parts[number + 1 :]]
        taken -= len(part)
    return []


def open_segments(
    directory: Path,
    dialects: tuple[str, ...],
    name: SegmentName,
    files: Files,
    *,
    named_at: float | None = None,
    keeps_unsynced: bool = False,
) -> dict[str, Segment]:
    """Open a segment per dialect; all names get the first free time stamp from `named_at` (or now) on."""
    stamp = next_stamp(directory, files.now() if named_at is None else named_at)
    for attempt in range(_MAX_CLASHES):
        opened: dict[str, Segment] = {}
        try:
            for dialect in dialects:
                path = directory / name.file_name(dialect, stamp + attempt)
                opened[dialect] = Segment(path, files, keeps_unsynced=keeps_unsynced)
            return opened
        except FileExistsError:
            # Another writer has just taken the name: try the next stamp, for all dialects.
            discard(opened)
        except OSError as error:
            discard(opened)
            raise RunDirError(
                f"no event file can be made in {directory}: {reason(error)}, or choose another path"
            ) from error
    raise RunDirError(
        f"{_MAX_CLASHES} stamps from {stamp} on are taken in {directory}; remove files of other writers"
    )


def discard(opened: dict[str, Segment]) -> None:
    """Close and remove segments that hold no acknowledged events."""
    for segment in opened.values():
        # Removed while it is still locked, so that no other writer tries to repair it.
        segment.path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for segment in opened.values():
            segment.close()


def is_live(path: Path) -> bool:
    """Whether a writer holds the file's lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
