"""What the page of a large run costs: `python -m benchmarks.report --ranks 1000 --steps 100000 --tags 5`.

Prints one JSON line: {"ranks", "steps", "tags", "files", "wall_s", "cpu_s", "peak_mib", "megabytes"}: seconds
and largest memory of the process that makes the page, from its start, and the size of the file. Every rank
has other values. By default the run's event files have their indexes, of which rank 0's is made from a real
event file, and the other ranks' are written as it is, beside event files that have its size and hold nothing:
a reader of an index does not open them. With --files there are real event files, and no index.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.read_runs import write


def write_indexed(path: Path, ranks: int, steps: int, tags: int) -> None:
    """A run of which there are indexes, and of rank 0 also the events."""
    from distsummary.reading.contents import Given, Series, scan
    from distsummary.reading.index import write_index
    from distsummary.reading.segments import segments
    from distsummary.run_dir import RunDir

    write(path, 1, steps, tags, of=ranks)
    [real] = segments(RunDir(path).writer_dir("train", 0, ranks), "mindspore")
    part = scan(real)
    write_index(real, part)
    for rank in range(1, ranks):
        directory = RunDir(path).writer_dir("train", rank, ranks)
        directory.mkdir(parents=True)
        empty = directory / real.name
        with open(empty, "wb") as file:
            file.truncate(part.end)
        draw = np.random.default_rng(rank)
        scalars = {
            tag: Series(series.events, Given(draw.normal(size=steps).astype(np.float32)))
            for tag, series in part.scalars.items()
        }
        if not write_index(empty, replace(part, scalars=scalars)):
            raise RuntimeError(f"no index of {empty} was written: is the disk full?")


def make_page(path: Path, out: Path) -> None:
    """Make the page and print the figures."""
    from distsummary.view.report import report

    began, cpu = time.perf_counter(), time.process_time()
    report(path, out=out)
    figures = {
        "wall_s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "megabytes": round(out.stat().st_size / 1e6, 2),
    }
    print(json.dumps(figures))


def main() -> None:
    """Parse the command line, write the run, make the page in a new process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--tags", type=int, default=5, help="scalars of a step")
    parser.add_argument("--files", action="store_true", help="event files without indexes")
    parser.add_argument("--directory", help="where the run is written (default: the temporary directory)")
    parser.add_argument("--page", nargs=2, metavar=("RUN", "OUT"), type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.page:
        make_page(*asked.page)
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as directory:
        path = Path(directory, "run")
        (write if asked.files else write_indexed)(path, asked.ranks, asked.steps, asked.tags)
        command = [sys.executable, "-m", "benchmarks.report", "--page", path, Path(directory, "page.html")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts = {key: getattr(asked, key) for key in ("ranks", "steps", "tags", "files")}
    print(json.dumps(facts | json.loads(done.stdout)))


if __name__ == "__main__":
    main()
