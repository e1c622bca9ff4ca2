"""Counting an array into the bins of MindSpore's histogram rule."""

import numpy as np

from distsummary.errors import InvalidTypeError
from distsummary.events.records import Array, Histogram


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
    invalid = _count_invalid(flat)
    has_invalid = any(invalid.values())
    finite = flat[np.isfinite(flat)] if has_invalid else flat
    if not finite.size:
        empty = np.empty(0)
        return Histogram(left=empty, width=empty, counts=empty.astype(np.int64), count=flat.size, **invalid)
    low, high = finite.min(), finite.max()
    edges = bin_edges(float(low), float(high), finite.size, _edge_dtype(flat.dtype, mindspore_compat))
    counts, _ = np.histogram(finite, edges)
    # Zeros in the place of the invalid ones: numpy adds pairwise, so the positions decide the last bit.
    summed = np.where(np.isfinite(flat), flat, 0) if has_invalid else flat
    with np.errstate(over="ignore"):  # the sum may exceed float64, the width wrap in the dtype of the edges
        total, width = summed.sum(dtype=np.float64), np.diff(edges)
    return Histogram(
        left=edges[:-1].astype(np.float64),
        width=width.astype(np.float64),
        counts=counts.astype(np.int64),
        count=flat.size,
        min=float(low),
        max=float(high),
        sum=float(total),
        **invalid,
    )


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
    return np.linspace(low, high, points, dtype=dtype)


def _edge_dtype(dtype: np.dtype[np.generic], mindspore_compat: bool) -> np.dtype[np.generic]:
    if mindspore_compat:
        return dtype
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def _count_invalid(flat: Array) -> dict[str, int]:
    """The non-finite values by kind."""
    with np.errstate(over="ignore", invalid="ignore"):
        if flat.dtype.kind != "f" or np.isfinite(flat.sum(dtype=np.float64)):  # one pass for clean data
            return {"nan_count": 0, "pos_inf_count": 0, "neg_inf_count": 0}
    return {
        "nan_count": int(np.isnan(flat).sum()),
        "pos_inf_count": int(np.isposinf(flat).sum()),
        "neg_inf_count": int(np.isneginf(flat).sum()),
    }
