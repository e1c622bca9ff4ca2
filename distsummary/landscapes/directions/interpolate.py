"""Lines and planes through given points of parameter space, to interpolate between models. Pure functions.

A line from theta_0 to theta_1 (Goodfellow et al. 2015, section 3) shows whether training could have gone
straight, and how high the barrier between two solutions is: the largest excess of the loss on the line over
linear interpolation between the losses of its ends (Entezari et al. 2022, definition 2.1; Frankle et al.
2020, section 2, call it instability if both ends are equally good). The plane through three models follows
Garipov et al. 2018, section 4.
"""

from collections.abc import Sequence

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.array_rows import shape_of
from distsummary.landscapes.directions.finite_weights import refuse_diverged
from distsummary.landscapes.directions.pca import Axes, combine, gram
from distsummary.landscapes.directions.recipe import COLLINEAR, Array, Directions, Weights
from distsummary.landscapes.directions.rounding import is_rounding


def line(start: Weights, end: Weights, names: Sequence[str], labels: Sequence[str] = ()) -> Directions:
    """The directions x = end - start and y = 0, float32. With `end` as centre, `start` has x = -1.

    Raises LandscapeError, naming the labels, if both states are equal, or if one holds NaN or Inf.
    """
    length = float(_products([start, end], names, labels)[0, 0])
    if length <= 0:
        raise LandscapeError(
            f"both ends of the line{_called(labels)} are equal; choose two checkpoints that differ"
        )
    axes = Axes(weights=np.array([[-1.0, 0.0], [0.0, 0.0]]), offsets=np.zeros(2))
    directions, _ = combine([start, end], names, axes)
    nothing = np.float32(0)
    return Directions(
        x=directions.x, y={name: np.broadcast_to(nothing, shape_of(end, name)) for name in names}
    )


def triangle(corners: Sequence[Weights], names: Sequence[str], labels: Sequence[str] = ()) -> Directions:
    """The plane through corners A, B, C. Unit vectors, float32: x along B - A; y orthogonal to x, towards C.

    Raises LandscapeError, naming the labels, if the corners lie on a line, or one holds NaN or Inf.
    """
    products = _products(corners, names, labels)
    sides = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])  # B - A and C - A as weighted displacements from C
    (aa, ab), (_, bb) = sides @ products @ sides.T
    # The square of the distance of C from the line through A and B.
    height = bb - ab * ab / aa if aa > 0 else 0.0
    if aa <= 0 and bb <= 0:
        raise LandscapeError(
            f"the three checkpoints{_called(labels)} are equal; choose others, or use directions='random' "
            "around one of them"
        )
    # Rounding has to explain no more than the smallest height of the triangle, that over its longest side.
    longest = max(aa, bb, aa + bb - 2 * ab)
    if height <= COLLINEAR**2 * bb or is_rounding(np.sqrt(height * aa / longest), corners, names):
        raise LandscapeError(
            f"the three checkpoints{_called(labels)} lie on a straight line, except for rounding; "
            "use directions='line' between two that differ"
        )
    weights = np.stack([sides[0] / np.sqrt(aa), (sides[1] - ab / aa * sides[0]) / np.sqrt(height)])
    directions, _ = combine(corners, names, Axes(weights=weights, offsets=np.zeros(3)))
    return directions


def barrier(losses: Array) -> float:
    """The largest excess of losses (n,), equally spaced on a line, over the straight line between their ends.

    0 if no loss exceeds the interpolation; infinite if a loss is not finite.
    """
    if not np.isfinite(losses).all():
        return float("inf")
    straight = np.linspace(losses[0], losses[-1], len(losses))
    return max(0.0, float(np.max(losses - straight)))


def _called(labels: Sequence[str]) -> str:
    return f" ({', '.join(labels)})" if labels else ""


def _products(states: Sequence[Weights], names: Sequence[str], labels: Sequence[str]) -> Array:
    products = gram(states, names).products
    refuse_diverged(products, states, names, labels)
    return products
