"""What many ranks cost: `python -m benchmarks.ranks live|merge|status|join|ships|shared`.

`live`: the aggregator's merge while the ranks train. Each simulated rank reports one step a second, of 20
scalars in which the ranks differ, in its event files. The seconds are simulated: the figures are CPU seconds
a simulated second, in which `poll` and `advance` are called twice, then the time from the last rank's record
to the bytes in the merged files, and the memory. With `--slow` each operation of the merge on a file takes
1 ms more.

`status`: `distsummary status` in a process of its own, on a run that trains, of which one rank is lost. The
times are seconds of the wall clock, of several calls the smallest and the largest.

`join`: how ranks register and finish; see `benchmarks.ranks.join`.

`ships`: what hosts that share no directory cost the home of their run; see `benchmarks.ranks.ships`.

`shared`: what a step costs a rank whose host does not share the run dir, next to one that does; see
`benchmarks.ranks.shared`.

`merge`: the merge of the rank files when the training has ended; CPU seconds, memory, and both of a second
merge of the same files, which also compares its steps with those of the first.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.ranks.join import PARTS, join, slow_files
from benchmarks.ranks.shared import shared
from benchmarks.ranks.ships import ships
from distsummary import Topology
from distsummary.aggregate.live import LiveMerge
from distsummary.aggregate.merge import merge_run
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import MINDSPORE, Batch, Scalars
from distsummary.format.scalar_rows import row_struct
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.rank_manifest import RankManifest
from distsummary.rundir.run_dir import RunDir

RUN_ID = "0123456789abcdef"
SLOW_S = 0.001  # seconds that each file operation takes longer
TAGS = ("loss", "lr", *(f"metric/{number}" for number in range(18)))


def live(ranks: int, seconds: int, *, slow: bool) -> dict[str, float]:
    """Figures of a live merge of `ranks` ranks that train for `seconds` simulated seconds."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        run_dir = RunDir(directory).create()
        run_id = LocalCoordinator(run_dir).register(Topology(rank=0, world_size=ranks)).run_id
        writers = []
        for rank in range(ranks):
            path = run_dir.writer_dir("train", rank, ranks)
            spec = WriterSpec(directory=path, run_id=run_id, rank=rank, formats=(MINDSPORE,))
            writers.append(RankWriter(spec))
        merge = LiveMerge(run_dir, role="train", attempt=0, world_size=ranks)
        living = range(ranks)
        cpu_s, idle_s, to_disk_s = 0.0, [], []
        before_mib = _memory_mib()
        for step in range(1, seconds + 1):
            numbers = rng.random((ranks, len(TAGS)))
            for rank in range(ranks):
                row = row_struct(len(TAGS)).pack(1e9 + step, step, *numbers[rank].tolist())
                rows = Scalars(TAGS, row)
                batch = Batch(run_id=run_id, attempt=0, rank=rank, first_seq=step, events=[rows])
                writers[rank].write(batch)
            with slow_files(run_dir.base, SLOW_S if slow else 0.0):
                started_s = time.process_time()
                last_s = time.perf_counter()
                merge.poll(1e9)
                merge.advance(living, step)
                to_disk_s.append(time.perf_counter() - last_s)
                merge.poll(1e9)
                merge.advance(living, step + 0.5)
                cpu_s += time.process_time() - started_s
                started_s = time.process_time()
                merge.poll(1e9)
                merge.advance(living, step + 0.5)
                idle_s.append(time.process_time() - started_s)
        memory_mib = _memory_mib()
        report = merge.close()
        if report.steps != seconds or not report.is_exact:
            raise RuntimeError(f"the merged run is not whole: {report}")
        return {
            "CPU s per s": cpu_s / seconds,
            "CPU s per idle round": float(np.median(idle_s)),
            "last record to disk, median s": float(np.median(to_disk_s)),
            "last record to disk, max s": max(to_disk_s),
            "memory before MiB": before_mib,
            "memory at most MiB": memory_mib,
            "merged bytes per s": sum(p.stat().st_size for p in Path(directory).glob("*.merged*")) / seconds,
        }


