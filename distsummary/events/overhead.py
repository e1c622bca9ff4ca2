"""Overhead: adds up what recording costs a training's loop, and finds out whether that is too much."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

MOST = 0.1  # of the wall clock; more is reported
WARM_UP = 20  # of the first steps, which are left out
WINDOW_S, WINDOWS = 10.0, 2  # the least of a window; so many one after the other
LEAST_STEP_S = 1e-3  # shorter steps are those of examples


class OverheadFinding(NamedTuple):
    """Recording costs too much since `step`: the evidence, and the seconds that it took since then."""

    step: int
    evidence: str
    lost_s: float


class _Mark(NamedTuple):
    time_s: float
    spent_s: float
    step: int
    values: int


class Overhead:
    """What recording costs the loop's thread: to read the model, to copy, to wait for room in the queue.

    Args:
        clock: the time in seconds.

    Attributes:
        spent_s: seconds so far; only the loop's thread adds to it, directly or by `measured`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.spent_s, self.clock = 0.0, clock
        self._first: int | None = None  # the first step that counts
        # The beginnings of the windows in which it was too much, and of this one.
        self._marks: list[_Mark] = []
        self._is_reported = False

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the time of a block, in which more may be added: that counts once."""
        before, begun_s = self.spent_s, self.clock()
        try:
            yield
        finally:
            self.spent_s = before + self.clock() - begun_s

    def look(self, step: int, values: int) -> OverheadFinding | None:
        """Look whether it is too much, once in a while and from one thread; returns what is found, once.

        Args:
            step: the newest one. values: how many were recorded so far.
        """
        now = _Mark(self.clock(), self.spent_s, step, values)
        if self._first is None:
            self._first = step + WARM_UP
        if step < self._first or self._is_reported:
            return None
        if not self._marks:
            self._marks.append(now)
        last = self._marks[-1]
        passed_s, steps = now.time_s - last.time_s, now.step - last.step
        if passed_s < WINDOW_S:
            return None
        # A window in which it was not too much, or of the tiny steps of an example, begins the count again.
        if now.spent_s - last.spent_s <= MOST * passed_s or passed_s < LEAST_STEP_S * steps:
            self._marks = [now]
            return None
        self._marks.append(now)
        if len(self._marks) <= WINDOWS:
            return None
        self._is_reported = True
        return _finding(self._marks[0], now)


def _finding(begun: _Mark, now: _Mark) -> OverheadFinding:
    steps, passed_s = max(1, now.step - begun.step), now.time_s - begun.time_s
    spent_s = min(now.spent_s - begun.spent_s, passed_s)
    share, spent_ms, step_ms = spent_s / passed_s, 1e3 * spent_s / steps, 1e3 * passed_s / steps
    # Recorded at each n-th step, it takes share / n, the rest 1 - share as before: `every` is the least n for
    # which recording takes no more than MOST of both together.
    every = math.ceil(share * (1 - MOST) / (MOST * max(1 - share, 0.01)))
    return OverheadFinding(
        begun.step,
        f"{share:.0%} of the time, {spent_ms:.3g} of {step_ms:.3g} ms a step with "
        f"{(now.values - begun.values) / steps:,.0f} values; record fewer of them, or only if "
        f"run.step % {every} == 0",
        spent_s,
    )
