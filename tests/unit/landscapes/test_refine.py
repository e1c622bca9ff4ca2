from collections.abc import Callable

import numpy as np
import pytest

from distsummary.landscapes.run.refine import (
    between_rows,
    coarsest,
    first_points,
    interpolate,
    lattice,
    next_points,
)


def refined(loss: Callable[..., np.ndarray], shape: tuple[int, int], tolerance: float):
    """(interpolated, computed, exact): the points evaluated round by round as a landscape does."""
    y, x = (np.linspace(-1, 1, count) if count > 1 else np.zeros(1) for count in shape)
    with np.errstate(over="ignore", divide="ignore"):
        exact = np.asarray(loss(*np.meshgrid(x, y)), np.float64)
    computed, wanted = np.zeros(shape, bool), first_points(shape)
    while wanted.any():
        assert not (wanted & computed).any()
        computed |= wanted
        wanted = next_points(np.where(computed, exact, np.nan), computed, tolerance)
    return interpolate(np.where(computed, exact, np.nan), computed), computed, exact


def test_a_level_has_every_so_manieth_point_and_the_last() -> None:
    assert lattice(11, 2).tolist() == [0, 4, 8, 10]
    assert lattice(3, 3).tolist() == [0, 2]
    assert lattice(1, 2).tolist() == [0]


@pytest.mark.parametrize(
    ("shape", "level"),
    [
        *(((3, 51), 0), ((2, 51), 0), ((8, 8), 0), ((9, 9), 1), ((21, 51), 2), ((32, 32), 2), ((33, 33), 3)),
        *(((256, 256), 3), ((1, 40), 3), ((1, 1), 0)),
    ],
)
def test_the_coarsest_level_has_enough_points_to_see_what_is_there(shape: tuple[int, int], level: int):
    assert coarsest(shape) == level


@pytest.mark.parametrize("shape", [(51, 51), (33, 40), (3, 3), (1, 51), (17, 256)])
def test_a_smooth_loss_is_within_the_tolerance_everywhere(shape: tuple[int, int]) -> None:
    found, computed, exact = refined(lambda x, y: 1 + x**2 + 3 * y**2 + 0.3 * np.sin(3 * x), shape, 0.02)
    assert np.array_equal(found[computed], exact[computed])
    assert np.abs(found - exact).max() <= 0.02 * np.median(exact)


def test_a_smooth_loss_takes_a_fraction_of_the_points() -> None:
    _, computed, _ = refined(lambda x, y: 1 + x**2 + 3 * y**2, (51, 51), 0.02)
    assert computed.mean() < 0.2


def test_a_ridge_is_resolved_where_it_is() -> None:
    found, computed, exact = refined(lambda x, y: 1 + 5 * np.exp(-(((x - 0.3) / 0.05) ** 2)), (51, 51), 0.02)
    assert np.abs(found - exact).max() < 0.1
    near = np.abs(np.linspace(-1, 1, 51) - 0.3) < 0.1
    assert computed[:, near].all()
    assert computed[:, :20].mean() < 0.3


def test_the_border_of_divergence_is_evaluated_and_stays_infinite() -> None:
    found, computed, exact = refined(lambda x, y: np.where(x + y > 0.5, np.inf, 2 + x), (33, 33), 0.02)
    border = np.isfinite(exact[:, 1:]) != np.isfinite(exact[:, :-1])
    assert computed[:, 1:][border].all()
    assert np.isfinite(found[np.isfinite(exact)]).all()
    assert not np.isfinite(found[~np.isfinite(exact)]).any()


def test_no_tolerance_is_too_small_to_end() -> None:
    noise = np.random.default_rng(0).normal(size=(20, 17))
    _, computed, _ = refined(lambda x, y: noise, (20, 17), 1e-12)
    assert computed.all()


def asked_for(odd_one: float, tolerance: float, at: int = 6, usual: float = 1.0) -> list[int]:
    """Of a row of 17 points, every second one known and `usual` but for one, the next to evaluate."""
    losses = np.where(np.arange(17) % 2, np.nan, usual)[None]
    losses[0, at] = odd_one
    return np.flatnonzero(next_points(losses, (np.arange(17) % 2 == 0)[None], tolerance)).tolist()


@pytest.mark.parametrize(
    ("odd_one", "tolerance"),
    [(2.0, 0.25), (-2.0, 0.75), (0.05, 4.75)],  # half the surplus, of the loss or of a tenth of the median
)
def test_a_tolerance_is_a_share_of_the_loss_or_of_a_tenth_of_the_median(odd_one: float, tolerance: float):
    for unit in (1.0, 10.0):
        assert asked_for(unit * odd_one, tolerance * 1.01, usual=unit) == []
        assert asked_for(unit * odd_one, tolerance * 0.99, usual=unit) == [5, 7]


def test_a_tolerance_that_is_just_met_asks_for_nothing() -> None:
    assert asked_for(2.0, 0.25) == []


def test_around_a_diverged_point_all_is_evaluated_whatever_the_tolerance() -> None:
    assert asked_for(np.inf, 1e9) == [5, 7]


def test_the_median_is_that_of_the_finite_losses() -> None:
    losses, computed = np.where(np.arange(33) % 2, np.nan, 1.0)[None], (np.arange(33) % 2 == 0)[None]
    losses[0, 6], losses[0, 24:] = 0.05, np.where(np.isnan(losses[0, 24:]), np.nan, np.inf)
    far = (losses.copy(), computed)
    found = [np.flatnonzero(next_points(*far, tolerance)).tolist() for tolerance in (4.8, 4.7)]
    assert [{5, 7} <= set(asked) for asked in found] == [False, True]


def test_points_that_the_coarser_level_has_too_are_not_off() -> None:
    assert asked_for(2.0, 0.1, at=8) == [5, 7, 9, 11]  # around its neighbours, which it predicts wrongly


def test_where_nothing_is_finite_nothing_more_is_asked_for() -> None:
    nothing = np.full((17, 17), np.nan)
    assert not next_points(nothing, first_points((17, 17)), 0.1).any()


def test_only_the_cells_that_touch_a_point_are_evaluated_next() -> None:
    losses, computed = np.ones((17, 17)), first_points((17, 17))
    losses[6, 6] = losses[0, 2] = 5.0
    around = np.zeros((17, 17), bool)
    around[4:9, 4:9] = around[0:3, 0:5] = True
    assert np.array_equal(next_points(losses, computed, 0.1), around & ~computed)


def test_computed_losses_stay_what_they_are_next_to_those_that_are_not_finite() -> None:
    losses = np.array([[1.0], [np.nan], [np.inf], [np.nan], [3.0], [-np.inf]])
    found = between_rows(losses, ~np.isnan(losses))
    assert found[[0, 2, 4, 5], 0].tolist() == [1.0, np.inf, 3.0, -np.inf]


def test_a_partial_grid_is_filled_between_its_rows_and_nowhere_else() -> None:
    computed = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]], bool)
    found = between_rows(np.where(computed, [[0.0], [1.0], [2.0], [5.0], [6.0]], np.nan), computed)
    np.testing.assert_array_equal(found[:, 0], [np.nan, 1, 3, 5, np.nan])
    assert np.isnan(found[:, 1]).all()
    np.testing.assert_array_equal(found[:, 2], [np.nan, np.nan, np.nan, 5, np.nan])
