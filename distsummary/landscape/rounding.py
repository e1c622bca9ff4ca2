"""The rounding floor of a grid: where a step along a direction is lost in the weights' precision; pure."""

from collections.abc import Mapping

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions import Array, Weights

EXPLICIT_BITS = {"float64": 52, "float32": 23, "fp16": 10, "bf16": 7}  # of the significand
LEAST_EXPONENT = {"float64": -1022, "float32": -126, "fp16": -14, "bf16": -126}  # of normal numbers


def rounding_floor(centre: Weights, direction: Weights, step: float, precision: str = "float32") -> float:
    """The share of the parameters that `direction` moves whose step is below an ulp of the weight, 0 to 1.

    A grid whose neighbours differ by `step` times the direction shows rounding, not the loss, as far as these
    parameters go. `precision` is what the weights are computed with: "float32", "float64", "fp16" or "bf16".
    0 for a direction that moves nothing.
    """
    if precision not in EXPLICIT_BITS:
        raise InvalidValueError(f"precision must be one of {sorted(EXPLICIT_BITS)}, got {precision!r}")
    lost = moved = 0
    for name, along in direction.items():
        change = np.abs(np.asarray(along, np.float64).reshape(-1)) * abs(step)
        moves = change > 0
        below = change < ulp(np.asarray(centre[name], np.float64).reshape(-1), precision)
        lost += int((below & moves).sum())
        moved += int(moves.sum())
    return lost / moved if moved else 0.0


def ulp(weights: Array, precision: str) -> Array:
    """The distance from each weight to the next number of the precision, float64."""
    _, exponents = np.frexp(weights)  # |w| = m 2^e with 0.5 <= m < 1
    exponents = np.where(weights == 0, LEAST_EXPONENT[precision], exponents - 1)
    exponents = np.maximum(exponents, LEAST_EXPONENT[precision])
    return np.asarray(np.ldexp(1.0, exponents - EXPLICIT_BITS[precision]))


def rounding_floors(
    centre: Weights, x: Weights, y: Weights, steps: tuple[float, float], precision: str = "float32"
) -> Mapping[str, float]:
    """`rounding_floor` along both axes: {"x": share, "y": share}."""
    return {
        "x": rounding_floor(centre, x, steps[0], precision),
        "y": rounding_floor(centre, y, steps[1], precision),
    }
