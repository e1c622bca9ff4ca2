"""A disk that fails at a chosen operation or loses its power, as a subclass of the product's `Files`."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsummary.events.files import Files

SECTOR = 512  # bytes that reach the medium together
_ASKING = (
    "now",
    "pid",
    "host",
    "is_",
    "free",
)  # operations of `Files` that only ask, by how their names begin


class Crash(BaseException):
    """The process ends here; no Exception, so that nothing is tidied up."""


def quiet_crashes() -> None:
    """A thread that crashes with its process is no error to print."""
    loud = threading.excepthook
    threading.excepthook = lambda args: None if args.exc_type is Crash else loud(args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at operation `at`, counted from 1 over all lives of the writer.

    `kind`: "error" raises `number` in every operation from there on, `lasts` operations long, and does
    nothing; "short" takes a part of a write; "short_error" takes a part and then is as "error";
    "crash_before", "crash_within" (a part of a write is taken) and "crash_after" end the process. `power`:
    the crash, or else the end of the run, is a power cut. `only` limits errors to these operations.
    """

    at: int
    kind: str
    number: int = errno.EIO
    lasts: int = 1
    power: bool = False
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = f"-{errno.errorcode[self.number]}x{self.lasts}" if "error" in self.kind else ""
        only = f"-{'+'.join(self.only)}" if self.only else ""
        return f"{self.kind}{name}{only}{'-power' if self.power else ''}"


class Disk:
    """The state behind the `Files` of all lives: operations counted, the fault, and what is durable.

    Of a file that was synced, the bytes of that moment are durable, and so is its name (as ext4, xfs and
    btrfs have it). What a failed sync was to write is not, also after a later sync that succeeds: the kernel
    marks those pages clean. Everything else may be there, be zeros, or be missing after a power cut.
    """

    def __init__(self, fault: Fault | None, seed: int = 0) -> None:
        self.fault = fault
        self.operations = 0
        self.log: list[str] = []
        self.injected = 0
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._durable: dict[Path, bytes] = {}
        self._doubtful: dict[Path, list[tuple[int, int]]] = {}
        self._created: set[Path] = set()

    @property
    def reached(self) -> bool:
        """Whether the run was long enough for the fault to happen."""
        return self.fault is not None and self.operations >= self.fault.at

    def perform(self, life: "FaultyFiles", name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """One operation of a life; raises what the fault asks for."""
        with self._lock:
            if life.is_down:
                raise Crash
            self.operations += 1
            self.log.append(name)
            outcome = self._outcome(name)
            if outcome == "crash_before":
                self._end(life)
            if outcome in ("crash_within", "short") and name.startswith("write"):
                args = (args[0], self._part(args[1]))
            if outcome == "error":
                self._fail(life, name, call, args)
            result = call(*args)
            self._note(life, name, args, result)
            if outcome in ("crash_within", "crash_after"):
                self._end(life)
            return result

    def _outcome(self, name: str) -> str:
        fault, since = self.fault, self.operations - (self.fault.at if self.fault else 0)
        if fault is None or since < 0 or (fault.only and name not in fault.only):
            return "works"
        if fault.kind.startswith("crash"):
            self.injected += since == 0
            return fault.kind if since == 0 else "works"
        if fault.kind.startswith("short"):
            if since == 0:
                self.injected += name.startswith("write")
                return "short"
            since -= 1  # the errors follow the short write
        if "error" in fault.kind and since < fault.lasts:
            self.injected += 1
            return "error"
        return "works"

    def _part(self, parts: Any) -> list[bytes]:
        whole = b"".join(parts)
        return [whole[: self._random.randrange(1, len(whole))] if len(whole) > 1 else whole]

    def _fail(self, life: "FaultyFiles", name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if name == "close":  # Linux frees the descriptor also when close(2) fails
            call(*args)
            life.paths.pop(args[0], None)
        if name == "sync":
            path = life.paths[args[0]]
            known = len(self._durable.get(path, b""))
            self._doubtful.setdefault(path, []).append((known, path.stat().st_size))
        raise OSError(self.fault.number, os.strerror(self.fault.number))

    def _note(self, life: "FaultyFiles", name: str, args: tuple[Any, ...], result: Any) -> None:
        if name in ("create", "open_dead") and result is not None:
            path = life.paths[result] = Path(args[0])
            self._created.add(path)
            if name == "create":  # perhaps under the name of one that was removed
                self._durable.pop(path, None)
                self._doubtful.pop(path, None)
        elif name == "sync":
            path = life.paths[args[0]]
            if path.exists():
                self._durable[path] = path.read_bytes()
        elif name == "close":
            life.paths.pop(args[0], None)
        elif name == "replace":
            source, target = Path(args[0]), Path(args[1])
            self._durable[target] = self._durable.pop(source, b"")
            self._doubtful.pop(target, None)
            self._created.add(target)

    def _end(self, life: "FaultyFiles") -> None:
        """What the kernel does for a killed process: its descriptors are closed, which frees the locks."""
        life.is_down = True
        for descriptor in life.paths:
            os.close(descriptor)
        raise Crash

    def cut_power(self) -> None:
        """Leave of every file that the writers made what a power cut may leave of it."""
        for path in sorted(self._created):
            if not path.exists():
                continue
            if path not in self._durable and self._random.random() < 0.5:
                path.unlink()  # its name never reached the medium
                continue
            path.write_bytes(self._after_power_cut(path))

    def _after_power_cut(self, path: Path) -> bytes:
        durable, current = self._durable.get(path, b""), path.read_bytes()
        if len(current) < len(durable):  # cut, and the cut itself may not have reached the medium
            return self._random.choice((durable, current))
        image = bytearray(current[: self._random.randint(len(durable), len(current))])
        doubtful = [*self._doubtful.get(path, ()), (len(durable), len(image))]
        for start, end in (
            (a, min(b, len(image))) for first, last in doubtful for a, b in _sectors(first, last)
        ):
            if self._random.random() < 0.3:
                image[start:end] = bytes(max(0, end - start))
        return bytes(image)


def _sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield start, stop
        start = stop


class FaultyFiles(Files):
    """The file operations of one life of a writer on a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_down = False
        self.paths: dict[int, Path] = {}  # open descriptors


def _performed(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    def operation(self: FaultyFiles, *args: Any) -> Any:
        return self.disk.perform(self, name, lambda *given: real(self, *given), args)

    return operation


for _name, _operation in vars(Files).items():  # every operation, also one that comes later
    if callable(_operation) and not _name.startswith(("_", *_ASKING)):
        setattr(FaultyFiles, _name, _performed(_name))
