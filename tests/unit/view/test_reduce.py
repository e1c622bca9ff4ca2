"""What a drawing leaves out is never an extreme: thinned curves, bands over ranks, heat maps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distsummary.view.reduce import band, columns, heat_map, thinned

NAN = np.nan
VALUES = st.floats(width=32, allow_nan=True, allow_infinity=True)


def test_columns_are_equally_wide_in_steps_and_none_is_empty():
    assert np.diff(columns(np.arange(800), 625)).tolist() == [2] * 400
    edges = columns(np.array([0, 1, 2, 3, 90, 99]), 10)
    assert edges.tolist() == [0, 4, 6]
    assert columns(np.array([7]), 10).tolist() == [0, 1]
    assert columns(np.zeros(0, np.int64), 10).tolist() == [0]


def test_a_short_curve_is_kept_whole():
    assert thinned(np.arange(400), np.zeros(400), 100).size == 400


@given(arrays(np.float32, st.integers(1, 300), elements=VALUES), st.integers(1, 20))
def test_a_thinned_curve_has_its_ends_extremes_and_the_first_that_is_not_finite(values, width):
    steps = np.arange(values.size) * 3
    places = thinned(steps, values, width)
    kept = values[places]
    assert (np.diff(places) > 0).all()
    assert places.size <= max(4 * width, 5 * width)
    assert {0, values.size - 1} <= set(places.tolist())
    finite, kept_finite = values[np.isfinite(values)], kept[np.isfinite(kept)]
    if finite.size:
        assert (finite.min(), finite.max()) == (kept_finite.min(), kept_finite.max())
    bad = np.flatnonzero(~np.isfinite(values))
    assert not bad.size or bad[0] in places


def test_one_spike_in_a_million_steps_is_kept_where_it_is():
    values = np.zeros(1_000_000, np.float32)
    values[654_321] = 7
    places = thinned(np.arange(1_000_000), values, 500)
    assert 654_321 in places
    assert places.size <= 2500


@given(arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=VALUES))
def test_a_band_is_what_numpy_says_of_the_finite_values(values):
    ranks = np.arange(values.shape[1], dtype=np.int32) + 10
    found = band(ranks, values)
    for step, row in enumerate(values):
        finite = row[np.isfinite(row)]
        assert found.not_finite[step] == np.isinf(row).sum()
        assert found.count[step] == (~np.isnan(row)).sum()
        if finite.size:
            assert (found.low[step], found.high[step]) == (finite.min(), finite.max())
            assert row[found.low_rank[step] - 10] == finite.min()
            assert row[found.high_rank[step] - 10] == finite.max()
            with np.errstate(over="ignore"):
                assert found.median[step] == pytest.approx(np.median(finite), rel=1e-6)
        else:
            assert np.isnan([found.low[step], found.median[step], found.high[step]]).all()
            assert (found.low_rank[step], found.high_rank[step]) == (-1, -1)


def test_nan_that_was_recorded_is_counted_and_what_is_missing_is_not():
    values = np.array([[1, NAN, NAN]], np.float32)
    found = band(np.arange(3, dtype=np.int32), values, np.array([[False, True, False]]))
    assert (found.count.tolist(), found.not_finite.tolist()) == ([2], [1])


@given(
    arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 30)), elements=VALUES),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_a_cell_has_the_highest_value_of_its_ranks_and_steps_and_says_where(values, cells, width):
    steps = np.arange(values.shape[0]) * 2 + 5
    ranks = np.arange(values.shape[1], dtype=np.int32) + 3
    one = heat_map(steps, ranks, values, cells=cells, width=width)
    assert one.values.size <= max(cells, one.values.shape[0], one.values.shape[1])
    ends = np.append(one.first_steps[1:], one.last_step + 1)
    for row in range(one.values.shape[0]):
        for column, (begin, end) in enumerate(zip(one.first_steps, ends, strict=True)):
            block = values[(steps >= begin) & (steps < end), row * one.group : (row + 1) * one.group]
            finite = block[np.isfinite(block)]
            assert one.bad[row, column] == np.isinf(block).any()
            if finite.size:
                assert one.values[row, column] == finite.max()
                at = values[(one.steps[row, column] - 5) // 2, one.ranks[row, column] - 3]
                assert at == finite.max()
            else:
                assert np.isnan(one.values[row, column])
                assert (one.steps[row, column], one.ranks[row, column]) == (-1, -1)


def test_a_ratio_is_to_the_median_of_its_own_step():
    values = np.array([[1, 1, 4], [10, 10, 20], [0, 0, 5]], np.float32)
    steps, ranks = np.arange(3), np.arange(3, dtype=np.int32)
    one = heat_map(steps, ranks, values, cells=3, width=1, by=band(ranks, values).median)
    assert one.values.tolist() == [[1], [1], [4]]
    assert one.steps[2, 0] == 0  # not step 2, whose median is 0


def test_of_several_ratios_the_farthest_from_1_is_shown_with_its_step_and_one_near_0_as_a_tenth():
    values = np.array([[1, 8, 1, 4], [8, 8, 0, 32]], np.float32)
    steps, ranks = np.array([3, 7]), np.arange(4, dtype=np.int32)
    one = heat_map(steps, ranks, values, cells=4, width=1, by=np.array([2, 8]))
    assert one.values.tolist() == [[0.5], [4], [0], [4]]
    assert one.steps.tolist() == [[3], [3], [7], [7]]


def test_a_thousand_ranks_share_rows():
    values = np.zeros((5000, 1000), np.float32)
    values[4321, 765] = 1
    one = heat_map(np.arange(5000), np.arange(1000, dtype=np.int32), values, cells=30_000, width=1000)
    assert one.values.size <= 30_000
    [row], [column] = np.nonzero(one.values)
    assert (one.steps[row, column], one.ranks[row, column]) == (4321, 765)
