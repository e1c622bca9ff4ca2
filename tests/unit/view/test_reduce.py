"""What a drawing leaves out is never an extreme: thinned curves, bands over ranks, heat maps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from distsummary.view.reduce import band, columns, middle_of, thinned

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
            assert found.median[step] == pytest.approx(np.median(finite.astype(np.float64)), rel=1e-6)
        else:
            assert np.isnan([found.low[step], found.median[step], found.high[step]]).all()
            assert (found.low_rank[step], found.high_rank[step]) == (-1, -1)


def test_nan_that_was_recorded_is_counted_and_what_is_missing_is_not():
    values = np.array([[1, NAN, NAN]], np.float32)
    found = band(np.arange(3, dtype=np.int32), values, np.array([[False, True, False]]))
    assert (found.count.tolist(), found.not_finite.tolist()) == ([2], [1])


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 9])
def test_the_middle_of_rows_is_their_median_also_of_large_values(ranks):
    block = np.random.default_rng(ranks).normal(size=(50, ranks)).astype(np.float32)
    np.testing.assert_allclose(middle_of(block), np.median(block, axis=1), rtol=1e-6)
    assert (middle_of(np.full((2, ranks), 3e38, np.float32)) == np.float32(3e38)).all()
