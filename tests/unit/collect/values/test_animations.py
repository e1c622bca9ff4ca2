"""Videos become animated GIFs."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from distsummary.collect.values.animations import animation
from distsummary.errors import InvalidValueError


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


@pytest.mark.parametrize(
    "frames", [np.zeros((4, 4)), np.zeros((2, 2, 4, 4)), np.zeros((0, 3, 4, 4)), np.zeros((1, 3, 4, 4), int)]
)
def test_other_shapes_and_types_are_refused(frames: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"must have the shape \(T, C, H, W\)"):
        animation("v", frames)


@pytest.mark.parametrize("fps", [0, 101, float("nan")])
def test_the_speed_has_a_range(fps: float) -> None:
    with pytest.raises(InvalidValueError, match=r"fps of v must be in \(0, 100\]"):
        animation("v", np.zeros((1, 1, 2, 2)), fps)
