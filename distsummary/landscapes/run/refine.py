"""Selects the points of adaptive refinement: a coarse lattice, then points where interpolation is inaccurate.

Level k of an axis has every 2^k-th point and the last point. The loss at each point of a level is predicted
from the next coarser level, by linear interpolation along each axis. The loss minus this prediction is the
point's surplus (Bungartz & Griebel 2004, Acta Numerica 13, section 3.1: hierarchical surplus). For a smooth
loss, interpolation between the points of a level has an error of about a quarter of their surplus. To be
safe, half is taken: where half of a point's surplus exceeds the tolerance, the next finer level is evaluated
in the cells around the point.
"""

import numpy as np
from numpy.typing import NDArray

from distsummary.landscapes.directions.recipe import Array

Mask = NDArray[np.bool_]

COARSEST = 3  # the coarsest level is at most this one, which has every 8th point
LEAST = 4  # the fewest intervals per axis on the coarsest level: fewer might miss too much
_SHARE = 0.5  # share of the surplus that is taken as the error: twice the expected quarter, to be safe
_FLOOR = 0.1  # share of the median loss: the tolerance is relative to this where the loss is smaller


def lattice(count: int, level: int) -> Array:
    """The indices of the points of a level, on an axis with `count` points."""
    return np.unique(np.append(np.arange(0, count, 2**level), count - 1))


def coarsest(shape: tuple[int, ...]) -> int:
    """The coarsest level, which is always evaluated; 0 if the grid is too small to leave any point out."""
    intervals = min((count - 1 for count in shape if count > 1), default=0)
    return max(0, min(COARSEST, (intervals // LEAST).bit_length() - 1))


def first_points(shape: tuple[int, int]) -> Mask:
    """The first points (m, n) to evaluate: the two coarsest levels."""
    return _on_lattice(shape, max(coarsest(shape) - 1, 0))


def next_points(losses: Array, computed: Mask, tolerance: float) -> Mask:
    """The points (m, n) to evaluate next; none when the grid is within the tolerance.

    `losses` (m, n) are used only where `computed` is True. `tolerance` is relative to the absolute loss at a
    point, or to a tenth of the median absolute loss if this tenth is larger.
    """
    known = interpolate(losses, computed)
    # A finer level is examined only if the coarser ones need no more points.
    for level in range(coarsest(losses.shape) - 1, 0, -1):
        wanted = _around(_is_off(known, computed, level, tolerance), level) & ~computed
        if wanted.any():
            return wanted
    return np.zeros(losses.shape, bool)


def interpolate(values: Array, computed: Mask) -> Array:
    """Interpolates the values (m, n) that are not computed; those at `first_points` must be computed."""
    found = np.where(computed, values, np.nan)
    for level in range(coarsest(values.shape) - 1, 0, -1):
        fine = _predicted(found, level)
        at = np.ix_(*(lattice(count, level - 1) for count in values.shape))
        found[at] = np.where(computed[at], values[at], fine)
    return found


def between_rows(values: Array, computed: Mask) -> Array:
    """Interpolates in each column of values (m, n) between computed ones; NaN above and below these."""
    found, rows = np.where(computed, values, np.nan), np.arange(len(values))
    for column in range(values.shape[1]):
        known = computed[:, column]
        if known.any():
            found[:, column] = np.interp(rows, rows[known], values[known, column], left=np.nan, right=np.nan)
    return found


def _on_lattice(shape: tuple[int, int], level: int) -> Mask:
    found = np.zeros(shape, bool)
    found[np.ix_(*(lattice(count, level) for count in shape))] = True
    return found


def _predicted(values: Array, level: int) -> Array:
    """The values at the points of level - 1, as predicted from the values at the points of `level`."""
    coarse = [lattice(count, level) for count in values.shape]
    fine = [lattice(count, level - 1) for count in values.shape]
    # For each axis, the matrix (fine points, coarse points) that interpolates linearly along it.
    weights = [
        np.stack([np.interp(f, c, unit) for unit in np.eye(len(c))], axis=1)
        for c, f in zip(coarse, fine, strict=True)
    ]
    return _weighted(weights[0], _weighted(weights[1], values[np.ix_(*coarse)].T).T)


def _weighted(weights: Array, values: Array) -> Array:
    """weights @ values, where a value with weight 0 is ignored, even NaN."""
    # Inf - Inf gives NaN: the loss is not known there.
    with np.errstate(invalid="ignore"):
        parts = np.where(weights[:, :, None] == 0, 0.0, weights[:, :, None] * values[None])
        return np.asarray(parts.sum(axis=1))


def _is_off(known: Array, computed: Mask, level: int, tolerance: float) -> Mask:
    """The evaluated points of `level` that the next coarser level predicts badly."""
    at = np.ix_(*(lattice(count, level) for count in known.shape))
    predicted, values = _predicted(known, level + 1), known[at]
    finite = np.isfinite(values)
    size = np.abs(values)
    floor = _FLOOR * float(np.median(size[finite])) if finite.any() else 0.0
    with np.errstate(invalid="ignore"):
        is_off = _SHARE * np.abs(values - predicted) > tolerance * np.maximum(size, floor)
    # The border of a region without finite losses is refined too.
    is_off |= finite != np.isfinite(predicted)
    found = np.zeros(known.shape, bool)
    found[at] = is_off & computed[at]
    return found


def _around(points: Mask, level: int) -> Mask:
    """The points of level - 1 in the cells of `level` that touch one of `points`."""
    rows, columns = (lattice(count, level) for count in points.shape)
    touched = np.zeros(points.shape, bool)
    for i, j in zip(*np.nonzero(points[np.ix_(rows, columns)]), strict=True):
        top, bottom = rows[max(i - 1, 0)], rows[min(i + 1, len(rows) - 1)]
        left, right = columns[max(j - 1, 0)], columns[min(j + 1, len(columns) - 1)]
        touched[top : bottom + 1, left : right + 1] = True
    return touched & _on_lattice(points.shape, level - 1)
