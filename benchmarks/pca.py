"""What the plane of a trajectory costs, ours and an SVD's, in turns in one process.

`python -m benchmarks.pca` prints one JSON line per method: {"task": "pca", "method", "n", "parameters",
"cpu_s", "ratio", "sigma_rel_err", "reps"}, CPU seconds of all threads, median, `ratio` how many times less
than the float64 SVD. "gram" is the Gram matrix and its eigenvalues, "plane" also the two directions. With
--memory one more line: the anonymous memory of a process that builds the plane of mapped checkpoints and
locates the path in it, {"task": "memory", "n", "parameters", "anon_mb", "file_mb", "cpu_s"}.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.landscapes.directions.pca import gram, locate, pca_axes, pca_plane

MB = 1e6


def random_walk(n: int, size: int) -> Any:
    """Float32 (n, size): weights of size 1 that moved by a hundredth in all, as checkpoints do."""
    rng = np.random.default_rng(0)
    walk = (rng.normal(size=(n, size)).astype(np.float32) * (0.01 / n**0.5)).cumsum(axis=0)
    return walk + rng.normal(size=size).astype(np.float32)


def compare(n: int, size: int, reps: int) -> list[dict[str, Any]]:
    """The methods in turns, `reps` times after a warm-up."""
    rows = random_walk(n, size)
    states = [{"w": row} for row in rows]
    methods: dict[str, Callable[[], Any]] = {
        "svd-float64": lambda: np.linalg.svd(rows.astype(np.float64) - rows[-1], full_matrices=False)[1],
        "svd-float32": lambda: np.linalg.svd(rows - rows[-1], full_matrices=False)[1],
        "gram": lambda: pca_axes(gram(states, ["w"])).singular_values,
        "plane": lambda: pca_plane(states, ["w"]).singular_values,
    }
    took: dict[str, list[float]] = {name: [] for name in methods}
    sigma: dict[str, Any] = {}
    for turn in range(reps + 1):
        for name, method in methods.items():
            start = time.process_time()
            sigma[name] = np.asarray(method(), np.float64)[:2]
            if turn:
                took[name].append(time.process_time() - start)
    exact, reference = sigma["svd-float64"], statistics.median(took["svd-float64"])
    return [
        {
            "task": "pca",
            "method": name,
            "n": n,
            "parameters": size,
            "cpu_s": round(statistics.median(times), 4),
            "ratio": round(reference / statistics.median(times), 2),
            "sigma_rel_err": float(np.max(np.abs(sigma[name] / exact - 1))),
            "reps": reps,
        }
        for name, times in took.items()
    ]


def memory(n: int, size: int, directory: str) -> dict[str, Any]:
    """Write n checkpoints of a model of `size` parameters, and have another process draw their plane."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=size).astype(np.float32)
    for k in range(n):
        weights += 0.001 * rng.standard_normal(size, dtype=np.float32)
        write_ckpt(Path(directory) / f"{k}.ckpt", {"w": weights.reshape(-1, 1000)})
    child = [sys.executable, "-m", "benchmarks.pca", "--child", directory, "--n", str(n)]
    reported = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    return {"task": "memory", "n": n, "parameters": size, **reported}


def child(directory: str, n: int) -> dict[str, Any]:
    """The plane of `n` mapped checkpoints; the most anonymous memory this process had meanwhile."""
    states = [map_ckpt(Path(directory) / f"{k}.ckpt") for k in range(n)]
    watch = _Watch()
    start = time.process_time()
    plane = pca_plane(states, ["w"])
    path = locate(states, ["w"], plane.directions)
    took = time.process_time() - start
    watch.end()
    assert np.isfinite(path.points).all()
    return {"anon_mb": round(watch.anon / MB), "file_mb": round(watch.file / MB), "cpu_s": round(took, 2)}


class _Watch:
    """The largest RssAnon and RssFile of this process, looked at every 2 ms."""

    def __init__(self) -> None:
        self.anon = self.file = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self._look()

    def _look(self) -> None:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        anon, file = (int(lines[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile"))
        self.anon, self.file = max(self.anon, anon), max(self.file, file)

    def end(self) -> None:
        """Look once more and stop."""
        self._ended.set()
        self._thread.join()
        self._look()


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=40, help="checkpoints")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="that of 10 checkpoints of 2e7 parameters")
    parser.add_argument("--directory", help="where its checkpoints are written (800 MB)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(child(asked.child, asked.n)))
        return
    for row in compare(asked.n, asked.parameters, asked.reps):
        print(json.dumps(row), flush=True)
    if asked.memory:
        with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
            print(json.dumps(memory(10, 20_000_000, directory)))


if __name__ == "__main__":
    main()
