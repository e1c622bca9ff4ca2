"""How landscapes on Ray scale, and what kills cost them: `python -m benchmarks.scaling`.

Prints one JSON line for each part. The task is the MLP with 1797 rows, engine "row", one thread a worker;
"load" is the load average of the minute before a part: the figures are the machine's only where it is near 0.

- workers: points/s with one worker and with two, in turns, between a tenth and nine tenths of the points;
  "ratio" is that of the medians. "ms_per_point" is what the workers say that a point took them: where that
  grows too, the cores are in each other's way; where not, workers waited.
- kills: every 5 s a worker, chosen at random, gets SIGKILL. "identical": the grid, losses and path, has the
  bytes of an undisturbed one. "seconds" from the first finished chunk to the last, of both.
- driver: the process that asked is killed at half of the points and the landscape is asked for again.
  "finished" points were reported before the kill, "recomputed" of them are evaluated again.

Only processes that this command started are killed.
"""

import argparse
import itertools
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import ray
import torch

import distsummary as ds
from benchmarks.landscape_tasks import Problem, write_task
from distsummary.landscapes.run.progress import Progress

TASK = "mlp1797"
KILL_EVERY_S = 5.0
BURST_S = 0.01  # reports closer together are of one call
WORKER = "ray::LandscapeActor"  # how Ray titles the processes of the workers


class Watch:
    """A `progress` callback that keeps what it received and when."""

    def __init__(self, then: Callable[[Progress], None] = lambda progress: None) -> None:
        self.reported: list[tuple[float, Progress]] = []
        self._then = then

    def __call__(self, progress: Progress) -> None:
        """Note it."""
        self.reported.append((time.monotonic(), progress))
        self._then(progress)

    @property
    def seconds(self) -> float:
        """From the first chunk's end to the last's."""
        return self.reported[-1][0] - self.reported[0][0]

    def points_per_s(self, workers: int) -> float:
        """Between a tenth and nine tenths of the points, when so many workers were at it.

        Workers report several chunks at once. Both ends are moments when one just has: what others have
        done by then and not reported is on average the same at both.
        """
        known = [
            (now, at)
            for (now, at), (then, _) in itertools.pairwise(self.reported)
            if then - now > BURST_S and len(at.by_worker) == workers and 0.1 <= at.done / at.total <= 0.9
        ]
        (start, first), (end, last) = known[0], known[-1]
        return (last.done - first.done) / (end - start)


def draw(path: Path, size: int, workers: int, watch: Watch, output: Path | None = None) -> ds.LossGrid:
    """The random plane of the task in the file."""
    model, batch = Problem(path).torch_parts()
    grid = ds.landscape(
        model, torch.nn.CrossEntropyLoss(), [batch],
        plane=ds.Plane(size=size), compute=ds.Compute(workers=workers, engine="row"),
        run_dir=output, progress=watch,
    )  # fmt: skip
    assert isinstance(grid, ds.LossGrid)
    return grid


def is_identical(one: ds.LossGrid, other: ds.LossGrid) -> bool:
    """Whether the losses of the grid, of the path and of the checkpoints are the same to the bit."""
    names = ("x", "y", "z", "path", "path_loss", "true_loss")
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)


# --- workers


def compare_workers(path: Path, size: int, rounds: int) -> dict[str, Any]:
    """Points a second with one worker and with two, in turns."""
    paces: dict[int, list[float]] = {1: [], 2: []}
    costs: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers in paces:
            watch = Watch()
            grid = draw(path, size, workers, watch)
            paces[workers].append(round(watch.points_per_s(workers), 1))
            costs[workers].append(round(1e3 * sum(grid.worker_seconds.values()) / size**2, 4))
    ratio = statistics.median(paces[2]) / statistics.median(paces[1])
    return {"points": size**2, "points_per_s": paces, "ms_per_point": costs, "ratio": round(ratio, 3)}


# --- kills


def worker_pids() -> list[int]:
    """The landscape's workers among the processes under this one, which the local cluster's are."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(WORKER):
                found.append(process.pid)
    return found


def kill_workers(watch: Watch, stop: threading.Event, killed: list[int]) -> None:
    """From the first finished chunk on, until `stop`."""
    while not stop.wait(KILL_EVERY_S if watch.reported else 0.05):
        if watch.reported and (pids := worker_pids()):
            pid = random.choice(pids)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)


def survive_kills(path: Path, size: int) -> dict[str, Any]:
    """One landscape undisturbed, and again while its workers are killed."""
    calm, disturbed = Watch(), Watch()
    expected = draw(path, size, 2, calm)
    stop, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_workers, args=(disturbed, stop, killed))
    killer.start()
    try:
        grid = draw(path, size, 2, disturbed)
    finally:
        stop.set()
        killer.join()
    return {
        "points": size**2,
        "kills": len(killed),
        "workers_used": len(grid.worker_seconds),
        "lost_points": grid.lost_points,
        "identical": is_identical(grid, expected),
        "seconds": {"undisturbed": round(calm.seconds, 1), "killed": round(disturbed.seconds, 1)},
    }


# --- driver


def draw_half(path: Path, size: int, output: Path, address: str, answers: IO[str]) -> None:
    """The driver that is killed: after half of the points, it prints how many that were and dies."""

    def die(progress: Progress) -> None:
        if 2 * progress.done >= progress.total:
            print(progress.done, file=answers, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    draw(path, size, 2, Watch(die), output)


def resume_driver(path: Path, size: int) -> dict[str, Any]:
    """Kill a driver at half of its points, then ask here for the same landscape."""
    address = ray.get_runtime_context().gcs_address
    output = path.with_name("run")
    command = [sys.executable, "-m", "benchmarks.scaling", "--half", path, output, str(size), address]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    if killed.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the driver was to be killed, but it ended with {killed.returncode}")
    resumed = Watch()
    grid = draw(path, size, 2, resumed, output)
    expected = draw(path, size, 0, Watch())
    finished, last = int(killed.stdout), resumed.reported[-1][1]
    return {
        "points": last.total,
        "finished": finished,
        "recomputed": finished + last.fresh - last.total,
        "identical": is_identical(grid, expected),
    }


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "workers": lambda path, asked: compare_workers(path, asked.size, asked.rounds),
    "kills": lambda path, asked: survive_kills(path, asked.size),
    "driver": lambda path, asked: resume_driver(path, asked.size),
}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--size", type=int, default=256, help="points along each side (256: 30 s of work)")
    parser.add_argument("--rounds", type=int, default=2, help="of one worker, two workers")
    parser.add_argument("--half", nargs=4, help=argparse.SUPPRESS)  # what `resume_driver` runs
    asked = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray reports killed workers on stdout
    if asked.half:
        path, output, size, address = asked.half
        draw_half(Path(path), int(size), Path(output), address, answers)
        return
    parts = asked.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = write_task(TASK, Path(directory))
        ray.init(
            address="local",
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            for part in parts:
                load = round(os.getloadavg()[0], 2)
                found = PARTS[part](path, asked)
                line = {"part": part, **found, "cpus": os.cpu_count(), "load": load}
                print(json.dumps(line), file=answers, flush=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
