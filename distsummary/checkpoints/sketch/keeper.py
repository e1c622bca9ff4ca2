"""Takes and saves sketches of a model while it is trained, in at most a hundredth of the training's time."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean
from typing import Protocol

import numpy as np

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher
from distsummary.checkpoints.sketch.parts import SketchedPart
from distsummary.checkpoints.sketch.sketch_file import SketchWriter
from distsummary.frameworks.base import Framework, Pending
from distsummary.frameworks.numpy import HostCopy

SHARE = 0.008  # share of a step's time for sketches; with the background thread's work, about 0.01
ROWS = 16  # sketches written at a time: one megabyte
FIRST_STRIDE = 8  # steps from one sketch to the next, until the times of a step and of a sketch are known
LOWERED = 0.8  # the stride is halved if the cost then stays below this share of the allowed cost
_STEPS, _COSTS = 32, 8  # steps and sketches whose times are averaged


class Sketching(Protocol):
    """Takes sketches of the parameters that it was created for; of torch tensors, `torch_sketch` does."""

    def take(self) -> Pending:
        """Start a sketch of the current values without waiting for a device; later changes have no effect.

        `result()` gives floats of shape (BUCKETS,).
        """


class NumpySketching:
    """Sketches arrays in memory, in one pass over each."""

    def __init__(self, parts: Iterable[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)

    def take(self) -> HostCopy:
        """See Sketching."""
        total = np.zeros(BUCKETS)
        for part in self._parts:
            flat = np.asarray(part.tensor).reshape(-1)
            for start, run in part.runs:
                self._sketcher.add(total, part.name, flat[run], start)
        return HostCopy(total)


def open_sketching(framework: Framework, parts: Iterable[SketchedPart], seed: int = 0) -> Sketching:
    """The Sketching for tensors of this framework; every `take` iterates over `parts` again."""
    if framework.name == "torch":
        # Imported only here, because it imports torch.
        from distsummary.checkpoints.sketch.torch_sketch import TorchSketching

        return TorchSketching(parts, seed)
    return NumpySketching(parts, seed)


class SketchInterval:
    """Decides that every n-th step gets a sketch; n is the least power of two that keeps to SHARE.

    n is a power of two because ranks sketch their parts of a model without communicating: the steps that
    the slowest rank sketches are then a subset of the steps that any other rank sketches.

    Args:
        every: a fixed n, whatever the sketches cost; 0 means that n is chosen from the measured costs.

    The first step always gets a sketch: an attempt replaces earlier attempts only from its first sketch on.
    """

    def __init__(self, every: int = 0) -> None:
        self._every = every
        self._has_begun = False
        self.stride = every or FIRST_STRIDE
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._costs: deque[float] = deque(maxlen=_COSTS)
        self._is_warm = False

    def is_due(self, number: int) -> bool:
        """Whether step `number` (counted from 1) gets a sketch."""
        is_first, self._has_begun = not self._has_begun, True
        return is_first or (number - 1) % self.stride == 0

    def learn(self, step_s: float | None, cost_s: float | None) -> None:
        """Note the seconds of a step without its sketch, and of its sketch alone; None if not measured."""
        if step_s is not None:
            self._steps.append(step_s)
        if cost_s is None:
            return
        if self._is_warm:
            self._costs.append(cost_s)
        # The first sketch also creates tables and threads, so its cost has not been counted.
        self._is_warm = True
        if self._every or not self._steps or not self._costs:
            return
        cost, allowed = fmean(self._costs), SHARE * max(fmean(self._steps), 1e-9)
        # The limits for a longer and a shorter stride differ, so that it does not change back and forth.
        while cost > self.stride * allowed:
            self.stride *= 2
        while self.stride > 1 and cost < LOWERED * (self.stride // 2) * allowed:
            self.stride //= 2


class SketchKeeper:
    """Takes sketches when they are due and passes them to a background thread, ROWS at a time.

    Args:
        sketching: takes the sketches. writer: writes them.
        submit: runs a job in the background; see `Background.submit`.
        every: see `SketchInterval`.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        sketching: Sketching,
        writer: SketchWriter,
        submit: Callable[..., None],
        *,
        every: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sketching, self._writer, self._submit = sketching, writer, submit
        self._pace = SketchInterval(every)
        self._clock = clock
        self._ended_at: float | None = None
        self._rows: list[tuple[int, Pending]] = []
        self._has_file = False

    def end_step(self, number: int) -> None:
        """Sketch the parameters as they are after step `number`, if a sketch is due."""
        start = self._clock()
        step_s = None if self._ended_at is None else start - self._ended_at
        cost_s = None
        if self._pace.is_due(number):
            self._rows.append((number, self._sketching.take()))
            # The first sketch is written at once: with it, this attempt replaces the earlier ones.
            if len(self._rows) >= ROWS or not self._has_file:
                self.flush()
            cost_s = self._clock() - start
        self._pace.learn(step_s, cost_s)
        self._ended_at = self._clock()

    def skip_step(self, number: int) -> bool:
        """Skip step `number`, whose parameters have changed since; returns whether a sketch was due."""
        self._ended_at = None
        return not self._has_file or (number - 1) % self._pace.stride == 0

    def flush(self) -> None:
        """Submit the sketches that were taken since the last flush."""
        rows, self._rows = self._rows, []
        if rows:
            self._has_file = True
            job = partial(self._writer.write, rows)
            self._submit("sketches", job, nbytes=len(rows) * BUCKETS * 8)
