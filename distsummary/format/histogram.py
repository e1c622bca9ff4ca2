"""Histograms: MindSpore's bins or TensorBoard's fixed buckets, and counting arrays block by block.

MindSpore's bins depend on the values. The parts of a tensor that is split over ranks are counted in fixed
buckets instead: adding the counts of all parts then gives those of the whole tensor.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from distsummary.errors import InvalidTypeError
from distsummary.format.compatibility import OURS, Compatibility
from distsummary.format.records import Array, Histogram

_BLOCK = 1 << 16  # elements; a multiple of 8192, see `count_histogram`
SORT_BLOCK = 1 << 16  # elements
PLACE_BLOCK = 1 << 15  # a block and its scratch arrays fit into the cache
MOST = float(np.finfo(np.float64).max)
_MAX_DOUBT = 0.25  # in bin widths; see `_Placing`


def count_histogram(values: Array, *, compatibility: Compatibility = OURS, fixed: bool = False) -> Histogram:
    """Count an array of any shape; bool counts as uint8.

    At most 90 equal bins span the finite values, or 0.5 to either side if all values are equal. Their edges
    are `distinct_edges`. With `compatibility.histograms`, they are computed
    in the dtype of the values as in MindSpore: integer edges are truncated, and widths of int8 may wrap
    around. With `fixed`, the bins are `fixed_edges` from the first to the last that is not empty.

    Raises InvalidTypeError unless the dtype is bool, integer or float of at most 64 bits.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise InvalidTypeError(
            f"a histogram counts bool, integers or floats of up to 64 bits, got {values.dtype}; convert it"
        )
    flat = values.reshape(-1)
    if flat.dtype.kind == "b":
        flat = flat.view(np.uint8)
    # One pass over the memory for the smallest value, the largest, the sum and the non-finite values. The sum
    # equals NumPy's sum of the whole array to the last bit: NumPy converts other dtypes to float64 in buffers
    # of 8192 values and sums these in order, so blocks of a multiple of 8192 give the same result. A float64
    # array is not cut into blocks, since NumPy sums it pairwise as a whole.
    lows, highs = [], []
    total = -0.0  # NumPy's own initial value
    nan = pos_inf = neg_inf = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in [flat] if flat.dtype == np.float64 else _blocks(flat, _BLOCK):
            summed = np.add.reduce(block, dtype=np.float64, initial=total)
            # If the sum is finite, all terms are.
            if not np.isfinite(summed):
                finite = np.isfinite(block)
                nan += int(np.count_nonzero(np.isnan(block)))
                pos_inf += int(np.count_nonzero(block == np.inf))
                neg_inf += int(np.count_nonzero(block == -np.inf))
                # Zeros replace the non-finite values: the position of a term affects the last bit of the sum.
                summed = np.add.reduce(np.where(finite, block, 0), dtype=np.float64, initial=total)
                block = block[finite]
            total = summed
            if block.size:
                lows.append(block.min())
                highs.append(block.max())
    invalid = {"nan_count": nan, "pos_inf_count": pos_inf, "neg_inf_count": neg_inf}
    finite_count = flat.size - sum(invalid.values())
    if not finite_count:
        empty = np.empty(0)
        return Histogram(left=empty, width=empty, counts=empty.astype(np.int64), count=flat.size, **invalid)
    low, high = float(min(lows)), float(max(highs))
    measured: dict[str, Any] = {"count": flat.size, "min": low, "max": high, "sum": float(total), **invalid}
    if fixed:
        return fixed_histogram(_count_sorted(flat, fixed_edges()), **measured)
    is_small_float = flat.dtype.kind == "f" and flat.dtype.itemsize <= 4
    if compatibility.histograms:
        edges = bin_edges(low, high, finite_count, flat.dtype)
    else:
        edges = distinct_edges(low, high, finite_count, is_small_float=is_small_float)
    # The width may wrap around in the dtype of the edges.
    with np.errstate(over="ignore"):
        width = np.diff(edges)
    return Histogram(
        left=edges[:-1].astype(np.float64),
        width=width.astype(np.float64),
        counts=bin_counts(flat, edges),
        **measured,
    )


