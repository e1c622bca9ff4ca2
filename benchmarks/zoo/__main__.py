"""The zoo's command line: `python -m benchmarks.zoo --help`; README.md says what it is for."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.zoo import cells, launch, tables
from benchmarks.zoo.trainings import SIZES, TRAININGS
from benchmarks.zoo.verdicts import reported

BUSY = 16  # processes
QUIET_CORES, QUIET_S = 0.2, 60.0  # so much other work is none; so long it is waited for


def run(given: argparse.Namespace) -> int:
    """Measure the cells that have no valid result, one after the other."""
    until_s = time.monotonic() + 60 * given.minutes
    rows = cells.rows()
    lasted_s = {row["cell"]: row["seconds"] for row in rows}
    done = cells.valid(rows)
    failed = 0
    with busy(BUSY if given.busy else 0):
        for cell in cells.cells():
            if cell.is_busy != given.busy or not re.search(given.only, cell.name):
                continue
            if cells.is_done(cell, done.get(cell.name)) and not given.again:
                continue
            expected_s = lasted_s.get(cell.name, 60 * cell.minutes)
            if time.monotonic() + expected_s > until_s:
                continue  # a shorter one may follow
            others = 0.0 if given.busy else other_cores()
            # how large a batch must be is not found out beside other work
            if (given.quiet or cell.name.startswith("size/")) and others > QUIET_CORES:
                others = wait_for_quiet()
                if others > QUIET_CORES:
                    print(f"stopped: other work uses {others:.1f} cores", file=sys.stderr)
                    return 1
            failed += not one(cell, given.keep, BUSY if given.busy else 0, others)
    return int(failed > 0)


def one(cell: cells.Cell, keep: Path | None, processes: int, others: float) -> bool:
    """Measure a cell and keep its result; returns whether there is one."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{cell.name.replace('/', '-')}-", dir=keep))
    try:
        row = cells.measured(cell, directory, busy=processes, other_cores=round(others, 2))
    except (RuntimeError, subprocess.TimeoutExpired):
        print(f"{cell.name}: failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return False
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    cells.keep(row)
    print(f"{cell.name}: {row['seconds']:.0f} s, others {others:.1f}: {tables.line(row)}", flush=True)
    return True


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def other_cores(seconds: float = 1.0) -> float:
    """How many cores are in use while this process sleeps."""
    before = idle_s()
    time.sleep(seconds)
    return max(0.0, (os.cpu_count() or 1) - (idle_s() - before) / seconds)


def idle_s() -> float:
    """Seconds that all cores together have been idle, or waited for a disk."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return sum(numbers[3:5]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet() -> float:
    """Wait for other work to end, for QUIET_S; returns the cores that are in use then."""
    until_s = time.monotonic() + QUIET_S
    while (others := other_cores(5.0)) > QUIET_CORES and time.monotonic() < until_s:
        pass
    return others


def listed(given: argparse.Namespace) -> int:
    """Print the cells, which of them have a valid result, and how long the others take."""
    rows = cells.rows()
    lasted_s = {row["cell"]: row["seconds"] for row in rows}
    done = cells.valid(rows)
    left_s = {False: 0.0, True: 0.0}
    for cell in cells.cells():
        if not re.search(given.only, cell.name):
            continue
        expected_s = lasted_s.get(cell.name, 60 * cell.minutes)
        if cell.name in done:
            print(f"{cell.name}: {tables.line(done[cell.name])}")
        else:
            left_s[cell.is_busy] += expected_s
            print(f"{cell.name}: not measured, about {expected_s:.0f} s")
    print(f"left: {left_s[False] / 60:.0f} min, and {left_s[True] / 60:.0f} min beside busy processes")
    return 0


def table(given: argparse.Namespace) -> int:
    """Print the table of the valid results as Markdown, or put it into a document."""
    text = tables.table(cells.valid(cells.rows()))
    if given.into is None:
        print(text)
    else:
        tables.put_into(given.into, text)
    return 0


def train(given: argparse.Namespace) -> int:
    """Run one training, and print what its ranks measured and what was reported of them."""
    plan = {
        "training": given.training,
        "run_dir": str(given.run_dir),
        "size": given.size or SIZES[given.training],
        "steps": given.steps,
        "seed": given.seed,
        "episodes": json.loads(given.episodes),
        "ranks": given.ranks,
    }
    launch.run(cells.RANK, plan, given.launcher)
    for rank in range(given.ranks):
        measured = json.loads(Path(f"{given.run_dir}-rank{rank}.json").read_text())
        print(f"rank {rank}: own {measured['own_ms']:.1f} ms, wall {measured['wall_ms']:.1f} ms a step")
        for episode in measured["done"]:
            print(f"  {episode}")
    for alert in reported(str(given.run_dir)):
        print(json.dumps(alert))
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    verbs = parser.add_subparsers(required=True)

    verb = verbs.add_parser("run", help="measure the cells that are not measured yet")
    verb.add_argument("--minutes", type=float, default=60.0, help="begin none that would take longer")
    verb.add_argument("--only", default="", metavar="PATTERN", help="cells in whose names this is found")
    verb.add_argument("--busy", action="store_true", help=f"those beside {BUSY} busy processes")
    verb.add_argument("--quiet", action="store_true", help="stop if other work runs; else it is noted")
    verb.add_argument("--again", action="store_true", help="also those that are measured")
    verb.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this directory")
    verb.set_defaults(do=run)

    verb = verbs.add_parser("list", help="the cells, and how long those take that are not measured yet")
    verb.add_argument("--only", default="", metavar="PATTERN")
    verb.set_defaults(do=listed)

    verb = verbs.add_parser("table", help="the results as Markdown")
    verb.add_argument("--into", type=Path, metavar="FILE", help="replace the table in this document")
    verb.set_defaults(do=table)

    verb = verbs.add_parser("train", help="run one training")
    verb.add_argument("training", choices=TRAININGS)
    verb.add_argument("--run-dir", type=Path, required=True)
    verb.add_argument("--launcher", choices=launch.LAUNCHERS, default="torchrun")
    verb.add_argument("--ranks", type=int, default=4)
    verb.add_argument("--steps", type=int, default=200)
    verb.add_argument("--size", type=int, help="samples of a batch")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--episodes", default="[]", help="JSON, as `benchmarks.zoo.faults.Faults` takes it")
    verb.set_defaults(do=train)

    given = parser.parse_args()
    return int(given.do(given))


if __name__ == "__main__":
    sys.exit(main())
