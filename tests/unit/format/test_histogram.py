"""MindSpore's bins, in edges that keep every value, counted in two ways as np.histogram counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.errors import InvalidTypeError
from distsummary.format import histogram as module
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.histogram import bin_count, bin_edges, count_histogram


def test_the_number_of_bins_follows_mindspore():
    sizes = [0, 1, 5, 6, 10, 11, 19, 20, 880, 881, 10**7]
    assert [bin_count(size) for size in sizes] == [1, 2, 2, 3, 3, 2, 2, 3, 89, 90, 90]


def test_integers_keep_fractional_edges_that_mindspore_truncates():
    values = np.array([-128, 0, 1, 9, 127], np.int8)
    assert count_histogram(values).left.tolist() == [-128, -0.5]
    compat = count_histogram(values, compatibility=AS_MINDSPORE)
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


def test_a_sum_beyond_float64_is_infinite_and_everything_is_counted():
    big = np.full(20, np.finfo(np.float64).max)
    histogram = count_histogram(big)
    assert (histogram.sum, histogram.pos_inf_count, int(histogram.counts.sum())) == (np.inf, 0, 20)


# --- both ways of counting

WAYS = ("sorted", "placed")


def edges_of(values: np.ndarray, bins: int = 90) -> np.ndarray:
    """As the histogram rule makes them, of the finite values."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    small_float = values.dtype.kind == "f" and values.itemsize <= 4
    dtype = np.dtype(np.float32 if small_float else np.float64)
    return bin_edges(float(finite.min()), float(finite.max()), bins * 10, dtype)


def count(values: np.ndarray, edges: np.ndarray, way: str) -> np.ndarray | None:
    """None where places are in doubt."""
    if way == "sorted":
        return module._count_sorted(values, edges)
    placing = module._placing(values, edges)
    return None if placing is None else module._count_placed(values, edges, placing)


def expected(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return np.histogram(finite.astype(np.result_type(finite, edges)), edges)[0]


def check(values: np.ndarray, edges: np.ndarray) -> int:
    """How many ways could count."""
    found = [count(values, edges, way) for way in WAYS]
    for counts in found:
        if counts is not None:
            np.testing.assert_array_equal(counts, expected(values, edges))
    return sum(counts is not None for counts in found)


RANDOM = np.random.default_rng(7)
NORMAL = RANDOM.standard_normal(70_000).astype(np.float32)
SAMPLES = {
    "normal": NORMAL,
    "float64": RANDOM.standard_normal(40_000),
    "half of them zero": np.maximum(NORMAL, 0),
    "zeros on an edge": np.where(NORMAL > 1.5, NORMAL, 0) - (np.arange(NORMAL.size) == 0) * NORMAL.max(),
    "whole numbers": RANDOM.integers(0, 256, 40_000).astype(np.float32),
    "integers": RANDOM.integers(-1000, 1000, 40_000),
    "large integers": RANDOM.integers(-(2**62), 2**62, 4_000),
    "float16": NORMAL[:5000].astype(np.float16),
    "rounded to bfloat16": (NORMAL.view(np.uint32) & 0xFFFF0000).view(np.float32),
    "with NaN and infinities": np.where(RANDOM.random(NORMAL.size) < 0.01, np.float32(np.inf), NORMAL) * 1,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_both_ways_count_what_numpy_counts(name: str):
    values = np.asarray(SAMPLES[name])
    assert check(values, edges_of(values)) == 2


def test_the_edges_themselves_and_their_neighbours_are_counted_right():
    edges = np.linspace(-0.3, 0.7, 91, dtype=np.float32)
    around = [np.nextafter(edges, np.float32(-9)), edges, np.nextafter(edges, np.float32(9))]
    values = np.concatenate(around).clip(edges[0], edges[-1])
    assert check(values, edges) == 2


@pytest.mark.parametrize(
    "values",
    [
        np.float32(1e6) + RANDOM.random(1000, np.float32),  # edges closer than their rounding
        np.arange(256, dtype=np.uint8),
        np.array([0, 5e-324, 1e-323]),
        np.array([-1.7e308, 1.7e308]),
    ],
)
def test_where_places_are_in_doubt_numbers_are_sorted(values: np.ndarray):
    edges = edges_of(values)
    assert count(values, edges, "placed") is None
    np.testing.assert_array_equal(module.bin_counts(values, edges), expected(values, edges))


@settings(max_examples=40)
@given(
    hnp.arrays(
        st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint16"]), st.integers(1, 80)
    ),
    st.sampled_from([1, 3, 90]),
)
def test_any_numbers_are_counted_as_numpy_does(values: np.ndarray, bins: int):
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if finite.size:
        check(values, edges_of(values, bins))


def test_the_faster_way_is_chosen_once_and_counts_the_same():
    assert module._sorts_fast() in (True, False)
    values = SAMPLES["normal"]
    edges = edges_of(values)
    np.testing.assert_array_equal(module.bin_counts(values, edges), expected(values, edges))


def test_mindinsight_drops_no_histogram_of_ours():  # it drops those of more than 90 buckets
    values = np.random.default_rng(1).normal(size=1_000_000).astype(np.float32)
    assert count_histogram(values).left.size <= 90


ONE, DOWN, UP = (
    np.float32(1),
    np.nextafter(np.float32(1), np.float32(0)),
    np.nextafter(np.float32(1), np.float32(2)),
)
NARROW = {
    "a unit of the last place": np.repeat(np.array([DOWN, ONE, UP], np.float32), 400),
    "of float64": np.repeat([np.nextafter(1.0, 0), 1.0, np.nextafter(1.0, 2)], 400),
    "30,000,000": np.full(100, 3e7, np.float32),
    "1e30": np.full(100, 1e30, np.float32),
    "1e300": np.full(100, 1e300),
    "the largest": np.full(100, np.finfo(np.float64).max),
    "2**53 and the next": np.repeat([2.0**53, 2.0**53 + 2], 50),
    "large integers": np.repeat(np.array([2**62, 2**62 + 1], np.int64), 50),
    "half precision": np.full(100, 60000, np.float16),
    "denormal": np.repeat(np.array([0, 5e-324]), 50),
}  # fmt: skip


@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("name", NARROW)
def test_every_bin_has_a_width_and_every_value_a_bin(name: str, sorts: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_sorts_fast", lambda: sorts)
    found = count_histogram(NARROW[name])
    edges = np.append(found.left, found.left[-1] + found.width[-1])
    np.testing.assert_array_equal(found.counts, np.histogram(NARROW[name].astype(edges.dtype), edges)[0])
    assert (found.width > 0).all()
    assert found.counts.sum() == found.count == NARROW[name].size
    assert found.left[0] <= found.min
    assert found.left[-1] + found.width[-1] >= found.max
