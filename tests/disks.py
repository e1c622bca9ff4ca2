"""Disks without room, on which writing raises OSError."""

import errno
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distsummary.events.files import Files
from distsummary.format.frames import Part

FULL = "File too large"  # what Linux calls it


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """In the block, no file of this process grows beyond `nbytes`, by the kernel's limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The bytecode of a module that is imported now would be cut off, for all processes after.
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_bytecode


class FullDisk(Files):
    """Has room for `left` writes to event files, also to be set."""

    def __init__(self, left: int) -> None:
        self.left = left

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, parts)
