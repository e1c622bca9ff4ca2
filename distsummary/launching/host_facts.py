"""Facts about one host that decide whether a run can be recorded there; the standard library alone.

Ray sends this module by value to nodes on which the package is not installed, so it imports nothing of ours.
"""

import fcntl
import glob
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

PACKAGES = ("distsummary", "ray", "torch", "numpy")
LOOK_S = 0.01  # between two looks at the beacon
# Prints the GPUs that torch sees, and the versions of CUDA and NCCL that it was built for.
_TORCH_GPUS = """
import torch
from torch.cuda import nccl
has = torch.cuda.is_available()
print(torch.cuda.device_count(), torch.version.cuda, ".".join(map(str, nccl.version())) if has else None)
"""


class Probe:
    """The facts of the host that it is on; an actor, for another host."""

    def facts(self, directory: str | None, beacon: str | None, **options: float) -> dict[str, Any]:
        """See `host_facts`."""
        return host_facts(directory, beacon, **options)

    def echo(self, data: bytes) -> tuple[float, int]:
        """This host's clock, and how many bytes arrived."""
        return time.time(), len(data)

    def connect(self, host: str, port: int) -> str | None:
        """See `connect`."""
        return connect(host, port)


def host_facts(
    directory: str | None,
    beacon: str | None,
    *,
    watch_s: float = 0.0,
    answer_s: float = 15.0,
    gpus: float = 0.0,
) -> dict[str, Any]:
    """The facts of this host, as plain data.

    Args:
        directory: where the run is to be, or None; it exists on the host that asks.
        beacon: a file there that the asking host appends to every 0.1 s and holds a lock on, or None.
        watch_s: how many seconds the beacon is watched.
        answer_s: how many seconds torch may take to list its GPUs.
        gpus: how many the cluster offers here. Without any, and without a driver, torch is not asked.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "open_files": sys.maxsize if soft == resource.RLIM_INFINITY else soft,
        "shared_memory": _free("/dev/shm"),
        "gpus": _gpus(gpus, answer_s),
        "flight_recorder": os.environ.get(
            "TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
        ),
        "directory": None if directory is None else directory_facts(directory, beacon, watch_s=watch_s),
    }


def directory_facts(directory: str, beacon: str | None, *, watch_s: float) -> dict[str, Any]:
    """What the file system of a directory does: each operation is tried, in a file that is then removed."""
    facts: dict[str, Any] = {"path": directory, "failed": {}, "beacon": None}
    try:
        facts["free"] = shutil.disk_usage(directory).free
        facts["type"] = _file_system(directory)
    except OSError as error:
        return facts | {"missing": str(error)}
    if beacon is not None:
        facts["beacon"] = _watch(beacon, watch_s)
    path = Path(directory) / f".tmp-{uuid.uuid4().hex}"
    renamed = path.with_name(f"{path.name}-renamed")
    try:
        for name, attempt in (
            ("create", lambda: path.open("xb").close()),
            ("append", lambda: _append_twice(path)),
            ("fsync", lambda: facts.update(fsync_ms=_fsync_ms(path))),
            ("lock", lambda: _lock(path)),
            ("time", lambda: facts.update(clock_behind_s=_clock_behind(path))),
            ("exclusive create", lambda: _refuses_second(path)),
            ("rename", lambda: path.rename(renamed)),
        ):
            try:
                attempt()
            except OSError as error:
                facts["failed"][name] = error.strerror or str(error)
    finally:
        for one in (path, renamed):
            try:
                one.unlink(missing_ok=True)
            except OSError as error:
                facts["failed"]["remove"] = error.strerror or str(error)
    return facts


def connect(host: str, port: int, *, timeout_s: float = 3.0) -> str | None:
    """Connect to a port of another host; returns None, or why that failed."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _gpus(offered: float, answer_s: float) -> dict[str, Any]:
    """GPUs of the driver, and of torch if there are any: in a process that Ray hides no GPU from."""
    found = len(glob.glob("/proc/driver/nvidia/gpus/*")) or len(
        glob.glob("/sys/class/kfd/kfd/topology/nodes/*/mem_banks")
    )
    if _version("torch") is None or not (found or offered):
        return {"driver": found, "torch": None}
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        command = [sys.executable, "-c", _TORCH_GPUS]
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", timeout=answer_s, check=True
        )
    except subprocess.TimeoutExpired:
        return {"driver": found, "torch": None, "failed": f"no answer within {answer_s:g} s"}
    except subprocess.CalledProcessError as error:
        return {"driver": found, "torch": None, "failed": error.stderr.strip().splitlines()[-1:]}
    count, cuda, nccl = done.stdout.split()[-3:]
    return {"driver": found, "torch": int(count), "cuda": cuda, "nccl": nccl}


def _file_system(directory: str) -> str:
    """The type of the file system that holds a directory, as the kernel lists it; "" if it lists none."""
    real, best = os.path.realpath(directory), ("", "")
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            point = point.encode("utf-8", "surrogateescape").decode("unicode_escape")
            if real == point or real.startswith(point.rstrip("/") + "/"):
                best = max(best, (point, kind), key=lambda one: len(one[0]))
    return best[1]


def _watch(beacon: str, watch_s: float) -> dict[str, Any]:
    """Whether the asking host's beacon and its lock are seen here; the longest time without a new byte."""
    begun = last = time.monotonic()
    size, longest, appeared = -1, 0.0, None
    while (now := time.monotonic()) - begun < watch_s:
        try:
            seen = os.stat(beacon).st_size
        except OSError:
            seen = -1
        if seen != size:
            if appeared is None:
                appeared = now - begun
            else:
                longest = max(longest, now - last)
            size, last = seen, now
        time.sleep(LOOK_S)
    if appeared is None:
        return {"seen": False}
    return {"seen": True, "stale_s": max(longest, time.monotonic() - last), "locked": _is_locked(beacon)}


def _is_locked(path: str) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _append_twice(path: Path) -> None:
    for _ in range(2):
        with path.open("ab") as file:
            file.write(b"x" * 4096)
    if (size := path.stat().st_size) != 8192:
        raise OSError(f"8192 bytes were appended, and the file has {size}")


def _fsync_ms(path: Path) -> float:
    with path.open("ab") as file:
        begun = time.monotonic()
        os.fsync(file.fileno())
        return (time.monotonic() - begun) * 1e3


def _lock(path: Path) -> None:
    with path.open("ab") as file, path.open("ab") as other:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError("two processes can hold the same lock")


def _clock_behind(path: Path) -> float:
    """Seconds by which this host's clock is behind that of the file system."""
    before = time.time()
    os.utime(path)  # by the file system's clock
    return path.stat().st_mtime - (before + time.time()) / 2


def _refuses_second(path: Path) -> None:
    try:
        path.open("xb").close()
    except FileExistsError:
        return
    raise OSError("a file was created twice")
