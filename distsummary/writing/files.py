"""File operations, clock and host of the writers, in one place so that a test can replace any of them."""

import fcntl
import os
import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

from distsummary import publish

# O_EXCL: never another run's file; O_APPEND: never over written bytes; O_NOFOLLOW: never through a link.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
MAX_PARTS = 1024  # IOV_MAX of Linux


class Files:
    """The operating system's files; a fault double subclasses it and overrides single operations."""

    def create(self, path: Path) -> int:
        """Open a new file for appending and lock it as its live writer; the umask decides its mode."""
        descriptor = os.open(path, _CREATE, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview]) -> int:
        """One writev(2) of at most MAX_PARTS parts; returns the bytes taken, which may be fewer."""
        return os.writev(descriptor, parts)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut the open file to `length` bytes."""
        os.ftruncate(descriptor, length)

    def is_removed(self, descriptor: int) -> bool:
        """Whether the open file has no name any more: what is written to it is lost at its close."""
        return os.fstat(descriptor).st_nlink == 0

    def sync(self, descriptor: int) -> None:
        """Make the written bytes durable."""
        os.fdatasync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Give a file the name of another one, which is gone then; durable with its directory."""
        os.replace(source, target)
        publish.sync(target.parent)

    def close(self, descriptor: int) -> None:
        """Close, which also gives the lock up."""
        os.close(descriptor)

    def open_dead(self, path: Path) -> int | None:
        """Open a segment for repair; None while a live writer holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def free_space(self, directory: Path) -> tuple[int, int]:
        """Bytes that are free to this user on the file system, and its size."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def host(self) -> str:
        """This machine's name, without what a viewer could take for a part of its file name pattern."""
        return sanitise_host(platform.node())


def sanitise_host(name: str) -> str:
    """Letters, digits and dashes only: `summary.7` or `tfevents` in a host name would mislead the viewers."""
    return re.sub(r"[^0-9A-Za-z]+", "-", name).replace("tfevents", "tf-events").strip("-") or "host"