@cache
def fixed_edges() -> Array:
    """The rising edges of TensorBoard's default buckets, as torch and tensorboardX have them, float64.

    0 and, to both sides, 1e-12 * 1.1**k up to 1e20; then the limits of float64, for the rest. A bucket holds
    its left edge.
    """
    positive, edge = list[float](), 1e-12
    while edge < 1e20:
        positive.append(edge)
        edge *= 1.1
    positive.append(float(np.finfo(np.float64).max))
    edges = np.array([*(-edge for edge in reversed(positive)), 0.0, *positive])
    edges.flags.writeable = False
    return edges


def fixed_histogram(counts: Array, **measured: Any) -> Histogram:
    """The histogram with the counts int64 (1548,) of all fixed buckets; `measured` are its other fields."""
    filled = np.flatnonzero(counts)
    first, end = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
    return fixed_part(first, counts[first:end], **measured)


def fixed_part(first: int, counts: Array, **measured: Any) -> Histogram:
    """The histogram with counts int64 (B,) of the fixed buckets from the one with the index `first` on."""
    edges = fixed_edges()[first : first + len(counts) + 1]
    return Histogram(left=edges[:-1], width=np.diff(edges), counts=counts, first_fixed=first, **measured)


def coarser(histogram: Histogram, most: int) -> Histogram:
    """The same histogram with at most `most` buckets, which are adjacent ones together.

    Buckets with few values are put together rather than those with many. The outermost edges are not beyond
    min and max where the bucket would be without bounds.
    """
    left, right = histogram.left.copy(), histogram.left + histogram.width
    limit = fixed_edges()[-2]
    if left.size:
        left[0] = max(left[0], histogram.min) if left[0] < -limit else left[0]
        right[-1] = min(right[-1], histogram.max) if right[-1] > limit else right[-1]
    # Half of the room goes by the number of values, half by the number of buckets.
    share = histogram.counts / max(1, histogram.counts.sum()) + 1 / max(1, left.size)
    group = ((np.cumsum(share) - share) * (most / 2)).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1)) if left.size > most else np.arange(left.size)
    ends = np.append(starts[1:], left.size)[: starts.size] - 1
    counts = np.add.reduceat(histogram.counts, starts) if starts.size else histogram.counts
    return replace(
        histogram, left=left[starts], width=right[ends] - left[starts], counts=counts, first_fixed=None
    )


def bin_count(finite: int) -> int:
    """The number of bins that MindSpore uses for this number of finite values."""
    if finite == 0:
        return 1
    if finite <= 5:
        return 2
    if finite <= 10:
        return 3
    return finite // 10 + 1 if finite <= 880 else 90


def bin_edges(low: float, high: float, finite: int, dtype: np.dtype[np.generic]) -> Array:
    """The ascending edges of the bins for `finite` values from low to high: shape (bins + 1,), of `dtype`."""
    if not low < high:
        low, high = low - 0.5, high + 0.5
    points = bin_count(finite) + 1
    # The last point may overflow before it is set to `high`.
    with np.errstate(over="ignore"):
        # A span beyond float64 is computed at half its size.
        if not np.isfinite(high - low):
            return 2 * np.linspace(low / 2, high / 2, points)
        return np.linspace(low, high, points, dtype=dtype)


def distinct_edges(low: float, high: float, finite: int, *, is_small_float: bool) -> Array:
    """As `bin_edges`, so that each bin has a width: viewers lose the values of one without.

    float32 for `is_small_float`, else float64, also where float32 has too few digits for the bins. Where
    float64 has too few, there are fewer bins.
    """
    if is_small_float:
        edges = bin_edges(low, high, finite, np.dtype(np.float32))
        if (np.diff(edges) > 0).all():
            return edges
    if low == high:
        half = max(0.5, bin_count(finite) * float(abs(low) - np.nextafter(abs(low), 0.0)))
        with np.errstate(over="ignore"):
            low, high = max(low - half, -MOST), min(high + half, MOST)
    return np.unique(bin_edges(low, high, finite, np.dtype(np.float64)))


def bin_counts(flat: Array, edges: Array) -> Array:
    """How many finite numbers of `flat` (n,) are in each bin: int64 (bins,); the last bin includes its end.

    The counts equal those of `np.histogram`. No finite number may lie outside the edges; NaN and infinities
    are not counted.
    """
    placing = _placing(flat, edges)
    if placing is None or _sorts_fast():
        return _count_sorted(flat, edges)
    return _count_placed(flat, edges, placing)


class _Placing(NamedTuple):
    """A number x lies `scale` * (x - first edge) bins above the first edge; rounding error <= `doubt`."""

    scale: float
    doubt: float


