"""What reading scalars costs, ours and the peers', in turns on the same machine: `python -m benchmarks.read`.

Prints one JSON line for each peer and kind of file, the median over the repetitions: {"peer", "file",
"cpu_s", "mb_per_s", "events", "reps"} (events: values); with --table also a table in Markdown. CPU is that of
the peer's process with all threads, from opening the file to the last value. Every peer checks the CRCs and
adds up steps and values; the run fails unless the sums are the same. Example: `python -m benchmarks.read
--peers ours,tensorboard --megabytes 100 --reps 3`.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

RUN = "0123456789abcdef"
TAGS = 4  # of the file with several scalars a step
BATCH = 1000  # events
PIECE = 1 << 20  # bytes after which the size of a growing file is asked


class Sums(NamedTuple):
    """What a peer read: how many values, the sum of their steps and of the values."""

    events: int
    steps: int
    total: float


def _sums(rows: Iterable[tuple[int, float]]) -> Sums:
    count = steps = 0
    total = 0.0
    for step, value in rows:
        count += 1
        steps += step
        total += value
    return Sums(count, steps, total)


# --- the peers: each reads the values of all scalars of a file


def ours(path: str) -> Sums:
    """`read_values`, one value after the other."""
    from distsummary.events.reader import read_values

    return _sums((value.step, value.value) for value in read_values(path))


def ours_columns(path: str) -> Sums:
    """`scan`, all values of a tag as arrays: what `open_run` reads with."""
    from distsummary.events.contents import scan

    part = scan(Path(path))
    steps, found = part.events["step"].load(), part.scalars.values()
    return Sums(
        sum(series.events.size for series in found),
        sum(int(steps[series.events.load()].sum()) for series in found),
        sum(float(series.values.load().sum(dtype=float)) for series in found),
    )


def tensorboard(path: str) -> Sums:
    """`EventFileLoader`, one event after the other: what TensorBoard's Python backend reads with."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return _sums(
        (event.step, value.tensor.float_val[0])
        for event in EventFileLoader(path).Load()
        for value in event.summary.value
    )


def accumulator(path: str) -> Sums:
    """`EventAccumulator`, what scripts read runs with; its loader converts nothing, it keeps all scalars."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(path, size_guidance={"scalars": 0})
    found.Reload()
    return _sums((event.step, event.value) for tag in found.Tags()["scalars"] for event in found.Scalars(tag))


PEERS: dict[str, Callable[[str], Sums]] = {
    "ours": ours,
    "ours_columns": ours_columns,
    "tensorboard": tensorboard,
    "accumulator": accumulator,
}


# --- the files, of about as many bytes as asked


def write_ours(directory: Path, size_bytes: int, tags: int = 1) -> None:
    """One or several scalars a step, as `SummaryRecord` writes them in TensorBoard's dialect."""
    from distsummary.events.spec import WriterSpec
    from distsummary.events.writer import RankWriter
    from distsummary.format.records import Batch, Event, Value

    names = ["loss", *(f"train/metric_{number}" for number in range(1, tags))]
    writer = RankWriter(WriterSpec(directory=directory, run_id=RUN, formats=("tensorboard",)))
    first = 1
    while _size(directory) < size_bytes:
        events = [
            Event(step, 1.7e9 + step / 8, [Value("scalar", name, math.sin(step)) for name in names])
            for step in range(first, first + BATCH)
        ]
        writer.write(Batch(run_id=RUN, attempt=0, rank=0, first_seq=first, events=events))
        first += BATCH
    writer.close()


def write_ours_several(directory: Path, size_bytes: int) -> None:
    """Several scalars in each event."""
    write_ours(directory, size_bytes, TAGS)


