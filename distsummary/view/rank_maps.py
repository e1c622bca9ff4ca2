"""Ranks by steps as pictures: by how much of a step each rank is above or below the median of the ranks.

Their scale is fixed, so that a healthy run has no colour. A cell is the median of its steps, with the step
that is farthest from the median of the ranks; the rows of ranks that stand out come first, and of many ranks
the others share the last row.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distsummary.runs.table import Matrix
from distsummary.view.packing import offsets, small
from distsummary.view.reduce import Array, Band, columns, middle_of

ROWS = 64  # of single ranks; of more ranks, those after the first half of them share a row
NOTHING = -32768  # percent of a cell without a value
_MOST = 9999  # percent
_WIDTH, _STEPS = 400, 4  # columns at most; steps of a cell at least, if there are many
_LEAST = 0.05  # of the usual value: a smaller one does not count as what others are compared with


def reference(of_all: Band, ranks: int) -> Array:
    """What the ranks are compared with at each step (S,): their median, of two ranks the lower value."""
    return of_all.low if ranks == 2 else of_all.median


def rank_map(
    title: str,
    unit: str,
    tag: str,
    matrix: Matrix,
    middle: Array,
    step_of: Array | None,
    named: Sequence[int],
) -> dict[str, Any] | None:
    """One tag of several ranks; None if it has no finite value.

    Args:
        middle: (S,), see `reference`. step_of: (S,), the time of a step, in whose percent a difference is
            given; None: in percent of `middle`, which counts as at least 5 % of its usual value.
        named: ranks whose rows come first.

    Returns `title`, `tag`, `unit`; `ranks`, those with rows of their own, and `others`, which share the last
    row; `first_steps` (W,) and `last_step`; `rows`, `columns`; `percent` int32 (H, W): the median difference
    of a cell, NOTHING without one; `far` int32 (H, W): the difference farthest from 0, `far_steps` (H, W):
    how many steps after the first of its column it is, and `far_rank` int32 (W,), of which of the others it
    is; `middle` float32 (W,), in the unit of the tag; `bad` uint8 (H, W): 1 where a value is not finite.
    """
    steps, ranks, values, nans = matrix
    if not np.isfinite(middle).any():
        return None
    middle = middle.astype(np.float64)  # the mean of two large values is no infinity
    scale = np.maximum(_scale(middle) if step_of is None else step_of, np.finfo(np.float32).tiny)[:, None]
    # Divided first, so that no difference of two large values is an infinity.
    middle_part, scale = (middle[:, None] / scale).astype(np.float32), scale.astype(np.float32)
    edges = columns(steps, int(min(_WIDTH, max(60, (steps[-1] - steps[0] + 1) // _STEPS))))
    shape = edges.size - 1, ranks.size
    usual, far = (np.full(shape, np.nan, np.float32) for _ in range(2))
    at, bad = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    middles = np.full(edges.size - 1, np.nan, np.float32)
    for column, (start, end) in enumerate(pairwise(edges)):
        block = values[start:end]
        with np.errstate(all="ignore"):
            part = block / scale[start:end]
            part -= middle_part[start:end]
        is_finite = np.isfinite(part)
        size = np.abs(np.clip(part, -_MOST, _MOST, out=part))
        if not is_finite.all():
            part[~is_finite], size[~is_finite] = np.nan, -1.0
        usual[column] = _median(part)
        middles[column] = _median(middle[start:end, None])[0]
        place = size.argmax(axis=0)
        far[column] = np.take_along_axis(part, place[None], 0)[0]
        at[column] = steps[start:end][place]
        bad[column] = (np.isinf(block) if nans is None else np.isinf(block) | nans[start:end]).any(axis=0)
    order = _order(ranks, usual, bad, named)
    single = order if ranks.size <= ROWS else order[: ROWS // 2]
    others = order[single.size :]
    first = steps[edges[:-1]]
    parts: list[Array] = [
        usual[:, single],
        far[:, single],
        at[:, single] - first[:, None],
        np.asarray(bad[:, single]),
    ]
    far_rank = None
    if others.size:
        worst = np.where(np.isnan(far[:, others]), -1.0, np.abs(far[:, others])).argmax(axis=1)[:, None]
        far_rank = ranks[others][worst[:, 0]].astype(np.int32)
        together: list[Array] = [
            _median(usual[:, others].T)[:, None],
            np.take_along_axis(far[:, others], worst, 1),
            np.take_along_axis(at[:, others], worst, 1) - first[:, None],
            np.asarray(bad[:, others].any(axis=1))[:, None],
        ]
        parts = [np.concatenate(pair, axis=1) for pair in zip(parts, together, strict=True)]
    cells, farthest, far_steps, not_finite = (part.T for part in parts)
    return {
        "title": title,
        "tag": tag,
        "unit": unit,
        "is_of_step": step_of is not None,
        "ranks": ranks[single].astype(np.int32),
        "others": np.sort(ranks[others]).astype(np.int32),
        "first_steps": small(first),
        "last_step": int(steps[-1]),
        "rows": cells.shape[0],
        "columns": cells.shape[1],
        "percent": _percent(cells),
        "far": _percent(farthest),
        "far_steps": offsets(far_steps),
        "far_rank": far_rank,
        "middle": middles,
        "bad": not_finite.astype(np.uint8) if not_finite.any() else None,
    }


def _scale(middle: Array) -> Array:
    """What a difference is divided by, (S,): the middle, but not much less than it usually is."""
    size = np.abs(middle)
    usual = np.nanpercentile(size, 95)
    scale: Array = np.maximum(size, _LEAST * usual if usual > 0 else 1.0)
    return scale


def _order(ranks: Array, usual: Array, bad: Array, named: Sequence[int]) -> Array:
    """The places of the ranks: the named ones, those not finite, then the farthest from the median."""
    far = np.nan_to_num(np.minimum(np.abs(usual), 2.0)).mean(axis=0) + 10.0 * bad.any(axis=0)
    places = {rank: number for number, rank in enumerate(named)}
    first = np.array([places.get(int(rank), len(places)) for rank in ranks])
    return np.lexsort((ranks, -far, first))


def _median(block: Array) -> Array:
    """The median of each column (n, R) -> (R,), without NaN; NaN where there is nothing else."""
    if np.isfinite(block).all():
        return middle_of(block.T)
    ordered = np.sort(block, axis=0)  # NaN comes last
    count = np.isfinite(block).sum(axis=0)
    pair = np.stack([np.maximum(count - 1, 0) // 2, np.minimum(count // 2, block.shape[0] - 1)])
    found: Array = np.where(count > 0, np.take_along_axis(ordered, pair, 0).mean(axis=0), np.nan)
    return found


def _percent(parts: Array) -> Array:
    rounded = np.clip(np.round(100 * np.nan_to_num(parts)), -_MOST, _MOST)
    return np.ascontiguousarray(np.where(np.isnan(parts), NOTHING, rounded), np.int32)
