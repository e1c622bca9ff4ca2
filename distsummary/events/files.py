"""The file operations, clock and host name of the writers, in one class so that tests can replace them."""

import fcntl
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

from distsummary.base import publish

# O_EXCL: never open another run's file; O_APPEND: never overwrite bytes; O_NOFOLLOW: never follow a link.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
MAX_PARTS = 1024  # IOV_MAX of Linux
MAX_BYTES = 4 << 20  # of one write: more than a slow disk takes in a second


class Files:
    """The file operations of the operating system; a test double makes single operations fail.

    `written_bytes` counts what was written, to show to those who wait that there is progress.
    """

    written_bytes = 0

    def create(self, path: Path) -> int:
        """Create a file for appending, locked to show that it has a live writer; its directory or the umask
        sets its rights.
        """
        descriptor = os.open(path, _CREATE, 0o666 & publish.rights_in(path.parent))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> int:
        """Call writev(2) with at most MAX_PARTS parts; returns the number of bytes written, maybe not all."""
        return os.writev(descriptor, parts)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut the open file to `length` bytes."""
        os.ftruncate(descriptor, length)

    def status(self, descriptor: int) -> os.stat_result:
        """How many names and bytes the open file has."""
        return os.fstat(descriptor)

    def sync(self, descriptor: int) -> None:
        """Make the written bytes durable."""
        os.fdatasync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over another one and make the renaming durable."""
        os.replace(source, target)
        publish.sync(target.parent)

    def close(self, descriptor: int) -> None:
        """Close the file, which also releases the lock."""
        os.close(descriptor)

    def open_dead(self, path: Path) -> int | None:
        """Open and lock an event file for repair; None if a live writer has locked it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def free_space(self, directory: Path) -> tuple[int, int]:
        """The bytes that are free for this user on the file system, and the size of the file system."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def now(self) -> float:
        """The current time in seconds since the epoch."""
        return time.time()

    def pid(self) -> int:
        """The id of this process."""
        return os.getpid()

    def host(self) -> str:
        """This machine's name, without anything that viewers look for in the names of files."""
        return sanitise_host(platform.node())


def sanitise_host(name: str) -> str:
    """Keep letters, digits and dashes: `summary.7` or `tfevents` in a host name would mislead viewers."""
    return re.sub(r"[^0-9A-Za-z]+", "-", name).replace("tfevents", "tf-events").strip("-") or "host"
