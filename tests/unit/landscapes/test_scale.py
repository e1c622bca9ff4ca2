import numpy as np
import pytest

from distsummary.landscapes.output.scale import (
    LARGEST,
    LEVELS,
    contour_levels,
    scale_for,
    thinned,
    tick_labels,
)

BOWL = np.add.outer(np.linspace(-1, 1, 21) ** 2, np.linspace(-1, 1, 21) ** 2)


def test_levels_rise_in_equal_steps_over_a_narrow_range() -> None:
    levels = contour_levels(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(levels, np.linspace(1, 3, LEVELS))


def test_levels_rise_in_equal_ratios_where_losses_span_a_wide_range() -> None:
    levels = contour_levels(np.array([0.01, 100.0, np.nan]))
    np.testing.assert_allclose(levels[1:] / levels[:-1], levels[1] / levels[0])


@pytest.mark.parametrize("z", [1e-3 * np.exp(60 * BOWL), (10 * BOWL) ** 4], ids=["39 decades", "from zero"])
def test_levels_have_equal_numbers_of_points_where_equal_ratios_would_hide_the_valley(z: np.ndarray) -> None:
    levels = contour_levels(z)
    counts, _ = np.histogram(z, levels)
    assert (np.diff(levels) > 0).all()
    assert len(levels) > 15
    assert counts.max() <= 0.1 * z.size


@pytest.mark.parametrize(
    "z",
    [
        np.full((3, 3), np.nan), np.full((3, 3), 2.3), np.full((3, 3), 1e300),
        2.3 + np.spacing(2.3) * np.eye(3), np.where(np.eye(3) > 0, 1e300, 1.0),
        np.where(np.eye(3) > 0, -np.inf, -1e300), np.where(np.eye(3) > 0, 1e300, 0.0), 1e-300 * BOWL,
    ],
    ids=["nan", "flat", "flat and high", "flat but for rounding", "huge", "low", "cliff", "tiny"],
)  # fmt: skip
def test_levels_rise_and_heights_are_finite_whatever_the_losses_are(z: np.ndarray) -> None:
    scale = scale_for(z, np.array([np.nan, 0.0, -5.0]))
    assert len(scale.levels) >= 2
    assert (np.diff(scale.levels) > 0).all()
    assert np.isfinite(scale.levels).all()
    heights = scale.heights(z)
    assert np.array_equal(np.isfinite(heights), np.isfinite(z))
    assert (np.abs(heights[np.isfinite(heights)]) <= LARGEST).all()


def test_heights_keep_the_order_of_the_losses() -> None:
    losses = np.linspace(0.01, 4.0, 50)
    for z, stretch in ((BOWL + 1, "linear"), (BOWL + 0.01, "log"), ((10 * BOWL) ** 4, "levels")):
        scale = scale_for(z)
        assert scale.stretch == stretch
        assert (np.diff(scale.heights(losses)) >= 0).all()


def test_a_path_that_reaches_zero_takes_the_logarithm_away() -> None:
    assert scale_for(BOWL + 0.01, np.array([0.5])).stretch == "log"
    assert scale_for(BOWL + 0.01, np.array([0.5, 0.0])).stretch == "levels"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.322, 3.5, "0.4 0.5 0.7 1 1.5 2 3"),
        (0.322, 1.2, "0.4 0.5 0.6 0.7 0.8 0.9 1 1.1 1.2"),
        (1e-3, 1e4, "0.001 0.01 0.1 1 10 100 1e+03 1e+04"),
        (-5.0, -1.1, "-5 -4.5 -4 -3.5 -3 -2.5 -2 -1.5"),
    ],
)
def test_ticks_are_round_and_within_the_levels(low: float, high: float, expected: str) -> None:
    z = np.geomspace(low, high, 400).reshape(20, 20)
    assert tick_labels(scale_for(z).ticks(9)) == expected.split()


def test_losses_over_a_factor_of_ten_are_distinguished_at_the_bottom() -> None:
    levels = scale_for(np.geomspace(0.3, 3.24, 400).reshape(20, 20)).levels
    assert (levels < 0.7).sum() > 6


def test_the_axis_of_the_losses_says_what_stretches_them() -> None:
    labels = {scale_for(z).stretch: scale_for(z).label for z in (BOWL + 1, BOWL + 0.01, (10 * BOWL) ** 4)}
    assert labels == {"linear": "loss", "log": "loss (log scale)", "levels": "loss (uneven scale)"}


def test_losses_that_differ_far_behind_the_point_are_distinguished() -> None:
    assert tick_labels(1e6 + np.array([0.001, 0.002])) == ["1000000.001", "1000000.002"]
    assert tick_labels(np.array([0.25, 0.5])) == ["0.25", "0.5"]


def test_thinned_keeps_both_ends() -> None:
    assert thinned(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert thinned(100, 3).tolist() == [0, 50, 99]
    assert thinned(1, 3).tolist() == [0]
