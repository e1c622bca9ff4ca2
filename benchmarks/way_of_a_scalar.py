"""Which files and functions of the package run for one `run.log`: `python -m benchmarks.way_of_a_scalar`.

One float is logged in a warm run of `ds.init`, in this process and without Ray, and its step is ended. The
script counts the distinct functions of the package, on the threads of the loop and of the writer, until the
bytes are in the file, and prints a line for each file and the two totals.
"""

import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import distsummary

PACKAGE = Path(distsummary.__file__).parent
PATIENCE_S = 10.0
ASIDE = ("distsummary-judge", "distsummary-heartbeat", "distsummary-watcher")  # threads not on the way


def functions_of_one_log(directory: Path) -> dict[str, list[str]]:
    """The functions that run, by file (relative to the package)."""
    found: set[tuple[str, str]] = set()
    is_counting = False

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_aside = threading.current_thread().name in ASIDE
        if is_counting and not is_aside and event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            found.add((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    threading.setprofile(note)  # of the threads that are started below
    try:
        run = distsummary.init(directory, rank=0, world_size=1)
        batches = run.steps(range(10**6))
        for _ in range(25):  # warm, and not at a step that records more than what was logged
            next(batches)
            run.log(loss=0.25)
        _wait_for_bytes(directory, 0)
        next(batches)
        size = _wait_for_bytes(directory, 0)
        is_counting = True
        sys.setprofile(note)
        run.log(loss=0.5)
        next(batches)
        sys.setprofile(None)
        _wait_for_bytes(directory, size)
        is_counting = False
        run.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = defaultdict(list)
    for path, function in sorted(found):
        functions[path].append(function)
    return dict(functions)


def _wait_for_bytes(directory: Path, least: int) -> int:
    """Wait until the event files hold more than `least` bytes and grow no more; their size."""
    deadline, size = time.monotonic() + PATIENCE_S, -1
    while time.monotonic() < deadline:
        now = sum(path.stat().st_size for path in directory.glob("events.*"))
        if now == size > least:
            return now
        size = now
        time.sleep(0.3)  # the writer gathers for 0.1 s
    raise TimeoutError(f"the event files in {directory} did not grow beyond {least} bytes")


def main() -> None:
    """Count and print."""
    with tempfile.TemporaryDirectory() as directory:
        functions = functions_of_one_log(Path(directory))
    for path, names in functions.items():
        print(f"{path}: {', '.join(names)}")
    print(f"{len(functions)} files, {sum(map(len, functions.values()))} functions")


if __name__ == "__main__":
    main()
