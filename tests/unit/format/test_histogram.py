"""MindSpore's bins, in edges that keep every value."""

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError
from distsummary.format.histogram import bin_count, count_histogram


def test_the_number_of_bins_follows_mindspore():
    sizes = [0, 1, 5, 6, 10, 11, 19, 20, 880, 881, 10**7]
    assert [bin_count(size) for size in sizes] == [1, 2, 2, 3, 3, 2, 2, 3, 89, 90, 90]


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


def test_a_sum_beyond_float64_is_infinite_and_everything_is_counted():
    big = np.full(20, np.finfo(np.float64).max)
    histogram = count_histogram(big)
    assert (histogram.sum, histogram.pos_inf_count, int(histogram.counts.sum())) == (np.inf, 0, 20)
