"""Which events have been read already, in bounded memory."""

from bisect import bisect_right
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

_MAX_OWNERS = 4096  # attempts that are remembered at a time
_MAX_GAPS = 1 << 16  # of an attempt


class Seen:
    """The events that came, by (run id, attempt, seq).

    The seqs of an attempt rise, with gaps where a file has nothing of an event; so the highest one and the
    gaps tell all. Beyond 65536 gaps the oldest is forgotten, and what comes to fill it then counts as seen.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[tuple[str, int], _Owner] = OrderedDict()

    def add(self, run_id: str, attempt: int, seq: int) -> bool:
        """Note the event; whether it is new. One without a seq always is."""
        if not seq:
            return True
        owner = self._owner(run_id, attempt)
        if seq == owner.last + 1:  # nearly always
            owner.last = seq
            return True
        return owner.add(seq)

    def add_all(self, run_id: str, attempt: int, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Note several events of an attempt, one after the other; which of them are new, bool (n,)."""
        if not seqs.any():
            return np.ones(seqs.size, np.bool_)
        if seqs[0] and (np.diff(seqs) == 1).all():
            owner = self._owner(run_id, attempt)
            if seqs[0] > owner.last:  # nearly always
                owner.add(int(seqs[0]))
                owner.last = int(seqs[-1])
                return np.ones(seqs.size, np.bool_)
        return np.array([self.add(run_id, attempt, seq) for seq in seqs.tolist()], np.bool_)

    def _owner(self, run_id: str, attempt: int) -> "_Owner":
        key = (run_id, attempt)
        owner = self._owners.get(key)
        if owner is None:
            if len(self._owners) >= _MAX_OWNERS:
                self._owners.popitem(last=False)
            owner = self._owners[key] = _Owner()
        return owner


class _Owner:
    """One attempt: `last` is its highest seq, the gaps below it are disjoint and rise, both ends included."""

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
        gap = bisect_right(self.first_missing, seq) - 1
        if gap < 0 or seq > self.last_missing[gap]:
            return False
        self._fill(gap, seq)
        return True

    def _fill(self, gap: int, seq: int) -> None:
        first, last = self.first_missing[gap], self.last_missing[gap]
        rest = [(low, high) for low, high in ((first, seq - 1), (seq + 1, last)) if low <= high]
        self.first_missing[gap : gap + 1] = [low for low, _ in rest]
        self.last_missing[gap : gap + 1] = [high for _, high in rest]
