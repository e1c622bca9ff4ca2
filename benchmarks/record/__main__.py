"""What recording costs, ours and the peers', in turns on the same machine: `python -m benchmarks.record`.

Prints one JSON line for each peer and unit, medians per call: {"peer", "unit", "caller_us", "cpu_us",
"bytes", "reps"}, of calls with several values also "value_cpu_us"; with --table also a table in Markdown.
CPU is that of the peer's process with all threads, until its files are closed, and of its children that have
ended. Example: `python -m benchmarks.record
--peers ours,torch,raw --units s1,t64MB --reps 5`; a peer of another interpreter by
--interpreter mindspore=/path/to/python.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.record.peers import PEERS, UNITS

FIGURES = ("caller_us", "cpu_us", "bytes")


class Worker:
    """A peer in a process of its own, warm from its first repetition on."""

    def __init__(self, peer: str, interpreter: str) -> None:
        self.peer = peer
        self._process = subprocess.Popen(
            [interpreter, "-W", "ignore", str(Path(__file__).with_name("peers.py")), peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, unit: str, parent: str | None) -> dict[str, Any]:
        """One repetition of a unit; {"absent": why} when the peer is not there or cannot do it."""
        directory = tempfile.mkdtemp(prefix="bench-", dir=parent)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"unit": unit, "directory": directory}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return json.loads(line) if line else {"absent": "its process ended; see stderr"}

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(workers: list[Worker], unit: str, reps: int, parent: str | None) -> list[dict[str, Any]]:
    """Medians of `reps` repetitions after a warm-up, the peers in turns, in another order each time."""
    asked = [worker.peer for worker in workers]
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(reps + 1):
        for worker in random.sample(workers, len(workers)):
            figures = worker.run(unit, parent)
            if "absent" in figures:
                print(f"{worker.peer} {unit}: {figures['absent']}", file=sys.stderr)
                workers = [other for other in workers if other is not worker]
            elif number:  # the first one imports
                runs.setdefault(worker.peer, []).append(figures)
    rows = [
        {"peer": peer, "unit": unit, **_medians(runs[peer]), "reps": len(runs[peer])}
        for peer in asked
        if peer in runs
    ]
    if (values := UNITS[unit].values) > 1:
        rows = [row | {"value_cpu_us": round(row["cpu_us"] / values, 3)} for row in rows]
    return rows


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {figure: round(statistics.median(row[figure] for row in rows), 2) for figure in FIGURES}


def table(rows: list[dict[str, Any]]) -> str:
    """CPU per call and the caller's time, a row for each unit, a column for each peer."""
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    found = {(row["peer"], row["unit"]): row for row in rows}
    lines = ["| CPU (caller), one call | " + " | ".join(peers) + " |", "|---" * (len(peers) + 1) + "|"]
    for unit in dict.fromkeys(row["unit"] for row in rows):
        cells = [found.get((peer, unit)) for peer in peers]
        reported = [_cell(cell) if cell else "-" for cell in cells]
        lines.append(f"| {unit} | " + " | ".join(reported) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    a_value = f", a value {_time(row['value_cpu_us'])}" if "value_cpu_us" in row else ""
    return f"{_time(row['cpu_us'])} ({_time(row['caller_us'])}){a_value}"


def _time(us: float) -> str:
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default="ours,torch,raw", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--units", default=",".join(UNITS), help=f"of {', '.join(UNITS)}")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--interpreter", action="append", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--directory", help="where the files are written (default: the temporary directory)")
    parser.add_argument("--table", action="store_true", help="print a Markdown table at the end")
    asked = parser.parse_args()
    peers, units = asked.peers.split(","), asked.units.split(",")
    unknown = [name for name in peers if name not in PEERS] + [name for name in units if name not in UNITS]
    if unknown or asked.reps < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--reps must be at least 1")
    interpreters = dict(pair.split("=", 1) for pair in asked.interpreter)
    workers = [Worker(peer, interpreters.get(peer, sys.executable)) for peer in peers]
    rows = []
    try:
        for unit in units:
            for row in compare(workers, unit, asked.reps, asked.directory):
                print(json.dumps(row), flush=True)
                rows.append(row)
    finally:
        for worker in workers:
            worker.close()
    if asked.table:
        print(table(rows))


if __name__ == "__main__":
    main()
