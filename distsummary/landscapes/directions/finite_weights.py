"""Refuses values that are not finite, naming checkpoint and tensor, before anything is computed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.recipe import Array, Weights

STATISTICS = ("running_mean", "running_var")  # of BatchNorm; unused if batch statistics are used
EARLIER = (
    "choose checkpoints from before the training diverged, with around= (one file) or runs= (several files)"
)


def refuse_not_finite(
    label: str, centre: Weights, own: Weights, moved: Iterable[str], *, reads_statistics: bool = True
) -> None:
    """Raise LandscapeError if a value of the centre makes every loss NaN.

    The parameters `moved`, which the landscape varies, must be finite. All other values may be infinite (as
    in masks) but not NaN; without `reads_statistics`, running statistics may have any value. `own` are the
    model's values, which replace values that the centre does not have.
    """
    moved = list(moved)
    if name := _first(centre, moved, np.isfinite):
        raise LandscapeError(
            f"{label}: {name} of the centre holds NaN or Inf, so every loss would be NaN; {EARLIER}"
        )
    rest = [n for n in own if n not in set(moved) and (reads_statistics or not n.endswith(STATISTICS))]
    held = [name for name in rest if name in centre]
    for state, names in ((centre, held), (own, [name for name in rest if name not in centre])):
        if name := _first(state, names, lambda array: ~np.isnan(array)):
            whose = "the centre" if state is centre else "the model (the checkpoint does not have it)"
            more = "; or recompute the running statistics with ds.Evaluation(bn_mode='recompute')"
            raise LandscapeError(
                f"{label}: {name} of {whose} holds NaN, so every loss would be NaN, although {name} is "
                f"not varied; give it finite values, or {EARLIER}{more if name.endswith(STATISTICS) else ''}"
            )


def refuse_diverged(
    products: Array, states: Sequence[Weights], names: Sequence[str], labels: Sequence[str]
) -> None:
    """Raise LandscapeError, naming checkpoint and parameter, if a product of displacements is not finite."""
    if np.isfinite(products).all():
        return
    labels = labels or [f"checkpoint {number}" for number in range(len(states))]
    for label, state in zip(labels, states, strict=True):
        if name := _first(state, names, np.isfinite):
            raise LandscapeError(f"{label} holds NaN or Inf in {name}; {EARLIER}")
    raise LandscapeError(f"the checkpoints lie so far apart that float64 overflows; {EARLIER}")


def _first(state: Weights, names: Iterable[str], is_good: Callable[[Any], Any]) -> str | None:
    """The name of the first array with a value that fails `is_good`; arrays of integers always pass."""
    for name in names:
        rows = rows_of(state, name)
        if rows(0, 0).dtype.kind in "iub":
            continue
        all_good = all(is_good(rows(*block)).all() for block in rows.blocks())
        if isinstance(state, StoredState):
            state.release(name)
        if not all_good:
            return name
    return None
