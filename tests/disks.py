"""A disk without room, by the kernel's limit of the size of a file: writing raises OSError."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

FULL = "File too large"  # what Linux calls it


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """In the block, no file of this process grows beyond `nbytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
