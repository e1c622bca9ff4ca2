"""The scalars that viewers show of norms: those of all parameters together."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.format.norms import ParameterNorms
from distsummary.format.records import Value

GRADIENT, WEIGHT, UPDATE = "norms/gradient", "norms/weight", "norms/update"
UPDATE_TO_WEIGHT = "norms/update_to_weight"


class NormTotals:
    """Makes the scalars of rising steps of one attempt.

    At each step that has norms:

    - GRADIENT and WEIGHT are the L2 norms over all parameters, of those that have a gradient. Without the
      norm of a single one, because the part of a rank is missing, the total is left out.
    - UPDATE is the norm of the optimizer's change, at the step at which every parameter with a gradient has
      been measured since the last such step: at each step if 8 ranks measure them, at every eighth if one
      does. UPDATE_TO_WEIGHT is UPDATE by WEIGHT.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        # Of each parameter since the last UPDATE: its change (a sum of squares), whether it had a gradient.
        self._updates = np.empty(0)
        self._is_moved = np.empty(0, np.bool_)

    # The numbers may be NaN, infinite or 0.
    @np.errstate(all="ignore")
    def add(self, norms: ParameterNorms) -> list[Value]:
        """The scalars of the next step."""
        # Another model: its updates are measured from the beginning.
        if norms.table.names != self._names:
            self._names = norms.table.names
            self._updates = np.full(len(self._names), np.nan)
            self._is_moved = np.zeros(len(self._names), np.bool_)
        has_gradient = norms.has_gradient
        totals: dict[str, float] = {}
        if has_gradient.any() and not (_is_missing(norms, "gradient") & has_gradient).any():
            totals[GRADIENT] = norms.gradient_sums[has_gradient].sum()
        if not _is_missing(norms, "weight").any():
            totals[WEIGHT] = norms.weight_sums.sum()
        # A step measures the updates of some parameters: wait until those of all that moved are there.
        measured = ~np.isnan(norms.update_sums)
        self._updates[measured] = norms.update_sums[measured]
        self._is_moved |= has_gradient
        is_measured = ~np.isnan(self._updates)
        if self._is_moved.any() and is_measured[self._is_moved].all():
            totals[UPDATE] = self._updates[is_measured].sum()
            self._updates.fill(np.nan)
            self._is_moved.fill(False)
        found = {tag: float(np.sqrt(total)) for tag, total in totals.items()}
        if UPDATE in found and found.get(WEIGHT, 0.0) > 0:
            found[UPDATE_TO_WEIGHT] = found[UPDATE] / found[WEIGHT]
        return [Value("scalar", tag, number) for tag, number in found.items()]


def with_scalars(values: Sequence[Value], more: Iterable[Value]) -> Iterator[Value]:
    """The values of a step and more, without scalars of norms whose names the values have already."""
    yield from values
    taken = {value.tag for value in values if value.plugin == "scalar"}
    yield from (value for value in more if value.plugin != "scalar" or value.tag not in taken)


def _is_missing(norms: ParameterNorms, what: str) -> NDArray[np.bool_]:
    """Where the sum of a merged run is NaN because the part of a rank is missing; bool (n,)."""
    missing: NDArray[np.bool_] = np.isnan(getattr(norms, f"{what}_sums")) & (
        getattr(norms, f"{what}_nonfinite") == 0
    )
    return missing
