"""Keeps sketches of a training's parameters step by step, for at most a hundredth of its time."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Protocol

from distsummary.checkpoints.sketch.count_sketch import BUCKETS
from distsummary.checkpoints.sketch.sketch_file import Pending, SketchWriter
from distsummary.checkpoints.sketch.sketching import Sketching

SHARE = 0.008  # of the time between two steps; what the background thread does makes it a hundredth
ROWS = 16  # sketches that are written at a time: one megabyte
FIRST_STRIDE = 8  # until it is known what a step and a sketch take
LOWERED = 0.8  # of what is allowed: below, steps come closer together again
_STEPS, _COSTS = 32, 8  # steps and sketches whose times are looked at


class Submit(Protocol):
    """`Background.submit`."""

    def __call__(self, name: str, job: Callable[[], object], *, nbytes: int = 0) -> None:
        """Have `job()` run."""


class Pace:
    """Which steps are worth a sketch: every n-th, n the least power of two that keeps within `share`.

    Powers of two, because the parts of a model are sketched by ranks that do not ask each other: the steps of
    the slowest one are then steps of all.

    Args:
        every: a number n is kept to, whatever it costs; 0 lets the costs decide.

    The first step gets one, too: from there on an attempt takes the place of those before it.
    """

    def __init__(self, every: int = 0, share: float = SHARE) -> None:
        self._every, self._share = every, share
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
        """Take in how long a step took without its sketch, and what a sketch cost; None: not known."""
        if step_s is not None:
            self._steps.append(step_s)
        if cost_s is None:
            return
        if self._is_warm:
            self._costs.append(cost_s)
        self._is_warm = True  # the first one made tables and threads
        if self._every or not self._steps or not self._costs:
            return
        cost, allowed = fmean(self._costs), self._share * max(fmean(self._steps), 1e-9)
        while cost > self.stride * allowed:
            self.stride *= 2
        while self.stride > 1 and cost < LOWERED * (self.stride // 2) * allowed:
            self.stride //= 2


class SketchKeeper:
    """Takes the sketches that are due and hands them to a background thread, many at a time.

    Args:
        sketching, writer: where sketches come from, and where they go to.
        submit: has a job run in the background.
        every: see `Pace`.
        clock: seconds.
    """

    def __init__(
        self,
        sketching: Sketching,
        writer: SketchWriter,
        submit: Submit,
        *,
        every: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sketching, self._writer, self._submit = sketching, writer, submit
        self._pace = Pace(every)
        self._clock = clock
        self._ended_at: float | None = None
        self._rows: list[tuple[int, Pending]] = []
        self._has_file = False

    def end_step(self, number: int) -> None:
        """Sketch the parameters as step `number` left them, if that is due."""
        start = self._clock()
        step_s = None if self._ended_at is None else start - self._ended_at
        cost_s = None
        if self._pace.is_due(number):
            self._rows.append((number, self._sketching.take()))
            if len(self._rows) >= ROWS or not self._has_file:  # a file, and be it for a killed attempt
                self.flush()
            cost_s = self._clock() - start
        self._pace.learn(step_s, cost_s)
        self._ended_at = self._clock()

    def flush(self) -> None:
        """Have what was taken written."""
        rows, self._rows = self._rows, []
        if rows:
            self._has_file = True
            job = partial(self._writer.write, rows)
            self._submit("sketches", job, nbytes=len(rows) * BUCKETS * 8)
