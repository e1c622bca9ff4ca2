from typing import Any

import numpy as np
import pytest

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.interpolate import barrier, line, triangle
from distsummary.landscapes.directions.pca import locate
from tests.refusals import refused

NAMES = ["a", "b"]


def point(*values: float) -> dict[str, Any]:
    return {"a": np.array(values[:2], np.float32), "b": np.array([values[2:]], np.float32)}


def flat(direction: Any) -> Any:
    return np.concatenate([direction[name].reshape(-1) for name in NAMES])


def test_a_line_leads_from_its_start_at_minus_one_to_its_end_at_zero() -> None:
    start, end = point(1, 2, 3), point(4, 6, -3)
    axis = line(start, end, NAMES)
    assert flat(axis.x).tolist() == [3, 4, -6]
    assert not flat(axis.y).any()
    path = locate([start, end], NAMES, axis)
    np.testing.assert_allclose(path.points, [(-1, 0), (0, 0)], atol=1e-12)
    np.testing.assert_allclose(path.residuals, 0, atol=1e-7)


def test_a_triangle_has_unit_axes_the_first_along_its_first_side() -> None:
    corners = [point(1, 0, 0), point(3, 0, 0), point(2, 5, 0)]
    axes = triangle(corners, NAMES)
    np.testing.assert_allclose(flat(axes.x), [1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(flat(axes.y), [0, 1, 0], atol=1e-7)
    path = locate(corners, NAMES, axes)
    np.testing.assert_allclose(path.points, [(-1, -5), (1, -5), (0, 0)], atol=1e-6)
    np.testing.assert_allclose(path.residuals, 0, atol=1e-6)


FLOAT32, BF16 = 2.0**-17, 2.0**-1  # ulps of numbers from 64 to 128


@pytest.mark.parametrize(
    ("ulp", "more", "is_known"),
    [(FLOAT32, 0, True), (BF16, 0, True), (BF16, FLOAT32, False)],  # by itself no number shows its precision
)
def test_a_triangle_that_is_flat_but_for_rounding_is_none(ulp: float, more: float, is_known: bool) -> None:
    """A between B and C: half of what C lies off the line AB is what A lies off the longest side."""
    ends = point(0, 64, 1), point(1, 64, 1)
    triangle([*ends, point(-1, 64 + 2 * ulp + more, 1)], NAMES)
    flat_one = [*ends, point(-1, 64 + ulp + more, 1)]
    if is_known:
        with pytest.raises(LandscapeError, match="straight line, except for rounding"):
            triangle(flat_one, NAMES)
    else:
        triangle(flat_one, NAMES)


def test_round_numbers_of_float64_are_not_taken_for_those_of_bf16() -> None:
    corners = [point(0, 64, 1), point(1, 64, 1), point(-1, 64 + BF16, 1)]
    triangle(
        [{name: array.astype(np.float64) for name, array in corner.items()} for corner in corners], NAMES
    )


def test_a_triangle_one_side_of_which_is_rounding_is_none() -> None:
    first, last = point(1, 1, 1), point(1, 9, 1)
    triangle([first, point(1.001, 1, 1), last], NAMES)
    with pytest.raises(LandscapeError, match="straight line, except for rounding"):
        triangle([first, point(1 + 2.0**-23, 1, 1), last], NAMES)


def test_points_without_a_line_or_plane_are_refused() -> None:
    one, two, bad = point(1, 2, 3), point(2, 4, 6), point(1, np.nan, 1)
    labels = ["the first", "the second", "the third"]
    refused(
        LandscapeError,
        (lambda: line(one, one, NAMES), "both ends of the line are equal"),
        (lambda: line(bad, one, NAMES), "NaN or Inf"),
        *(
            (lambda corners=corners: triangle(corners, NAMES), "straight line")
            for corners in ([one, two, point(4, 8, 12)], [one, one, two], [one, two, two], [one, two, one])
        ),
        (lambda: triangle([one, one, one], NAMES), r"three checkpoints are equal; .*directions='random'"),
        (lambda: triangle([one, bad, two], NAMES, labels), "the second holds NaN or Inf in"),
    )


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1, 1, 1], 0), ([2, 1, 0], 0), ([2, 0, 1], 0), ([1, 3, 1], 2), ([0, 3, 2], 2),
        ([1, np.nan, 1], np.inf), ([1, 2, np.inf], np.inf),
    ],
)  # fmt: skip
def test_a_barrier_is_what_rises_above_the_straight_line_between_the_ends(losses, expected):
    assert barrier(np.array(losses, np.float64)) == expected
