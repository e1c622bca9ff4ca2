"""Facts about one host that decide whether a run can be recorded there; the standard library alone.

Ray sends this module by value to nodes on which the package is not installed, so it imports nothing of ours
at the top.
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Self

PACKAGES = ("distsummary", "ray", "torch", "numpy")
BEAT_S = 0.1  # between two bytes of the beacon
LOOK_S = 0.01  # between two looks at it
LINK_S = 3.0  # how long the home may take to accept a connection, and to answer
SENT = 4 << 20  # bytes of the exchange that measures throughput
# Prints the GPUs that torch sees, and the versions of CUDA and NCCL that it was built for.
_TORCH_GPUS = """
import torch
from torch.cuda import nccl
has = torch.cuda.is_available()
print(torch.cuda.device_count(), torch.version.cuda, ".".join(map(str, nccl.version())) if has else None)
"""


class Probe:
    """The facts of the host that it is on; an actor, for another host."""

    def __init__(self) -> None:
        self._shown: Shown | None = None

    def show(self, run_dir: str | None, address: str) -> tuple[str | None, str | None, int]:
        """Be the home until `hide`: the directory, the beacon and the port that `Shown` has."""
        self._shown = Shown(run_dir, address)
        return self._shown.directory, self._shown.beacon, self._shown.port

    def hide(self) -> None:
        """Remove what is shown."""
        if self._shown is not None:
            self._shown.__exit__()

    def facts(self, directory: str | None, beacon: str | None, **options: Any) -> dict[str, Any]:
        """See `host_facts`."""
        return host_facts(directory, beacon, **options)

    def exchange(self, host: str, port: int) -> dict[str, Any]:
        """See `exchange`."""
        return exchange(host, port)


class Shown:
    """What the home of a run shows the other hosts: a file that grows and is locked, and a port that answers.

    Attributes:
        directory: what exists of the run dir, or None without one.
        beacon: the file in it, which gets a byte every BEAT_S; None where none can be written, of which
            `host_facts` of this host gives the reason.
        port: where `exchange` is answered at `address`; 0 without an address.

    A context, at whose end nothing of it is left. Raises NotADirectoryError if `run_dir` is a file.
    """

    def __init__(self, run_dir: str | None, address: str = "") -> None:
        self.directory: str | None = None
        self.beacon: str | None = None
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: socket.socket | None = None
        if run_dir is not None:
            directory = Path(run_dir).absolute()
            while not directory.exists():
                directory = directory.parent
            if not directory.is_dir():
                raise NotADirectoryError(str(directory))
            self.directory = str(directory)
            self._light(directory / f".tmp-{uuid.uuid4().hex}")
        if address:
            self._server = socket.create_server((address, 0))
            self._begin(self._serve, self._server)
        self.port: int = self._server.getsockname()[1] if self._server is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)  # wakes who waits in `accept`
            self._server.close()
        for thread in self._threads:
            thread.join()
        if self.beacon is not None:
            Path(self.beacon).unlink(missing_ok=True)

    def _begin(self, run: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, name="distsummary-doctor", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _light(self, path: Path) -> None:
        try:
            file = open(path, "xb", buffering=0)  # noqa: SIM115  # the thread closes it
        except OSError:
            return
        self.beacon = str(path)
        with contextlib.suppress(OSError):  # a file system without locks: the facts of this host name it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._begin(self._beat, file)

    def _beat(self, file: Any) -> None:
        with file:
            while not self._ended.wait(BEAT_S):
                try:
                    file.write(b".")
                except OSError:
                    self._ended.wait()  # the disk is full, which the facts say; the lock stays

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return  # closed
            self._begin(self._answer, link)

    def _answer(self, link: socket.socket) -> None:
        with link:
            link.settimeout(LINK_S)
            try:
                while True:
                    (count,) = struct.unpack("!q", _received(link, 8))
                    if not 0 <= count <= SENT:
                        return  # not one of ours
                    _received(link, count)
                    link.sendall(struct.pack("!d", time.time()))
            except OSError:
                return  # the other host has what it needs, or is gone


def exchange(host: str, port: int) -> dict[str, Any]:
    """The way to the port of a `Shown`: round trip, throughput, how far this clock is ahead of that host's.

    Without a connection, `blocked` says why.
    """
    try:
        with socket.create_connection((host, port), timeout=LINK_S) as link:
            round_trip_s, ahead_s = min(_exchanged(link, 0) for _ in range(3))
            seconds, _ = _exchanged(link, SENT)
    except OSError as error:
        return {"blocked": error.strerror or str(error)}
    return {
        "blocked": None,
        "round_trip_ms": round_trip_s * 1e3,
        "clock_ahead_s": ahead_s,
        "mb_per_s": SENT / 1e6 / seconds,
    }


def _exchanged(link: socket.socket, count: int) -> tuple[float, float]:
    """The seconds that `count` bytes and their answer took, and by how much this clock is ahead."""
    begun, sent = time.monotonic(), time.time()
    link.sendall(struct.pack("!q", count) + bytes(count))
    (there,) = struct.unpack("!d", _received(link, 8))
    return time.monotonic() - begun, (sent + time.time()) / 2 - there


def _received(link: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        came = link.recv_into(left)
        if not came:
            raise ConnectionError("the connection was closed")
        left = left[came:]
    return bytes(data)


def host_facts(
    directory: str | None,
    beacon: str | None,
    *,
    watch_s: float = 0.0,
    answer_s: float = 15.0,
    gpus: float = 0.0,
    clean: bool = False,
) -> dict[str, Any]:
    """The facts of this host, as plain data.

    Args:
        directory: where the run is to be, or None; it exists at the run's home.
        beacon: the file of a `Shown` at home, or None.
        watch_s: how many seconds the beacon is watched.
        answer_s: how many seconds torch may take to list its GPUs.
        gpus: how many the cluster offers here. Without any, and without a driver, torch is not asked.
        clean: whether the spools that trainings have left behind are removed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "source": _source("distsummary"),
        "open_files": sys.maxsize if soft == resource.RLIM_INFINITY else soft,
        "shared_memory": _free("/dev/shm"),
        "gpus": _gpus(gpus, answer_s),
        "flight_recorder": os.environ.get(
            "TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
        ),
        "directory": None if directory is None else directory_facts(directory, beacon, watch_s=watch_s),
        "spools": _spools(clean),
    }


def directory_facts(directory: str, beacon: str | None, *, watch_s: float) -> dict[str, Any]:
    """What the file system of a directory does: each operation is tried, in a file that is then removed."""
    facts: dict[str, Any] = {"path": directory, "failed": {}, "beacon": None}
    try:
        facts["type"] = _file_system(directory)
        facts["free"] = shutil.disk_usage(directory).free
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


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source(name: str) -> str | None:
    """A digest of the modules of a package: two checkouts may have one version and different sources."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        return None
    digest = hashlib.blake2b(digest_size=6)
    for place in found.submodule_search_locations:
        for path in sorted(Path(place).rglob("*.py")):
            digest.update(str(path.relative_to(place)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _spools(clean: bool) -> dict[str, Any]:
    """The spools of this host that no training writes; where our package is not installed there are none."""
    try:
        from distsummary.storage.left_behind import spools
    except ImportError:
        return {}
    return dict(spools(clean))


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
                # Of two mounts at one place, the later one hides the other.
                best = max((point, kind), best, key=lambda one: len(one[0]))
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
