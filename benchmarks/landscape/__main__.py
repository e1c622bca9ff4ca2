"""What a point of a loss landscape costs, ours and the peers', in turns: `python -m benchmarks.landscape`.

Prints one JSON line for each (task, peer, threads, workers): {"task", "peer", "engine", "threads", "workers",
"cpu_ms_per_point", "points_per_s", "max_rel_err", "limit_fraction", "prepare_s"}; medians of the rounds; with
--table also a table in Markdown.

- cpu_ms_per_point: CPU time of the peer's processes, all threads. points_per_s: by the wall clock, all
  workers.
- max_rel_err: against a float64 loop, at 5 x 5 points.
- limit_fraction: FLOP of the unmodified forward (torch's counter) x points / CPU second, as a fraction of the
  sgemm peak measured in the same round. More than 1: work was saved, or convolutions beat the probe.
- prepare_s: CPU seconds before the first point, ours with planning.

The peers run where `make bench-landscape` installs them, or by --interpreter losscape=/path/to/python.
`ours:row` names one of our engines.
Example: `python -m benchmarks.landscape --tasks mlp1797,mlp32 --peers ours,naive,losscape --workers 1,2`.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.landscape.peers import PEERS
from benchmarks.landscape.tasks import (
    SIZE,
    TASKS,
    Problem,
    exact_losses,
    flops_per_point,
    write_task,
)

# The heap keeps freed memory: else each peer's figure hangs on where its heap happens to end, by page faults.
ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "OMP_WAIT_POLICY": "PASSIVE",
    "GLOG_v": "3",
}


ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"losscape": ".venv-peers"}  # of the peers, where the Makefile puts them


class Process:
    """A peer in a process of its own, warm from its first points on."""

    def __init__(self, peer: str, threads: int, interpreter: str) -> None:
        self._process = subprocess.Popen(
            [
                interpreter,
                "-W",
                "ignore",
                str(Path(__file__).with_name("peers.py")),
                peer,
                str(threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)},
        )

    def ask(self, **request: Any) -> None:
        """Send a request; `answer` waits for what comes back."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # `answer` says so
            return

    def answer(self) -> dict[str, Any]:
        """The answer; {"absent": why} when the peer is not there or cannot do it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"absent": "its process ended; see stderr"}

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Contender:
    """A peer with so many threads in each of so many processes."""

    def __init__(self, peer: str, threads: int, workers: int, interpreter: str) -> None:
        self.peer, self.threads, self.workers = peer, threads, workers
        self._processes = [Process(peer, threads, interpreter) for _ in range(workers)]
        self.rows = self.columns = 1

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """The answers of all processes, which work at the same time."""
        for process in self._processes:
            process.ask(**request)
        return [process.answer() for process in self._processes]

    def prepare(self, task: str, path: Path, seconds: float) -> dict[str, Any]:
        """Check the losses, then find out how many points take `seconds`; {"absent": why} if it cannot."""
        checked = [path.with_name(f"check-{task}-{number}.npz") for number in range(self.workers)]
        for process, file in zip(self._processes, checked, strict=True):
            process.ask(task=str(path), check=str(file))
        for answer in (found := [process.answer() for process in self._processes]):
            if "absent" in answer:
                return answer
        error = max(relative_error(Problem(path), file) for file in checked)
        self.rows, self.columns = 1, SIZE
        for answer in self.ask(task=str(path), rows=1, columns=SIZE):
            if "absent" in answer:
                return answer
        cost = max(answer["cpu_s"] for answer in self.ask(task=str(path), rows=1, columns=SIZE))
        self.rows = max(1, round(seconds / max(cost, 1e-9)))
        return {**found[0], "max_rel_err": error}

    def run(self, path: Path) -> dict[str, float]:
        """One round: CPU milliseconds per point and points per second of the wall clock."""
        answers = self.ask(task=str(path), rows=self.rows, columns=self.columns)
        points = sum(answer["points"] for answer in answers)
        return {
            "cpu_ms": 1e3 * sum(answer["cpu_s"] for answer in answers) / points,
            "points_per_s": points / max(answer["wall_s"] for answer in answers),
        }

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()


def relative_error(problem: Problem, checked: Path) -> float:
    """The largest error of the losses in the file, relative to the float64 loop."""
    with np.load(checked) as saved:
        losses = saved["losses"]
        exact = exact_losses(problem, [tuple(point) for point in saved["points"]])
    return float(np.max(np.abs(losses - exact) / np.abs(exact)))


def compare(
    contenders: list[Contender], task: str, path: Path, rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """The figures of a task: the contenders in turns, in another order each round."""
    facts, runs, peaks = {}, {}, []
    probe = Process("naive", 1, sys.executable)
    for contender in contenders:
        found = contender.prepare(task, path, seconds)
        if "absent" in found:
            print(f"{contender.peer} {task}: {found['absent']}", file=sys.stderr)
        else:
            facts[contender], runs[contender] = found, []
    for _ in range(rounds):
        probe.ask(task="", probe=True)
        peaks.append(probe.answer()["gflops"])
        for contender in random.sample(list(runs), len(runs)):
            runs[contender].append(contender.run(path))
    probe.close()
    flops = flops_per_point(Problem(path))
    limits_ms = [flops / peak / 1e6 for peak in peaks]
    return [_figures(task, c, facts[c], runs[c], limits_ms) for c in runs]


def _figures(
    task: str,
    contender: Contender,
    facts: dict[str, Any],
    runs: list[dict[str, float]],
    limits_ms: list[float],
) -> dict[str, Any]:
    cpu_ms = statistics.median(run["cpu_ms"] for run in runs)
    fractions = (limit / run["cpu_ms"] for limit, run in zip(limits_ms, runs, strict=True))
    return {
        "task": task,
        "peer": contender.peer,
        "engine": facts["engine"],
        "threads": contender.threads,
        "workers": contender.workers,
        "cpu_ms_per_point": round(cpu_ms, 5),
        "points_per_s": round(statistics.median(run["points_per_s"] for run in runs), 2),
        "max_rel_err": float(f"{facts['max_rel_err']:.2e}"),
        "limit_fraction": round(statistics.median(fractions), 3),
        "prepare_s": round(facts["prepare_s"], 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """CPU milliseconds a point and, in brackets, ratios to ours with as many threads and processes.

    A row a contender, a column a task.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = ["| CPU ms a point (x ours) | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    keys = list(dict.fromkeys((row["peer"], row["threads"], row["workers"]) for row in rows))
    found = {(row["task"], row["peer"], row["threads"], row["workers"]): row for row in rows}
    for peer, threads, workers in keys:
        cells = []
        for task in tasks:
            row = found.get((task, peer, threads, workers))
            ours = found.get((task, "ours", threads, workers))
            ratio = f" ({row['cpu_ms_per_point'] / ours['cpu_ms_per_point']:.2f})" if row and ours else ""
            cells.append(f"{row['cpu_ms_per_point']:.3g}{ratio}" if row else "-")
        lines.append(f"| {peer}, {threads} threads x {workers} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def interpreter_of(peer: str) -> str:
    """The Python that has the peer: its own environment's, else this one."""
    name = ENVIRONMENTS.get(peer.partition(":")[0])
    python = ROOT / (name or "") / "bin" / "python"
    return str(python) if name and python.exists() else sys.executable


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--peers", default="ours,naive,losscape", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--threads", default="1", help="threads of each process; a list measures each")
    parser.add_argument("--workers", default="1", help="processes at the same time; a list measures each")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds of a peer in a round")
    parser.add_argument("--interpreter", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--table", action="store_true", help="print a Markdown table at the end")
    asked = parser.parse_args()
    tasks, peers = asked.tasks.split(","), asked.peers.split(",")
    unknown = [t for t in tasks if t not in TASKS] + [p for p in peers if p.partition(":")[0] not in PEERS]
    if unknown or asked.rounds < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--rounds must be at least 1")
    interpreters = dict(pair.split("=", 1) for pair in asked.interpreter)
    shapes = [(int(t), int(w)) for t in asked.threads.split(",") for w in asked.workers.split(",")]
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        for task in tasks:
            path = write_task(task, Path(directory))
            contenders = [
                Contender(peer, threads, workers, interpreters.get(peer) or interpreter_of(peer))
                for threads, workers in shapes
                for peer in peers
            ]
            try:
                for row in compare(contenders, task, path, asked.rounds, asked.seconds):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
            finally:
                for contender in contenders:
                    contender.close()
    if asked.table:
        print(table(rows))


if __name__ == "__main__":
    main()
