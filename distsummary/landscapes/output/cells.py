"""The grid as a surface: cells with finite corners, and heights between grid points. Pure functions."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distsummary.landscapes.directions.recipe import Array


def whole_cells(heights: Array) -> Array:
    """The (row, column) of each cell of a grid (m, n) whose four corners are finite, as an array (k, 2)."""
    finite = np.isfinite(heights)
    whole = finite[:-1, :-1] & finite[1:, :-1] & finite[:-1, 1:] & finite[1:, 1:]
    return np.argwhere(whole)


def loose_points(heights: Array) -> Array:
    """(row, column) of each finite point that no surface shows, as (k, 2): no cell around it is whole."""
    loose = np.isfinite(heights)
    rows, columns = whole_cells(heights).T
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        loose[rows + i, columns + j] = False
    return np.argwhere(loose)


def touched_cells(points: Array) -> Array:
    """bool (m - 1, n - 1): whether a cell of the grid has a corner where `points`, bool (m, n), is True."""
    return points[:-1, :-1] | points[1:, :-1] | points[:-1, 1:] | points[1:, 1:]


def finite_runs(values: Array) -> list[range]:
    """The runs of neighbouring finite values, as ranges of indices."""
    edges = np.flatnonzero(np.diff(np.isfinite(values).astype(np.int8), prepend=0, append=0))
    return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def thinned(size: int, most: int) -> Array:
    """At most `most` of the indices 0 .. size-1, evenly spread, including the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def drape(x: Array, y: Array, heights: Array, points: Array, per_leg: int = 16) -> Array:
    """The points (x, y, height) of the path through `points` (k, 2), laid onto the surface: (count, 3).

    The path takes `per_leg` steps from each point to the next. Heights are interpolated bilinearly; they are
    NaN outside the grid and in cells with a corner that is not finite.
    """
    steps = np.arange(per_leg) / per_leg
    legs = [a + steps[:, None] * (b - a) for a, b in pairwise(points)]
    along = np.concatenate([*legs, points[-1:]])
    return np.column_stack((along, _bilinear(x, y, heights, along)))


def hidden(x: Array, y: Array, heights: Array, points: Array, eye: Array) -> NDArray[np.bool_]:
    """Whether the surface is between each point (k, 3) and the eye (3,), which looks at it from above.

    A point on the surface, or less than a hundredth of the range of heights below it, hides not itself.
    """
    finite = heights[np.isfinite(heights)]
    slack = 0.01 * float(np.ptp(finite)) if finite.size else 0.0
    # Shares of the way to the eye. Most are close to the point, since the eye is far away.
    shares = np.geomspace(1e-3, 1.0, 400)[:, None, None]
    rays = points + shares * (eye - points)
    above = _bilinear(x, y, heights, rays[..., :2].reshape(-1, 2)).reshape(rays.shape[:2])
    return np.asarray((above > rays[..., 2] + slack).any(axis=0))


def _bilinear(x: Array, y: Array, heights: Array, at: Array) -> Array:
    # Inf times 0 would warn.
    heights = np.where(np.isfinite(heights), heights, np.nan)
    column, u = _places(x, at[:, 0])
    row, v = _places(y, at[:, 1])
    low = (1 - u) * heights[row, column] + u * heights[row, column + 1]
    high = (1 - u) * heights[row + 1, column] + u * heights[row + 1, column + 1]
    is_inside = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)
    return np.where(is_inside, (1 - v) * low + v * high, np.nan)


def _places(axis: Array, values: Array) -> tuple[Array, Array]:
    """The cell of each value on an ascending axis, and its position within the cell: 0 to 1."""
    cell = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, len(axis) - 2)
    return cell, (values - axis[cell]) / (axis[cell + 1] - axis[cell])
