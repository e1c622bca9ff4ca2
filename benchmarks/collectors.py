"""A collector actor or the rank's own process, what costs less: `python -m benchmarks.collectors`.

Both write the files of ranks under Ray, in turns on the same machine, so that what else it does hits both.
Prints one JSON line for each figure:

- "step": a step that logs 20 scalars, on the loop's thread (`run.log` and the end of the step), in
  microseconds: median and 99th percentile, the CPU of the training process and of the collector. "node" is
  one actor for all ranks. `start_s` are the seconds from `ds.init` to the second step.
- "bulk": a step of a model of 5 million parameters with histograms of all of them and one tensor, in
  milliseconds, the CPU of the training process, and how many values were dropped; "bare" is the same training
  without recording.
- "kept" (`--busy-runs 20`, and nothing else then): runs beside 16 busy processes in which every rank kept its
  collector: none was started again, none was given up for the rank's own process, and no value was dropped.
- "idle": the share of a processor, in percent, and the memory in MiB of an idle collector and a bare actor.
"""

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from torch import nn

import distsummary as ds
from benchmarks.overhead import await_files, collector_times
from distsummary.base.processes import own_process
from distsummary.collect.remote.actor import start_collector

KINDS = {"actor": "rank", "node": "node", "in process": "process"}  # -> the option `collectors`
NUMBERS = {f"metrics/number_{n}": n / 7 for n in range(20)}
WARM_STEPS = 200


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def scalar_steps(root: str, rounds: int, steps: int, pause_s: float) -> list[dict[str, Any]]:
    """One rank: the figures of each round of both kinds."""
    found = []
    for number in range(rounds):
        for kind in random.Random(number).sample(sorted(KINDS), len(KINDS)):
            costs = []
            directory = Path(root, f"{kind}-{number}".replace(" ", "-"))
            started = time.perf_counter()
            record = ds.Record(collectors=KINDS[kind])
            run = ds.init(directory, record=record, system_metrics=False, quiet=True, aggregate=False)
            with run:
                ended = begun_cpu = start_s = 0.0
                before: dict[int, float] = {}
                for _ in run.steps(range(WARM_STEPS + steps)):
                    begun = time.perf_counter()
                    run.log(**NUMBERS)
                    costs.append(time.perf_counter() - begun + (begun - ended))
                    if run.step == 2:
                        start_s = time.perf_counter() - started
                    if run.step == WARM_STEPS:
                        await_files(directory)
                        begun_cpu, before = time.process_time(), collector_times()
                    time.sleep(pause_s)
                    ended = time.perf_counter()
                own_s = time.process_time() - begun_cpu
                collector_s = sum(s - before[pid] for pid, s in collector_times().items() if pid in before)
            found.append(
                {
                    "kind": kind,
                    "costs": costs[WARM_STEPS + 1 :],
                    "start_s": start_s,
                    "process_us": own_s / steps * 1e6,
                    "collectors_us": collector_s / steps * 1e6,  # of all ranks
                    "dropped": sum(run.health().dropped.values()),
                }
            )
    return found


class Perceptron(nn.Module):
    """5.2 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1536), nn.Linear(1536, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, 8) of inputs (N, 1024)."""
        found: torch.Tensor = self.layers(x)
        return found


