"""What every test may rely on: a quiet Ray, a nasty path, and no test that leaves anything behind."""

import os

# Ray reads these when it is first imported, so they stand before any import that may import it.
os.environ["RAY_AUTH_MODE"] = "disabled"  # else a new local cluster writes ~/.ray/auth_token
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # what Ray's warning about num_gpus=0 asks for
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_BACKEND_LOG_LEVEL"] = "error"
os.environ["GRPC_VERBOSITY"] = "ERROR"
os.environ["MPLBACKEND"] = "Agg"

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
# Caches that tools keep in the repository; all are in .gitignore.
TOOL_CACHES = {
    "__pycache__",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--leak-grace-s",
        type=float,
        default=5.0,
        help="how long what a test started may take to end before it counts as left behind",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the session's Ray cluster come last: a process that is connected works on Ray."""
    items.sort(key=lambda item: "ray_cluster" in getattr(item, "fixturenames", ()))


@pytest.fixture
def nasty_tmp_path(tmp_path: Path) -> Path:
    """A directory whose name breaks unquoted shells, globs, URLs and formats."""
    path = tmp_path / 'it\'s a "run" [1] 100%41 #é雪 {x}'
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def no_processes_left_behind(leak_grace_s: float) -> Iterator[None]:
    """Fail a test after which a child process is there that was not there before."""
    # Children of older ones (the workers of the session's Ray cluster) belong to those, not to the test.
    before = child_processes()
    yield
    refuse_leaks("processes", lambda: child_processes() - before, describe_process, leak_grace_s)


@pytest.fixture(autouse=True)
def no_threads_left_behind(leak_grace_s: float) -> Iterator[None]:
    """Fail a test that leaves a thread of distsummary's, or any that would keep the process from ending."""
    before = set(threading.enumerate())
    yield
    refuse_leaks("threads", lambda: ending_threads() - before, lambda thread: thread.name, leak_grace_s)


@pytest.fixture(autouse=True)
def no_files_left_behind() -> Iterator[None]:
    """Fail a test that writes into the working directory, the repository's root, or TMP/distsummary*."""
    places = {ROOT, Path.cwd()}
    before = stray_files(places)
    yield
    refuse_leaks("files", lambda: stray_files(places) - before, str, grace_s=0)


@pytest.fixture
def leak_grace_s(request: pytest.FixtureRequest) -> float:
    """Seconds until what still runs counts as left behind."""
    return float(request.config.getoption("--leak-grace-s"))


def child_processes() -> set[psutil.Process]:
    """The direct children of this process, but not Python's own helper for shared memory."""
    return {child for child in map(_process, child_pids()) if child and not _is_tracker(child)}


def child_pids() -> list[int]:
    """From the kernel's own list where it keeps one: psutil reads every process of the machine for it."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        return [child.pid for child in psutil.Process().children()]
    return [int(pid) for pids in lists for pid in _text(pids).split()]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended meanwhile
        return ""


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _is_tracker(process: psutil.Process) -> bool:
    return "resource_tracker" in describe_process(process)


def describe_process(process: psutil.Process) -> str:
    """Pid and command line; a zombie has only a name."""
    try:
        return f"pid {process.pid}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.ZombieProcess:
        return f"pid {process.pid}: ended, but nobody waited for it"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}: gone"


def ending_threads() -> set[threading.Thread]:
    """The threads that have to have ended: distsummary's, and all that are no daemons."""
    return {t for t in threading.enumerate() if t.name.startswith("distsummary") or not t.daemon}


def stray_files(places: set[Path]) -> set[Path]:
    """What lies directly in `places`, and what is called distsummary* in the temporary directory."""
    found = {path for place in places for path in place.iterdir() if path.name not in TOOL_CACHES}
    return found | set(Path(tempfile.gettempdir()).glob("distsummary*"))


def refuse_leaks(
    kind: str, remaining: Callable[[], set[Any]], describe: Callable[[Any], str], grace_s: float
) -> None:
    """Fail unless `remaining()` is empty within the grace, in which what is ending may end."""
    deadline = time.monotonic() + grace_s
    while (left := remaining()) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        pytest.fail(
            f"{kind} left behind by this test:\n" + "\n".join(sorted(map(describe, left))), pytrace=False
        )
