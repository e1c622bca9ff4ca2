"""Confusion matrices are drawn, and videos become animated GIFs."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distsummary.collect.values.pictures import MOST, animation, drawn_matrix
from distsummary.errors import InvalidValueError
from tests.refusals import refused


def test_a_class_that_is_always_recognised_has_one_dark_cell() -> None:
    same = drawn_matrix("m", np.diag([5, 7]), ["cat", "dog"]).astype(int)
    mixed = drawn_matrix("m", np.array([[1, 1], [1, 1]]), ["cat", "dog"]).astype(int)
    assert same.shape == mixed.shape
    assert same.shape[:2] == (1, 3)
    dark = [(picture.sum(1) < 300).mean() for picture in (same, mixed)]
    assert dark[0] > 0.2 > dark[1]


def test_what_is_no_picture_is_refused() -> None:
    square, frames, speed = (
        r"the matrix 'm' must have the shape \(C, C\)",
        r"\(T, C, H, W\)",
        r"in \(0, 100\]",
    )
    still = np.zeros((1, 1, 2, 2))
    refused(
        InvalidValueError,
        (lambda: drawn_matrix("the matrix 'm'", np.zeros((2, 3))), square),
        (lambda: drawn_matrix("the matrix 'm'", np.zeros(4)), square),
        (lambda: drawn_matrix("the matrix 'm'", np.zeros((MOST + 1, MOST + 1))), square),
        (lambda: drawn_matrix("the matrix 'm'", np.array([[-1]])), square),
        (lambda: drawn_matrix("the matrix 'm'", np.zeros((0, 0))), square),
        (lambda: drawn_matrix("m", np.eye(2), ["cat"]), "classes of m must have 2 names, got 1"),
        (lambda: animation("v", np.zeros((4, 4))), frames),
        (lambda: animation("v", np.zeros((2, 2, 4, 4))), frames),
        (lambda: animation("v", np.zeros((0, 3, 4, 4))), frames),
        (lambda: animation("v", np.zeros((1, 3, 4, 4), int)), frames),
        (lambda: animation("v", still, 0), f"fps of v must be {speed}"),
        (lambda: animation("v", still, 101), f"fps of v must be {speed}"),
        (lambda: animation("v", still, float("nan")), f"fps of v must be {speed}"),
    )


def decoded(encoded: bytes) -> Any:
    return Image.open(io.BytesIO(encoded))


@pytest.mark.parametrize("colors", [1, 3])
def test_frames_and_speed_are_kept(colors: int) -> None:
    frames = np.zeros((3, colors, 5, 7), np.uint8)
    frames[:] = np.array([0, 100, 200])[:, None, None, None]
    found = animation("v", frames, fps=10)
    assert (found.height, found.width, found.colorspace) == (5, 7, colors)
    movie = decoded(found.encoded)
    assert movie.n_frames == 3
    for number, level in enumerate((0, 100, 200)):
        movie.seek(number)
        assert movie.info["duration"] == 100
        assert movie.convert("L").getpixel((3, 2)) == level


def test_floats_are_shares_of_full_brightness() -> None:
    levels = np.array([-1.0, 0.2, 2.0], np.float32)
    movie = decoded(animation("v", np.broadcast_to(levels[:, None, None, None], (3, 1, 4, 4))).encoded)
    found = []
    for number in range(3):
        movie.seek(number)
        found.append(movie.convert("L").getpixel((0, 0)))
    assert found == [0, 51, 255]
