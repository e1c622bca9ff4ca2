"""SameSteps: which ranks make the same step of the same epoch, so that their steps can be compared.

Ranks count their steps by themselves. Where one ends an epoch after fewer steps than another, as loaders of
different lengths and `DDP.join` have it, step n is not the same update on both from the next epoch on.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from distsummary.format.own_tags import EPOCH

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_Begun = tuple[tuple[int, int], ...]  # the first steps of epochs, and their numbers


class SameSteps:
    """Looks at where the ranks of an attempt begin their epochs."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}  # of each rank: the first step of its epoch, its number
        self._since: int | None = None  # the first step at which some were apart

    def keep(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> NDArray[np.bool_] | None:
        """Which of N scalars can be compared at each step: those of the ranks that most agree with.

        None: all of them. Their steps must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        rows = np.flatnonzero(which == tags.index(EPOCH)) if EPOCH in tags else np.zeros(0, np.int64)
        begun: dict[int, _Begun] = {
            rank: (self._newest[rank],) if rank in self._newest else ((0, 0),)
            for rank in np.unique(ranks).tolist()
        }
        for rank, step, epoch in sorted(
            zip(ranks[rows].tolist(), steps[rows].tolist(), values[rows].tolist(), strict=True)
        ):
            begun[rank] += ((step, int(epoch)),)
        self._newest |= {rank: places[-1] for rank, places in begun.items()}
        if len({*begun.values()}) < 2:
            return None
        numbers = {
            place: number for number, place in enumerate(sorted({*chain.from_iterable(begun.values())}))
        }
        reported, place = np.unique(np.stack([steps, ranks], axis=1), axis=0, return_inverse=True)
        epochs = np.zeros(len(reported), np.int64)
        for rank, places in begun.items():
            mine = reported[:, 1] == rank
            at = np.searchsorted([first for first, _ in places], reported[mine, 0], "right") - 1
            epochs[mine] = np.array([numbers[one] for one in places])[at]
        sides, side, counts = np.unique(
            np.stack([reported[:, 0], epochs], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        # Sorted by step, the side of the most ranks first.
        order = np.lexsort((-counts, sides[:, 0]))
        is_usual = np.zeros(len(sides), np.bool_)
        is_usual[order[np.unique(sides[order, 0], return_index=True)[1]]] = True
        is_kept = is_usual[side.reshape(-1)]
        if self._since is None and not is_kept.all():
            self._since = int(reported[~is_kept, 0].min())
        kept: NDArray[np.bool_] = is_kept[place.reshape(-1)]
        return kept

    @property
    def said(self) -> str:
        """Since when some ranks are not compared, in a sentence; empty if all are."""
        if self._since is None:
            return ""
        return (
            f"Since step {self._since:,}, ranks whose epochs began at different steps have not been compared."
        )
