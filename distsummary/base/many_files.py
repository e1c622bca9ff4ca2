"""Reads many small files, such as one of each rank, several at a time: storage may answer slowly."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

FEW = 64  # files that are read one after the other
THREADS = 16

T = TypeVar("T")


def read_each(read: Callable[[Path], T], places: Sequence[Path]) -> list[T]:
    """What `read` returns for each place, in the same order; raises what it raises."""
    if len(places) > FEW:
        try:
            with ThreadPoolExecutor(THREADS, "distsummary-files") as threads:
                return [*threads.map(read, places)]
        except RuntimeError:
            # The interpreter ends and starts no new threads, so the files are read one after the other.
            pass
    return [*map(read, places)]
