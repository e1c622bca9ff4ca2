"""The C library's heap: what one layer frees is kept for the next one, and given back at the end.

By itself glibc gives large results back to the system as they are freed, and gets them anew, page by page,
each filled with zeros by the kernel, which can take more than half of a forward (see docs/landscape.md).
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from distsummary.landscapes.model.hardware import host_bytes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
LARGEST = 32 << 20  # bytes; glibc's own limit: above, memory is mapped for itself unless M_MMAP_MAX is 0
KEEP = {M_MMAP_THRESHOLD: LARGEST, M_TRIM_THRESHOLD: -1}  # -1: never
# Where glibc's thresholds go by themselves once an array of LARGEST was freed, mallopt(3).
AFTERWARDS = {M_MMAP_MAX: 65536, M_TRIM_THRESHOLD: 2 * LARGEST}
ROOM = 4  # times the process' largest size, that its core's share of the memory must be: holes may double it

_lock = threading.RLock()  # the garbage collector may end what nobody closed, in the midst of it
_users = 0


@contextmanager
def kept() -> Iterator[None]:
    """While it lasts, and others of this process do, what is freed stays with the process.

    Nothing changes with other C libraries, or where the environment sets glibc's thresholds.
    """
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(step: int) -> None:
    global _users
    with _lock:
        was, _users = _users, _users + step
        if not was:
            _set(KEEP)
        elif not _users:
            _set(AFTERWARDS)
            give_back()


def keep_large() -> None:
    """Within `kept`: also results above LARGEST, where memory is ample, as they leave larger holes."""
    if _function("mallopt") is None or not _is_ample():
        return
    with _lock:
        if _users:
            _set({M_MMAP_MAX: 0})


def _is_ample() -> bool:
    import resource  # not where there is no glibc

    cores = os.cpu_count() or 1
    return ROOM * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 <= host_bytes() // cores


def _set(options: Mapping[int, int]) -> None:
    if (mallopt := _function("mallopt")) is not None and not _is_set_by_user():
        for option, value in options.items():
            mallopt(option, value)


def _is_set_by_user() -> bool:
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        f"MALLOC_{name}_" in os.environ
        for name in ("TRIM_THRESHOLD", "MMAP_THRESHOLD", "MMAP_MAX", "TOP_PAD")
    )


def give_back() -> None:
    """Let glibc give back what is free in its heap; other libraries do it by themselves, or cannot.

    Weights of a few MB leave holes and a free end behind, 17 to 33 MB after a forward of GPT-2. It takes
    some milliseconds; in a heap with a million holes, as lists of small objects leave, 0.2 s. Each time.
    """
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@cache
def _function(name: str) -> Any:
    """A function of glibc's, if this process has it."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):  # no such library or name; Windows takes no None
        return None
