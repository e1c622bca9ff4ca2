"""Recognises what has been read before: events with bounded memory, and steps that a restart repeated."""

from bisect import bisect_right
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_ATTEMPTS = 4096  # attempts that are remembered at a time
_MAX_GAPS = 1 << 16  # gaps that are remembered for one attempt


class Seen:
    """Remembers which events, identified by (run id, attempt, seq), were seen.

    An attempt is one start of the run; a seq is the number of an event in it. Seqs rise, with gaps where a
    file has no event, so the highest seq and the gaps are enough. Beyond 65536 gaps the oldest gap is
    forgotten: an event that belongs there counts as seen.
    """

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[str, int], _Attempt] = OrderedDict()

    def add(self, run_id: str, attempt: int, seq: int) -> bool:
        """Note an event; returns whether it is new. An event without a seq is always new."""
        if not seq:
            return True
        known = self._attempt(run_id, attempt)
        # Nearly always the next one.
        if seq == known.last + 1:
            known.last = seq
            return True
        return known.add(seq)

    def add_all(self, run_id: str, attempt: int, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Note several events of one attempt in their order; returns which are new, bool (n,)."""
        if not seqs.any():
            return np.ones(seqs.size, np.bool_)
        steps = np.diff(seqs)
        if seqs[0] and (steps > 0).all():
            known = self._attempt(run_id, attempt)
            # Nearly always all are new, and only the gaps between them are noted one by one.
            if seqs[0] > known.last:
                known.add(int(seqs[0]))
                for place in np.flatnonzero(steps != 1).tolist():
                    known.last = int(seqs[place])
                    known.add(int(seqs[place + 1]))
                known.last = int(seqs[-1])
                return np.ones(seqs.size, np.bool_)
        return np.array([self.add(run_id, attempt, seq) for seq in seqs.tolist()], np.bool_)

    def add_range(self, run_id: str, attempt: int, first: int, last: int) -> bool:
        """Note the events from seq `first`, above 0, to `last` if all are new; else note none: False."""
        known = self._attempt(run_id, attempt)
        if first <= known.last:
            return False
        known.add(first)
        known.last = last
        return True

    def _attempt(self, run_id: str, attempt: int) -> "_Attempt":
        key = (run_id, attempt)
        known = self._attempts.get(key)
        if known is None:
            if len(self._attempts) >= _MAX_ATTEMPTS:
                self._attempts.popitem(last=False)
            known = self._attempts[key] = _Attempt()
        return known


def ends_of_attempts(attempts: NDArray[np.int64], steps: NDArray[Any]) -> dict[int, float]:
    """Attempt -> the lowest step of any later attempt, or inf; `attempts` and `steps` are (N,).

    A later attempt repeats the steps from there on: what an earlier one recorded of them does not count.
    """
    ends: dict[int, float] = {}
    end = np.inf
    for attempt in np.unique(attempts)[::-1].tolist():
        ends[attempt] = float(end)
        end = min(end, float(steps[attempts == attempt].min()))
    return dict(sorted(ends.items()))


class _Attempt:
    """The highest seq of one attempt, `last`, and the first and last missing seq of each gap below it."""

    __slots__ = ("first_missing", "last", "last_missing")

    def __init__(self) -> None:
        self.last = 0
        self.first_missing: list[int] = []
        self.last_missing: list[int] = []

    def add(self, seq: int) -> bool:
        if seq > self.last:
            if seq > self.last + 1:
                self.first_missing.append(self.last + 1)
                self.last_missing.append(seq - 1)
            self.last = seq
            if len(self.first_missing) > _MAX_GAPS:
                del self.first_missing[0], self.last_missing[0]
            return True
        # A seq below the highest one is new only if it lies in a gap, which it makes smaller or splits.
        gap = bisect_right(self.first_missing, seq) - 1
        if gap < 0 or seq > self.last_missing[gap]:
            return False
        first, last = self.first_missing[gap], self.last_missing[gap]
        rest = [(low, high) for low, high in ((first, seq - 1), (seq + 1, last)) if low <= high]
        self.first_missing[gap : gap + 1] = [low for low, _ in rest]
        self.last_missing[gap : gap + 1] = [high for _, high in rest]
        return True
