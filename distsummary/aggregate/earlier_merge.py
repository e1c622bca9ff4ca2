"""Compares a merge with the merged files that it replaces: the steps that it completes, or would lose."""

from bisect import bisect_left
from pathlib import Path

import numpy as np

from distsummary.aggregate.rank_columns import Floats, Ints, RankColumns, TagNumbers
from distsummary.events.reader import read_once
from distsummary.events.segments import segments
from distsummary.format.own_tags import RANKS_TAG
from distsummary.format.records import MINDSPORE


class EarlierMerge:
    """On how many ranks each step of the merged files stands, and what a new merge makes of it.

    `completed` counts the steps that the earlier files did not have or had of fewer ranks; it stays 0 if
    they do not say on how many ranks their steps stand, or if there are none. Needs 64 bytes a step.

    Args:
        directory: that of the merged files; all its event files are merged ones.
    """

    def __init__(self, directory: Path) -> None:
        self.completed = 0
        steps, numbers = _counts(directory)
        # A step that is there twice was begun again by a later attempt, which wrote it later.
        order = np.argsort(steps, kind="stable")
        last = np.append(np.diff(steps[order]) != 0, True)[: len(order)]
        self._steps: list[int] = steps[order[last]].tolist()
        self._ranks: list[int] = numbers[order[last]].tolist()
        self._kept = np.zeros(len(self._steps), np.bool_)

    def note(self, step: int, ranks: int) -> None:
        """Note on how many ranks a step stands in the new merge."""
        if not self._steps:
            return
        place = bisect_left(self._steps, step)
        earlier = self._ranks[place] if self._steps[place : place + 1] == [step] else 0
        self.completed += ranks > earlier
        if 0 < earlier <= ranks:
            self._kept[place] = True

    def lost(self, before: float) -> list[int]:
        """The steps below `before` that the new merge misses or has of fewer ranks, in rising order."""
        found = np.array(self._steps, np.int64)[~self._kept]
        return [step for step in found.tolist() if step < before]


def _counts(directory: Path) -> tuple[Ints, Ints]:
    """The steps and the numbers of ranks in the order of the files."""
    steps, numbers = [np.empty(0, np.int64)], [np.empty(0)]
    tags = TagNumbers()
    for _, piece in read_once(segments(directory, MINDSPORE), "skip", []):
        if (part := RankColumns.of(0, 0, [piece], tags)) is not None:
            mine = part.which == tags[RANKS_TAG]
            steps.append(part.value_steps[mine])
            numbers.append(part.values[mine])
    return np.concatenate(steps), _whole(np.concatenate(numbers))


def _whole(numbers: Floats) -> Ints:
    """As integers; 0 for what a damaged file may hold in their place."""
    return np.where(np.abs(numbers) < 2**31, numbers, 0).astype(np.int64)
