"""What makes a rank slow, for tests; it imports none of the tools that tell.

A rank takes longer in one phase by a fraction of the CPU time of its own step, which it has measured before.
"""

import gc
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
MEASURED = 40  # a rank measures the CPU time of its own step in so many steps before an episode
CALIBRATED = 120  # the step after which it measures collections of garbage
LOADER_S, LOADER_CPU_MS = 0.0005, 1.0
Episode = dict[str, Any]


def burn(ms: float) -> None:
    """Use so much CPU time of this thread."""
    end = time.thread_time() + 1e-3 * ms
    while time.thread_time() < end:
        pass


class Garbage:
    """Collections of garbage that take a chosen time: only the objects of a graph are looked through."""

    def __init__(self) -> None:
        self._graph: list[list[object]] = []
        self._sizes: dict[float, int] = {}

    def calibrate(self, own_ms: float, excesses: Iterable[float]) -> None:
        """Find how many objects take each fraction of `own_ms`."""
        gc.freeze()
        for excess in excesses:
            ms = excess * own_ms
            size = 5_000
            for _ in range(6):
                self._graph = [[] for _ in range(size)]
                size = max(10, round(size * min(4.0, max(0.25, ms / self._collected_ms()))))
            self._sizes[excess] = size
        self._graph = []

    def dose(self, excess: float) -> None:
        """Let a collection take that fraction from now on; 0: as long as it takes."""
        self._graph = []
        gc.freeze()
        self._graph = [[] for _ in range(self._sizes.get(excess, 0))]

    def _collected_ms(self) -> float:
        took = []
        for _ in range(7):
            began = time.thread_time()
            gc.collect()
            took.append(1e3 * (time.thread_time() - began))
        return statistics.median(took)


class BusyNeighbour:
    """A busy process on one core, which is stopped until it is needed."""

    def __init__(self, core: int) -> None:
        code = f"import os, signal; os.sched_setaffinity(0, {{{core}}}); os.kill(os.getpid(), signal.SIGSTOP)"
        self._process = subprocess.Popen([sys.executable, "-c", f"{code}\nwhile True: pass"])

    def run(self) -> None:
        """Let it run."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Let it wait."""
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Injector:
    """Makes this rank slow when an episode says so; `at(phase)` is called in each phase of each step."""

    def __init__(self, episodes: Sequence[Episode], rank: int) -> None:
        self._mine = [episode for episode in episodes if episode["rank"] == rank]
        self._now: Episode | None = None
        self._ms = 0.0
        self._step, self._cpu_s = 0, 0.0
        self._steps_ms = deque[float](maxlen=MEASURED)
        self.own_ms: list[float] = []  # before each episode of this rank
        causes = {episode["cause"] for episode in episodes}
        self._garbage = Garbage() if "python" in causes else None
        self._neighbour = None
        if "host" in causes:
            core = sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]
            os.sched_setaffinity(0, {core})
            if any(episode["cause"] == "host" for episode in self._mine):
                self._neighbour = BusyNeighbour(core)

    def begin(self, step: int) -> None:
        """A step begins."""
        now_s = time.thread_time()
        if self._now is None and self._step:
            self._steps_ms.append(1e3 * (now_s - self._cpu_s))
        if self._step == CALIBRATED and self._garbage is not None:
            own_ms = statistics.median(self._steps_ms)
            self._garbage.calibrate(own_ms, {e["excess"] for e in self._mine})
        self._step, self._cpu_s = step, time.thread_time()
        before, self._now = self._now, None
        for episode in self._mine:
            if episode["start"] <= step < episode["end"]:
                self._now = episode
        if self._now is before:
            return
        if self._now is not None:
            self.own_ms.append(statistics.median(self._steps_ms))
            self._ms = self._now["excess"] * self.own_ms[-1]
        if self._garbage is not None and "python" in [e["cause"] for e in (before, self._now) if e]:
            self._garbage.dose(0.0 if self._now is None else self._now["excess"])
        if self._neighbour is not None:
            is_host = self._now is not None and self._now["cause"] == "host"
            (self._neighbour.run if is_host else self._neighbour.stop)()

    def at(self, phase: str) -> None:
        """Take longer, if this phase of this step is to."""
        due_ms = self.due_ms(phase)
        if self._now is not None and self._now.get("is_blocked"):
            time.sleep(1e-3 * due_ms)
        else:
            burn(due_ms)
        if self._now is not None and self._now["cause"] == "python" and self._now["place"] == phase:
            gc.collect()

    def due_ms(self, cause: str) -> float:
        """By how much CPU time this step is to take longer because of `cause`."""
        return self._ms if self._now is not None and self._now["cause"] == cause else 0.0

    def close(self) -> None:
        """End the neighbour, let the garbage collector look at everything again."""
        if self._neighbour is not None:
            self._neighbour.close()
        if self._garbage is not None:
            gc.unfreeze()


def network(injector: Injector, model: str, width: int) -> nn.Module:
    """A network of four or eight layers; after the first or the third, forward and backward take longer."""

    class Tap(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            injector.at("backward")
            return gradient

    def tapped(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        injector.at("forward")
        result: Tensor = Tap.apply(output)  # type: ignore[no-untyped-call]
        return result

    torch.manual_seed(0)
    layers = [nn.Linear(64, width), *(nn.Linear(width, width) for _ in range(6 if model == "tp" else 2))]
    net = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())), nn.Linear(width, 10))
    net[5 if model == "tp" else 1].register_forward_hook(tapped)  # collectives follow in both directions
    if model == "ddp":
        return DistributedDataParallel(net)
    if model == "tp":
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
        styles = (ColwiseParallel(), RowwiseParallel())
        return parallelize_module(net, mesh, {str(2 * layer): styles[layer % 2] for layer in range(8)})
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for module in net:
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def slow_adam(injector: Injector, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of that network."""

    class Optimizer(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            injector.at("optimizer")
            return super().step(closure)

    return Optimizer(model.parameters())


def batches(injector: Injector, steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of so many steps; each begins a step."""
    x, y = torch.randn(size, 64), torch.randint(0, 10, (size,))
    for step in range(1, steps + 1):
        injector.begin(step)
        time.sleep(LOADER_S)
        burn(LOADER_CPU_MS)
        injector.at("data")
        yield x + 0, y
