"""Arrays of any dtype and of many blocks, counted as by MindSpore's rule over the whole array at once."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.histogram import bin_count, count_histogram
from distsummary.format.records import Histogram

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARRAYS = st.sampled_from([*DTYPES, "float16", "float32", "float64"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12))
)


@given(ARRAYS)
@example(np.array([1.0, -1.0, -1.0, -1.0, -1.0, -1.0]) * np.finfo(np.float64).max)  # the last edge overflows
def test_every_finite_value_is_counted_in_one_bin(values):
    histogram = count_histogram(values)
    invalid = histogram.nan_count + histogram.pos_inf_count + histogram.neg_inf_count
    assert histogram.count == values.size
    assert int(histogram.counts.sum()) == values.size - invalid
    assert invalid == values.size - np.isfinite(values).sum()


@given(ARRAYS)
def test_the_edges_span_the_values_and_ascend(values):
    histogram = count_histogram(values)
    if histogram.min is None:
        assert histogram.left.size == 0
        return
    assert (histogram.width >= 0).all()
    assert histogram.left[0] <= histogram.min
    right = histogram.left[-1] + histogram.width[-1]
    rounding = 1e-6 * max(abs(histogram.min), abs(histogram.max))  # of float32 edges
    assert right >= histogram.max - rounding


@given(hnp.arrays("float32", st.integers(0, 2000)))
def test_float32_is_counted_alike_with_and_without_compatibility(values):
    ours, theirs = count_histogram(values), count_histogram(values, compatibility=AS_MINDSPORE)
    # Where float32 has too few digits for MindSpore's bins, some of them have no width; none of ours has.
    if (theirs.width > 0).all():
        assert_equal(ours, theirs)
    assert (ours.width > 0).all()
    assert ours.counts.sum() == theirs.counts.sum()


def by_the_book(values: np.ndarray, edge_dtype: str) -> Histogram:
    """MindSpore's rule over the whole array at once (mindspore.md, 4.3)."""
    finite = np.isfinite(values)
    low, high = float(values[finite].min()), float(values[finite].max())
    edges = np.linspace(low, high, bin_count(int(finite.sum())) + 1, dtype=edge_dtype)
    return Histogram(
        left=edges[:-1].astype(np.float64),
        width=np.diff(edges).astype(np.float64),
        counts=np.histogram(values[finite], edges)[0].astype(np.int64),
        count=values.size,
        nan_count=int(np.isnan(values).sum()),
        pos_inf_count=int(np.isposinf(values).sum()),
        neg_inf_count=int(np.isneginf(values).sum()),
        min=low,
        max=high,
        sum=float(np.where(finite, values, 0).sum(dtype=np.float64)),
    )


@pytest.mark.parametrize("size", [8191, 65536, 65537, 200_003])
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", ">f4", "int8", "uint8", "int16", "int32", "int64"]
)
def test_arrays_of_many_blocks_are_counted_as_in_one(dtype: str, size: int):
    values = (np.random.default_rng(size).standard_normal(size) * 40).clip(-120, 120)
    values = (np.abs(values) if dtype == "uint8" else values).astype(dtype)
    edges = "float32" if dtype in ("float16", "float32", ">f4") else "float64"
    assert_equal(count_histogram(values), by_the_book(values, edges))
    assert_equal(count_histogram(values[::3]), by_the_book(values[::3], edges))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_non_finite_values_in_some_blocks_change_no_other_count(dtype: str):
    values = np.random.default_rng(0).standard_normal(200_003).astype(dtype)
    values[[5, 70_000, 70_001]] = np.nan
    values[[6, 140_000]] = np.inf
    values[150_000] = -np.inf
    assert_equal(count_histogram(values), by_the_book(values, "float64" if dtype == "float64" else "float32"))
    values[65536 : 2 * 65536] = np.nan
    assert_equal(count_histogram(values), by_the_book(values, "float64" if dtype == "float64" else "float32"))


def assert_equal(one: Histogram, other: Histogram) -> None:
    for name in ("left", "width", "counts"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "sum"):
        assert getattr(one, name) == getattr(other, name)
