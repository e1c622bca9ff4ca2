"""Growth: finds memory that grows and grows, by samples over minutes, hours and days."""

from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import GROWTH, Verdict
from distsummary.format.own_tags import GPU_ALLOCATED, PROCESS_PRIVATE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GROWING_TAGS = {PROCESS_PRIVATE: "memory", GPU_ALLOCATED: "memory on its GPU"}
# A window has SHORTEST to LONGEST samples, without the first WARM_UP of the training, and is looked at every
# LOOK samples. Every COARSER-th sample of a time scale is one of the next scale, which sees hours and days.
WARM_UP = 3
SHORTEST, LONGEST = 18, 36
LOOK = 6
COARSER = 4
# Memory has grown by at least LEAST_GIB, and by LEAST_SHARE of what it was or by MUCH_GIB; at least EARLY of
# that from the first third of the window to the second, and LATE from there to the last.
LEAST_GIB, MUCH_GIB, LEAST_SHARE = 0.5, 4.0, 0.5
EARLY, LATE = 0.3, 0.4


class Growth:
    """Reports once, of all ranks, the first memory that grows: see `grows`.

    Windows are the newest samples, the newest of every 4th, of every 16th and so on: what fills memory within
    minutes is found, and so is what takes days.
    """

    def __init__(self) -> None:
        self._memories: dict[tuple[str, int], _Memory] = {}
        self._is_reported = False

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars; the ranks sample at steps of their own, of which some may come late.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        for number, tag in enumerate(tags):
            if tag not in GROWING_TAGS or self._is_reported:
                continue
            rows = np.flatnonzero(which == number)
            rows = rows[np.argsort(steps[rows], kind="stable")]
            for rank, step, gib in zip(
                ranks[rows].tolist(), steps[rows].tolist(), values[rows].tolist(), strict=True
            ):
                window = self._memories.setdefault((tag, rank), _Memory()).add(step, gib)
                if window:
                    self._is_reported = True
                    return [_verdict(rank, GROWING_TAGS[tag], window)]
        return []


class _Memory:
    """The samples (step, GiB) of one rank, on scales of which each is COARSER times coarser than the last."""

    def __init__(self) -> None:
        self._count = -WARM_UP
        self._scales: list[deque[tuple[int, float]]] = []
        self._peaks: list[float] = []  # the highest sample that was in each window before

    def add(self, step: int, gib: float) -> list[tuple[int, float]]:
        """Add a sample; returns the window in which memory grows, if there is one."""
        self._count += 1
        count, scale = self._count, 0
        # The first WARM_UP samples enter no scale; every COARSER-th sample of a scale enters the next one.
        while count > 0:
            if scale == len(self._scales):
                self._scales.append(deque())
                self._peaks.append(0.0)
            window = self._scales[scale]
            window.append((step, gib))
            if len(window) > LONGEST:
                self._peaks[scale] = max(self._peaks[scale], window.popleft()[1])
            is_due = len(window) >= SHORTEST and count % LOOK == 0
            if is_due and grows([gib for _, gib in window], self._peaks[scale]):
                return [*window]
            if count % COARSER:
                break
            count, scale = count // COARSER, scale + 1
        return []


def grows(samples: Sequence[float], peak: float = 0.0) -> bool:
    """Whether memory grows steadily over samples (GiB) in the order of time; `peak`: the highest one before.

    All of the last third are above the peak and all of the first third. From the median of the first third to
    that of the last it grows enough, a part of it before and a part after the middle third: what jumps once
    does not grow, nor does a cache that fills more and more slowly.
    """
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    low, middle, high = median(first), median(samples[third:-third]), median(last)
    growth = high - low
    return (
        min(last) > max(peak, *first)
        and growth >= max(LEAST_GIB, min(LEAST_SHARE * low, MUCH_GIB))
        and middle - low >= EARLY * growth
        and high - middle >= LATE * growth
    )


def _verdict(rank: int, what: str, window: Sequence[tuple[int, float]]) -> Verdict:
    (begun, low), (ended, high) = window[0], window[-1]
    mib = 1024 * (high - low) / max(1, ended - begun)
    pace = f"{mib:.3g} MiB a step" if mib >= 1 else f"{1000 * mib:.3g} MiB in 1,000 steps"
    return Verdict(
        rank=rank,
        cause=GROWTH,
        since_step=begun,
        until_step=None,
        evidence=f"its {what} grew from {low:.3g} to {high:.3g} GiB by step {ended:,}, {pace}",
        reported_step=ended,
    )
