import numpy as np

from distsummary.landscapes.output.label_placement import around, corners_with_room

NAMES = np.full((3, 2), (20.0, 10.0))
NOTHING = np.empty((0, 4))


def test_a_name_stands_at_the_first_corner_that_is_free() -> None:
    points = np.array([[0.0, 0.0], [200.0, 0.0], [400.0, 0.0]])
    above_right = around(np.array([[210.0, 10.0]]), 3)
    assert corners_with_room(points, NAMES, 5, above_right, ()) == {0: (1, 1), 1: (-1, 1), 2: (1, 1)}


def test_a_name_without_room_is_left_out_unless_it_must_stay() -> None:
    points, taken = np.zeros((3, 2)), np.array([[-31.0, -30.0, 30.0, 30.0]])
    assert corners_with_room(points, NAMES, 5, taken, ()) == {}
    assert corners_with_room(points, NAMES, 5, taken, {2}) == {2: (1, 1)}


def test_what_a_name_only_touches_is_not_covered() -> None:
    walls = np.array([[-40.0, -40.0, 40.0, 5.0], [-40.0, 5.0, 5.0, 40.0]])
    assert corners_with_room(np.zeros((1, 2)), NAMES[:1], 5, walls, ()) == {0: (1, 1)}


def test_names_that_stay_choose_first() -> None:
    points = np.array([[0.0, 0.0], [4.0, 0.0], [8.0, 0.0]])
    assert corners_with_room(points, NAMES, 5, NOTHING, {0, 2}) == {0: (1, 1), 2: (1, -1), 1: (-1, -1)}


def test_a_name_stands_on_the_side_away_from_other_points() -> None:
    points = np.array([[0.0, 0.0], [3.0, 5.0]])
    dots = np.vstack((around(points, 3.5), around(points[1:], 7)))  # the last has a star, too
    assert corners_with_room(points, NAMES[:2], 7, dots, {0}) == {0: (-1, -1), 1: (1, 1)}


def test_a_point_at_the_same_place_does_not_hide_the_others() -> None:
    dots = around(np.array([[0.0, 0.0], [0.2, 0.1], [33.0, 18.0]]), 3.5)
    assert corners_with_room(np.zeros((1, 2)), NAMES[:1], 7, dots, ()) == {0: (-1, 1)}


def test_nothing_has_room_anywhere() -> None:
    assert corners_with_room(np.empty((0, 2)), np.empty((0, 2)), 5, NOTHING, {0}) == {}
