"""What landscapes cost on a GPU: `python -m benchmarks.landscape_gpu`. Prints one JSON line each of

- "engines": for each (task, engine), in turns, {"task", "engine", "ms_per_point", "points_per_s",
  "max_rel_err", "limit_fraction", "setup_s", "peak_mb"}; medians of the rounds, by the wall clock. The error
  is against a float64 loop on the host at 5 x 5 points, the fraction that of the float32 peak (no TF32) of a
  product of 4,096 x 4,096, by the FLOP of the unmodified forward. `auto` is what the planner chooses.
- "map": `ds.landscape` of a task, 51 x 51 points as in Li et al. 2018, with planning: {"task", "engine",
  "seconds", "points"}.
- "transformer": a GPT of a billion parameters, float32: {"what", "parameters", "s_per_point", "peak_mb",
  "to_forward"}; "forward" is the model once (logits), "inference" and "row" three points of a random plane.

Memory is what torch's allocator held at its peak, of an engine beyond what those before it hold; 0 on the
host, where `--device cpu` tries all this out.
Example: `python -m benchmarks.landscape_gpu --parts engines --tasks mlp1797,resnet20n32 --engines row,auto`.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inference import SHAPES, Gpt, Shape, loss_fn, row_of
from benchmarks.landscape_peers import Ours
from benchmarks.landscape_tasks import LARGE, SIZE, TASKS, Problem, exact_losses, flops_per_point, write_task
from distsummary.landscapes.generator import landscape
from distsummary.landscapes.request import Compute, Plane

PARTS = ("engines", "map", "transformer")
ENGINES = "naive,row,graph,graph+cuda_graph,graph+x26,graph+x51,graph+compile,auto"
BILLION = SHAPES["billion"]
TOKENS = 256
PROBED = 4096  # rows of the product that the peak is measured with


def ready(device: str) -> float:
    """The time, once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(device: str, work: Callable[[], Any]) -> float:
    """What a call takes."""
    start = ready(device)
    work()
    return ready(device) - start


def peak_mb(device: str, before: float = 0.0) -> float:
    """The most that torch has held on the device since the last call, beyond what it held before."""
    if device != "cuda":
        return 0.0
    found = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return round(found - before, 1)


def held_mb(device: str) -> float:
    """What torch holds on the device now; from here on its peak counts."""
    peak_mb(device)
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else 0.0


def tflops(device: str) -> float:
    """The float32 peak: of matrix products, the best of ten."""
    a, b = torch.randn(2, PROBED, PROBED, device=device)
    best = min(seconds(device, lambda: a @ b) for _ in range(10))
    return 2 * PROBED**3 / best / 1e12


def engines(task: str, path: Path, names: list[str], rounds: int, device: str) -> Iterator[dict[str, Any]]:
    """The engines of a task, in turns."""
    problem = Problem(path)
    opened: dict[str, Ours] = {}
    facts: dict[str, dict[str, Any]] = {}
    times: dict[str, list[float]] = {}
    row = np.linspace(-1.0, 1.0, SIZE)
    limit_s = flops_per_point(problem) / tflops(device) / 1e12  # first: it loads CUDA, which is no engine's
    for name in names:
        before = held_mb(device)  # by the engines opened so far
        start = ready(device)
        try:
            ours = Ours(str(path), "" if name == "auto" else name, device)
            checked = ours.check()
        except Exception as error:  # a table has a hole where an engine cannot
            yield {"task": task, "engine": name, "absent": f"{type(error).__name__}: {error}"}
            continue
        exact = exact_losses(problem, [tuple(point) for point in checked["points"]])
        ours.run(1, SIZE)
        facts[name] = {
            "engine": f"{name}: {ours.engine}",
            "max_rel_err": float(f"{np.max(np.abs(checked['losses'] / exact - 1)):.2e}"),
            "setup_s": round(ready(device) - start, 2),
            "peak_mb": peak_mb(device, before),
        }
        opened[name], times[name] = ours, []
    for _ in range(rounds):
        for name in random.sample(list(opened), len(opened)):
            inner = opened[name].inner
            times[name].append(seconds(device, lambda inner=inner: inner.row_values(0.3, row)) / SIZE)  # type: ignore[misc]
    for name, ours in opened.items():
        ours.inner.close()
        point_s = statistics.median(times[name])
        yield {
            "task": task,
            **facts[name],
            "ms_per_point": round(1e3 * point_s, 5),
            "points_per_s": round(1 / point_s, 1),
            "limit_fraction": round(limit_s / point_s, 3),
        }


def whole_map(task: str, path: Path, device: str) -> dict[str, Any]:
    """The landscape as a user asks for it."""
    model, batch = Problem(path).torch_parts()
    model.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    start = ready(device)
    grid: Any = landscape(
        model, criterion, [batch], plane=Plane(size=SIZE), compute=Compute(workers=0), progress=False
    )
    took = ready(device) - start
    return {
        "task": task,
        "engine": grid.engine,
        "seconds": round(took, 2),
        "points": int(grid.computed.sum()),
    }


def transformer(shape: Shape, device: str) -> Iterator[dict[str, Any]]:
    """A point of a large model next to its forward pass."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Gpt(shape).eval()
        tokens = torch.randint(0, shape.words, (1, TOKENS))
    batch, forward_mb = (tokens, tokens.roll(-1, 1)), 0.0
    work: dict[str, Callable[[], Any]] = {
        "forward": torch.inference_mode()(lambda: model(tokens)),
        "loss": torch.inference_mode()(lambda: loss_fn(model, batch)),
        "inference": lambda: row_of(model, batch, "inference", Path()),
        "row": lambda: row_of(model, batch, "row", Path()),
    }
    for what, call in work.items():
        if what in ("forward", "loss"):
            call()  # warm: libraries take memory and time the first time
        peak_mb(device)
        took = seconds(device, call)
        peak = peak_mb(device)
        forward_mb = forward_mb or peak
        yield {
            "task": "transformer",
            "what": what,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "s_per_point": round(took / (1 if what in ("forward", "loss") else 3), 4),
            "peak_mb": peak,
            "to_forward": round(peak / forward_mb, 3) if forward_mb else None,
        }


def main() -> None:
    """Parse the command line, measure, print."""
    tasks = TASKS | LARGE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tasks", default=",".join(tasks), help=f"of {', '.join(tasks)}")
    parser.add_argument("--maps", default=",".join(LARGE), help="tasks that are mapped whole")
    parser.add_argument("--engines", default=ENGINES, help="such as graph+x17+channels_last, or auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=BILLION.layers, help="of the transformer")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:

        def written(names: str) -> Iterator[tuple[str, Path]]:
            return ((name, write_task(name, Path(directory))) for name in names.split(","))

        if "engines" in asked.parts:
            for task, path in written(asked.tasks):
                for row in engines(task, path, asked.engines.split(","), asked.rounds, asked.device):
                    print(json.dumps(row), flush=True)
        if "map" in asked.parts:
            for task, path in written(asked.maps):
                print(json.dumps(whole_map(task, path, asked.device)), flush=True)
    if "transformer" in asked.parts:
        for row in transformer(BILLION._replace(layers=asked.layers), asked.device):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
