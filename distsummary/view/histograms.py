"""Histograms of a run over its steps, small enough for a page: the shares of bins that all steps share."""

from dataclasses import replace
from typing import Any

import numpy as np

from distsummary.base.columns import without_middle
from distsummary.errors import DistSummaryError
from distsummary.format.records import Histogram
from distsummary.runs.rank_files import MERGED
from distsummary.runs.recorded_run import RecordedRun
from distsummary.view.packing import small
from distsummary.view.reduce import Array, spread

MAX_TAGS = 100
BINS = 48
_CELLS = 300_000  # of all tags together
_STEPS = 120  # of a tag at most
_FAR = 8.0  # how much wider than most of the values all of them may lie on a linear axis
_HUGE = 1e150  # differences of such values may overflow


def histograms(run: RecordedRun) -> dict[str, Any] | None:
    """What to draw of the histograms of each tag; None if there are none.

    Of many steps those that are shown are spread evenly, the first and the newest among them. `tags`, one
    dict each:

    - `tag`; `ranks`: those that recorded it; `is_merged`: whether it is that of the merged run, which at each
      step has the one of the lowest rank, or the shards of all put together; else it is that of `ranks[0]`;
    - `recorded`: at how many steps; `unread`: how many of the N shown could not be read;
    - `steps` (N,); `shares` uint8 (N, BINS): 255 times the square root of a bin's share of the step's finite
      values, by `highest`, the highest of all shares; values of a recorded bin are taken to lie evenly in it;
    - `low`, `high`: the ends of the bins. They are equally wide or, if `linear` is no None, equally wide in
      asinh(value / linear): linear near 0 and logarithmic beyond `linear`;
    - `min`, `max` float64 (N,), of the finite values, NaN without; `median_low`, `median_high` float64 (N,):
      the ends of the recorded bin in which their median lies;
    - `counts` float64 (N,), how many values, and `bad` float64 (N,): how many are NaN or infinite.

    `left_out`: how many more tags there are.
    """
    with run.held():
        known = [*run.ranks_of("histogram").items()]
        if not known:
            return None
        shown = known[:MAX_TAGS]
        size = min(_STEPS, _CELLS // BINS // len(shown))
        tags = [_tag(run, tag, ranks, size) for tag, ranks in shown]
    return {"tags": tags, "left_out": len(known) - len(shown)}


def _tag(run: RecordedRun, tag: str, ranks: tuple[int, ...], size: int) -> dict[str, Any]:
    table, is_merged = None, False
    if len(run.ranks) > 1:
        try:
            table = run.histograms(tag, MERGED)
            is_merged = len(table) > 0 and bool(table["rank"][0] < 0)
        except DistSummaryError:
            # The run is not merged yet.
            pass
    if not is_merged:
        table = run.histograms(tag, ranks[0])
    assert table is not None
    # Of a step that was recorded twice, the last row counts.
    steps, rows = np.unique(table["step"][::-1], return_index=True)
    rows = len(table) - 1 - rows
    kept: list[tuple[int, Histogram]] = []
    chosen = spread(steps.size, size)
    for at in chosen:
        try:
            kept.append((int(steps[at]), with_finite_ends(table.value(int(rows[at])))))
        except (DistSummaryError, OSError):
            continue
    low, high, linear = axis([one for _, one in kept])
    edges = bin_edges(low, high, linear)
    shares = np.array([shares_of(one, edges) for _, one in kept]).reshape(len(kept), BINS)
    highest = float(shares.max(initial=0.0))
    ends = {
        name: np.array(
            [np.nan if (end := getattr(one, name)) is None else end for _, one in kept], np.float64
        )
        for name in ("min", "max")
    }
    medians = [_median_bin(one) for _, one in kept]
    return {
        "tag": without_middle(tag, 1024),
        "ranks": list(ranks),
        "is_merged": is_merged,
        "recorded": int(steps.size),
        "unread": len(chosen) - len(kept),
        "steps": small(np.array([step for step, _ in kept], np.int64)),
        "shares": np.round(255 * np.sqrt(shares / (highest or 1.0))).astype(np.uint8),
        "highest": highest,
        "low": low,
        "high": high,
        "linear": linear,
        **ends,
        **dict(zip(("median_low", "median_high"), np.array(medians).reshape(-1, 2).T, strict=True)),
        "counts": np.array([one.count for _, one in kept], np.float64),
        "bad": np.array(
            [one.nan_count + one.pos_inf_count + one.neg_inf_count for _, one in kept], np.float64
        ),
    }


def with_finite_ends(one: Histogram) -> Histogram:
    """The histogram with the ends of its bins for a lowest or highest value that is NaN or infinite.

    torch's writer has NaN for both if one of the values is.
    """
    ends = [one.min, one.max]
    if all(end is None or np.isfinite(end) for end in ends):
        return one
    with np.errstate(over="ignore", invalid="ignore"):
        edges = np.stack([one.left, one.left + one.width], axis=1)[one.counts > 0]
    edges = edges[np.isfinite(edges)]
    low, high = (float(edges.min()), float(edges.max())) if edges.size else (None, None)
    return replace(one, min=low, max=high)


def axis(found: list[Histogram]) -> tuple[float, float, float | None]:
    """`low`, `high` and `linear` of the bins, as `histograms` returns them, so that all values are inside."""
    ends = [(one.min, one.max) for one in found if one.min is not None and one.max is not None]
    if not ends:
        return 0.0, 1.0, None
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        # A single value stands in the middle of an axis around it.
        half = abs(low) / 2 or 0.5
        return low - half, high + half, None
    # Differences of huge values may overflow, and so may the widths that are compared below.
    if max(-low, high) > _HUGE:
        return low, high, 1.0
    # If a few far values would leave all others in one bin, the axis is linear only where most lie.
    at = np.array([quantiles(one, (0.01, 0.1, 0.9, 0.99)) for one in found if one.min is not None])
    if high - low > _FAR * (at[:, 3].max() - at[:, 0].min()):
        usual = float(np.median(at[:, 2] - at[:, 1])) / 2
        if usual > 0:
            return low, high, usual
    return low, high, None


def bin_edges(low: float, high: float, linear: float | None) -> Array:
    """The edges of the bins, float64 (BINS + 1,)."""
    if linear is None:
        return low + (high - low) * np.linspace(0, 1, BINS + 1)
    edges = linear * np.sinh(np.linspace(np.arcsinh(low / linear), np.arcsinh(high / linear), BINS + 1))
    # Rounding in sinh and arcsinh must not leave the extreme values outside.
    edges[0], edges[-1] = low, high
    return edges


def shares_of(one: Histogram, edges: Array) -> Array:
    """Which share of the finite values lies between the edges, float64 (B,)."""
    places, below = _cumulative(one)
    if not places.size:
        return np.zeros(edges.size - 1)
    found = np.interp(edges, places, below)
    # All values lie between the outer edges, also if all of them are the same.
    found[0], found[-1] = 0.0, 1.0
    return np.diff(found)


def quantiles(one: Histogram, shares: tuple[float, ...]) -> Array:
    """The values below which these shares of the finite ones lie; NaN if there are none."""
    places, below = _cumulative(one)
    return np.interp(shares, below, places) if places.size else np.full(len(shares), np.nan)


def _median_bin(one: Histogram) -> tuple[float, float]:
    places, below = _cumulative(one)
    if not places.size:
        return np.nan, np.nan
    at = int(np.searchsorted(below[1::2], 0.5)) * 2
    return float(places[at]), float(places[at + 1])


def _cumulative(one: Histogram) -> tuple[Array, Array]:
    """The ends of the bins that count something, within the lowest and highest value, and the share of the
    values below each.
    """
    is_used = one.counts > 0
    if not is_used.any() or one.min is None or one.max is None:
        return np.empty(0), np.empty(0)
    left, counts = one.left[is_used], one.counts[is_used].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        right = left + one.width[is_used]
    places = np.clip(np.stack([left, right], axis=1).reshape(-1), one.min, one.max)
    sums = np.cumsum(counts)
    below = np.stack([sums - counts, sums], axis=1).reshape(-1) / sums[-1]
    return np.maximum.accumulate(places), below
