"""MindSpore's bins, in edges that keep every value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.errors import InvalidTypeError
from distsummary.events.histogram import bin_count, count_histogram
from distsummary.events.records import Histogram

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARRAYS = st.sampled_from([*DTYPES, "float16", "float32", "float64"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12))
)


def test_the_number_of_bins_follows_mindspore():
    sizes = [0, 1, 5, 6, 10, 11, 19, 20, 880, 881, 10**7]
    assert [bin_count(size) for size in sizes] == [1, 2, 2, 3, 3, 2, 2, 3, 89, 90, 90]


@given(ARRAYS)
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
    assert_equal(count_histogram(values), count_histogram(values, mindspore_compat=True))


def test_integers_keep_fractional_edges_that_mindspore_truncates():
    values = np.array([-128, 0, 1, 9, 127], np.int8)
    assert count_histogram(values).left.tolist() == [-128, -0.5]
    compat = count_histogram(values, mindspore_compat=True)
    assert compat.left.tolist() == [-128, -1]
    assert compat.width.tolist() == [127, -128]  # MindSpore's int8 difference wraps


def test_bool_is_counted_as_numbers():
    histogram = count_histogram(np.array([True, False, True]))
    assert histogram.counts.tolist() == [1, 2]
    assert (histogram.min, histogram.max, histogram.sum) == (0, 1, 2)


def test_a_constant_has_half_a_unit_to_either_side():
    histogram = count_histogram(np.full(4, 2.5, np.float32))
    assert histogram.left.tolist() == [2.0, 2.5]
    assert histogram.counts.tolist() == [0, 4]


def test_narrow_values_far_from_zero_are_counted():
    values = (1e6 + np.linspace(0, 1, 1000)).astype(np.float32)
    assert count_histogram(values).counts.sum() == 1000


def test_a_span_beyond_float64_is_counted():
    big = np.finfo(np.float64).max
    histogram = count_histogram(np.array([-big, 0.0, big]))
    assert histogram.counts.tolist() == [1, 2]
    assert np.isfinite(histogram.left).all()


def test_only_non_finite_values_give_no_bins():
    histogram = count_histogram(np.array([np.nan, np.inf, -np.inf, np.inf]))
    counts = (histogram.nan_count, histogram.pos_inf_count, histogram.neg_inf_count, histogram.count)
    assert counts == (1, 2, 1, 4)
    assert (histogram.left.size, histogram.min, histogram.max, histogram.sum) == (0, None, None, None)


@pytest.mark.parametrize("values", [np.array([1j]), np.array(["x"]), np.array([None])])
def test_what_cannot_be_counted_is_refused(values):
    with pytest.raises(InvalidTypeError, match="histogram"):
        count_histogram(values)


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


def test_a_sum_beyond_float64_is_infinite_and_everything_is_counted():
    big = np.full(20, np.finfo(np.float64).max)
    histogram = count_histogram(big)
    assert (histogram.sum, histogram.pos_inf_count, int(histogram.counts.sum())) == (np.inf, 0, 20)


def assert_equal(one: Histogram, other: Histogram) -> None:
    for name in ("left", "width", "counts"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "sum"):
        assert getattr(one, name) == getattr(other, name)
