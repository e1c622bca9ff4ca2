import numpy as np

from distsummary.landscapes.output.cells import (
    drape,
    finite_runs,
    loose_points,
    thinned,
    touched_cells,
    whole_cells,
)


def test_a_cell_is_whole_if_its_four_corners_are_finite() -> None:
    heights = np.zeros((3, 4))
    heights[0, 1] = np.nan
    assert whole_cells(heights).tolist() == [[0, 2], [1, 0], [1, 1], [1, 2]]
    heights[1, 2] = -np.inf
    assert whole_cells(heights).tolist() == [[1, 0]]
    assert whole_cells(np.zeros((1, 4))).shape == (0, 2)


def test_finite_points_outside_of_all_whole_cells_are_loose() -> None:
    heights = np.zeros((3, 4))
    heights[0, 1] = heights[1, 2] = np.nan
    assert loose_points(heights).tolist() == [[0, 0], [0, 2], [0, 3], [1, 3], [2, 2], [2, 3]]
    assert loose_points(np.zeros((2, 2))).shape == (0, 2)
    assert loose_points(np.zeros((1, 2))).tolist() == [[0, 0], [0, 1]]


def test_a_cell_is_touched_by_each_of_its_corners() -> None:
    points = np.zeros((4, 5), bool)
    points[0, 0] = points[2, 3] = True
    touched = np.zeros((3, 4), bool)
    touched[0, 0] = touched[1:, 2:] = True
    assert touched_cells(points).tolist() == touched.tolist()
    for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        points[:] = False
        points[corner] = True
        assert np.argwhere(touched_cells(points)).tolist() == [[corner[0] % 3, corner[1] % 4]]


def test_finite_runs_lie_between_what_is_not_finite() -> None:
    values = np.array([np.nan, 1.0, 2.0, np.inf, 3.0])
    assert finite_runs(values) == [range(1, 3), range(4, 5)]
    assert finite_runs(values[:1]) == []
    assert finite_runs(np.zeros(3)) == [range(3)]


def test_thinned_keeps_both_ends() -> None:
    assert thinned(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert thinned(100, 3).tolist() == [0, 50, 99]
    assert thinned(1, 3).tolist() == [0]


def test_a_draped_path_has_the_height_of_the_surface_everywhere() -> None:
    x, y = np.array([0.0, 1.0, 3.0]), np.array([-1.0, -0.5, 0.5, 1.0])
    heights = np.add.outer(10 * y, x)  # bilinear itself
    along = drape(x, y, heights, np.array([[0.0, -1.0], [3.0, 1.0], [0.5, 0.0]]), per_leg=4)
    assert along.shape == (9, 3)
    assert along[0].tolist() == [0.0, -1.0, -10.0]
    assert along[4].tolist() == [3.0, 1.0, 13.0]
    np.testing.assert_allclose(along[:, 2], along[:, 0] + 10 * along[:, 1])


def test_a_draped_path_has_no_height_off_the_grid_and_over_a_hole() -> None:
    x = y = np.array([0.0, 1.0, 2.0])
    heights = np.zeros((3, 3))
    heights[2, 2] = np.inf
    along = drape(x, y, heights, np.array([[-0.5, 0.5], [0.5, 0.5], [1.5, 1.5]]), per_leg=2)
    assert np.isfinite(along[:, 2]).tolist() == [False, True, True, False, False]
