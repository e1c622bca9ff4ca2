"""Processes of this host: whether one is alive, stopped or at work, and how it is identified."""

import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

_MAX_PID = 1 << 22  # PID_MAX_LIMIT of Linux
_STOPPED = "Tt"  # states of processes in /proc/PID/stat, see proc(5): by a signal, by a debugger
_ENDED = "ZX"  # zombie, dead
# A thread is busy that computes, or waits for a processor, for a fifth of 0.2 s.
BUSY_S, BUSY_SHARE = 0.2, 0.2
_LOADED_S = time.monotonic()
FORK_WAIT_S = 1.0  # how long a fork waits for a process that another thread starts

_starting = threading.RLock()


def in_ray(modules: Mapping[str, ModuleType] | None = None) -> bool:
    """Whether this process is connected to a Ray cluster; does not import Ray."""
    ray = (sys.modules if modules is None else modules).get("ray")
    is_initialized = getattr(ray, "is_initialized", None)
    return bool(is_initialized and is_initialized())


def ipython_shell(modules: Mapping[str, ModuleType] | None = None) -> Any:
    """The shell whose cells this process runs, such as that of a notebook, else None; imports no IPython."""
    ipython = (sys.modules if modules is None else modules).get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython() if get_ipython else None


@contextmanager
def no_fork() -> Iterator[None]:
    """For the block, in which a process is started, other threads fork none, such as a loader's worker.

    The worker would hold the pipe by which the started process says that it runs, so that the thread which
    started it waited for as long as the worker lives.
    """
    with _starting:
        yield


def _before_fork() -> None:
    _starting.acquire(timeout=FORK_WAIT_S)


def _after_fork_in_parent() -> None:
    # It may not have come in time.
    with suppress(RuntimeError):
        _starting.release()


def _after_fork_in_child() -> None:
    global _starting
    _starting = threading.RLock()
    # A child in a PID namespace of its own may have its parent's number.
    _own_start.cache_clear()
    _pid_space_of.cache_clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


def peak_memory_gib() -> float:
    """The most memory that this process has held so far (resident set), in GiB."""
    import resource

    of_gib = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / of_gib


def is_alive(process: Mapping[str, Any]) -> bool | None:
    """Whether a process, given by the pid fields of a Topology, still runs; None if that cannot be known."""
    space = str(process.get("pid_space") or "")
    # A pid means something only in its own boot and PID namespace.
    if not space or space != pid_space_here():
        return None
    pid = process["pid"]
    if not isinstance(pid, int) or not 0 < pid <= _MAX_PID:
        return False
    state, start = _state_and_start(pid)
    # The start time distinguishes a process from a later one that has the same pid.
    if start:
        return start == str(process["pid_start"]) and state not in _ENDED
    try:
        # /proc may hide other users' processes (hidepid); kill(2) does not.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


def is_stopped(process: Mapping[str, Any]) -> bool | None:
    """Whether a living process, given as for `is_alive`, was stopped by a signal; None if unknown."""
    if not is_alive(process):
        return None
    return _state_and_start(process["pid"])[0] in _STOPPED


def are_busy(processes: Mapping[int, Mapping[str, Any]]) -> set[int]:
    """Those whose main thread computes or waits for a processor; takes BUSY_S if any lives on this host.

    Args:
        processes: number -> a process, given as for `is_alive`.
    """
    efforts = {number: Effort(process["pid"]) for number, process in processes.items() if is_alive(process)}
    if efforts:
        time.sleep(BUSY_S)
    return {number for number, effort in efforts.items() if effort.is_busy()}


class Effort:
    """Whether the main thread of a process computes or waits for a processor, look by look."""

    def __init__(self, pid: int) -> None:
        self._pid, self._at, self._busy_s = pid, time.monotonic(), _busy_s(pid)

    def is_busy(self) -> bool:
        """Whether it did so for BUSY_SHARE of the time since the last look, or does so now."""
        at, busy_s = time.monotonic(), _busy_s(self._pid)
        enough_s, spent_s = BUSY_SHARE * (at - self._at), busy_s - self._busy_s
        self._at, self._busy_s = at, busy_s
        # A thread may be ready for long before that is counted.
        is_ready = _state_and_start(self._pid)[0] == "R"
        return is_ready or spent_s > enough_s


def _busy_s(pid: int) -> float:
    """The seconds that the main thread of a process has computed or waited for a processor; 0 if unknown."""
    try:
        cpu, queue = Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()[:2]
        return 1e-9 * (int(cpu) + int(queue))
    except (OSError, ValueError):
        return 0.0


def own_process() -> dict[str, Any]:
    """The pid fields of this process, for `is_alive`."""
    pid = os.getpid()
    return {"pid": pid, "pid_space": pid_space_here(), "pid_start": _own_start(pid)}


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    """When this process began; read once in it, since the kernel visits all its threads for that."""
    return pid_start_of(pid)


def own_place() -> dict[str, Any]:
    """The fields of `own_process`, and the name of this host."""
    return own_process() | {"host": platform.node()}


def age_s() -> float:
    """Seconds since this process began; of a notebook and a worker of Ray, since it loaded this module.

    Those may have waited for their work for hours.
    """
    loaded_s = time.monotonic() - _LOADED_S
    start = pid_start_of(os.getpid())
    if not start or in_ray() or ipython_shell() is not None:
        return loaded_s
    began_s = int(start) / os.sysconf("SC_CLK_TCK")
    return max(loaded_s, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


def pid_space_here() -> str:
    """The boot id and the PID namespace (container) in which process ids are unique; empty if unknown."""
    return _pid_space_of(os.getpid())


@lru_cache(maxsize=1)
def _pid_space_of(pid: int) -> str:
    """Read once in a process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def pid_start_of(pid: int) -> str:
    """When the process began, in clock ticks since boot; empty if the process is absent or hidden."""
    return _state_and_start(pid)[1]


def _state_and_start(pid: int) -> tuple[str, str]:
    """State and start time, fields 3 and 22 of /proc/PID/stat; empty if the process is absent or hidden."""
    try:
        # The second field is the name of the program, which may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return fields[0], fields[19]
    except OSError:
        return "", ""
