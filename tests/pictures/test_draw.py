import struct
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from distsummary.landscape.draw import contour_levels, draw
from tests.unit.landscape.test_grid import make_grid, random_grid


@pytest.mark.parametrize(
    "z",
    [
        np.add.outer(np.arange(3.0), np.arange(4.0)),
        np.exp(np.add.outer(np.arange(3.0), 3 * np.arange(4.0))),
        np.ones((3, 4)),
        np.full((3, 4), np.nan),
        np.where(np.eye(3, 4) > 0, np.inf, np.add.outer(-np.arange(3.0), np.arange(4.0))),
        np.where(np.eye(3, 4) > 0, 1e300, 1.0),
    ],
    ids=["plain", "wide", "flat", "nan", "inf", "huge"],
)
def test_any_grid_has_a_picture(z: np.ndarray) -> None:
    for grid in (make_grid(z=z), random_grid(z=z)):
        png = draw(grid)
        assert png.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", png[16:24])
        assert width > 500
        assert height > 500


def test_levels_rise_in_equal_ratios_where_losses_span_a_wide_range() -> None:
    narrow = contour_levels(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(np.diff(narrow), np.diff(narrow)[0])
    wide = contour_levels(np.array([0.01, 100.0, np.nan]))
    np.testing.assert_allclose(wide[1:] / wide[:-1], wide[1] / wide[0])


def test_drawing_leaves_matplotlibs_state_alone(tmp_path: Path) -> None:
    before = (matplotlib.get_backend(), plt.get_fignums(), dict(matplotlib.rcParams))
    make_grid().plot(tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 10_000
    assert (matplotlib.get_backend(), plt.get_fignums(), dict(matplotlib.rcParams)) == before
