"""Which files and functions of the package a scalar passes.

`python -m benchmarks.record.way_of_a_scalar log`, to disk: one float is logged in a warm run of `ds.init`,
in this process and without Ray, and its step is ended. The functions are those on the threads of the loop and
of the writer, until the bytes are in the file.

`python -m benchmarks.record.way_of_a_scalar merge`, from the files of two ranks to the merged curve: a warm
LiveMerge reads one more step of both ranks and appends it to the merged files.

What judges is on the thread of the heartbeats in a run of one rank, and is not counted. The script prints a
line for each file and the two totals.
"""

import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import distsummary
from distsummary.aggregate.live import LiveMerge
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import MINDSPORE, Batch, Scalars
from distsummary.format.scalar_rows import row_struct
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology

PACKAGE = Path(distsummary.__file__).parent
PATIENCE_S = 10.0
ASIDE = ("distsummary-files", "distsummary-heartbeat", "distsummary-watcher")  # threads not on the way
JUDGES = ("diagnosis/", "aggregate/judging.py", "aggregate/sick_ranks.py")
WARM = 25  # steps before the one that is counted


class Called:
    """The functions of the package that run while `counting`, by file (relative to the package)."""

    def __init__(self) -> None:
        self._found: set[tuple[str, str]] = set()
        self._is_counting = False

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile hook."""
        code = frame.f_code
        is_aside = threading.current_thread().name in ASIDE
        if (
            self._is_counting
            and not is_aside
            and event == "call"
            and code.co_filename.startswith(f"{PACKAGE}/")
        ):
            self._found.add((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread calls, and what the threads call that have `note` as their hook."""
        self._is_counting = True
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._is_counting = False

    def by_file(self) -> dict[str, list[str]]:
        """The functions that were counted."""
        functions = defaultdict(list)
        for path, function in sorted(self._found):
            if not path.startswith(JUDGES):
                functions[path].append(function)
        return functions


def functions_of_one_log(directory: Path) -> dict[str, list[str]]:
    """The functions that run for one `run.log`, by file."""
    called = Called()
    threading.setprofile(called.note)  # of the threads that are started below
    try:
        run = distsummary.init(directory, rank=0, world_size=1)
        batches = run.steps(range(10**6))
        for _ in range(WARM):  # and not at a step that records more than what was logged
            next(batches)
            run.log(loss=0.25)
        _wait_for_bytes(directory, 0)
        next(batches)
        size = _wait_for_bytes(directory, 0)
        with called.counting():
            run.log(loss=0.5)
            next(batches)
            sys.setprofile(None)  # what waits is not on the way
            _wait_for_bytes(directory, size)
        run.close()
    finally:
        threading.setprofile(None)
    return called.by_file()


def functions_of_one_merged_step(directory: Path) -> dict[str, list[str]]:
    """The functions that run while one step of two ranks is merged, by file."""
    called, ranks = Called(), range(2)
    run_dir = RunDir(directory).create()
    run_id = LocalCoordinator(run_dir).register(Topology(rank=0, world_size=2)).run_id
    paths = [run_dir.writer_dir("train", rank, 2) for rank in ranks]
    writers = [
        RankWriter(WriterSpec(directory=path, run_id=run_id, rank=rank, formats=(MINDSPORE,)))
        for rank, path in enumerate(paths)
    ]
    merge = LiveMerge(run_dir, role="train", attempt=0, world_size=2)

    def record(step: int) -> None:
        for rank, writer in enumerate(writers):
            row = Scalars(("loss",), row_struct(1).pack(1e9 + step, step, rank + 1 / step))
            writer.write(Batch(run_id=run_id, attempt=0, rank=rank, first_seq=step, events=[row]))

    for step in range(1, WARM + 1):
        record(step)
        merge.poll()
        merge.advance(ranks, step)
    record(WARM + 1)
    with called.counting():
        merge.poll()
        if not merge.advance(ranks, WARM + 1):
            raise RuntimeError("the step was not merged")
    merge.close()
    for writer in writers:
        writer.close()
    return called.by_file()


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


WAYS = {"log": functions_of_one_log, "merge": functions_of_one_merged_step}


def main(way: str = "log") -> None:
    """Count and print."""
    with tempfile.TemporaryDirectory() as directory:
        functions = WAYS[way](Path(directory))
    for path, names in functions.items():
        print(f"{path}: {', '.join(names)}")
    print(f"{len(functions)} files, {sum(map(len, functions.values()))} functions")


if __name__ == "__main__":
    main(*sys.argv[1:])
