"""Counting an array into the bins of MindSpore's histogram rule."""

from typing import NamedTuple

import numpy as np

from distsummary.errors import InvalidTypeError
from distsummary.format.binning import bin_counts, blocks
from distsummary.format.records import Array, Histogram

_BLOCK = 1 << 16  # elements; a multiple of 8192


def count_histogram(values: Array, *, mindspore_compat: bool = False) -> Histogram:
    """Count an array of any shape; bool counts as uint8.

    The bins (at most 90, equally wide) span the finite values, or 0.5 to either side of a constant. Edges are
    float32 for float16 and float32 values, else float64. `mindspore_compat` computes them in the dtype of the
    values as MindSpore does: integers are truncated, and the width of int8 bins may wrap.

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
    found = _statistics(flat)
    finite = flat.size - found.nan_count - found.pos_inf_count - found.neg_inf_count
    invalid = found._asdict()
    low, high, total = (invalid.pop(name) for name in ("low", "high", "total"))
    if not finite:
        empty = np.empty(0)
        return Histogram(left=empty, width=empty, counts=empty.astype(np.int64), count=flat.size, **invalid)
    edges = bin_edges(low, high, finite, _edge_dtype(flat.dtype, mindspore_compat))
    with np.errstate(over="ignore"):  # the width may wrap in the dtype of the edges
        width = np.diff(edges)
    return Histogram(
        left=edges[:-1].astype(np.float64),
        width=width.astype(np.float64),
        counts=bin_counts(flat, edges),
        count=flat.size,
        min=low,
        max=high,
        sum=total,
        **invalid,
    )


class _Statistics(NamedTuple):
    """Of an array: the non-finite values by kind; of the finite ones the smallest, largest and the sum."""

    nan_count: int
    pos_inf_count: int
    neg_inf_count: int
    low: float
    high: float
    total: float


def _statistics(flat: Array) -> _Statistics:
    """One pass over the memory; the sum is that of NumPy over the whole array, to the last bit.

    NumPy sums what it must convert in runs of 8192, one after the other, so that blocks of a multiple change
    nothing. It sums float64 in pairs over the whole array, which therefore stays in one piece.
    """
    lows, highs = [], []
    total = -0.0  # where NumPy starts
    nan = pos_inf = neg_inf = 0
    for block in [flat] if flat.dtype == np.float64 else blocks(flat, _BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):
            summed = np.add.reduce(block, dtype=np.float64, initial=total)
        if not np.isfinite(summed):  # on clean data this tells it all
            finite = np.isfinite(block)
            nan += int(np.count_nonzero(np.isnan(block)))
            pos_inf += int(np.count_nonzero(block == np.inf))
            neg_inf += int(np.count_nonzero(block == -np.inf))
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # the positions decide the last bit: zeros stay
                summed = np.add.reduce(np.where(finite, block, 0), dtype=np.float64, initial=total)
            block = block[finite]
        total = summed
        if block.size:
            lows.append(block.min())
            highs.append(block.max())
    low, high = (float(min(lows)), float(max(highs))) if lows else (0.0, 0.0)
    return _Statistics(nan, pos_inf, neg_inf, low, high, float(total))


def bin_count(finite: int) -> int:
    """How many bins MindSpore gives to this many finite values."""
    if finite == 0:
        return 1
    if finite <= 5:
        return 2
    if finite <= 10:
        return 3
    return finite // 10 + 1 if finite <= 880 else 90


def bin_edges(low: float, high: float, finite: int, dtype: np.dtype[np.generic]) -> Array:
    """The edges, ascending, for `finite` values between low and high: shape (bins + 1,), `dtype`."""
    if not low < high:
        low, high = low - 0.5, high + 0.5
    points = bin_count(finite) + 1
    if not np.isfinite(high - low):  # a span beyond float64
        return 2 * np.linspace(low / 2, high / 2, points)
    with np.errstate(over="ignore"):  # its last point may overflow before it is set to `high`
        return np.linspace(low, high, points, dtype=dtype)


def _edge_dtype(dtype: np.dtype[np.generic], mindspore_compat: bool) -> np.dtype[np.generic]:
    if mindspore_compat:
        return dtype
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)