def bulk_steps(root: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """One rank: the figures of each round of both kinds, and of a training without recording."""
    torch.set_num_threads(1)
    found = []
    for number in range(rounds):
        for kind in random.Random(number).sample(["bare", *KINDS], len(KINDS) + 1):
            model = Perceptron()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            x, y = torch.randn(8, 1024), torch.zeros(8, dtype=torch.long)
            times: list[float] = []

            def learn(
                batches: Any,
                model: nn.Module = model,
                optimizer: Any = optimizer,
                x: torch.Tensor = x,
                y: torch.Tensor = y,
                times: list[float] = times,
            ) -> Iterator[int]:
                for step, _ in enumerate(batches):
                    times.append(time.perf_counter())
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    yield step

            dropped: dict[str, int] = {}
            begun_s = time.process_time()
            if kind == "bare":
                for _ in learn(range(steps)):
                    pass
            else:
                directory = Path(root, f"bulk-{kind}-{number}".replace(" ", "-"))
                run = ds.init(
                    directory, watch=model, histograms=".*", collect_freq=1,
                    record=ds.Record(collectors=KINDS[kind]), system_metrics=False, quiet=True,
                    aggregate=False,
                )  # fmt: skip
                with run:
                    for step in learn(run.steps(range(steps))):
                        run.tensor("first", model.layers[3].weight)
                        if step == 3:
                            await_files(directory)
                dropped = run.health().dropped
            spans = [1e3 * (b - a) for a, b in pairwise(times[steps // 2 :])]  # the actor is up
            cpu_ms = (time.process_time() - begun_s) / steps * 1e3
            found.append({"kind": kind, "ms": spans, "cpu_ms": cpu_ms, "dropped": sum(dropped.values())})
    return found


class Idle:
    """A bare actor."""

    def ready(self) -> int:
        """Its pid."""
        return os.getpid()


def idle_costs(seconds: float) -> dict[str, tuple[float, float]]:
    """CPU in percent of a processor, and MiB of memory (PSS), of an idle collector and of a bare actor."""
    collector = start_collector("rank")
    bare = ray.remote(Idle).options(num_cpus=0).remote()
    pids = {
        "collector": ray.get(collector.ready.remote("benchmark", own_process()))["pid"],
        "bare actor": ray.get(bare.ready.remote()),
    }
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    time.sleep(5.0)
    before = {name: cpu_s([process]) for name, process in processes.items()}
    time.sleep(seconds)
    return {
        name: (
            round((cpu_s([process]) - before[name]) / seconds * 100, 3),
            round(process.memory_full_info().pss / 2**20, 1),
        )
        for name, process in processes.items()
    }


class Warnings(logging.Handler):
    """The package's warnings as a list of texts."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.texts.append(record.getMessage())


def busy_rank(directory: Path, steps: int, pause_s: float) -> tuple[list[str], int]:
    """One rank with a collector of its own: what it warned of, and how many values it dropped."""
    warnings = Warnings()
    logging.getLogger("distsummary").addHandler(warnings)
    model = Perceptron()
    with ds.init(
        directory, watch=model, histograms=".*bias", collect_freq=10,
        record=ds.Record(collectors="rank"), quiet=True,
    ) as run:  # fmt: skip
        for _ in run.steps(range(steps)):
            run.log(**NUMBERS)
            time.sleep(pause_s)
    return warnings.texts, sum(run.health().dropped.values())


def busy_runs(given: argparse.Namespace) -> None:
    """Print for each run beside busy processes whether its collectors were kept."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(16)]
    kept = 0
    try:
        with tempfile.TemporaryDirectory() as root:
            for number in range(given.busy_runs):
                job = partial(busy_rank, Path(root, str(number)), given.steps, given.pause_ms / 1e3)
                begun = time.monotonic()
                found = ds.launch(job, ranks=given.ranks, backend=None)
                texts = [text for texts, _ in found for text in texts]
                lost = [text for text in texts if "the collector" in text or "itself" in text]
                dropped = sum(count for _, count in found)
                kept += not lost and not dropped
                took_s = round(time.monotonic() - begun, 1)
                report(figure="busy run", number=number, took_s=took_s, lost=lost, dropped=dropped)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    report(figure="kept", ranks=given.ranks, runs=given.busy_runs, kept=kept)


def report(**figures: Any) -> None:
    """Print a line."""
    print(json.dumps(figures), flush=True)


def compare(given: argparse.Namespace) -> None:
    """Measure and print all figures."""
    ray.init(
        address="local", num_cpus=max(8, given.ranks), num_gpus=0, include_dashboard=False,
        log_to_driver=False, logging_level=logging.ERROR,
    )  # fmt: skip
    if given.busy_runs:
        busy_runs(given)
        ray.shutdown()
        return
    with tempfile.TemporaryDirectory() as root:
        job = partial(scalar_steps, root, given.rounds, given.steps, given.pause_ms / 1e3)
        rows = [row for rank in ds.launch(job, ranks=given.ranks, backend=None) for row in rank]
        medians = {}
        for kind in KINDS:
            own = [row for row in rows if row["kind"] == kind]
            costs = sorted(1e6 * cost for row in own for cost in row["costs"])
            medians[kind] = statistics.median(costs)
            report(
                figure="step", kind=kind, ranks=given.ranks, p50_us=round(medians[kind], 1),
                p99_us=round(costs[len(costs) * 99 // 100], 1),
                process_us=round(statistics.median(row["process_us"] for row in own), 1),
                collector_us=round(statistics.median(row["collectors_us"] for row in own) / given.ranks, 1),
                start_s=round(statistics.median(row["start_s"] for row in own), 3),
                dropped=sum(row["dropped"] for row in own),
            )  # fmt: skip
        report(figure="step", actor_over_in_process=round(medians["actor"] / medians["in process"], 3))
        [rows] = ds.launch(
            partial(bulk_steps, root, given.bulk_rounds, given.bulk_steps), ranks=1, backend=None
        )
        for kind in ("bare", *KINDS):
            own = [row for row in rows if row["kind"] == kind]
            spans = sorted(span for row in own for span in row["ms"])
            report(
                figure="bulk", kind=kind, p50_ms=round(statistics.median(spans), 2),
                p90_ms=round(spans[len(spans) * 9 // 10], 2),
                process_ms=round(statistics.median(row["cpu_ms"] for row in own), 2), steps=len(spans),
                dropped=sum(row["dropped"] for row in own),
            )  # fmt: skip
    report(figure="idle", seconds=given.idle_s, **idle_costs(given.idle_s))
    ray.shutdown()


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pause-ms", type=float, default=5.0)
    parser.add_argument("--bulk-rounds", type=int, default=3)
    parser.add_argument("--bulk-steps", type=int, default=200)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--busy-runs", type=int, default=0)
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
