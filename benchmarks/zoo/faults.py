"""Faults: makes one rank slow in one part of a training's step, for some steps; knows nothing of distsummary.

A training says where its parts are (`place`, `collate`); without episodes, nothing but the optimizer's end is
hooked, by which each rank measures the CPU time of its own steps.
"""

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate, get_worker_info

MEASURED = 40  # steps before an episode of which the medians count
Episode = dict[str, Any]


def burn(ms: float, work: Callable[[], object] = lambda: None) -> None:
    """Use so much CPU time of this thread."""
    end = time.thread_time() + 1e-3 * ms
    while time.thread_time() < end:
        work()


class Faults:
    """Makes this rank slow when an episode says so.

    Args:
        episodes: dicts of
            "rank";
            "place": "data", "forward", "backward", "optimizer", or "python" (garbage is collected);
            "how": "work" or "sleep";
            "share": of the CPU time of a whole step of the rank's own;
            "start", "end": the first step, and the one after the last.
            With "workers" (their number), each worker of the DataLoader sleeps for so long that batches come
            later than they are needed, by that share.
        rank: of this process.

    Attributes:
        own_ms, wall_ms: of each step from the second one on, what the thread used, and how long it took.
        done: for each episode of this rank what was injected: "ms" a step, "own_ms", and "total_s".
    """

    def __init__(self, episodes: Sequence[Episode] = (), rank: int = 0) -> None:
        self._is_any = bool(episodes)
        self._mine = [episode for episode in episodes if episode["rank"] == rank]
        self._step = 1
        self._last_s: tuple[float, float] | None = None
        self._own, self._wall = deque[float](maxlen=MEASURED), deque[float](maxlen=MEASURED)
        self._now: Episode | None = None
        self._objects: list[list[object]] = []
        self._given = 0  # the newest step in which the fault has been
        # read by the workers of a loader: how long a batch takes longer, and the first one after a change
        self._worker_s = torch.zeros(2, dtype=torch.float64).share_memory_()
        self.own_ms: list[float] = []
        self.wall_ms: list[float] = []
        self.done: list[Episode] = []

    def place(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Forward and backward of this module, and this optimizer, whose step ends a step, may be slow.

        To be called before the module is wrapped or compiled. It returns a tensor.
        """
        if self._is_any:
            module.register_forward_hook(self._forward)
            optimizer.register_step_pre_hook(lambda *_: self._at("optimizer"))
        optimizer.register_step_post_hook(lambda *_: self._end_step())

    def collate(self, samples: Sequence[Any]) -> Any:
        """The collate_fn of the training's loader."""
        if get_worker_info() is None:
            self._at("data")
        else:
            seconds, first = self._worker_s.tolist()
            self._worker_s[1] = 0.0
            time.sleep(seconds + first)
        return default_collate(samples)

    @torch._dynamo.disable
    def _forward(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if torch.is_grad_enabled() and output.requires_grad:
            self._at("forward")
            self._at("python")
            output.register_hook(lambda gradient: self._at("backward"))

    def _at(self, place: str) -> None:
        """Take longer, if this part of this step is to, once."""
        now = self._now
        if now is None or now["place"] != place or now.get("workers") or self._given == self._step:
            return
        self._given = self._step
        begun_s = time.perf_counter()
        if now["how"] == "sleep":
            time.sleep(1e-3 * self.done[-1]["ms"])
        elif place == "python":
            burn(self.done[-1]["ms"], gc.collect)
        else:
            burn(self.done[-1]["ms"])
        self.done[-1]["total_s"] += time.perf_counter() - begun_s

    def _end_step(self) -> None:
        now_s = time.thread_time(), time.perf_counter()
        if self._last_s is not None:
            own, wall = (1e3 * (now - before) for now, before in zip(now_s, self._last_s, strict=True))
            self.own_ms.append(own)
            self.wall_ms.append(wall)
            if self._now is None:
                self._own.append(own)
                self._wall.append(wall)
        self._last_s = now_s
        self._step += 1
        before, self._now = self._now, None
        for episode in self._mine:
            if episode["start"] <= self._step < episode["end"]:
                self._now = episode
        if self._now is before:
            return
        self._worker_s[:] = 0.0
        gc.unfreeze()
        self._objects = []
        if self._now is None:
            return
        if self._now["place"] == "python":
            gc.freeze()  # so that a collection looks through these objects alone, which takes a millisecond
            self._objects = [[] for _ in range(20_000)]
        own = statistics.median(self._own)
        ms = self._now["share"] * own
        self.done.append({**self._now, "own_ms": own, "ms": ms, "total_s": 0.0})
        if workers := self._now.get("workers"):
            step_s = 1e-3 * statistics.median(self._wall)
            # the batches that lie ready are used up before the first late one comes
            self._worker_s[:] = torch.tensor([workers * (step_s + 1e-3 * ms), 2 * workers * step_s])
