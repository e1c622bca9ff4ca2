"""MemoryImbalance: finds the rank that takes much more memory than its peers."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import MEMORY, Verdict
from distsummary.format.own_tags import GPU_RESERVED, PROCESS_MEMORY

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MEMORY_TAGS = {
    PROCESS_MEMORY: "of memory",
    GPU_RESERVED: "of its GPU's memory",
}
# A rank uses much if it uses FACTOR times the median of its peers, and EXCESS_GIB more, in SAMPLES in a row.
FACTOR = 1.5
EXCESS_GIB = 1.0
SAMPLES = 3


class MemoryImbalance:
    """Reports each rank once whose newest samples all exceed the median of the newest ones of its peers."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[int, float]] = {tag: {} for tag in MEMORY_TAGS}
        self._since: dict[tuple[str, int], list[int]] = {}  # the steps of the samples that exceed it
        self._reported: set[int] = set()

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars; the ranks sample at steps of their own, of which some may come late.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        found = []
        for tag in MEMORY_TAGS:
            if tag not in tags:
                continue
            rows = np.flatnonzero(which == list(tags).index(tag))
            rows = rows[np.argsort(steps[rows], kind="stable")]
            for rank, step, gib in zip(
                ranks[rows].tolist(), steps[rows].tolist(), values[rows].tolist(), strict=True
            ):
                verdict = self._look(tag, rank, step, gib)
                if verdict is not None:
                    found.append(verdict)
        return found

    def _look(self, tag: str, rank: int, step: int, gib: float) -> Verdict | None:
        newest = self._newest[tag]
        newest[rank] = gib
        others = [value for other, value in newest.items() if other != rank]
        usual = median(others) if others else np.inf
        if not (gib > FACTOR * usual and gib > usual + EXCESS_GIB):
            self._since.pop((tag, rank), None)
            return None
        since = self._since.setdefault((tag, rank), [])
        since.append(step)
        if len(since) < SAMPLES or rank in self._reported:
            return None
        self._reported.add(rank)
        return Verdict(
            rank=rank,
            cause=MEMORY,
            since_step=since[0],
            until_step=None,
            evidence=(
                f"{gib:.3g} GiB {MEMORY_TAGS[tag]}, on "
                f"{'its peer' if len(others) == 1 else f'the {len(others)} others'} {usual:.3g} GiB"
            ),
            reported_step=step,
        )
