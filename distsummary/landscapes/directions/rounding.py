"""The rounding floor of a grid: where a step along a direction is lost in the weights' precision; pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights

EXPLICIT_BITS = {"float64": 52, "float32": 23, "fp16": 10, "bf16": 7}  # of the significand
OF_DTYPE = {"float64": "float64", "float16": "fp16", "bfloat16": "bf16"}
LEAST_EXPONENT = {"float64": -1022, "float32": -126, "fp16": -14, "bf16": -126}  # of normal numbers


def rounding_floors(
    centre: Weights,
    recipe: Recipe,
    names: Sequence[str],
    steps: tuple[float, float],
    precision: str = "",
    kept: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """The shares of the parameters that the directions x and y move whose step is below an ulp of the weight.

    Between 0 and 1, 0 for a direction that moves nothing. A grid whose neighbours differ by such steps shows
    rounding, not the loss, as far as these parameters go. `steps` are along x and y; `precision` is what the
    weights are computed with: a key of EXPLICIT_BITS; "" and others are what the model keeps each in, the
    dtypes by name `kept` (without one, that of the centre's array: a checkpoint may have another).
    """
    shares, kept = {}, kept or {}
    for axis, step in enumerate(steps):
        counts = np.zeros(2, np.int64)
        for name in names:  # some rows of one parameter at a time are held
            weights = rows_of(centre, name)
            along = recipe.rows(axis, name, weights)
            for block in weights.blocks():
                counts += _lost(weights(*block), along(*block), step, precision, kept.get(name, ""))
        shares["xy"[axis]] = float(counts[0] / counts[1]) if counts[1] else 0.0
    return shares


def _lost(weights: Array, along: Array, step: float, precision: str, kept: str) -> tuple[int, int]:
    """How many parameters the step leaves where they are by rounding, of how many that it moves."""
    change = np.abs(np.asarray(along, np.float64).reshape(-1)) * abs(step)
    moves = change > 0
    known = precision if precision in EXPLICIT_BITS else OF_DTYPE.get(kept or weights.dtype.name, "float32")
    below = change < ulp(weights.astype(np.float64).reshape(-1), known)
    return int((below & moves).sum()), int(moves.sum())


def ulp(weights: Array, precision: str) -> Array:
    """The distance from each weight to the next number of the precision, float64."""
    _, exponents = np.frexp(weights)  # |w| = m 2^e with 0.5 <= m < 1
    exponents = np.where(weights == 0, LEAST_EXPONENT[precision], exponents - 1)
    exponents = np.maximum(exponents, LEAST_EXPONENT[precision])
    return np.asarray(np.ldexp(1.0, exponents - EXPLICIT_BITS[precision]))
