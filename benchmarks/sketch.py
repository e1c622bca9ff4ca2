"""What sketches of a training cost and how true they are: `python -m benchmarks.sketch`.

Trains an MLP of 1.1 million parameters on digits and prints one JSON line per batch size:

    {"task": "sketch", "parameters", "batch", "every", "steps", "sketches", "mb", "step_ms", "sketch_ms",
     "caller_share", "cpu_share", "err_1", "err_2", "explained", "explained_exact", "pca_cpu_s"}

CPU milliseconds of a step and of a sketch in the training's own thread (medians); `caller_share` is the share
of all sketches in the thread's CPU time, `cpu_share` with what the background thread does. `err_i` is
|p - q| / |p| of the i-th PCA coordinate of the steps that are compared, p by whole checkpoints (of every
`--thin`-th step, in a temporary file) and q by sketches.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from distsummary.base.health import Health
from distsummary.checkpoints.sketch.keeper import SketchKeeper, open_sketching
from distsummary.checkpoints.sketch.parts import ModelParts
from distsummary.checkpoints.sketch.sketch_file import SketchHeader, SketchWriter, read_sketches
from distsummary.collect.background import Background
from distsummary.frameworks.base import load
from distsummary.landscapes.directions.pca import gram, pca_axes
from distsummary.landscapes.directions.sketched import sketched_path


class Timed:
    """Seconds of CPU that calls of a function took in the threads that made them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, []  # type: ignore[var-annotated]  # of floats

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Call the function."""
        start = time.thread_time()
        try:
            return self._function(*arguments, **more)
        finally:
            self.seconds.append(time.thread_time() - start)


def mlp() -> nn.Module:
    """64 - 1024 - 1024 - 10: 1,126,410 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def train(batch: int, steps: int, every: int, thin: int, directory: Path) -> dict[str, Any]:
    """One training with sketches; every thin-th step whole, in a file, to compare with."""
    model, framework, criterion = mlp(), load("torch"), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    size = sum(p.numel() for p in model.parameters())
    whole = (
        np.memmap(directory / "whole", np.float32, "w+", shape=(-(-steps // thin), size)) if thin else None
    )
    background = Background(Health())
    jobs = Timed(lambda job: job())
    writer = SketchWriter(directory, SketchHeader(run_id="benchmark"))
    sketching = open_sketching(framework, ModelParts(framework, model))
    taken = Timed(sketching.take)
    sketching.take = taken  # type: ignore[method-assign]  # only here
    keeper = SketchKeeper(
        sketching,
        writer,
        lambda name, job, nbytes=0: background.submit(name, lambda: jobs(job), nbytes=nbytes, wait_s=60),
        every=every,
    )
    kept, trained, generator = Timed(keeper.end_step), [], torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        chosen = torch.randint(0, len(x), (batch,), generator=generator)
        start = time.thread_time()
        optimizer.zero_grad()
        criterion(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        trained.append(time.thread_time() - start)
        kept(step)
        if whole is not None and (step - 1) % thin == 0:
            whole[(step - 1) // thin] = np.concatenate(
                [p.detach().numpy().reshape(-1) for p in model.parameters()]
            )
    keeper.flush()
    background.close()
    found = read_sketches(directory)
    stored = sum(path.stat().st_size for path in directory.glob("sketch_*"))
    row = {
        "task": "sketch",
        "parameters": size,
        "batch": batch,
        "every": every,
        "steps": steps,
        "sketches": len(found.steps),
        "mb": round(stored / 1e6, 2),
        "step_ms": round(statistics.median(trained) * 1e3, 3),
        "sketch_ms": round(statistics.median(taken.seconds) * 1e3, 3),
        "caller_share": round(sum(kept.seconds) / (sum(trained) + sum(kept.seconds)), 5),
        "cpu_share": round((sum(kept.seconds) + sum(jobs.seconds)) / (sum(trained) + sum(kept.seconds)), 5),
    }
    return row | (truth(found, whole, thin) if whole is not None else {})


def truth(found: Any, whole: Any, thin: int) -> dict[str, Any]:
    """How far the coordinates by sketches are from those by whole checkpoints."""
    kept = set(found.steps)
    shown = [k for k in range(len(whole)) if 1 + thin * k in kept]
    start = time.process_time()
    path = sketched_path(replace(found, steps=tuple(1 + thin * k for k in shown)))
    took = time.process_time() - start
    total = gram([{"w": whole[k]} for k in shown], ["w"])
    axes = pca_axes(total)
    exact = total.products @ axes.weights.T
    signs = np.sign(np.sum(path.points * exact, axis=0))
    errors = np.linalg.norm(path.points * signs - exact, axis=0) / np.linalg.norm(exact, axis=0)
    return {
        "compared": len(shown),
        "err_1": round(float(errors[0]), 5),
        "err_2": round(float(errors[1]), 5),
        "explained": np.round(path.explained_variance, 5).tolist(),
        "explained_exact": np.round(axes.explained_variance, 5).tolist(),
        "pca_cpu_s": round(took, 2),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="512", help="batch sizes, such as 32,128,512")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=1, help="sketch every n-th step; 0: as the costs allow")
    parser.add_argument("--thin", type=int, default=1, help="whole checkpoints to compare with; 0: none")
    parser.add_argument("--directory", help="where files are written (9 GB for 2000 steps)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for batch in map(int, asked.batches.split(",")):
        with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
            print(json.dumps(train(batch, asked.steps, asked.every, asked.thin, Path(directory))), flush=True)


if __name__ == "__main__":
    main()
