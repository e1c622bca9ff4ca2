"""Why the ranks of a launch ended, in words: the causes first, then what followed from them."""

import importlib.util
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from distsummary.base.columns import as_ranges
from distsummary.base.interrupts import is_interruption
from distsummary.rundir.consequences import follows_from_another

TAIL_BYTES = 1 << 18  # of a rank's stderr that are searched for its last words
MAX_LINE = 300  # characters of Ray's detail on a failure's first line; the whole follows on the next
CAUSE, CONSEQUENCE, STOPPED = range(3)  # the order in which failures are reported

_SAYS_EXIT = "distsummary: this rank calls os._exit"
_EXITED = re.compile(rf"{re.escape(_SAYS_EXIT)}\((-?\d+)\)")
_SIGNALLED = re.compile(r"\*\*\* (SIG[A-Z]+) received")  # written by the handler that Ray installs
_ABSENT = re.compile(r"ModuleNotFoundError: (No module named '([^'.]+)[^']*')")
_VANISHED = ("connection error code", "connection closed unexpectedly")  # Ray of a process that is gone
_NUMBER = re.compile(r"0x[0-9a-f]+|(?<!exit code )(?<!by signal )(?<!\d)\d+")
_PLUMBING = "site-packages", "distsummary/", "/lib/python", "<frozen "


class RankEnded(RuntimeError):
    """Internal: the training function ended its rank by sys.exit; Ray would take that for a death."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The end of one rank. `kind`: CAUSE, CONSEQUENCE (its peers had gone) or STOPPED by the launcher."""

    rank: int
    text: str
    kind: int = CAUSE


@dataclass(frozen=True, slots=True)
class Trace:
    """What a dead rank left on its node.

    Attributes:
        exit_code: that it gave to os._exit; None if it did not call that function.
        signal: the name of the fatal signal that it reported before it ended, such as "SIGSEGV", or "".
        place: the innermost line of the user's code at that signal, or "".
        out_of_memory: how many processes of the node the kernel has killed for want of memory meanwhile.
    """

    exit_code: int | None = None
    signal: str = ""
    place: str = ""
    out_of_memory: int = 0


@contextmanager
def reporting_exits() -> Iterator[None]:
    """Let os._exit write its argument to stderr in the block, since nothing else would report it."""
    own, leave = os.getpid(), os._exit

    def report(status: int) -> None:
        # The end of a forked child, such as a DataLoader's worker, is not that of the rank.
        if os.getpid() == own:
            with suppress(OSError):
                os.write(2, f"{_SAYS_EXIT}({status})\n".encode())
        leave(status)

    os._exit = report  # type: ignore[assignment]  # NoReturn: `leave` does not return
    try:
        yield
    finally:
        os._exit = leave


