"""The machine that computes: its processor by name, by which results are the same bits, and its memory."""

import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# What control groups of version 2 and 1 allow; "max" or a number.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def processor() -> str:
    """The machine's kind and, where Linux tells it, the processor's name."""
    return f"{platform.machine()} {_model_name()}".strip()


def host_bytes() -> int:
    """The memory of this machine, or what a container leaves of it."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(int(limit) for limit in _container_limits() if limit.isdecimal())])


def _container_limits() -> Iterator[str]:
    for path in CONTAINER_LIMITS:
        try:
            yield Path(path).read_text().strip()
        except OSError:
            continue


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
