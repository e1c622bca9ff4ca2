"""SameBatches: finds ranks that are given the same batches of data, by the digests of the first ones."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import SHARD, Verdict
from distsummary.format.own_tags import BATCH_TAGS
from distsummary.rundir.topology import DATA_AXES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST = 2  # different batches that two ranks have in common
SHARE = 4  # and at least one in so many of a rank's batches


class SameBatches:
    """Compares the batches of ranks that should have different ones; the steps need not be the same.

    Constant data, of which all batches of a rank are alike, say nothing. There is one verdict for all ranks
    that have batches in common; it grows when more ranks are found.

    Args:
        coordinates: of a rank: its coordinate on each axis of the mesh; empty if there is none. Ranks with
            the same coordinates on the data axes may share data.
    """

    def __init__(self, coordinates: Callable[[int], Mapping[str, int]]) -> None:
        self._coordinates = coordinates
        self._holders: dict[int, dict[object, tuple[int, int]]] = {}  # digest -> data place -> rank, step
        self._seen: dict[int, set[int]] = defaultdict(set)  # rank -> digests
        self._common: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # steps of two ranks
        self._verdicts: list[Verdict] = []

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        numbers = [tags.index(tag) for tag in BATCH_TAGS if tag in tags]
        if len(numbers) < len(BATCH_TAGS):
            return []
        parts: list[dict[tuple[int, int], float]] = []
        for number in numbers:
            rows = np.flatnonzero(which == number)
            keys = zip(steps[rows].tolist(), ranks[rows].tolist(), strict=True)
            parts.append(dict(zip(keys, values[rows].tolist(), strict=True)))
        low, high = parts
        before = self._verdicts[:]
        for step, rank in sorted(low.keys() & high.keys()):
            # A digest is recorded in two halves, which a scalar can hold exactly.
            digest = int(low[step, rank]) | int(high[step, rank]) << 24
            if (found := self._look(step, rank, digest)) is not None:
                self._note(*found)
        return [verdict for verdict in self._verdicts if verdict not in before]

    def _place(self, rank: int) -> object:
        """Where a rank is on the data axes; without a mesh, each rank has a place of its own."""
        axes = self._coordinates(rank)
        if not axes:
            return rank
        return tuple(sorted(one for one in axes.items() if one[0] in DATA_AXES))

    def _look(self, step: int, rank: int, digest: int) -> tuple[int, int, int] | None:
        """Two ranks that have the same batches, as is certain since this step; None if there are none."""
        # A batch that a rank has again counts once, so that constant data never has enough in common.
        if digest in self._seen[rank]:
            return None
        self._seen[rank].add(digest)
        place = self._place(rank)
        holders = self._holders.setdefault(digest, {})
        others = [held for at, held in holders.items() if at != place]
        holders.setdefault(place, (rank, step))
        if not others:
            return None
        other, other_step = others[0]
        common = self._common[other, rank]
        common.append((other_step, step))
        if len(common) < LEAST or SHARE * len(common) < len(self._seen[rank]):
            return None
        return other, rank, step

    def _note(self, one: int, other: int, step: int) -> None:
        """Enter two ranks: into the verdict on one of them, or into a new one."""
        pair = {one, other}
        for place, verdict in enumerate(self._verdicts):
            if not pair.isdisjoint(verdict.ranks):
                self._verdicts[place] = replace(verdict, ranks=tuple(sorted(pair.union(verdict.ranks))))
                return
        common = self._common[one, other][:2]
        mine, theirs = (" and ".join(f"{steps[place]:,}" for steps in common) for place in (0, 1))
        if mine == theirs:
            where = f"at steps {mine}, for example"
        else:
            where = f"steps {mine} of rank {one} are steps {theirs} of rank {other}, for example"
        first = min(pair)
        self._verdicts.append(
            Verdict(
                rank=first,
                cause=SHARD,
                since_step=common[0][0 if first == one else 1],
                until_step=None,
                evidence=f"{where}; give each rank a part of its own (DistributedSampler)",
                reported_step=step,
                ranks=tuple(sorted(pair)),
            )
        )
