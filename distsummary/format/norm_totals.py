"""The scalars that viewers show of norms: those of all parameters together."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from distsummary.format.norms import ParameterNorms
from distsummary.format.own_tags import GRADIENT_NORM, WEIGHT_NORM
from distsummary.format.records import Value


# The numbers may be NaN or infinite.
@np.errstate(all="ignore")
def norm_totals(norms: ParameterNorms) -> list[Value]:
    """GRADIENT_NORM of the parameters that have a gradient, and WEIGHT_NORM of all, at a step.

    Without the norm of a single one, because the part of a rank is missing, the total is left out.
    """
    has_gradient, found = norms.has_gradient, dict[str, float]()
    if has_gradient.any() and not (_is_missing(norms, "gradient") & has_gradient).any():
        found[GRADIENT_NORM] = norms.gradient_sums[has_gradient].sum()
    if not _is_missing(norms, "weight").any():
        found[WEIGHT_NORM] = norms.weight_sums.sum()
    return [Value("scalar", tag, float(np.sqrt(total))) for tag, total in found.items()]


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
