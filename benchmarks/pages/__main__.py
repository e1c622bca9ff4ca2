"""What the page of a large run costs: `python -m benchmarks.pages --ranks 1000 --steps 100000 --tags 5`.

Prints one JSON line: {"ranks", "steps", "tags", "files", "wall_s", "cpu_s", "peak_mib", "megabytes"}: seconds
and largest memory of the process that makes the page, from its start, and the size of the file. The ranks
write their event files, whose indexes the writers leave; --files removes these. 1,000 ranks x 100,000 steps
x 5 tags take 18 GB of disk (--directory) and some minutes to write.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.read.runs import TAG, write

TIMES = [f"zz_perf/{name}_ms" for name in ("own", "step", "wait", "data_wait")]


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
        # As the ranks of a run: their times first, which are compared, and no files of TensorBoard.
        names = [TAG, *TIMES, *(f"train/metric_{number}" for number in range(asked.tags))][: asked.tags]
        write(path, asked.ranks, asked.steps, names, formats=("mindspore",))
        for index in path.rglob("*.idx") if asked.files else ():
            index.unlink()
        os.sync()  # else the page is made while gigabytes are being written
        command = [sys.executable, "-m", "benchmarks.pages", "--page", path, Path(directory, "page.html")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    facts = {key: getattr(asked, key) for key in ("ranks", "steps", "tags", "files")}
    print(json.dumps(facts | json.loads(done.stdout)))


if __name__ == "__main__":
    main()
