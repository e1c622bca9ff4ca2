"""Curves of runs next to each other: where two part, what lies between them, when one reaches a value."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

APART = 3.0  # times their own change from step to step; curves that are so far apart have parted
_SHARE, _LEAST = 50, 10  # the end of two curves: the last 2 % of their common steps, or 10 if that is more
_SMOOTH = 100  # a curve reaches a value with the mean over this part of its points

Array = NDArray[Any]


class Curve(NamedTuple):
    """One tag of a run: steps int64 (n,), which rise, values float64 (n,) and seconds since the run began,
    float64 (n,).
    """

    steps: Array
    values: Array
    seconds: Array


class Parting(NamedTuple):
    """How two curves go apart.

    `common`: at how many steps both have a value. `first_difference`: the first of these at which the values
    are not the same, None if they all are. `parts_at`: the step from which on they are apart, None if they
    end together, see `where_they_part`. `last`: the values at the last common step. `area`: the second minus
    the first, integrated over their common steps (trapezoids; steps at which one is not finite are left
    out). `between`: the area by the steps that it extends over, the mean difference; None without any.
    """

    common: int
    first_difference: int | None
    parts_at: int | None
    last: tuple[float, float] | None
    area: float | None = None
    between: float | None = None


def curve_of(steps: Array, values: Array, seconds: Array | None = None) -> Curve:
    """A curve of what was recorded, in any order; of a step that is there twice, the last value counts."""
    # The order is stable, so that the last of equal steps is the one that was recorded last.
    order = np.argsort(steps, kind="stable")
    last = order[np.append(np.diff(steps[order]) != 0, True)] if steps.size else order
    times = np.zeros(steps.size) if seconds is None else seconds
    return Curve(steps[last], values[last].astype(np.float64), times[last])


def mean_of(curves: Sequence[Curve]) -> Curve:
    """The mean of several curves at the steps that all have."""
    if len(curves) == 1:
        return curves[0]
    steps = functools.reduce(
        lambda a, b: np.intersect1d(a, b, assume_unique=True), (curve.steps for curve in curves)
    )
    places = [np.searchsorted(curve.steps, steps) for curve in curves]
    values, seconds = (
        np.mean([curve[column][place] for curve, place in zip(curves, places, strict=True)], axis=0)
        for column in (1, 2)
    )
    return Curve(steps, values, seconds)


def range_of(curves: Sequence[Curve], steps: Array) -> tuple[Array, Array]:
    """The lowest and the highest value of several curves at steps that all have, float64 (n,) each; NaN where
    one is NaN.
    """
    values = np.array([curve.values[np.searchsorted(curve.steps, steps)] for curve in curves])
    return values.min(axis=0), values.max(axis=0)


def difference_of(first: Curve, second: Curve) -> Curve:
    """The second minus the first, at the steps that both have; the seconds are those of the first."""
    steps, mine, others = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    with np.errstate(invalid="ignore"):
        return Curve(steps, second.values[others] - first.values[mine], first.seconds[mine])


def best_of(curve: Curve, best: str) -> int | None:
    """The index of the first best value; None if no value is finite."""
    finite = np.flatnonzero(np.isfinite(curve.values))
    values = curve.values[finite]
    return int(finite[values.argmin() if best == "min" else values.argmax()]) if finite.size else None


def smoothed(curve: Curve) -> Array:
    """The mean of the finite values over a hundredth of the points around each, float64 (n,)."""
    half = curve.values.size // _SMOOTH // 2
    is_finite = np.isfinite(curve.values)
    # With more digits, so that a large value early in a curve does not hide the small ones after it.
    given = np.where(is_finite, curve.values, 0.0).astype(np.longdouble)
    sums, counts = (np.concatenate(([0.0], np.cumsum(one))) for one in (given, is_finite))
    places = np.arange(curve.values.size)
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, curve.values.size)
    # A point that is not finite reaches nothing, whatever is next to it.
    count = np.where(is_finite, counts[high] - counts[low], 0.0)
    means = (sums[high] - sums[low]) / np.where(count == 0, np.nan, count)
    return np.asarray(curve.values if half == 0 else means, np.float64)


def reached(curve: Curve, value: float, best: str) -> int | None:
    """The index of the first point at which the smoothed curve is as good as a value; None: it never is."""
    with np.errstate(invalid="ignore"):
        is_there = smoothed(curve) <= value if best == "min" else smoothed(curve) >= value
    is_there &= np.isfinite(curve.values)
    return int(is_there.argmax()) if is_there.any() else None


def where_they_part(first: Curve, second: Curve) -> Parting:
    """Compare two curves at the steps that both have.

    Far: farther from each other than APART times the usual change, the larger median of |v[t] - v[t-1]|.
    Two curves end apart if the median of their difference over the last 2 % of the common steps is far; at
    least 10 steps, at most half of them. They are apart from the step that best divides the steps into those
    that are not far, before, and those that are far, in the direction of the end: the minimum of the
    cumulative sum of (difference - far), in which no step counts for more than `far`, so that a few outliers
    move it little (CUSUM; E. S. Page, Biometrika 41, 1954).
    """
    common, mine, others = np.intersect1d(first.steps, second.steps, assume_unique=True, return_indices=True)
    if not common.size:
        return Parting(0, None, None, None)
    a, b = first.values[mine].astype(np.float64), second.values[others].astype(np.float64)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    different_at = None if is_same.all() else int(common[is_same.argmin()])
    with np.errstate(invalid="ignore"):
        difference = np.where(is_same, 0.0, a - b)
    is_finite = np.isfinite(difference)
    area, between = _area(common[is_finite], -difference[is_finite])
    # Where one of the values is NaN or infinite, they are far apart in any direction.
    difference[~is_finite] = np.inf
    far = APART * max(_usual_change(a), _usual_change(b))
    end = min(max(_LEAST, common.size // _SHARE), (common.size + 1) // 2)
    at_end = float(np.median(difference[-end:]))
    parts_at = None
    # A single step says nothing of a usual change.
    if common.size > 1 and abs(at_end) > far:
        # Only what differs in the direction of the end counts as far.
        towards = difference if at_end > 0 else np.where(is_finite, -difference, np.inf)
        steps_far = np.clip(towards / far, 0, 2) - 1 if far else np.where(towards > 0, 1.0, -1.0)
        # Each sum is that of the steps before; far steps begin at the last of the smallest sums.
        sums = np.concatenate(([0.0], np.cumsum(steps_far)[:-1]))
        parts_at = int(common[sums.size - 1 - sums[::-1].argmin()])
    last = (float(a[-1]), float(b[-1]))
    return Parting(int(common.size), different_at, parts_at, last, area, between)


def _area(steps: Array, difference: Array) -> tuple[float | None, float | None]:
    if steps.size < 2:
        return None, None
    widths = np.diff(steps)
    area = float((widths * (difference[1:] + difference[:-1]) / 2).sum())
    return area, area / float(widths.sum())


def _usual_change(values: Array) -> float:
    with np.errstate(invalid="ignore"):
        changes = np.abs(np.diff(values))
    changes = changes[np.isfinite(changes)]
    return float(np.median(changes)) if changes.size else 0.0
