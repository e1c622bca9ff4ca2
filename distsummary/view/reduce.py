"""Curves and matrices as small as a page can draw them; what is left out is never an extreme.

A page has a few hundred columns for a hundred thousand steps. `columns` says which steps share a column;
`thinned` keeps the first, last, lowest and highest point of each; `band` has the ranks together at each step.
Nothing is averaged or smoothed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.view.packing import small

Array = NDArray[Any]
_CHUNK = 1 << 21  # values that are looked at together


def columns(steps: Array, width: int) -> Array:
    """The places (c + 1,) at which the columns of a drawing begin and end in `steps`; none of them is empty.

    Each column is of the same whole number of steps, also where steps were not recorded.

    Args:
        steps: int64 (n,), rising. width: how many columns there are at most.
    """
    if not steps.size:
        return np.zeros(1, np.int64)
    each = -(-(int(steps[-1]) - int(steps[0]) + 1) // width)
    return np.append(np.flatnonzero(np.diff((steps - steps[0]) // each, prepend=-1)), steps.size)


def spread(count: int, size: int) -> list[int]:
    """Up to `size` of the places 0 to count - 1, evenly spread, the first and the last among them."""
    if count <= size:
        return [*range(count)]
    return [round(place * (count - 1) / (size - 1)) for place in range(size)] if size > 1 else [count - 1]


def thinned(steps: Array, values: Array, width: int) -> Array:
    """The places of the points that a drawing needs: in each column the first, the last, the lowest and the
    highest, and the first that is not finite.

    Args:
        steps: int64 (n,), rising. values: floats (n,). width: columns at most.

    Returns int64 (m,), rising, m at most 5 * width; all places if there are no more than that.
    """
    if steps.size <= 4 * width:
        return np.arange(steps.size)
    edges = columns(steps, width)
    kept = [edges[:-1], edges[1:] - 1]
    is_finite = np.isfinite(values)
    number = np.repeat(np.arange(edges.size - 1), np.diff(edges))
    for missing, reduce in ((np.inf, np.minimum), (-np.inf, np.maximum)):
        filled = np.where(is_finite, values, missing)
        extremes = reduce.reduceat(filled, edges[:-1])
        kept.append(first_of_each(np.flatnonzero(filled == extremes[number]), number))
    kept.append(first_of_each(np.flatnonzero(~is_finite), number))
    return np.unique(np.concatenate(kept))


def line_of(steps: Array, values: Array, width: int) -> dict[str, Array]:
    """The points of a curve that a drawing needs, see `thinned`: steps, and values as float32."""
    places = thinned(steps, values, width)
    return {"steps": small(steps[places]), "values": values[places].astype(np.float32)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The ranks of one tag together, at each step; arrays (S,), NaN or -1 where no rank has a finite value.

    low, median, high: float32. low_rank, high_rank: the ranks that have them, the lowest of several.
    count: how many ranks recorded a value. not_finite: how many recorded NaN or an infinity.
    """

    low: Array
    median: Array
    high: Array
    low_rank: Array
    high_rank: Array
    count: Array
    not_finite: Array


def band(ranks: Array, values: Array, nans: Array | None = None) -> Band:
    """The lowest, median and highest value of the ranks at each step.

    Args:
        ranks: int32 (R,). values: float32 (S, R); NaN means that the rank recorded nothing.
        nans: bool (S, R), where a rank recorded NaN itself; None: nowhere.
    """
    size = values.shape[0]
    low, median, high = (np.full(size, np.nan, np.float32) for _ in range(3))
    low_rank, high_rank = (np.full(size, -1, np.int32) for _ in range(2))
    count, not_finite = (np.zeros(size, np.int32) for _ in range(2))
    each = max(1, _CHUNK // max(1, values.shape[1]))
    # Block by block, so that copies take little memory beside the matrix.
    for start in range(0, size, each):
        rows = slice(start, start + each)
        block = np.array(values[rows], order="C")
        is_finite = np.isfinite(block)
        # Mostly all are, which spares half of the work.
        is_whole = bool(is_finite.all())
        finite = np.full(block.shape[0], block.shape[1]) if is_whole else is_finite.sum(axis=1)
        if not is_whole:
            bad = np.isinf(block) if nans is None else np.isinf(block) | nans[rows]
            not_finite[rows] = bad.sum(axis=1)
            block[~is_finite] = np.inf
        count[rows] = finite + not_finite[rows]
        has_any = finite > 0
        places = block.argmin(axis=1)
        low_rank[rows] = np.where(has_any, ranks[places], -1)
        low[rows] = np.where(has_any, np.take_along_axis(block, places[:, None], 1)[:, 0], np.nan)
        if is_whole:
            middle = middle_of(block)
        else:
            # What is not finite has been set to infinity, and is sorted to the end.
            ordered = np.sort(block, axis=1)
            pair = np.stack([np.maximum(finite - 1, 0) // 2, finite // 2], axis=1)
            pair = np.minimum(pair, block.shape[1] - 1)
            low_half, high_half = 0.5 * np.take_along_axis(ordered, pair, 1).T
            middle = low_half + high_half
        median[rows] = np.where(has_any, middle, np.nan)
        if not is_whole:
            block[~is_finite] = -np.inf
        places = block.argmax(axis=1)
        high_rank[rows] = np.where(has_any, ranks[places], -1)
        high[rows] = np.where(has_any, np.take_along_axis(block, places[:, None], 1)[:, 0], np.nan)
    return Band(
        low=low, median=median, high=high, low_rank=low_rank, high_rank=high_rank, count=count,
        not_finite=not_finite,
    )  # fmt: skip


def middle_of(block: Array) -> Array:
    """The median of each row of floats (n, R), none of them NaN; R at least 1."""
    half = block.shape[1] // 2
    # One place takes a quarter of the time of two, which `np.median` asks for.
    parts = np.partition(block, half, axis=1)
    upper: Array = parts[:, half]
    return upper if block.shape[1] % 2 else 0.5 * parts[:, :half].max(axis=1) + 0.5 * upper


def first_of_each(places: Array, number: Array) -> Array:
    """Of places (k,), rising, the first one of each column."""
    return places[np.flatnonzero(np.diff(number[places], prepend=-1))] if places.size else places
