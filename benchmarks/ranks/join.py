"""How ranks join and leave a run, without recording: `python -m benchmarks.ranks join`.

The ranks are simulated by threads of this process, with files of their own in a temporary directory. All
register before one finishes. They take turns, two for each core; with `slow`, each has a thread, and each
operation on a file of the run takes 10 ms more, as on a busy network file system. They record nothing; with
an aggregator, the last one waits for the merged run of that.
"""

import builtins
import io
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distsummary.aggregate.aggregator import Aggregator
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from distsummary.rundir.topology import Topology

FAST = 2 * (os.cpu_count() or 1)
SLOW_S = 0.01  # seconds that each file operation takes longer
CALLS = (
    "fdatasync", "fsync", "link", "listdir", "lstat", "mkdir", "open", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "unlink", "utime",
)  # fmt: skip


@contextmanager
def slow_files(base: Path, delay_s: float) -> Iterator[None]:
    """Each operation on a path below `base`, or on a descriptor, takes `delay_s` seconds longer."""
    mark, patched = str(base), []

    def patch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def later(*args: Any, **options: Any) -> Any:
            if args and (isinstance(args[0], int) or os.fspath(args[0]).startswith(mark)):
                time.sleep(delay_s)
            return original(*args, **options)

        patched.append((owner, name, original))
        setattr(owner, name, later)

    if delay_s:
        for name in CALLS:
            patch(os, name)
        patch(builtins, "open")
        patch(io, "open")
    try:
        yield
    finally:
        for owner, name, original in patched:
            setattr(owner, name, original)


def all_ranks(
    world: list[Topology], act: Callable[[Topology], object], threads: int
) -> tuple[float, list[str]]:
    """All ranks act at once; returns the seconds until the last is done, and what they raised."""
    errors: list[str] = []

    def run(topology: Topology) -> None:
        try:
            act(topology)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    begun = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        for topology in world:
            pool.submit(run, topology)
    return time.monotonic() - begun, errors


def two_calls(
    run_dir: RunDir,
    world: list[Topology],
    delay_s: float,
    register: Callable[[Topology], object],
    finish: Callable[[Topology], object],
) -> dict[str, float]:
    """Seconds for each of the two calls and in all, and the errors."""
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float] = {}
    errors: list[str] = []
    with slow_files(run_dir.base, delay_s):
        for name, act in (("register s", register), ("finish s", finish)):
            found[name], raised = all_ranks(world, act, len(world) if delay_s else FAST)
            errors += raised
    after = resource.getrusage(resource.RUSAGE_SELF)
    found["all s"] = sum(found.values())
    found["CPU s"] = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    found["errors"] = len(errors)
    if errors or read_run(run_dir).state != "finished" or run_dir.read_manifest()["state"] != "finished":
        raise RuntimeError(f"not all ranks left the run: {errors[:3]}")
    return found


def local(run_dir: RunDir, world: list[Topology], delay_s: float) -> dict[str, float]:
    """Without an aggregator."""
    one = LocalCoordinator(run_dir)
    return two_calls(run_dir, world, delay_s, one.register, lambda topology: one.finish(topology, 0, {}))


def aggregator(run_dir: RunDir, world: list[Topology], delay_s: float) -> dict[str, float]:
    """By an Aggregator in this process, and the files that the clients of the ranks write."""
    ended = threading.Event()
    one, client = Aggregator(str(run_dir.base), on_end=ended.set), LocalCoordinator(run_dir)

    def register(topology: Topology) -> None:  # as AggregatorClient does
        client.enter(topology, one.register(topology).attempt)

    def finish(topology: Topology) -> None:
        client.leave(topology, 0, {})
        one.finish(topology, 0, {})

    try:
        return two_calls(run_dir, world, delay_s, register, finish)
    finally:
        ended.wait()


PARTS = {"local": local, "aggregator": aggregator}


def join(ranks: int, how: str, *, slow: bool) -> dict[str, float]:
    """Figures of one of PARTS."""
    with tempfile.TemporaryDirectory() as place:
        run_dir = RunDir(Path(place) / "run").create()
        world = [Topology(rank=rank, world_size=ranks, incarnation="benchmark+0") for rank in range(ranks)]
        return PARTS[how](run_dir, world, SLOW_S if slow else 0.0)
