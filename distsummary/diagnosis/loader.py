"""LoaderShare: finds out whether the ranks of a training wait for their loaders most of the time."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.cost import GROWTH, GROWTH_S
from distsummary.diagnosis.verdict import LOADER, Verdict
from distsummary.format.own_tags import DATA_WAIT_MS, LOADER_IDLE, STEP_MS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# A loader is reported when it takes more than MOST of the time of the steps in WINDOWS windows in a row, and
# no longer when it takes less than FEW. A window has at least WINDOW_STEPS steps and WINDOW_MS. The first
# WARM_UP steps are left out, and trainings whose steps are shorter than LEAST_STEP_MS, as those of examples.
MOST, FEW = 0.5, 0.4
WARM_UP = 20
WINDOW_STEPS, WINDOW_MS = 50, 5000.0
WINDOWS = 2
LEAST_STEP_MS = 1.0
# A loader whose workers are idle for less than SPARE of the time is as slow as the steps, whoever waits.
SPARE = 0.2
_COLUMNS = {DATA_WAIT_MS: 0, STEP_MS: 1, LOADER_IDLE: 2}


class LoaderShare:
    """Reports once that loaders take more than MOST of the steps' time, on half of the ranks or more.

    So it is in WINDOWS windows one after the other. The verdict ends with a window in which it is less than
    FEW. A single rank whose loader is slow is found by comparing it with its peers. Where the loaders of all
    are as slow, the rank that began last waits for its loader, and the others, who have batches in advance,
    wait for that rank.
    """

    def __init__(self) -> None:
        self._first: int | None = None  # the first step that counts
        self._since: int | None = None  # the first step of the windows in which loaders are slow
        self._windows = 0  # how many these are
        self._lost_s = self._reported_s = 0.0  # in them
        self._verdict: Verdict | None = None
        self._begin_window()

    def _begin_window(self) -> None:
        self._begun: int | None = None  # its first step
        self._steps, self._ms = 0, 0.0
        # rank -> milliseconds of its loader, of its steps, and of idle workers; at how many steps these
        self._times: dict[int, Floats] = {}

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        if DATA_WAIT_MS not in tags or STEP_MS not in tags:
            return []
        column = np.array([_COLUMNS.get(tag, -1) for tag in tags])[which]
        if self._first is None:
            self._first = int(steps.min()) + WARM_UP
        rows = np.flatnonzero((column >= 0) & (steps >= self._first))
        column, ranks, steps, values = column[rows], ranks[rows], steps[rows], values[rows]
        at, place = np.unique(steps, return_inverse=True)
        place, is_step = place.reshape(-1), column == 1
        counts = np.maximum(np.bincount(place[is_step], minlength=len(at)), 1)
        # The length of a step is the mean of its ranks.
        step_ms = np.bincount(place[is_step], values[is_step], len(at)) / counts
        # Divide the steps into windows; one that is too short stays open, and the next call continues it.
        found, start = [], 0
        while start < len(at):
            lengths, reached = (
                self._steps + np.arange(1, 1 + len(at) - start),
                self._ms + step_ms[start:].cumsum(),
            )
            ends = np.flatnonzero((lengths >= WINDOW_STEPS) & (reached >= WINDOW_MS))
            end = start + int(ends[0]) + 1 if ends.size else len(at)
            mine = (place >= start) & (place < end)
            for rank in np.unique(ranks[mine]).tolist():
                of_rank = mine & (ranks == rank)
                spent = np.append(
                    np.bincount(column[of_rank], values[of_rank], len(_COLUMNS)),
                    np.bincount(column[of_rank], minlength=len(_COLUMNS))[1:],
                )
                self._times[rank] = self._times.get(rank, np.zeros(len(spent))) + spent
            self._begun = int(at[start]) if self._begun is None else self._begun
            self._steps, self._ms = int(lengths[end - start - 1]), float(reached[end - start - 1])
            start = end
            if ends.size:
                found += self._judge(int(at[end - 1]))
                self._begin_window()
        return found

    def _judge(self, step: int) -> list[Verdict]:
        """Judge a window that ends with `step`."""
        shares, full = {}, []
        for rank, (loader_ms, all_ms, idle_ms, steps, looks) in self._times.items():
            shares[rank] = loader_ms / max(all_ms, 1e-9)
            if looks and idle_ms / looks < SPARE * all_ms / max(steps, 1):
                full.append(rank)
        shares |= dict.fromkeys(full, max(shares.values()))
        share, step_ms = median_low(shares.values()), self._ms / self._steps
        known = self._verdict
        # The verdict is given once: after its end, loaders are no longer judged.
        if known is not None and known.until_step is not None:
            return []
        is_slow = share > (FEW if known else MOST) and step_ms >= LEAST_STEP_MS
        if not is_slow:
            self._windows, self._since, self._lost_s = 0, None, 0.0
            if known is None:
                return []
            self._verdict = replace(known, until_step=(self._begun or step) - 1)
            return [self._verdict]
        self._since = self._begun if self._since is None else self._since
        self._windows += 1
        self._lost_s += 1e-3 * share * self._ms
        # A verdict that lasts is given again only when its cost has grown much.
        if known is not None:
            if self._lost_s <= max(GROWTH * self._reported_s, self._reported_s + GROWTH_S):
                return []
            self._verdict = replace(known, lost_s=self._lost_s)
        elif self._windows < WINDOWS:
            return []
        else:
            slow = tuple(sorted(rank for rank, its in shares.items() if its > MOST))
            self._verdict = Verdict(
                rank=slow[0],
                cause=LOADER,
                since_step=self._since or step,
                until_step=None,
                evidence=f"{share:.0%} of the time, {share * step_ms:.3g} of {step_ms:.3g} ms a step",
                reported_step=step,
                lost_s=self._lost_s,
                ranks=slow if len(slow) > 1 else (),
            )
        self._reported_s = self._lost_s
        return [self._verdict]
