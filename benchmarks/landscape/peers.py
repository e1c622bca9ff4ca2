"""The peers of the landscape benchmark: one class each, run as `peers.py PEER THREADS`.

A worker process reads one request a line ({"task": path, "rows", "columns"} or {"task": path, "check": path})
and answers with its figures. Each peer is timed in its own loop over the points, with one batch that is
ready: no loader, no plots, no files.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # other interpreters do not know the package

PLANNED_POINTS = 1_000_000  # that the choice of the engine is made for: timing and compiling must pay
CHECKED = 5  # points along each side of the grid whose losses are compared with the float64 loop


def axis(count: int) -> np.ndarray:
    """Coordinates of a grid's side, (count,)."""
    return np.linspace(-1.0, 1.0, count)


class Plain:
    """A peer that takes directions and coordinates: `prepare`, then `at(x, y) -> loss` for every point."""

    engine = ""

    def __init__(self, path: str) -> None:
        from tasks import Problem

        self.problem = Problem(path)
        self.model, self.batch = self.problem.torch_parts()
        self.axes = self.problem.torch_axes()
        self.prepare()

    def prepare(self) -> None:
        """Whatever is needed once."""

    def at(self, x: float, y: float) -> float:
        """The loss of a point."""
        raise NotImplementedError

    def run(self, rows: int, columns: int) -> np.ndarray:
        """Losses (rows, columns)."""
        return np.array([[self.at(float(x), float(y)) for x in axis(columns)] for y in axis(rows)])

    def check(self) -> dict[str, np.ndarray]:
        """Losses, and the points they are said to be of."""
        points = [(x, y) for y in axis(CHECKED) for x in axis(CHECKED)]
        return {"losses": self.run(CHECKED, CHECKED).reshape(-1), "points": np.array(points)}


class Naive(Plain):
    """The loop that everybody writes: each parameter again at every point, in place."""

    engine = "naive"

    def prepare(self) -> None:
        """Keep the centre."""
        self.centre = [p.detach().clone() for p in self.model.parameters()]

    def at(self, x: float, y: float) -> float:
        """See Plain."""
        import torch

        with torch.no_grad():
            for p, c, u, v in zip(self.model.parameters(), self.centre, *self.axes, strict=True):
                p.copy_(c).add_(u, alpha=x).add_(v, alpha=y)
            return float(torch.nn.functional.cross_entropy(self.model(self.batch[0]), self.batch[1]).item())


class Losscape(Plain):
    """losscape 1.5: the body of its `create_3D_losscape`."""

    engine = "losscape"

    def prepare(self) -> None:
        """Its loader is a list of one batch."""
        from losscape.compute_loss import compute_loss
        from losscape.create_landscape import _set_weights

        self.compute_loss, self.set_weights = compute_loss, _set_weights
        self.centre = [p.data for p in self.model.parameters()]

    def at(self, x: float, y: float) -> float:
        """See Plain."""
        self.set_weights(self.model, self.centre, self.axes, np.array([x, y]))
        return float(self.compute_loss(self.model, [self.batch], None, None, 1))


class Ours:
    """distsummary: the engine that the planner chooses, or the one named in `ours:ENGINE+xCHUNK+OPTION`."""

    def __init__(self, path: str, engine: str = "", device: str = "cpu") -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        import torch
        from tasks import SIZE, Problem

        from distsummary.landscapes.directions.planes import PlanePlan
        from distsummary.landscapes.directions.recipe import Directions
        from distsummary.landscapes.engines.engine import Task
        from distsummary.landscapes.engines.open_engine import open_engine
        from distsummary.landscapes.engines.timing import choose_engine

        problem = Problem(path)
        model, batch = problem.torch_parts()
        loss_fn, directions = torch.nn.CrossEntropyLoss(), Directions(x=problem.x, y=problem.y)
        plane = PlanePlan(
            states=[problem.state], names=problem.names, recipe=directions,
            x=axis(SIZE), y=axis(SIZE), points=np.zeros((1, 2)),
        )  # fmt: skip
        task = Task(model=model, loss_fn=loss_fn, batches=[batch], planes=[plane])
        if engine:
            choice = named_choice(engine)
        else:
            choice = choose_engine(task, device=device, points=PLANNED_POINTS).choice
        self.inner = open_engine(replace(task, choice=choice), device)
        self.inner.set_plane(problem.state, directions)
        self.engine = self.inner.name

    def run(self, rows: int, columns: int) -> np.ndarray:
        """Losses (rows, columns)."""
        return np.array([self.inner.row_values(float(y), axis(columns))[:, 0] for y in axis(rows)])

    check = Plain.check


def named_choice(text: str) -> Any:
    """The engine of `graph+x17+channels_last`."""
    from distsummary.landscapes.engines.engine_choice import EngineChoice

    name, *rest = text.split("+")
    chunk = next((int(word[1:]) for word in rest if word[1:].isdigit()), 1)
    options = tuple(word for word in rest if not word[1:].isdigit())
    return EngineChoice(engine=name, chunk=chunk, options=options)


PEERS: dict[str, Callable[[str], Any]] = {
    "ours": Ours,
    "naive": Naive,
    "losscape": Losscape,
}


def open_peer(name: str, path: str) -> Any:
    """The peer, ready for the task; `ours:row` is ours with the engine `row`."""
    peer, _, engine = name.partition(":")
    return Ours(path, engine) if peer == "ours" else PEERS[peer](path)


def cpu_s() -> float:
    """CPU seconds of this process, all threads, and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(peer: Any, rows: int, columns: int) -> dict[str, Any]:
    """Seconds, CPU and wall, of a grid of rows x columns."""
    cpu, wall = cpu_s(), time.perf_counter()
    losses = peer.run(rows, columns)
    return {"cpu_s": cpu_s() - cpu, "wall_s": time.perf_counter() - wall, "points": int(losses.size)}


def sgemm_gflops() -> float:
    """Matrix products of 1024 x 1024 float32: 1e9 operations a CPU second, the best of five."""
    import torch

    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 0.0
    for _ in range(5):
        start = time.process_time()
        for _ in range(4):
            torch.mm(a, b)
        best = max(best, 4 * 2 * 1024**3 / (time.process_time() - start) / 1e9)
    return best


def serve(name: str, requests: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests for one peer; what it cannot do is {"absent": why}."""
    made: dict[str, Any] = {}
    for line in requests:
        asked = json.loads(line)
        path = asked["task"]
        try:
            if asked.get("probe"):
                answer({"gflops": sgemm_gflops()})
                continue
            if path not in made:
                made.clear()
                start = cpu_s()
                made[path] = open_peer(name, path)
                made["prepare_s"] = cpu_s() - start
            peer = made[path]
            if "check" in asked:
                np.savez(asked["check"], **peer.check())
                answer({"engine": peer.engine, "prepare_s": made["prepare_s"]})
            else:
                answer(measure(peer, asked["rows"], asked["columns"]))
        except Exception as error:  # whatever a peer raises is its result, the others continue
            answer({"absent": f"{type(error).__name__}: {error}"[:300]})


def main() -> None:
    """Serve one peer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints goes to stderr
    name, threads = sys.argv[1], int(sys.argv[2])
    import torch

    torch.set_num_threads(threads)

    def answer(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    serve(name, iter(sys.stdin), answer)


if __name__ == "__main__":
    main()
