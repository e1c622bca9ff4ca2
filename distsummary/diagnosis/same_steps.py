"""SameSteps: numbers the steps of all ranks alike, by their place in the epoch, so that they can be compared.

Ranks count their steps by themselves. Where one ends an epoch after fewer steps than another, as loaders of
different lengths and `DDP.join` have it, step n is not the same update on both from the next epoch on. An
epoch of all begins after the longest one before it; what ranks record of it is held until then.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.measured_steps import counted_in
from distsummary.format.own_tags import CHECK_TAGS, EPOCH, PERF_TAGS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = tuple[Sequence[str], Ints, Ints, Ints, Floats]  # tags; which of them, ranks, steps, values (N,)

# A rank that has recorded nothing for SILENT steps is not waited for, nor one whose epoch is LONGER times as
# long as any before, nor any while so many scalars are held.
SILENT, LONGER, MOST_HELD = 128, 8, 1 << 21
_NEVER = int(np.iinfo(np.int64).max)


class _Epochs:
    """The epochs of a rank: their first steps, by its own count, and their numbers. Both rise."""

    def __init__(self) -> None:
        self.firsts, self.numbers = [0], [0]

    def begin(self, step: int, number: int) -> None:
        """Add one; a loop that counts from 1 again, as a second training in a process may, continues here."""
        self.firsts.append(step)
        self.numbers.append(max(number, self.numbers[-1] + 1))


class SameSteps:
    """Aligns what the ranks of one attempt record, in windows of rising steps.

    Attributes:
        since: the first step that has another number on a rank; 0: none has.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, _Epochs] = {}
        self._starts = {0: 0}  # number of an epoch -> its first step, as all count
        self._newest = np.zeros(0, np.int64)  # of each rank, by its own count
        self._is_apart = False
        self.since = 0
        self._tags: dict[str, int] = {}  # of what is held
        self._held = np.zeros((4, 0))  # which of them, ranks, own steps, values
        self._passed = 0  # the last step that was returned

    def align(self, rows: Rows, *, is_end: bool = False) -> Rows:
        """What can be compared now, with steps as all count: larger ones than before.

        Args:
            rows: scalars of some steps, by the ranks' own count, larger than those before.
            is_end: nothing follows, so that no rank is waited for.
        """
        tags, which, ranks, steps, values = rows
        more = int(ranks.max(initial=-1)) + 1 - len(self._newest)
        self._newest = np.append(self._newest, np.zeros(max(0, more), np.int64))
        np.maximum.at(self._newest, ranks, steps)
        at = np.flatnonzero(which == tags.index(EPOCH)) if EPOCH in tags else np.zeros(0, np.int64)
        before = {rank: len(epochs.firsts) - 1 for rank, epochs in self._epochs.items()}
        for rank, step, number in sorted(
            zip(ranks[at].tolist(), steps[at].tolist(), values[at].tolist(), strict=True)
        ):
            self._epochs.setdefault(rank, _Epochs()).begin(step, int(number))
        if not self._is_apart:
            begun = {
                tuple(zip(one.firsts[place:], one.numbers[place:], strict=True))
                for rank, one in self._epochs.items()
                if self._newest[rank] + SILENT >= steps.max(initial=0)
                for place in [before.get(rank, 0)]
            }
            if len(begun) < 2:
                self._starts.update((number, first) for epochs in begun for first, number in epochs)
                self._passed = int(self._newest.max(initial=0))
                return rows
            self._is_apart = True
        self._hold(rows)
        return self._due(is_end=is_end)

    def _hold(self, rows: Rows) -> None:
        """Hold what ranks are compared by."""
        tags, which, *others = rows
        is_mine = [tag.startswith((PERF_TAGS, CHECK_TAGS)) for tag in tags]
        numbers = np.array([self._tags.setdefault(tag, len(self._tags)) for tag in tags], np.int64)
        mine = np.array(is_mine, np.bool_)[which]
        new = np.stack([numbers[which[mine]], *(column[mine] for column in others)])
        self._held = np.concatenate([self._held, new], axis=1)

    def _due(self, *, is_end: bool) -> Rows:
        """What is held and can be compared now."""
        awaited = [] if is_end or self._held.shape[1] > MOST_HELD else self._awaited()
        self._begin_epochs(awaited)
        # A rank whose epoch has not begun for all has passed those before.
        reached = [int(self._as_all(rank, self._newest[rank, None])[0]) for rank in awaited]
        floor = min((step for step in reached if step < _NEVER), default=_NEVER - 1)
        ranks, own = self._held[1:3].astype(np.int64)
        steps = np.zeros(own.shape, np.int64)
        order = np.argsort(ranks, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1) if len(order) else ():
            steps[mine] = self._as_all(int(ranks[mine[0]]), own[mine])
        is_due = steps <= floor
        found = is_due & (steps > self._passed)
        which, values = self._held[0, found].astype(np.int64), self._held[3, found]
        self._held = self._held[:, ~is_due]
        self._passed = int(steps[found].max(initial=self._passed))
        return [*self._tags], which, ranks[found], steps[found], values

    def _awaited(self) -> list[int]:
        """The ranks that may still record steps of epochs which others have ended."""
        last = int(self._newest.max(initial=0))
        longest = max(one.firsts[-1] - one.firsts[-2] for one in self._epochs.values())
        return [
            rank
            for rank, one in self._epochs.items()
            if self._newest[rank] + SILENT >= last
            and self._newest[rank] - one.firsts[-1] <= LONGER * max(longest, SILENT)
        ]

    def _begin_epochs(self, awaited: Sequence[int]) -> None:
        """Begin the epochs that all awaited ranks have come to, each after the last step before it."""
        reached = min((self._epochs[rank].numbers[-1] for rank in awaited), default=_NEVER)
        for number in sorted({number for one in self._epochs.values() for number in one.numbers}):
            if number in self._starts or number > reached:
                continue
            ends, firsts = [0], []
            for rank, one in self._epochs.items():
                place = bisect_left(one.numbers, number)
                is_begun = place < len(one.numbers)
                end = one.firsts[place] - 1 if is_begun else self._newest[rank]
                ends += self._as_all(rank, np.array([end])).tolist()
                firsts += one.firsts[place : place + 1]
            self._starts[number] = max(end for end in ends if end < _NEVER) + 1
            if not self.since and {*firsts} != {self._starts[number]}:
                self.since = self._starts[number]

    def _as_all(self, rank: int, steps: Ints) -> Ints:
        """Steps of a rank, as all count; _NEVER where their epoch has not begun for all."""
        # A rank that records no epochs, as it joined later, counts as the others do.
        epochs = self._epochs.get(rank) or next(iter(self._epochs.values()))
        place = np.searchsorted(epochs.firsts, steps, "right") - 1
        starts = np.array([self._starts.get(number, _NEVER) for number in epochs.numbers])[place]
        moved: Ints = np.where(starts < _NEVER, starts - np.array(epochs.firsts)[place] + steps, _NEVER)
        return moved

    def own(self, rank: int, step: int) -> int:
        """A step of all by a rank's own count; of those that it did not make, the last one before."""
        if not self.since or rank not in self._epochs:
            return step
        epochs = self._epochs[rank]
        starts = [self._starts.get(number, _NEVER) for number in epochs.numbers]
        place = bisect_right(starts, step) - 1
        found = epochs.firsts[place] + step - starts[place]
        return min([found, *(first - 1 for first in epochs.firsts[place + 1 : place + 2])])

    def counted(self, step: int) -> int:
        """The number of a step by which it is chosen whether it is measured, see `counted_in`."""
        number = max(one for one, start in self._starts.items() if start < step or not one)
        return counted_in(number, step - self._starts[number] + 1) if number else step

    @property
    def said(self) -> str:
        """From when on steps are counted in another way than ranks do, in a sentence; empty if none are."""
        if not self.since:
            return ""
        return (
            f"From step {self.since:,} on, ranks are compared at equal places in their epochs, which have "
            "different lengths."
        )
