"""Confusion matrices are drawn, and videos become animated GIFs."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distsummary.collect.values.checked_values import checked_value
from distsummary.collect.values.pictures import MOST, animation, array_of_pil, drawn_matrix
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


RED = (255, 0, 0)


def palette(**options: object) -> Image.Image:
    picture = Image.new("P", (3, 2), 1)
    picture.putpalette([0, 0, 0, *RED])
    picture.info |= options
    return picture


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (Image.new("RGB", (3, 2), RED), RED),
        (Image.new("L", (3, 2), 100), 100),
        (Image.new("1", (3, 2), 1), True),
        (palette(), RED),
        (palette(transparency=1), (255, 255, 255)),
        (Image.new("RGBA", (3, 2), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (3, 2), (255, 0, 0, 255)), RED),
        (Image.new("LA", (3, 2), (0, 255)), (0, 0, 0)),
        (Image.new("PA", (3, 2)), (255, 255, 255)),
        (Image.new("CMYK", (3, 2), (0, 255, 255, 0)), RED),
        (Image.new("YCbCr", (3, 2), (255, 128, 128)), (255, 255, 255)),
        (Image.new("HSV", (3, 2), (0, 255, 255)), RED),
        (Image.new("I;16", (3, 2), 65535), 1.0),
        (Image.new("I;16", (3, 2), 13107), 0.2),
        (Image.new("F", (3, 2), 0.5), 0.5),
    ],
    ids=lambda one: one.mode if isinstance(one, Image.Image) else str(one),
)
def test_a_picture_of_pil_is_what_it_shows(picture: Image.Image, expected: object) -> None:
    array = array_of_pil(picture)
    assert array.shape[:2] == (2, 3)
    assert (array == expected).all()
    assert checked_value("image", "i", picture).plugin == "image"


@pytest.mark.parametrize(
    ("fps", "frames", "durations"),
    [
        (4, 2, [250, 250]), (25, 2, [40, 40]), (30, 6, [30, 40, 30, 30, 40, 30]), (60, 6, [20, 30, 20, 30]),
        (100, 4, [20, 20]), (100, 1, [20]),
    ],
)  # fmt: skip
def test_a_video_plays_as_fast_as_it_is(fps: float, frames: int, durations: list[int]) -> None:
    video = np.arange(frames, dtype=np.uint8)[:, None, None, None] * np.full((1, 3, 8, 8), 20, np.uint8)
    gif = Image.open(io.BytesIO(animation("v", video, fps).encoded))
    found = []
    for number in range(gif.n_frames):
        gif.seek(number)
        found.append(gif.info["duration"])
    assert found == durations


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_frames_that_are_not_finite_are_drawn(dtype: str) -> None:
    video = np.array([0.5, np.nan, np.inf, -np.inf, 60000, -1], dtype).reshape(1, 1, 1, 6)
    gif = Image.open(io.BytesIO(animation("v", video).encoded))
    assert np.asarray(gif.convert("L"))[0].tolist() == [127, 0, 255, 0, 255, 0]


def test_a_confusion_matrix_of_small_numbers_is_drawn() -> None:
    for dtype in ("uint8", "int8", "float16", "bool"):
        counts = np.full((3, 3), np.array(100).astype(dtype))
        drawn_matrix("m", counts * counts.dtype.type(1))