def _placing(flat: Array, edges: Array) -> _Placing | None:
    """How to compute bins; None for one-byte numbers, an unsuitable dtype, or if `doubt` is too large."""
    dtype = edges.dtype
    if flat.itemsize == 1 or dtype not in (np.float32, np.float64) or np.result_type(flat, dtype) != dtype:
        return None
    bins = edges.size - 1
    with np.errstate(all="ignore"):
        scale = dtype.type(bins) / (edges[-1] - edges[0])
        # The relative errors of difference, scale and product, and the rounding of the edges themselves.
        rounding = 4 * float(np.finfo(dtype).eps) * bins
        doubt = rounding + float(np.spacing(np.abs(edges).max())) * float(scale)
    if not 0 < scale < np.inf:
        return None
    return _Placing(float(scale), doubt) if doubt < _MAX_DOUBT else None


def _count_sorted(flat: Array, edges: Array) -> Array:
    """Count by sorting the numbers and searching for the edges; NaN and infinities fall outside."""
    below = np.zeros(edges.size, np.int64)
    # A stable sort of numbers of one byte is 20 times faster.
    kind: Literal["stable"] | None = "stable" if flat.itemsize == 1 else None
    for block in _blocks(flat, SORT_BLOCK):
        ordered = np.sort(block, kind=kind)
        # Converted once for all searches.
        comparable = ordered.astype(np.result_type(ordered, edges), copy=False)
        below[:-1] += comparable.searchsorted(edges[:-1], "left")
        below[-1] += comparable.searchsorted(edges[-1], "right")
    return np.diff(below)


def _count_placed(flat: Array, edges: Array, placing: _Placing) -> Array:
    """Count by computing each number's bin; numbers too near to an edge are compared with that edge."""
    bins = edges.size - 1
    counts = np.zeros(bins + 1, np.int64)  # one extra for numbers at the last edge
    scratch, nearest = np.empty((2, PLACE_BLOCK), edges.dtype)
    short, places = np.empty(PLACE_BLOCK, np.int32), np.empty(PLACE_BLOCK, np.intp)
    for block in _blocks(flat, PLACE_BLOCK):
        # Numbers that are not finite have no bin; with a finite sum there are none.
        if block.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                total = np.add.reduce(block, dtype=np.float64)
            if not np.isfinite(total):
                block = block[np.isfinite(block)]
        at, edge, place = scratch[: block.size], nearest[: block.size], places[: block.size]
        # An array: NumPy 1 subtracts a scalar in the dtype of the block.
        np.multiply(np.subtract(block, edges[:1], out=at), edges.dtype.type(placing.scale), out=at)
        # Converted in two steps, which takes half the time of one.
        np.copyto(short[: block.size], at, casting="unsafe")
        np.copyto(place, short[: block.size])
        # Within the rounding error of an edge, the number itself is compared with that edge.
        np.rint(at, out=edge)
        np.abs(np.subtract(at, edge, out=at), out=at)
        doubted = np.flatnonzero((at < placing.doubt) & (edge > 0) & (edge < bins))
        if doubted.size:
            number = edge[doubted].astype(np.intp)
            place[doubted] = number - (block[doubted] < edges[number])
        counts += np.bincount(place, minlength=bins + 1)
    counts[-2] += counts[-1]
    return counts[:-1]


def _blocks(flat: Array, size: int) -> Iterator[Array]:
    """The array in pieces that fit into the cache; float16 becomes float32, which is three times as fast."""
    for start in range(0, flat.size, size):
        block = flat[start : start + size]
        yield block.astype(np.float32) if block.dtype == np.float16 else block


@cache
def _sorts_fast() -> bool:
    """Whether `_count_sorted` is faster than `_count_placed` on this machine; measured once per process.

    Sorting takes 0.7 times as long as placing where AVX-512 is fast, and 8 times as long elsewhere.
    """
    sample = np.random.default_rng(0).standard_normal(PLACE_BLOCK, np.float32)
    edges = np.linspace(sample.min(), sample.max(), 91, dtype=np.float32)
    placing = _placing(sample, edges)
    assert placing is not None
    sort_s = _cpu_s(lambda: _count_sorted(sample, edges))
    return sort_s < _cpu_s(lambda: _count_placed(sample, edges, placing))


def _cpu_s(call: Callable[[], object]) -> float:
    """The CPU time of a call in seconds: the shortest of three measurements."""
    taken = []
    for _ in range(3):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    return min(taken)