def status(ranks: int, calls: int) -> dict[str, float]:
    """Figures of `distsummary status` on a run of `ranks` ranks."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = RunDir(directory).create()
        topologies = [Topology(rank=rank, world_size=ranks, incarnation="bench") for rank in range(ranks)]
        topologies[1] = replace(topologies[1], pid_start="0")  # no process that runs
        attempt = LocalCoordinator(run_dir).register(topologies[0]).attempt
        for topology in topologies:
            RankManifest(run_dir, topology).claim(attempt, lambda reported: None)
            RankManifest(run_dir, topology).beat(attempt, Heartbeat(120, "training", 0.1, None))
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "distsummary", "status", directory], capture_output=True, text=True
            )
            times.append(time.perf_counter() - started)
        if done.returncode != 1 or "continues without rank 1:" not in done.stdout:
            raise RuntimeError(f"the status is wrong: {done.stdout}{done.stderr}")
        lines = float(len(done.stdout.splitlines()))
        return {"least s": min(times), "most s": max(times), "lines": lines}


def merge(ranks: int, steps: int, tags: int) -> dict[str, float]:
    """Figures of a merge of `ranks` ranks that each recorded `tags` scalars at each of `steps` steps."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        run_dir = RunDir(directory).create()
        table = np.empty((steps, 2 + tags))
        table[:, 0] = 1e9 + np.arange(steps)
        table[:, 1] = np.arange(1, steps + 1).view(np.float64)
        for rank in range(ranks):
            table[:, 2:] = rng.normal(size=(steps, tags))
            place = run_dir.writer_dir("train", rank, ranks)
            spec = WriterSpec(directory=place, run_id=RUN_ID, rank=rank, formats=(MINDSPORE,))
            writer = RankWriter(spec)
            events = [Scalars(TAGS[:tags], table.tobytes())]
            writer.write(Batch(run_id=RUN_ID, attempt=0, rank=rank, first_seq=1, events=events))
            writer.close()
        figures = {"memory before MiB": _memory_mib()}
        for name in ("first", "second"):
            started_s = time.process_time()
            report = merge_run(run_dir.base)
            figures[f"{name} merge, CPU s"] = time.process_time() - started_s
            figures[f"{name} merge, memory at most MiB"] = _memory_mib()
            if (report.steps, report.completed) != (steps, 0):
                raise RuntimeError(f"the merged run is not whole: {report}")
        return figures


def _memory_mib() -> float:
    """The highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("live")
    command.add_argument("--ranks", type=int, default=1024)
    command.add_argument("--seconds", type=int, default=60)
    command.add_argument("--slow", action="store_true", help="1 ms more for each operation on a file")
    command.set_defaults(run=lambda given: live(given.ranks, given.seconds, slow=given.slow))
    command = commands.add_parser("status")
    command.add_argument("--ranks", type=int, default=1024)
    command.add_argument("--calls", type=int, default=10)
    command.set_defaults(run=lambda given: status(given.ranks, given.calls))
    command = commands.add_parser("merge")
    command.add_argument("--ranks", type=int, default=1024)
    command.add_argument("--steps", type=int, default=10_000)
    command.add_argument("--tags", type=int, default=1, help=f"scalars a step, at most {len(TAGS)}")
    command.set_defaults(run=lambda given: merge(given.ranks, given.steps, given.tags))
    command = commands.add_parser("join")
    command.add_argument("--ranks", type=int, default=1024)
    command.add_argument("--how", choices=PARTS, default="local")
    command.add_argument("--slow", action="store_true", help="10 ms more for each operation on a file")
    command.set_defaults(run=lambda given: join(given.ranks, given.how, slow=given.slow))
    command = commands.add_parser("ships")
    command.add_argument("--hosts", type=int, default=250)
    command.add_argument("--ranks", type=int, default=8, help="of each host")
    command.set_defaults(run=lambda given: ships(given.hosts, given.ranks))
    command = commands.add_parser("shared")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--steps", type=int, default=2000)
    command.set_defaults(run=lambda given: shared(given.rounds, given.steps))
    given = parser.parse_args()
    for name, figure in given.run(given).items():
        print(f"{name:32} {figure:12.4f}")


if __name__ == "__main__":
    main()
