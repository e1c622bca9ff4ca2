"""Unevenness: how long ranks wait for each other as their steps have different lengths, without a culprit."""

from collections import Counter

import numpy as np

from distsummary.diagnosis.cost import StepTimes
from distsummary.diagnosis.sentence import seconds
from distsummary.diagnosis.verdict import UNEVEN, Verdict

# It is said if it took SHARE of the time, of at least LEAST_S and LEAST_STEPS, and if no rank was the longest
# in more than MOST of that: one that is may be found as slow.
SHARE, LEAST_S, LEAST_STEPS, MOST = 0.15, 10.0, 100, 0.75


class Unevenness:
    """Adds up, step by step, how long the ranks of an attempt waited for the longest one.

    Attributes:
        wall_s: how long all steps took so far.
    """

    def __init__(self) -> None:
        self._first = self._last = self._steps = 0
        self._lost_s = self.wall_s = 0.0
        self._of_ranks: Counter[int] = Counter()  # milliseconds that each was the longest for

    def add(self, times: StepTimes) -> None:
        """Look at a step, larger than those before."""
        if len(times.ranks) < 2:
            return
        self._first, self._last = self._first or times.step, times.step
        self._steps += 1
        longest = int(np.argmax(times.own_ms))
        shorter = times.own_ms[longest] - times.own_ms
        lost_ms = float(np.minimum(shorter, times.wait_ms).mean()) * times.every
        self._of_ranks[int(times.ranks[longest])] += round(lost_ms)
        self._lost_s += 1e-3 * lost_ms
        self.wall_s += 1e-3 * float((times.own_ms + times.wait_ms).max()) * times.every

    def verdict(self, explained_s: float) -> Verdict | None:
        """What is said of it; None if it is little, or if slow ranks explain most of it (`explained_s`)."""
        total = sum(self._of_ranks.values())
        if self.wall_s < LEAST_S or self._steps < LEAST_STEPS or not total:
            return None
        [(_, most)] = self._of_ranks.most_common(1)
        if self._lost_s < max(SHARE * self.wall_s, 2 * explained_s) or most > MOST * total:
            return None
        shares = ", ".join(f"rank {one} {ms / total:.0%}" for one, ms in self._of_ranks.most_common(4))
        return Verdict(
            rank=min(self._of_ranks),
            cause=UNEVEN,
            since_step=self._first,
            until_step=None,
            evidence=(
                f"{seconds(self._lost_s)} of {seconds(self.wall_s)} they waited for the longest, in turns "
                f"({shares} of that); group batches by length, or share out the work evenly"
            ),
            reported_step=self._last,
            lost_s=self._lost_s,
            ranks=tuple(sorted(self._of_ranks)) if len(self._of_ranks) > 1 else (),
        )
