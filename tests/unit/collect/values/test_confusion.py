"""Confusion matrices are drawn."""

from typing import Any

import numpy as np
import pytest

from distsummary.collect.values.confusion import MOST, drawn_matrix
from distsummary.errors import InvalidValueError


def test_a_class_that_is_always_recognised_has_one_dark_cell() -> None:
    same = drawn_matrix("m", np.diag([5, 7]), ["cat", "dog"]).astype(int)
    mixed = drawn_matrix("m", np.array([[1, 1], [1, 1]]), ["cat", "dog"]).astype(int)
    assert same.shape == mixed.shape
    assert same.shape[:2] == (1, 3)
    dark = [(picture.sum(1) < 300).mean() for picture in (same, mixed)]
    assert dark[0] > 0.2 > dark[1]


@pytest.mark.parametrize(
    "counts",
    [np.zeros((2, 3)), np.zeros(4), np.zeros((MOST + 1, MOST + 1)), np.array([[-1]]), np.zeros((0, 0))],
)
def test_what_is_no_matrix_of_counts_is_refused(counts: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"the matrix 'm' must have the shape \(C, C\)"):
        drawn_matrix("the matrix 'm'", counts)


def test_each_class_needs_a_name() -> None:
    with pytest.raises(InvalidValueError, match="classes of m must have 2 names, got 1"):
        drawn_matrix("m", np.eye(2), ["cat"])
