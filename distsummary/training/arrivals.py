"""Arrivals: how late a rank begins its collective operations in each phase, compared with its other ones.

Where a thread waits for other ranks within the phases in which it computes, as with a model that is split
over ranks, the time that it is blocked there is the same on all ranks. The rank that holds them up is the one
that begins its collectives later. torch's flight recorder tells when each one was begun. Clocks of hosts
differ, so that the times of a phase are compared with the mean of those of the step's other phases.
"""

import time
from collections import deque
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from distsummary.format.records import PHASE_TAGS
from distsummary.training.affordable import affordable_every

Floats = NDArray[np.float64]
ARRIVALS = f"{PHASE_TAGS}arrivals"  # the number of collectives of which the times below are means
FIRST = 64  # the step at which the recorder is read first
KEPT = 256  # steps whose phases are remembered; the recorder holds 2,000 collectives by default
SHARE = 0.01  # of the training's time, what reading the recorder may cost
READING_S = 18e-6  # it takes so long for each collective; not measured, so that ranks choose the same steps
MAX_EVERY = 1 << 12


def arrival_tag(phase: str) -> str:
    """The tag of how much later than those of other phases a phase's collectives were begun: a sum, in ms."""
    return f"{PHASE_TAGS}{phase}/arrival_ms"


class Arrivals:
    """Reads the flight recorder at some of the steps; all times are seconds of `wall`.

    Args:
        begun_at: returns when the collectives that the recorder still has were begun, in seconds since the
            epoch, oldest first.
        phases: name -> the phase that its collectives are counted for; those of other phases are left out.
        wall: the clock of the phases. epoch: the clock of the recorder.

    Attributes:
        shared: the phases in which this rank begins collectives, so that it may wait there for others; None
            until it is known.
    """

    def __init__(
        self,
        begun_at: Callable[[], Floats],
        phases: dict[str, str],
        wall: Callable[[], float] = time.perf_counter,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self.shared: Collection[str] | None = None
        self._begun_at, self._phases, self._wall = begun_at, phases, wall
        self._epoch = epoch
        self._names = list(dict.fromkeys(phases.values()))
        self._marks: list[tuple[float, str]] = []  # of this step: where a phase begins
        self._steps: deque[list[tuple[float, str]]] = deque(maxlen=KEPT)
        self._every = FIRST

    def begin(self, phase: str, wall_s: float) -> None:
        """A step that is marked begins."""
        self._marks = [(wall_s, phase)]

    def enter(self, phase: str, wall_s: float) -> None:
        """A phase begins."""
        self._marks.append((wall_s, phase))

    def end_step(self, step: int, then: str, wall_s: float) -> dict[str, float]:
        """A step ends, and `then` begins. Returns, by tag, what the recorder says, if it is read now."""
        self._steps.append([*self._marks, (wall_s, "")])
        self.begin(then, wall_s)
        if step % self._every:
            return {}
        begun_s = self._begun_at()
        steps_s = [marks[-1][0] - marks[0][0] for marks in self._steps]
        cost_s = READING_S * len(begun_s)
        self._every = affordable_every(cost_s, float(np.median(steps_s)), SHARE, highest=MAX_EVERY)
        return self._of_phases(begun_s - (self._epoch() - self._wall())) if len(begun_s) else {}

    def _of_phases(self, begun_s: Floats) -> dict[str, float]:
        oldest_s = float(begun_s[0])
        # Ranks are compared over the same steps: the newest ones that the recorder holds, a power of two.
        held = sum(marks[0][0] >= oldest_s for marks in self._steps)
        if not held:
            return {}
        steps = list(self._steps)[-(1 << held.bit_length() - 1) :]
        edges = [(at_s, phase, number) for number, marks in enumerate(steps) for at_s, phase in marks]
        edges_s = np.array([at_s for at_s, _, _ in edges])
        columns = np.array(
            [self._names.index(self._phases[p]) if p in self._phases else -1 for _, p, _ in edges]
        )
        places = np.searchsorted(edges_s, begun_s, side="right") - 1
        is_mine = (places >= 0) & (columns[places] >= 0)
        begun_s, places = begun_s[is_mine], places[is_mine]
        cells = np.array([number for _, _, number in edges])[places], columns[places]
        # What delayed the first collective of a phase before the phase began is not the phase's: what counts
        # of that one is the time from there, in which the rank waited for nobody.
        is_first = np.diff(places, prepend=-1) > 0
        shape = len(steps), len(self._names)
        elapsed_s, sums_s, counts = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        np.add.at(elapsed_s, cells, np.where(is_first, begun_s - edges_s[places], 0.0))
        np.add.at(sums_s, cells, np.where(is_first, 0.0, begun_s - oldest_s))
        np.add.at(counts, cells, ~is_first)
        others_s, others = (x.sum(axis=1, keepdims=True) - x for x in (sums_s, counts))
        late_s = np.where(others > 0, sums_s - counts * others_s / np.maximum(others, 1), 0.0)
        told_ms = dict(zip(self._names, 1e3 * (elapsed_s + late_s).mean(axis=0), strict=True))
        self.shared = [name for column, name in enumerate(self._names) if column in cells[1]]
        found = {arrival_tag(name): float(told_ms[name]) for name in self.shared}
        return found | {ARRIVALS: float(len(begun_s))} if found else {}
