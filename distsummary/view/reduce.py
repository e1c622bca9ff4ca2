"""Curves and matrices as small as a page can draw them; what is left out is never an extreme.

A page has a few hundred columns for a hundred thousand steps. `columns` says which steps share a column;
`thinned` keeps the first, last, lowest and highest point of each, `heat_map` the highest value of each cell,
or the ratio farthest from 1, with its step and rank. Nothing is averaged or smoothed.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.view.packing import small

Array = NDArray[Any]
_LEAST_RATIO = 0.1
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
        finite = is_finite.sum(axis=1)
        bad = np.isinf(block) if nans is None else np.isinf(block) | nans[rows]
        not_finite[rows] = bad.sum(axis=1)
        count[rows] = finite + not_finite[rows]
        has_any = finite > 0
        block[~is_finite] = np.inf
        places = block.argmin(axis=1)
        low_rank[rows] = np.where(has_any, ranks[places], -1)
        low[rows] = np.where(has_any, np.take_along_axis(block, places[:, None], 1)[:, 0], np.nan)
        if is_finite.all():
            middle = np.median(block, axis=1)
        else:
            # What is not finite has been set to infinity, and is sorted to the end.
            ordered = np.sort(block, axis=1)
            pair = np.stack([np.maximum(finite - 1, 0) // 2, finite // 2], axis=1)
            pair = np.minimum(pair, block.shape[1] - 1)
            with np.errstate(over="ignore", invalid="ignore"):
                middle = np.take_along_axis(ordered, pair, 1).mean(axis=1)
        median[rows] = np.where(has_any, middle, np.nan)
        block[~is_finite] = -np.inf
        places = block.argmax(axis=1)
        high_rank[rows] = np.where(has_any, ranks[places], -1)
        high[rows] = np.where(has_any, np.take_along_axis(block, places[:, None], 1)[:, 0], np.nan)
    return Band(
        low=low, median=median, high=high, low_rank=low_rank, high_rank=high_rank, count=count,
        not_finite=not_finite,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """The ranks of one tag as a picture of H rows and W columns; a cell holds several ranks and steps.

    Attributes:
        first_steps: int64 (W,), where each column begins; it ends before the next one, the last at
            `last_step`.
        group: how many ranks share a row; row r holds those at the places r * group and following.
        values: float32 (H, W), the highest finite value of the cell, or of ratios the one farthest from 1,
            exactly; NaN where there is none.
        steps: int64 (H, W), and ranks: int32 (H, W), where it is; -1 where there is none.
        bad: uint8 (H, W): 1 where a rank recorded NaN or an infinity.
    """

    first_steps: Array
    last_step: int
    group: int
    values: Array
    steps: Array
    ranks: Array
    bad: Array


def heat_map(
    steps: Array,
    ranks: Array,
    values: Array,
    *,
    cells: int,
    width: int,
    by: Array | None = None,
    nans: Array | None = None,
) -> HeatMap:
    """The highest value of each cell of a picture of ranks and steps; of ratios, the one farthest from 1.

    The highest of several ratios is above 1 for ranks like all others too. Farthest is by the logarithm, and
    a ratio below 1/10 counts as 1/10 there, since colours go no farther and times near 0 say little.

    Args:
        steps: int64 (S,), rising. ranks: int32 (R,). values: float32 (S, R), as for `band`.
        cells: how many cells the picture may have. width: how many columns, unless the cells are too few.
        by: floats (S,): each value is divided by that of its step, and cells without a positive one are
            left empty; None: the values as they are.
        nans: as for `band`.
    """
    # Ranks share rows if there are too many of them for the cells; the fewer rows, the more columns.
    rows = min(ranks.size, max(1, int((cells / 2.25) ** 0.5), cells // width))
    group = -(-ranks.size // rows)
    rows = -(-ranks.size // group)
    edges = columns(steps, max(1, min(width, cells // rows)))
    shape = rows, edges.size - 1
    found = np.full(shape, np.nan, np.float32)
    at_step, at_rank = np.full(shape, -1, np.int64), np.full(shape, -1, np.int32)
    bad = np.zeros(shape, np.uint8)
    padded = rows * group
    for column, (start, end) in enumerate(pairwise(edges)):
        block = values[start:end]
        is_finite = np.isfinite(block)
        is_bad = np.isinf(block) if nans is None else np.isinf(block) | nans[start:end]
        if by is not None:
            divisor = by[start:end, None]
            with np.errstate(all="ignore"):
                block = block / divisor
            is_finite &= (divisor > 0) & np.isfinite(block)
        # What a cell shows: the highest value, or the ratio whose logarithm is the farthest from 0.
        far = block if by is None else np.abs(np.log(np.maximum(block, _LEAST_RATIO)))
        filled = np.where(is_finite, far, -np.inf)
        place = filled.argmax(axis=0)  # (R,)
        # The last row may hold fewer ranks than others: -inf in their place is never the highest.
        of_ranks = np.full(padded, -np.inf, np.float32)
        of_ranks[: ranks.size] = np.take_along_axis(filled, place[None], 0)[0]
        best = of_ranks.reshape(rows, group)
        of_rank = best.argmax(axis=1)
        highest = best[np.arange(rows), of_rank]
        has_any = highest > -np.inf
        # From the place within its row to the place among all ranks.
        of_rank = np.minimum(of_rank + np.arange(rows) * group, ranks.size - 1)
        found[has_any, column] = block[place[of_rank], of_rank][has_any]
        at_rank[has_any, column] = ranks[of_rank][has_any]
        at_step[has_any, column] = steps[start:end][place[of_rank]][has_any]
        if is_bad.any():
            any_bad = np.zeros(padded, np.uint8)
            any_bad[: ranks.size] = is_bad.any(axis=0)
            bad[:, column] = any_bad.reshape(rows, group).max(axis=1)
    first = steps[edges[:-1]] if steps.size else np.zeros(0, np.int64)
    last = int(steps[-1]) if steps.size else 0
    return HeatMap(
        first_steps=first, last_step=last, group=group, values=found, steps=at_step, ranks=at_rank, bad=bad
    )


def first_of_each(places: Array, number: Array) -> Array:
    """Of places (k,), rising, the first one of each column."""
    return places[np.flatnonzero(np.diff(number[places], prepend=-1))] if places.size else places
