"""The torture of the event files: `python -m tests.torture --level L1 --kills 300 --seed 7`.

L0    every disk operation of seeded runs fails in every way, and the power is cut at each (model disk)
L1    a writing process is killed with SIGKILL at random times and restarted
actors  L1 under Ray: a process sends to a collector's actor; both are killed or stopped (not part of `all`)
L2    four ranks train under Ray and torchrun; collectors, trainers, aggregator, driver and raylet are killed
      or stopped, the disk is full, and the run ends in one of many ways (not part of `all`)
fuzz  mutated event files, sidecars, indexes, .npz and checkpoints for the readers
guard exceptions are raised in distsummary while it records trainings of many kinds (not part of `all`)

With --state, a later call of L1, actors, L2 or guard with the same arguments continues where one stopped.

The last line printed is JSON. The exit code is 1 when anything was found; the directory with it is kept then.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # L1 forks: no threads of numpy's in the parent

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.fuzz import fuzz
from tests.torture.judge import Verdict
from tests.torture.level0 import EVENTS, sweep
from tests.torture.level1 import kill_loop

LEVELS = ("L0", "L1", "fuzz")
SHOWN = 50  # complaints printed


def run_level(level: str, root: Path, options: argparse.Namespace) -> Verdict:
    """The verdict of one level; its cases lie below `root`."""
    match level:
        case "L0":
            return sweep(root, range(options.seed, options.seed + options.seeds), options.events)
        case "L1":
            return kill_loop(root, options.kills, options.seed, options.tags)
        case "actors":
            from tests.torture.actors import kill_actors

            return kill_actors(root, options.kills, options.seed)
        case "L2":
            from tests.torture.level2 import torture_runs

            return torture_runs(
                root, options.kills, options.seed,
                mode=options.mode, endings=options.endings, only=options.only,
            )  # fmt: skip
        case "guard":
            from tests.torture.guard import torture_guard

            return torture_guard(root, options.faults, options.seed)
    return fuzz(root, options.seed, options.seconds, options.mutants, options.files)


def main() -> int:
    """Parse, torture, report."""
    options = _parser().parse_args()
    root = Path(options.state or tempfile.mkdtemp(prefix="torture-", dir=options.place)).resolve()
    total = Verdict()
    for level in LEVELS if options.level == "all" else (options.level,):
        started = time.monotonic()
        verdict = run_level(level, root / level, options)
        total.add(verdict)
        seconds = time.monotonic() - started
        print(
            f"{level}: {verdict.cases} cases judged in {seconds:.0f} s, {len(verdict.violations)} complaints"
        )
        print("\n".join(verdict.violations[:SHOWN]), end="\n" * bool(verdict.violations))
        if options.level == "all":
            print(verdict.line(level, options.seed))
    if total.violations:
        print(f"kept in {root}; the same again: --level {options.level} --seed {options.seed}")
    elif not options.state:
        shutil.rmtree(root, ignore_errors=True)
    print(total.line(options.level, options.seed), flush=True)
    return int(bool(total.violations))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--level", default="all", choices=("all", *LEVELS, "actors", "L2", "guard"))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--kills", type=int, default=100, help="L1, actors, L2: how often to kill")
    parser.add_argument("--tags", type=int, default=0, help="L1: so many more scalars in an event of scalars")
    parser.add_argument(
        "--mode", default="both", choices=("ray", "torchrun", "both"), help="L2: who launches"
    )
    parser.add_argument("--endings", default="", help="L2: only these, divided by commas")
    parser.add_argument("--only", default="", help="L2: only these faults before the end, divided by commas")
    parser.add_argument("--seeds", type=int, default=6, help="L0: how many seeds, from --seed on")
    parser.add_argument("--events", type=int, default=EVENTS, help="L0: events of a run")
    parser.add_argument("--faults", type=int, default=10_000, help="guard: how many in all")
    parser.add_argument("--state", default="", help="the directory in which a later call continues")
    parser.add_argument("--seconds", type=float, default=120.0, help="fuzz: for how long, each kind of files")
    parser.add_argument("--mutants", type=int, default=None, help="fuzz: how many at most of each kind")
    parser.add_argument("--files", default="", help="fuzz: only these kinds of files, divided by commas")
    parser.add_argument("--place", default=None, help="directory to work in, the temporary one if not given")
    return parser


if __name__ == "__main__":
    sys.exit(main())
