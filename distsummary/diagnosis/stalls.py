"""Stalls: finds the rank that takes much longer than its peers at a few steps, such as to open a file."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.slow import PHASES, SKIPPED, Slow, median, references_of

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
# Stalls also count by time, such as those of a rank that evaluates now and then: RARE ones, each longer than
# GREAT steps and GREAT_MS, are enough if they took SHARE of the wall clock. REMEMBERED ones are, however long
# ago. Where steps are short, the workers of a loader may take as long as GREAT steps to start. Few of these
# steps are measured, so that SPAN counts all of them here.
RARE, GREAT, GREAT_MS, REMEMBERED = 2, 50.0, 300.0, 16
# A rank is blocked at a single step by itself, and not by a busy host, if it was in the run queue for less
# than QUIET of that time: so the host is quiet, or the phase was blocked for LONG steps.
QUIET = 0.25


class StepSpent(NamedTuple):
    """Milliseconds that W ranks spent at a step in each of PHASES (W, P); NaN for a rank that reported none.

    `own`: by themselves, where blocked time of computing is that which is usual. `at_once`: with what blocked
    them at this step. `queued`: in the run queue. `wall_ms`: how long the step took. `is_quiet`: whether the
    ranks have hardly waited for a processor lately.
    """

    own: Floats
    at_once: Floats
    queued: Floats
    wall_ms: float
    is_quiet: bool


@dataclass(frozen=True, slots=True)
class _Stall:
    number: int  # of the step, among those that were judged
    step: int
    own_ms: float
    peers_ms: float
    before_ms: float  # the wall clock until then

    @property
    def lost_ms(self) -> float:
        return self.own_ms - self.peers_ms


class Stalls:
    """Judges the steps of ranks that are each other's peers, one after the other, as `SlowRanks` does."""

    def __init__(self) -> None:
        self._seen, self._wall_ms = 0, 0.0
        self._first = 0  # the first step that counts
        self._steps_ms: deque[float] = deque(maxlen=WINDOW)  # of the peers' own
        self._sorted_ms: list[float] = []  # the same
        self._stalls: dict[tuple[int, str], deque[_Stall]] = {}  # of a rank in a phase
        self._great: dict[tuple[int, str], deque[_Stall]] = {}  # of these, the long ones
        self._last: dict[tuple[int, str], int] = {}  # the step of the last one
        self._open: dict[tuple[int, str], Slow] = {}  # what was reported and is not over
        self._of_open: dict[tuple[int, str], list[_Stall]] = {}  # all stalls of these
        self._slow_until: dict[int, int] = {}  # up to which of the steps a rank was slow at each

    def add(
        self,
        step: int,
        ranks: NDArray[np.int64],
        spent: StepSpent,
        *,
        slow: Collection[int],
        is_busy: bool,
    ) -> list[Slow]:
        """Judge a step; returns what begins or ends with it.

        Args:
            step: larger than in the calls before.
            ranks: all peers (W,).
            spent: what they did.
            slow: the ranks that are slow at each step: their stalls are compared with, but not reported.
            is_busy: the ranks wait so long for processors that only those stalls count that the host did not
                cause.
        """
        present = ~np.isnan(spent.own[:, 0])
        if present.sum() < 2:
            return []
        self._seen += 1
        if self._seen <= SKIPPED:
            return []
        self._first = self._first or step
        self._note(float(median(spent.own[present].sum(axis=1), 0)))
        step_ms = self._step_ms
        own, reference, is_sure = self._at_this_step(spent, present, step_ms)
        # What a rank stalled before it was found to be slow at each step is part of that.
        self._slow_until |= dict.fromkeys(slow, self._seen)
        found = np.argwhere((own >= reference + max(step_ms, LEAST_MS)) & (own >= FACTOR * reference))
        begun = []
        for index, phase in found.tolist():
            if is_busy and not is_sure[index, phase]:
                continue
            key = int(ranks[index]), PHASES[phase]
            took, peers = float(own[index, phase]), float(reference[index, phase])
            stall = _Stall(self._seen, step, took, peers, self._wall_ms)
            self._count(key, stall, is_great=stall.lost_ms >= max(GREAT * step_ms, GREAT_MS))
            if key[0] not in slow and key not in self._open:
                stalls = self._certain(key, ranks, self._wall_ms + spent.wall_ms)
                begun += [self._begin(key, stalls)] if stalls else []
        self._wall_ms += spent.wall_ms
        return [*self._ended(), *begun]

    def _note(self, own_ms: float) -> None:
        """Note how long the peers worked by themselves at a step."""
        if len(self._steps_ms) == WINDOW:
            del self._sorted_ms[bisect_left(self._sorted_ms, self._steps_ms[0])]
        self._steps_ms.append(own_ms)
        insort(self._sorted_ms, own_ms)

    @property
    def _step_ms(self) -> float:
        """The median of these."""
        middle, ordered = len(self._sorted_ms) // 2, self._sorted_ms
        return (ordered[middle] + ordered[(len(ordered) - 1) // 2]) / 2

    @staticmethod
    def _at_this_step(
        spent: StepSpent, present: NDArray[np.bool_], step_ms: float
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """What counts of the times of each rank, and what it is compared with (W, P).

        Also whether the rank itself was blocked, on a host that is not quiet.
        """
        usual = spent.at_once if spent.is_quiet else spent.own
        own, reference = usual, references_of(usual[present], len(present))
        is_sure = np.zeros(usual.shape, np.bool_)
        if not spent.is_quiet and np.nanmax(spent.at_once - usual) >= LONG * step_ms:
            of_peers = references_of(spent.at_once[present], len(present))
            more = spent.at_once - of_peers
            is_sure = (more >= LONG * step_ms) & (spent.queued < QUIET * more)
            own = np.where(is_sure, spent.at_once, own)
            reference = np.where(is_sure, of_peers, reference)
        return np.where(present[:, None], own, 0.0), np.broadcast_to(reference, own.shape), is_sure

    def _count(self, key: tuple[int, str], stall: _Stall, *, is_great: bool) -> None:
        self._last[key] = stall.step
        stalls = self._stalls.setdefault(key, deque())
        if stalls and stalls[-1].number == stall.number - 1:
            stalls[-1] = replace(stalls[-1], number=stall.number)
            return
        stalls.append(stall)
        if key in self._open:
            self._of_open[key].append(stall)
        if is_great:
            self._great.setdefault(key, deque(maxlen=REMEMBERED)).append(stall)

    def _recent(self, key: tuple[int, str]) -> deque[_Stall]:
        stalls = self._stalls.get(key, deque())
        while stalls and stalls[0].number <= self._seen - WINDOW:
            stalls.popleft()
        return stalls

    def _certain(self, key: tuple[int, str], ranks: NDArray[np.int64], wall_ms: float) -> list[_Stall]:
        """The stalls by which a rank holds up its peers, for certain; none if it is not."""
        past = self._slow_until.get(key[0], 0)
        stalls = [one for one in self._recent(key) if one.number > past]
        great = [one for one in self._great.get(key, ()) if one.number > past]
        if not stalls:
            return []
        is_often = (
            len(great) >= RARE + OTHERS * self._of_others(key, ranks, self._great)
            and stalls[-1].step - self._first >= SPAN
        )
        # All that are remembered may be far from the first step.
        begun_ms = great[0].before_ms if len(great) == REMEMBERED else 0.0
        if is_often and sum(one.lost_ms for one in great) >= SHARE * (wall_ms - begun_ms):
            return great
        steps, count = self._seen - stalls[0].number + 1, len(stalls)
        # Of the phases that compute, only stalls that no batch explains count in full, see LONG and MORE.
        if key[1] in COMPUTING:
            least_ms = LONG * self._step_ms
            count = max(sum(one.lost_ms >= least_ms for one in stalls), count - (MORE - FEWEST))
        if steps < SPAN or count < FEWEST + OTHERS * self._of_others(key, ranks, self._stalls):
            return []
        lost_ms = sum(one.lost_ms for one in stalls)
        least_ms = max(SHARE * sum([*self._steps_ms][-steps:]), LEAST_MS_A_STEP * steps)
        return stalls if lost_ms >= least_ms else []

    def _of_others(
        self,
        key: tuple[int, str],
        ranks: NDArray[np.int64],
        counted: dict[tuple[int, str], deque[_Stall]],
    ) -> float:
        """How many stalls the peers of a rank had lately: their median. Those of slow ranks count, too."""
        others = {rank: 0 for rank in ranks.tolist() if rank != key[0]}
        for rank, phase in counted:
            if rank in others:
                others[rank] += len(
                    self._recent((rank, phase)) if counted is self._stalls else counted[rank, phase]
                )
        return float(np.median([*others.values()]))

    def _begin(self, key: tuple[int, str], stalls: list[_Stall]) -> Slow:
        self._of_open[key] = stalls
        self._open[key] = Slow(
            rank=key[0],
            phase=key[1],
            since=stalls[0].step,
            reported=stalls[-1].step,
            excess=SHARE,
            own_ms=0.0,
            peers_ms=0.0,
            peers_step_ms=self._step_ms,
        )
        return self._as_of_now(key)

    def _as_of_now(self, key: tuple[int, str]) -> Slow:
        """What was reported, with the numbers of all stalls until now."""
        stalls = self._of_open[key]
        return replace(
            self._open[key],
            own_ms=float(np.mean([stall.own_ms for stall in stalls])),
            peers_ms=float(np.mean([stall.peers_ms for stall in stalls])),
            when=f"in {len(stalls)} of {self._seen - stalls[0].number + 1} steps",
        )

    @property
    def lasting(self) -> list[Slow]:
        """What was reported and is not over, with the numbers of all stalls until now."""
        return [*map(self._as_of_now, self._open)]

    def _ended(self) -> list[Slow]:
        # Those by time are over when they no longer take their share, as no new one comes.
        over = [
            key
            for key in self._open
            if not self._recent(key)
            and sum(one.lost_ms for one in self._great.get(key, ())) < SHARE * self._wall_ms
        ]
        ended = [replace(self._as_of_now(key), until=self._last[key]) for key in over]
        for key in over:
            del self._open[key], self._of_open[key]
        return ended
