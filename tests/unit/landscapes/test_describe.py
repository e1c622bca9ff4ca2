import numpy as np

from distsummary.landscapes.output.describe import doubts, not_finite, shortened
from tests.unit.landscapes.test_grid import make_grid


def test_names_that_are_too_long_lose_their_middle_and_stay_different() -> None:
    assert shortened(["plain", "exactly-12-ch"], 13) == ("plain", "exactly-12-ch")
    assert shortened(["a-name-that-is-long", "b"], 9) == ("a-na…long", "b")
    alike = ["seed-1-of-a-sweep", "seed-2-of-a-sweep", "other"]
    assert shortened(alike, 11) == ("1 seed…weep", "2 seed…weep", "3 other")
    assert shortened([], 9) == ()
    assert shortened(["abcdefgh"], 6) == ("abc…gh",)
    assert shortened(["abcdefgh"], 2) == ("a…",)


HOLES = np.where(np.eye(3, 4) > 0, np.inf, 1.0)


def test_finite_losses_leave_no_doubt() -> None:
    assert doubts({"pca": make_grid()}) == ""


def test_losses_that_are_not_finite_are_counted_out_of_those_computed() -> None:
    found = doubts({"pca": make_grid(z=HOLES), "random": make_grid()})
    assert found == "pca: 3 of 12 computed losses are not finite"
    all_but_one = np.where(np.arange(12).reshape(3, 4) == 5, 1.0, np.nan)
    assert doubts({"pca": make_grid(z=all_but_one)}) == "pca: 11 of 12 computed losses are not finite"


def test_points_that_were_lost_are_not_reported_again() -> None:
    lost = make_grid(z=HOLES, computed=np.isfinite(HOLES), lost_points=3)
    assert not_finite(lost) == 0
    assert doubts({"pca": lost}) == ""


def test_a_grid_without_a_finite_loss_says_so_and_what_to_check() -> None:
    nothing = np.full((3, 4), np.nan)
    at_the_centre = np.array([3.0, 2.0, np.nan])
    found = doubts({"pca": make_grid(z=nothing, true_loss=at_the_centre)})
    assert found.startswith("pca: not one of the 12 computed losses is finite; nor is the loss of the centre")
    assert "look for NaN and Inf in the data" in found
    assert "the steps of the grid are too long" in doubts({"pca": make_grid(z=nothing)})
    in_part = doubts({"pca": make_grid(z=nothing, computed=np.eye(3, 4) > 0)})
    assert in_part.startswith(
        "pca: not one of the 3 computed losses is finite; the loss of the centre itself is finite"
    )


def test_several_grids_without_a_finite_loss_have_the_advice_once() -> None:
    grid = make_grid(z=np.full((3, 4), np.nan))
    assert doubts({"pca": grid, "random": grid}).count("the steps of the grid are too long") == 1
