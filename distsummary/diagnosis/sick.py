"""FirstNonFinite: the first step, rank and tag at which a recorded number is NaN or infinite."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import NAN, Verdict

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOSSES = frozenset(("loss", "loss/auto"))  # told even if they have never been finite
NAMED = 8  # ranks in a message


class FirstNonFinite:
    """Tells once, of the first step at which a number is not finite that has been finite before.

    A rank that has it while others do not is named; if all that recorded the tag have it, the lowest is.
    """

    def __init__(self) -> None:
        self._known: set[str] = set(LOSSES)  # tags that have been finite
        self._is_over = False

    def add(
        self, tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
    ) -> list[Verdict]:
        """Look at N scalars of all ranks at some steps, which must be larger than those before.

        Args:
            tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
        """
        if self._is_over or not len(steps):
            return []
        is_bad = ~np.isfinite(values)
        if not is_bad.any():
            self._known.update(tags[number] for number in np.unique(which).tolist())
            return []
        first_finite = np.full(len(tags), np.iinfo(np.int64).max)
        np.minimum.at(first_finite, which[~is_bad], steps[~is_bad])
        first_finite[[number for number, tag in enumerate(tags) if tag in self._known]] = -1
        found = np.flatnonzero(is_bad & (steps > first_finite[which]))
        self._known.update(tags[number] for number in np.unique(which[~is_bad]).tolist())
        if not len(found):
            return []
        self._is_over = True
        step = int(steps[found].min())
        here = found[steps[found] == step]
        number = min(which[here].tolist(), key=lambda number: (tags[number] not in LOSSES, tags[number]))
        sick = np.unique(ranks[here[which[here] == number]])
        told = np.unique(ranks[(steps == step) & (which == number)])
        value = float(values[here[(which[here] == number) & (ranks[here] == sick[0])][-1]])
        if len(sick) == len(told) > 1:
            others, named = f"on all {len(told)} ranks that recorded it", sick[:1]
        else:
            others, named = f"finite on {len(told) - len(sick)} others", sick[:NAMED]
        return [
            Verdict(
                rank=rank,
                cause=NAN,
                since_step=step,
                until_step=None,
                evidence=f"{tags[number]} is {value} on rank {rank} at step {step}, {others}",
                first_told_step=step,
            )
            for rank in named.tolist()
        ]