def write_torch(directory: Path, size_bytes: int) -> None:
    """torch's SummaryWriter, one scalar in each event."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory), max_queue=BATCH) as writer:
        step = 0
        while _size(directory) < size_bytes:
            for _ in range(BATCH):
                writer.add_scalar("loss", math.sin(step), step)
                step += 1


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


FILES: dict[str, Callable[[Path, int], None]] = {
    "ours": write_ours,
    "ours_several": write_ours_several,
    "torch": write_torch,
}


# --- measuring


class Worker:
    """A way of reading, in a process of its own: `python -m MODULE --serve WAY`."""

    def __init__(self, module: str, way: str) -> None:
        self.way = way
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, "--serve", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, path: Path) -> dict[str, Any]:
        """CPU seconds and sums of one reading."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.way} ended; see stderr")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(read: Callable[[str], dict[str, Any]]) -> None:
    """Read the paths that stdin names, one a line, and answer each with the CPU seconds and the sums."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    for line in sys.stdin:
        cpu = time.process_time()
        found = read(line.rstrip("\n"))
        print(json.dumps({"cpu_s": time.process_time() - cpu, **found}), file=answers, flush=True)


def compare(workers: list[Worker], file: str, path: Path, reps: int) -> list[dict[str, Any]]:
    """Medians of the repetitions, the peers in turns, in another order each time."""
    runs: dict[str, list[dict[str, Any]]] = {worker.way: [] for worker in workers}
    for _ in range(reps):
        for worker in random.sample(workers, len(workers)):
            runs[worker.way].append(worker.read(path))
    first = next(iter(runs.values()))[0]
    for peer, rows in runs.items():
        for row in rows:
            same = all(row[key] == first[key] for key in ("events", "steps"))
            if not same or not math.isclose(row["total"], first["total"], rel_tol=1e-9, abs_tol=1e-6):
                raise RuntimeError(f"{peer} reads other values in {path}: {row}, not {first}")
    megabytes = path.stat().st_size / 1e6
    return [_medians(peer, file, megabytes, rows) for peer, rows in runs.items()]


def _medians(peer: str, file: str, megabytes: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    cpu_s = statistics.median(row["cpu_s"] for row in rows)
    figures = {"cpu_s": round(cpu_s, 3), "mb_per_s": round(megabytes / cpu_s, 2)}
    return {"peer": peer, "file": file, **figures, "events": rows[0]["events"], "reps": len(rows)}


def table(rows: list[dict[str, Any]]) -> str:
    """CPU of each peer, and how many times ours it is, a row for each file."""
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    found = {(row["peer"], row["file"]): row["cpu_s"] for row in rows}
    lines = ["| CPU of reading | " + " | ".join(peers) + " |", "|---" * (len(peers) + 1) + "|"]
    for file in dict.fromkeys(row["file"] for row in rows):
        cells = [
            f"{found[peer, file]:.3g} s ({found[peer, file] / found[peers[0], file]:.3g}x)" for peer in peers
        ]
        lines.append(f"| {file} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measure(asked: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Write the files, read a small one first (which imports), then measure."""
    rows = []
    workers = [Worker("benchmarks.read", peer) for peer in asked.peers.split(",")]
    try:
        for file in asked.files.split(","):
            paths = []
            for name, size_bytes in (("small", 10**5), ("large", int(asked.megabytes * 10**6))):
                target = directory / file / name
                target.mkdir(parents=True)
                FILES[file](target, size_bytes)
                paths += (path for path in target.iterdir() if path.suffix != ".idx")
            for worker in workers:
                worker.read(paths[0])
            for row in compare(workers, file, paths[1], asked.reps):
                print(json.dumps(row), flush=True)
                rows.append(row)
    finally:
        for worker in workers:
            worker.close()
    return rows


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", default="ours,ours_columns,tensorboard,accumulator", help=f"of {', '.join(PEERS)}"
    )
    parser.add_argument("--files", default="ours,torch", help=f"of {', '.join(FILES)}")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--directory", help="where the files are written (default: the temporary directory)")
    parser.add_argument("--table", action="store_true", help="print a Markdown table at the end")
    parser.add_argument("--serve", metavar="PEER", choices=PEERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(lambda path: PEERS[asked.serve](path)._asdict())
        return
    unknown = {*asked.peers.split(",")} - PEERS.keys() | {*asked.files.split(",")} - FILES.keys()
    if unknown or asked.reps < 1 or asked.megabytes <= 0:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}" if unknown else "--reps and --megabytes must be above 0"
        )
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as directory:
        rows = measure(asked, Path(directory))
    if asked.table:
        print(table(rows))


if __name__ == "__main__":
    main()
