"""What every test may rely on: a quiet Ray, a nasty path, and no test that leaves anything behind."""

import os

# Ray reads these when it is first imported, so they are set before any import that may import it.
os.environ["RAY_AUTH_MODE"] = "disabled"  # else a new local cluster writes ~/.ray/auth_token
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # what Ray's warning about num_gpus=0 asks for
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_BACKEND_LOG_LEVEL"] = "error"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # else 15: workers hardly move while busy tests run
os.environ["GRPC_VERBOSITY"] = "ERROR"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("CRC32C_SW_MODE", "auto")  # else the first use of tensorboardX sets it
# Before NumPy and torch: threads that wait for each other spin, and tripled the CPU of tests on small models.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import base64
import gc
import glob
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests import forked, leftovers, parallel

settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")

# A script's `make test &` has Ctrl-C ignored, `nohup make test` SIGHUP, and so would the processes of tests
# that are sent one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

gc.disable()  # until everything is imported and collected, which makes no garbage

ROOT = Path(__file__).resolve().parents[1]
# Processes of tests import the package and the tests from here, wherever they run and whatever is installed.
if str(ROOT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
HAS_CHILDREN_LISTS = bool(glob.glob("/proc/self/task/*/children"))  # a kernel may be built without
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--leak-grace-s",
        type=float,
        default=60.0,
        help="how long what a test started may take to end before it counts as left behind",
    )
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in the order of this seed")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays to the end: Python's own collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process leaves the tests that take long, those of the Ray cluster above all, to the end."""
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)
        return
    items.sort(key=lambda item: parallel.turn(item.nodeid), reverse=not parallel.is_parallel(config))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Adds why tests were skipped to the file DISTSUMMARY_SKIPPED, a line for each: `.ci/run` counts them."""
    path = os.environ.get("DISTSUMMARY_SKIPPED")
    if path and not parallel.is_parallel(terminalreporter.config):  # whose reports the first process has, too
        reasons = [
            report.longrepr[2].removeprefix("Skipped: ")
            for report in terminalreporter.stats.get("skipped", [])
        ]
        with open(path, "a") as file:
            file.writelines(f"{reason}\n" for reason in reasons)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return parallel.make_scheduler(config, log)


@pytest.fixture(autouse=True, scope="session")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for temporary files, and in it the working directory, which is empty before each test.

    They are this process's own: what is there, its own tests left.
    """
    tmp_path_factory.getbasetemp()  # next to the others, to be looked at when the tests are over
    with tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as place:
        before, former = tempfile.tempdir, os.getcwd()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", place)
            tempfile.tempdir = place
            work = Path(place, "work")
            work.mkdir()
            os.chdir(work)
            yield work
        os.chdir(former)
        tempfile.tempdir = before


@pytest.fixture(scope="session")
def fork_server(own_places: Path) -> None:
    """The process from which `forked.ranks` forks, which lives longer than a test and than `own_places`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(own_places.parents[1]))
        forked.ensure_server()


@pytest.fixture
def nasty_tmp_path(tmp_path: Path) -> Path:
    """A directory whose name breaks unquoted shells, globs, URLs and formats."""
    path = tmp_path / 'it\'s a "run" [1] 100%41 #é雪 {x}'
    path.mkdir()
    return path


@pytest.fixture
def hide_package(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package one that is not installed."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def no_matplotlib(hide_package: Callable[[str], None]) -> None:
    """Landscapes are written without their pictures, which take the longest."""
    hide_package("matplotlib")


@pytest.fixture
def one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of one pixel in the place of all, for tests that look at files and not at what is drawn."""
    from distsummary.landscapes.output import write

    monkeypatch.setattr(write, "draw", lambda grid, kind, **options: PIXEL)


@pytest.fixture
def cut_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many points of a landscape go into a call, where the engine allows it, whatever they take."""
    from distsummary.landscapes.run import runner

    def change(points: int) -> None:
        monkeypatch.setattr(runner, "call_size", lambda waiting, workers, point_s, least: max(points, least))

    return change


# One fixture and plain system calls, because every test pays for it.
@pytest.fixture(autouse=True)
def nothing_left_behind(own_places: Path, leak_grace_s: float) -> Iterator[None]:
    """Fail a test that leaves a child process, a thread of distsummary's or one that keeps the process from
    ending, a file in the working directory or called TMP/distsummary*, or a change of the process (see
    `leftovers`); then undo that, so that no other test fails for it.
    """
    # Children of older ones (the workers of the session's Ray cluster) belong to those, not to the test.
    pids, threads = child_pids(), set(threading.enumerate())
    states = leftovers.read_states()
    yield
    complaints = [
        *leaks("threads", lambda: ending_threads() - threads, lambda thread: thread.name, leak_grace_s),
        *leaks("processes", lambda: child_processes(pids), describe_process, leak_grace_s),
        *leaks("files", lambda: stray_files(own_places), str, grace_s=0),
        *leftovers.changes(states),
    ]
    if complaints:
        leftovers.undo(states)
        remove(stray_files(own_places))
        end(child_processes(pids))
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture
def leak_grace_s(request: pytest.FixtureRequest) -> float:
    """Seconds until what still runs counts as left behind."""
    return float(request.config.getoption("--leak-grace-s"))


def child_processes(but: set[int]) -> set[psutil.Process]:
    """The other direct children of this process, but not the helpers of Python and torch themselves."""
    return {child for child in map(_process, child_pids() - but) if child and not _is_helper(child)}


def child_pids() -> set[int]:
    """From the kernel's own list where it keeps one: psutil reads every process of the machine for it."""
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task") if HAS_CHILDREN_LISTS else ():
        with suppress(OSError), open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file:
            pids.update(map(int, file.readall().split()))  # unless the thread has ended meanwhile
    return pids if HAS_CHILDREN_LISTS else {child.pid for child in psutil.Process().children()}


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _is_helper(process: psutil.Process) -> bool:
    """Python's for shared memory; torch's for the lines of its own exceptions, which ends by itself."""
    return any(name in describe_process(process) for name in ("resource_tracker", "addr2line"))


def describe_process(process: psutil.Process) -> str:
    """Pid and command line; a zombie has only a name."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"pid {process.pid}: ended, but no one waited for it"
        return f"pid {process.pid}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}: gone"


def ending_threads() -> set[threading.Thread]:
    """The threads that have to have ended: distsummary's, and all that are no daemons."""
    return {t for t in threading.enumerate() if t.name.startswith("distsummary") or not t.daemon}


def stray_files(work: Path) -> set[str]:
    """What is in the working directory, and what is called distsummary* in the temporary directory."""
    found = {f"{work}/{name}" for name in os.listdir(work)}
    return found | {
        f"{work.parent}/{name}" for name in os.listdir(work.parent) if name.startswith("distsummary")
    }


def remove(files: set[str]) -> None:
    """Remove files and whole directories."""
    for path in files:
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True)


def end(processes: set[psutil.Process]) -> None:
    """Kill children of this process with all of theirs."""
    for child in processes:
        with suppress(psutil.NoSuchProcess):
            for each in [*child.children(recursive=True), child]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            child.wait()


def leaks(
    kind: str, remaining: Callable[[], set[Any]], describe: Callable[[Any], str], grace_s: float
) -> list[str]:
    """What remains after the grace, in which what is ending may end."""
    deadline = time.monotonic() + grace_s
    while (left := remaining()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{kind} left behind by this test:", *sorted(map(describe, left))] if left else []
