"""Trainings on four gloo ranks that hang: `python -m benchmarks.culprit_hangs [--count 10]`.

Each kind of `benchmarks.hanging_rank.KINDS` is run `--count` times, in turn under torchrun and under Ray,
with another culprit and step each time (seeded). A line of JSON for each episode says whether the alert named
rank, collective and, where it can be had, the source line; whether `distsummary why` does so from the files
once all is killed; how many seconds after the begin of the hang the alert was told; and how many other alerts
there were. The last lines are a table.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

import distsummary as ds
from benchmarks.hanging_rank import KINDS, RANKS, begun_at, train
from distsummary.states import read_run

LINES = ("sleep", "loader", "order")  # of these, the line can be had
AWAITED = "all_reduce of 2,632 elements"  # the gradients
PATIENCE_S, ENDING_S = 90.0, 30.0
ALLOWED_S = 5.0 + 1.0  # and a second until a step is late, as three medians of these steps are shorter


@contextmanager
def training(run_dir: str, kind: str, culprit: int, at: int, launcher: str) -> Iterator[None]:
    """A training that hangs; it is killed at the end."""
    arguments = [run_dir, kind, str(culprit), str(at)]
    if launcher == "torchrun":
        module = "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m"
        command = [sys.executable, "-m", *module, "benchmarks.hanging_rank", *arguments]
    else:
        command = [sys.executable, "-m", "benchmarks.culprit_hangs", "--launch", *arguments]
    with open(run_dir + ".log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
        if kind == "exit":  # the launcher ends the others
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
    finally:
        ranks = [rank for attempt in read_run(run_dir).attempts for rank in attempt.ranks]
        for rank in ranks:  # none, if it has not begun for want of a processor
            with suppress(ProcessLookupError):  # it has ended
                os.kill(rank.pid, signal.SIGKILL)  # also one that is stopped
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def told(run_dir: str) -> list[dict[str, Any]]:
    """The alerts so far."""
    path = Path(run_dir, "alerts.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def hangs_in(run_dir: str) -> list[dict[str, Any]]:
    """The alerts of hangs that came after the culprit had begun to hang."""
    begun = begun_at(run_dir)
    if not begun.exists():
        return []
    since = begun.stat().st_mtime
    return [alert for alert in told(run_dir) if alert["cause"] == "hang" and alert["time"] > since]


def episode(directory: str, kind: str, number: int, seed: int) -> dict[str, Any]:
    """One training that hangs, and what was said of it."""
    rng = np.random.default_rng([seed, KINDS.index(kind), number])
    culprit, at = int(rng.integers(RANKS)), int(rng.integers(50, 120))
    launcher = ("torchrun", "ray")[number % 2]
    run_dir = f"{directory}/{kind}-{number}"
    until = time.monotonic() + PATIENCE_S
    with training(run_dir, kind, culprit, at, launcher):
        while time.monotonic() < until and not hangs_in(run_dir):
            time.sleep(0.1)
        time.sleep(1.0)  # for alerts that follow
    alerts = told(run_dir)
    hang = next(iter(hangs_in(run_dir)), None)
    why = [sys.executable, "-m", "distsummary", "why", run_dir, "--json"]
    said = json.loads(subprocess.run(why, capture_output=True, text=True).stdout)["verdicts"]
    afterwards = [verdict for verdict in said if verdict["cause"] == "hang"]
    where = "began broadcast of 4 elements as" if kind == "order" else AWAITED
    evidence = "" if hang is None else hang["evidence"]
    return {
        "kind": kind,
        "launcher": launcher,
        "culprit": culprit,
        "at": at,
        "rank_right": hang is not None and (hang["rank"], hang["since_step"]) == (culprit, at),
        "collective_right": where in evidence,
        "line_right": f"# HERE: {kind}" in evidence if kind in LINES else None,
        "why_right": [one["rank"] for one in afterwards] == [culprit] and where in afterwards[0]["evidence"],
        "seconds": None if hang is None else round(hang["time"] - begun_at(run_dir).stat().st_mtime, 2),
        "others": [one for one in alerts if one != hang],
        "load": os.getloadavg()[0],
        "evidence": evidence,
    }


def table(episodes: list[dict[str, Any]]) -> str:
    """The figures of each kind, in Markdown."""
    lines = [
        "| hang | episodes | rank | collective | line | `why` | median s | largest s | within | others |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        found = [one for one in episodes if one["kind"] == kind]
        if not found:
            continue
        seconds = [one["seconds"] for one in found if one["seconds"] is not None]
        line = sum(bool(one["line_right"]) for one in found) if kind in LINES else "-"
        counts = [sum(one[f"{name}_right"] for one in found) for name in ("rank", "collective", "why")]
        within = sum(one <= ALLOWED_S for one in seconds)
        times = (f"{np.median(seconds):.1f}", f"{max(seconds):.1f}") if seconds else ("-", "-")
        others = sum(len(one["others"]) for one in found)
        cells = [kind, len(found), *counts[:2], line, counts[2], *times, within, others]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Run the episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10, help="episodes of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launch", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        run_dir, kind, culprit, at = options.launch
        ds.launch(partial(train, run_dir, kind, int(culprit), int(at)), ranks=RANKS)
        return
    os.environ["RAY_ADDRESS"] = ray.init(
        address="local", num_cpus=RANKS + 1, include_dashboard=False, log_to_driver=False
    ).address_info["gcs_address"]
    episodes = []
    try:
        with tempfile.TemporaryDirectory() as directory:
            for number in range(options.count):
                for kind in options.kinds:
                    episodes.append(episode(directory, kind, number, options.seed))
                    print(json.dumps(episodes[-1]), flush=True)
    finally:
        ray.shutdown()
    print(table(episodes))


if __name__ == "__main__":
    main()
