"""What reading one tag of a run of many ranks costs, ours and the peer's: `python -m benchmarks.read.runs`.

Prints one JSON line for each way of reading, {"way", "ranks", "steps", "tags", "rows", "cpu_s", "times"}: the
median CPU seconds, over the repetitions, of a process that has imported all that it needs, and how many times
those of `index` they are; with --table also a table in Markdown. The ways take turns. Each gives one tag of
all ranks, and the run fails unless all give the same sums:

- index: `open_run(RUN).scalars(TAG)` with all six columns, from the indexes that the writers left.
- files: the same with `index=False`, which reads the event files.
- pandas: `index`, and `.to_pandas()`.
- accumulator: TensorBoard's EventAccumulator of each rank's directory, reloaded once, and its `Scalars(TAG)`.

Example: `python -m benchmarks.read.runs --ranks 64 --steps 20000 --tags 5 --reps 3 --table`.
"""

import argparse
import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.read.__main__ import Worker, serve

RUN = "0123456789abcdef"
TAG = "loss"
BATCH = 1000  # events


def ours(path: str, *, index: bool) -> Any:
    """One tag of all ranks as a table whose columns have been made."""
    from distsummary.runs.recorded_run import open_run

    table = open_run(path, index=index).scalars(TAG)
    for name in ("rank", "attempt", "step", "wall_time", "value"):
        table[name]
    return table


def sums(rows: int, steps: int, total: float) -> dict[str, Any]:
    """What was read, to be compared."""
    return {"rows": rows, "steps": steps, "total": total}


def index(path: str) -> dict[str, Any]:
    """From the indexes."""
    table = ours(path, index=True)
    return sums(len(table), int(table["step"].sum()), float(table["value"].sum()))


def files(path: str) -> dict[str, Any]:
    """From the event files."""
    table = ours(path, index=False)
    return sums(len(table), int(table["step"].sum()), float(table["value"].sum()))


def pandas(path: str) -> dict[str, Any]:
    """From the indexes into a DataFrame."""
    frame = ours(path, index=True).to_pandas()
    return sums(len(frame), int(frame["step"].sum()), float(frame["value"].sum()))


def accumulator(path: str) -> dict[str, Any]:
    """With TensorBoard's own class."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = steps = 0
    total = 0.0
    for directory in sorted(Path(path).glob("rank_*")):
        found = EventAccumulator(str(directory), size_guidance={"scalars": 0})
        found.Reload()
        for event in found.Scalars(TAG):
            rows, steps, total = rows + 1, steps + event.step, total + event.value
    return sums(rows, steps, total)


WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "index": index,
    "files": files,
    "pandas": pandas,
    "accumulator": accumulator,
}


def write(path: Path, ranks: int, steps: int, names: Sequence[str], **spec: Any) -> None:
    """A run as its ranks write it, with all tags of a step in one event; each rank's values are others."""
    from distsummary.events.spec import WriterSpec
    from distsummary.events.writer import RankWriter
    from distsummary.format.records import Batch, Scalars
    from distsummary.format.scalar_rows import row_dtype
    from distsummary.rundir.run_dir import RunDir

    for rank in range(ranks):
        place = RunDir(path).writer_dir("train", rank, max(ranks, 2))
        writer = RankWriter(WriterSpec(directory=place, run_id=RUN, rank=rank, **spec))
        rows = np.zeros(steps, row_dtype(len(names)))
        rows["step"] = np.arange(1, steps + 1)
        rows["wall_time"] = 1.7e9 + np.arange(steps) / 8
        rows["numbers"] = np.random.default_rng(rank).normal(100.0, 1.0, size=(steps, len(names)))
        for first in range(0, steps, BATCH):
            events = [Scalars(tuple(names), rows[first : first + BATCH].tobytes())]
            writer.write(Batch(run_id=RUN, attempt=0, rank=rank, first_seq=1 + first, events=events))
        writer.close()


def measure(asked: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Write a small run, which is read first (this imports), and the large one; then read it in turns."""
    small, large = directory / "small", directory / "large"
    names = (TAG, *(f"train/metric_{number}" for number in range(1, asked.tags)))
    write(small, 2, 300, names)
    write(large, asked.ranks, asked.steps, names)
    workers = [Worker("benchmarks.read.runs", way) for way in asked.ways.split(",")]
    figures: dict[str, list[dict[str, Any]]] = {worker.way: [] for worker in workers}
    try:
        for worker in workers:
            worker.read(small)
        for _ in range(asked.reps):
            for worker in random.sample(workers, len(workers)):
                figures[worker.way].append(worker.read(large))
    finally:
        for worker in workers:
            worker.close()
    found = [row for rows in figures.values() for row in rows]
    for row in found:
        same = (row["rows"], row["steps"]) == (found[0]["rows"], found[0]["steps"])
        if not same or not math.isclose(row["total"], found[0]["total"], rel_tol=1e-9, abs_tol=1e-6):
            raise RuntimeError(f"the ways read different values: {row} and {found[0]}")
    medians = {way: statistics.median(row["cpu_s"] for row in rows) for way, rows in figures.items()}
    first = medians[next(iter(medians))]
    facts = {"ranks": asked.ranks, "steps": asked.steps, "tags": asked.tags, "rows": found[0]["rows"]}
    return [
        {"way": way, **facts, "cpu_s": round(cpu_s, 3), "times": round(cpu_s / first, 1)}
        for way, cpu_s in medians.items()
    ]


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="index,files,pandas,accumulator", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--tags", type=int, default=5, help="scalars of a step")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--directory", help="where the run is written (default: the temporary directory)")
    parser.add_argument("--table", action="store_true", help="print a Markdown table at the end")
    parser.add_argument("--serve", metavar="WAY", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(WAYS[asked.serve])
        return
    unknown = {*asked.ways.split(",")} - WAYS.keys()
    if unknown or min(asked.ranks, asked.steps, asked.tags, asked.reps) < 1:
        parser.error(f"unknown: {', '.join(sorted(unknown))}" if unknown else "all numbers must be above 0")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as directory:
        rows = measure(asked, Path(directory))
    for row in rows:
        print(json.dumps(row))
    if asked.table:
        print("| CPU | " + " | ".join(row["way"] for row in rows) + " |")
        print("|---" * (len(rows) + 1) + "|")
        cells = " | ".join(f"{row['cpu_s']:.3g} s ({row['times']:.3g}x)" for row in rows)
        print(f"| {rows[0]['rows']:,} rows of one tag of {asked.ranks} ranks | {cells} |")


if __name__ == "__main__":
    main()
