"""Memory that was freed and that the C library keeps for later: given back to the system."""

import ctypes
from functools import cache
from typing import Any


def give_back() -> None:
    """Let glibc give back what is free in its heap; other libraries do it by themselves, or cannot.

    Weights of a few MB leave holes and a free end behind, 17 to 33 MB after a forward of GPT-2. It takes
    some milliseconds; in a heap with a million holes, as lists of small objects leave, 0.2 s. Each time.
    """
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Any:
    """glibc's malloc_trim, if this process has it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # no such library or name; Windows takes no None
        return None
