"""Which axes span a plane, whatever their lengths and wherever they differ."""

from typing import Any

import numpy as np
import pytest

from distsummary import Directions
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import COLLINEAR, refuse_parallel

CENTRE = {name: np.ones(2, np.float32) for name in "abcdefg"}


def directions(x: dict[str, Any], y: dict[str, Any]) -> Directions:
    """Zero where nothing is given."""
    each = ({name: np.array(axis.get(name, (0, 0)), np.float64) for name in CENTRE} for axis in (x, y))
    return Directions(**dict(zip("xy", each, strict=True)))


def refuse(x: dict[str, Any], y: dict[str, Any]) -> None:
    refuse_parallel(directions(x, y), CENTRE, list(CENTRE), "none")


@pytest.mark.parametrize(("x", "y"), [(1.0, 1.0), (1.0, 1e6), (1e-6, 1.0)])
def test_the_angle_between_axes_counts_and_not_their_lengths(x: float, y: float) -> None:
    refuse({"a": (x, 0)}, {"a": (y, 3 * y * COLLINEAR)})
    with pytest.raises(LandscapeError, match="they span no plane"):
        refuse({"a": (x, 0)}, {"a": (y, 0.3 * y * COLLINEAR)})


def test_axes_that_move_different_parameters_span_a_plane() -> None:
    refuse({"a": (1, 1)}, {"b": (1, 1)})


def test_the_message_names_some_of_what_moves_and_counts_the_rest() -> None:
    for count, reported in ((5, r"\(a, b, c, d, e\)"), (6, r"\(a, b, c, d, e and 1 more\)")):
        axis = dict.fromkeys("abcdefg"[:count], (1, 2))
        with pytest.raises(
            LandscapeError, match=rf"is 1 times the y direction, in all that varies {reported}"
        ):
            refuse(axis, axis)
