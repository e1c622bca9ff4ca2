"""Stalls: finds the rank that takes much longer than its peers at a few steps, such as to open a file."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.slow import PHASES, SKIPPED, Slow, reference_of

Floats = NDArray[np.float64]

# Stalls are counted in so many steps; after so many without one they are over.
WINDOW = 320
# In a stall a phase takes at least so many milliseconds longer than on the peers, longer by a whole step of
# theirs, and FACTOR times as long: where all begin an epoch, one of them is always the last. Stalls of steps
# in a row are one: a host that pauses for a moment is no alarm, however long it pauses.
LEAST_MS, FACTOR = 10.0, 2.0
# A rank is reported after FEWEST stalls in a phase, and OTHERS more for each that its peers had in all phases
# (their median), over SPAN steps, if they took at least SHARE of the time and LEAST_MS_A_STEP. Of the phases
# that compute, MORE are needed: where batches differ, some take a rank three times as long. But FEWEST are
# enough that take longer by LONG whole steps, as no batch does. `SlowRanks` finds a rank before that stalls
# at every third step.
FEWEST, MORE, OTHERS, SPAN, LONG = 5, 10, 3, 100, 5.0
COMPUTING = ("forward", "backward", "optimizer", "rest")
SHARE, LEAST_MS_A_STEP = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class _Stall:
    number: int  # of the step, among those that were judged
    step: int
    own_ms: float
    peers_ms: float


class Stalls:
    """Judges the steps of ranks that are each other's peers, one after the other, as `SlowRanks` does."""

    def __init__(self) -> None:
        self._seen = 0
        self._steps_ms: deque[float] = deque(maxlen=WINDOW)  # of the peers' own
        self._stalls: dict[tuple[int, str], deque[_Stall]] = {}  # of a rank in a phase
        self._last: dict[tuple[int, str], int] = {}  # the step of the last one
        self._open: dict[tuple[int, str], Slow] = {}  # what was reported and is not over

    def add(
        self, step: int, ranks: NDArray[np.int64], own: Floats, *, slow: Collection[int], is_busy: bool
    ) -> list[Slow]:
        """Judge a step; returns what begins or ends with it.

        Args:
            step: larger than in the calls before.
            ranks: all peers (W,).
            own: the milliseconds of their own in each of PHASES (W, P); a row of NaN for a rank that did not
                report this step.
            slow: the ranks that are slow at each step, whose stalls are not looked for.
            is_busy: the ranks wait so long for processors that nothing begins with this step.
        """
        present = ~np.isnan(own[:, 0])
        if present.sum() < 2:
            return []
        self._seen += 1
        if self._seen <= SKIPPED:
            return []
        reference = reference_of(own[present])
        self._steps_ms.append(float(np.median(own[present].sum(axis=1))))
        # What a rank stalled before it was found to be slow at each step is part of that.
        for key in [key for key in self._stalls if key[0] in slow and key not in self._open]:
            del self._stalls[key]
        own = np.where(present[:, None], own, 0.0)
        least_ms = max(float(np.median(self._steps_ms)), LEAST_MS)
        found = np.argwhere((own >= reference + least_ms) & (own >= FACTOR * reference))
        begun = []
        for index, phase in found.tolist():
            key = int(ranks[index]), PHASES[phase]
            if key[0] not in slow:
                self._count(key, _Stall(self._seen, step, float(own[index, phase]), float(reference[phase])))
                if key not in self._open and not is_busy and self._is_certain(key, ranks):
                    begun.append(self._begin(key))
        return [*self._ended(), *begun]

    def _count(self, key: tuple[int, str], stall: _Stall) -> None:
        self._last[key] = stall.step
        stalls = self._stalls.setdefault(key, deque())
        if stalls and stalls[-1].number == stall.number - 1:
            stalls[-1] = replace(stalls[-1], number=stall.number)
        else:
            stalls.append(stall)

    def _recent(self, key: tuple[int, str]) -> deque[_Stall]:
        stalls = self._stalls.get(key, deque())
        while stalls and stalls[0].number <= self._seen - WINDOW:
            stalls.popleft()
        return stalls

    def _is_certain(self, key: tuple[int, str], ranks: NDArray[np.int64]) -> bool:
        stalls = self._recent(key)
        steps = self._seen - stalls[0].number + 1
        count = len(stalls)
        # Of the phases that compute, only stalls that no batch explains count in full, see LONG and MORE.
        if key[1] in COMPUTING:
            least_ms = LONG * float(np.median(self._steps_ms))
            long = sum(stall.own_ms - stall.peers_ms >= least_ms for stall in stalls)
            count = max(long, count - (MORE - FEWEST))
        if count < FEWEST or steps < SPAN:
            return False
        others = {rank: 0 for rank in ranks.tolist() if rank != key[0]}
        for rank, phase in self._stalls:
            if rank in others:
                others[rank] += len(self._recent((rank, phase)))
        if count < FEWEST + OTHERS * float(np.median([*others.values()])):
            return False
        lost_ms = sum(stall.own_ms - stall.peers_ms for stall in stalls)
        return lost_ms >= max(SHARE * sum([*self._steps_ms][-steps:]), LEAST_MS_A_STEP * steps)

    def _begin(self, key: tuple[int, str]) -> Slow:
        stalls, (rank, phase) = self._stalls[key], key
        found = self._open[key] = Slow(
            rank=rank,
            phase=phase,
            since=stalls[0].step,
            reported=stalls[-1].step,
            excess=SHARE,
            own_ms=float(np.mean([stall.own_ms for stall in stalls])),
            peers_ms=float(np.mean([stall.peers_ms for stall in stalls])),
            peers_step_ms=float(np.median(self._steps_ms)),
            when=f"in {len(stalls)} of {self._seen - stalls[0].number + 1} steps",
        )
        return found

    def _ended(self) -> list[Slow]:
        over = [key for key in self._open if not self._recent(key)]
        return [replace(self._open.pop(key), until=self._last[key]) for key in over]