def stderr_path() -> str:
    """The file to which this process's stderr goes; "" if it is none, or cannot be known."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if os.path.isfile(path) else ""


def memory_kills() -> int:
    """How many processes of this node the kernel has killed for want of memory since it started."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def read_trace(stderr: str, memory_kills_before: int) -> Trace:
    """What a dead rank of this node wrote last to the file `stderr`."""
    text = ""
    with suppress(OSError), open(stderr, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    killed = max(0, memory_kills() - memory_kills_before)
    if exited := _EXITED.findall(text):
        return Trace(exit_code=int(exited[-1]), out_of_memory=killed)
    if signalled := _SIGNALLED.findall(text):
        stack = text.rpartition("Stack (most recent call first):")[2]
        return Trace(
            signal=signalled[-1], place=_own_place(stack.splitlines(), innermost=0), out_of_memory=killed
        )
    return Trace(out_of_memory=killed)


def death(error: str, trace: Trace | None, address: str = "") -> str:
    """How the process of a rank ended, by what Ray says and by its trace (None: its node did not answer)."""
    lines = [line for line in error.splitlines() if not line.startswith(("\t", "The actor died unexpect"))]
    detail = " ".join(" ".join(lines).split()) or error
    detail = detail.removeprefix("The actor is dead because its worker process has died. ")
    # Ray's own memory monitor, a dead node and the like say what they are; a vanished process says nothing.
    if not any(words in detail for words in _VANISHED):
        if "is unavailable" in detail and trace is None:
            return f"its node {address} does not answer: {detail}"
        kind = "out of memory" if "low on memory" in detail else "died"
        if len(detail) <= MAX_LINE:
            return f"{kind}: {detail}"
        return f"{kind}: {detail[: detail.rfind(' ', 0, MAX_LINE)]} ...\n    Ray says: {detail}"
    if trace is None:
        return f"died, and its node {address} does not answer: {detail}"
    if trace.exit_code is not None:
        return f"exit code {trace.exit_code} (os._exit)"
    if trace.signal:
        return _by_signal(trace.signal) + (f" ({trace.place})" if trace.place else "")
    if trace.out_of_memory:
        return (
            f"{_by_signal('SIGKILL')}, and the kernel has killed {trace.out_of_memory} process(es) of its "
            "node for want of memory since the start: place fewer ranks on a node, or make them smaller"
        )
    return f"{_by_signal('SIGKILL')}, or ended by code that is not Python's: it left no last word"


def ended_by(leave: SystemExit) -> RankEnded:
    """The failure of a training function that called sys.exit with another status than success."""
    if is_interruption(leave):
        return RankEnded("ended by a signal that asks a job to end, such as SIGTERM")
    code = leave.code if isinstance(leave.code, int) else 1
    return RankEnded(f"exit code {code} (sys.exit({leave.code!r}))")


def raised(rank: int, error: Exception) -> RankEnd:
    """The failure of a rank whose function raised, with the innermost line of the user's own code."""
    cause = getattr(error, "cause", None) or error
    message = str(cause) if isinstance(cause, RankEnded) else f"{type(cause).__name__}: {cause}"
    if absent := _ABSENT.search(message):
        return RankEnd(rank, f"ModuleNotFoundError: {absent[1]}{_where_it_is(absent[2])}")
    place = _own_place(str(error).splitlines())
    kind = CONSEQUENCE if follows_from_another(message) else CAUSE
    return RankEnd(rank, message + (f" ({place})" if place else ""), kind)


def error_lines(failures: Iterable[RankEnd]) -> str:
    """One line for each distinct error, with its ranks; the causes first, otherwise in the order given.

    Errors that differ only in numbers or addresses count as equal; exit codes and signals must be the same.
    """
    groups: dict[tuple[int, str], list[RankEnd]] = defaultdict(list)
    for one in sorted(failures, key=lambda one: one.kind):
        groups[one.kind, _NUMBER.sub("#", one.text)].append(one)
    has_cause = any(kind == CAUSE for kind, _ in groups)
    lines = []
    for (kind, _), members in groups.items():
        members.sort(key=lambda one: one.rank)
        after = "lost its peers: " if kind == CONSEQUENCE and has_cause else ""
        ranks = as_ranges([one.rank for one in members])
        lines.append(f"[rank{'s' if len(members) > 1 else ''} {ranks}] {after}{members[0].text}")
    return "\n".join(lines)


def _by_signal(name: str) -> str:
    return f"killed by signal {signal.Signals[name].value} ({name})"


def _own_place(lines: list[str], innermost: int = -1) -> str:
    """The innermost of the lines of a traceback that is the user's own code, else of all; "" without any."""
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    own = [place for place in places if not any(part in place for part in _PLUMBING)]
    return (own or places or [""])[innermost]


def _where_it_is(module: str) -> str:
    """The remedy, if this process finds a module that the ranks do not."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return ""
    # A package has locations to search, a module has a file.
    home = next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    folder = os.path.dirname(os.path.abspath(home))
    return (
        f"; this process finds it in {folder}, the ranks do not: start with PYTHONPATH={folder}, or, if the "
        f"nodes do not share that directory, with ray.init(runtime_env={{'working_dir': {folder!r}}})"
    )
