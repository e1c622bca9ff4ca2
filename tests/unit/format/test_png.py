"""Pictures drawn and decoded again by Pillow."""

import io
import zlib

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format import png
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.png import encode_image, encode_png


def pixels(encoded: bytes) -> np.ndarray:
    picture = PIL.Image.open(io.BytesIO(encoded))
    assert (picture.format, picture.mode) == ("PNG", "RGB")
    return np.asarray(picture)


def drawn(values: list, dtype: str) -> list:
    """A row of grey pixels, drawn."""
    return pixels(encode_image(np.array(values, dtype).reshape(1, 1, 1, -1)).encoded)[0, :, 0].tolist()


@given(hnp.arrays("uint8", st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3))))
def test_any_pixels_are_decoded_as_they_were(picture):
    assert np.array_equal(pixels(encode_png(picture)), picture)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("number", [1, 8, 9, 17])
def test_pictures_stand_in_rows_of_eight_and_free_places_are_black(number: int, channels: int):
    pictures = np.random.default_rng(0).integers(0, 256, (number, channels, 2, 3), np.uint8)
    image = encode_image(pictures)
    canvas = pixels(image.encoded)
    assert canvas.shape == (image.height, image.width, 3) == (2 * -(-number // 8), 3 * min(number, 8), 3)
    for place in range(-(-number // 8) * min(number, 8)):
        row, column = divmod(place, min(number, 8))
        tile = canvas[2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
        expected = pictures[place].transpose(1, 2, 0) if place < number else 0
        assert np.array_equal(tile, np.broadcast_to(expected, (2, 3, 3)))


def test_each_dtype_has_its_defined_pixels():
    assert drawn([0, 7, 255], "uint8") == [0, 7, 255]
    assert drawn([0, 7, 255], "int64") == [0, 7, 255]
    assert drawn([-100, 0, 155], "int32") == [0, 100, 255]
    assert drawn([False, True], "bool") == [0, 255]
    assert drawn([0, 0.5, 1], "float32") == [0, 128, 255]
    assert drawn([-1, 0, 1], "float16") == [0, 128, 255]
    assert drawn([7, 7], "float32") == [0, 0]
    assert drawn([-1.7e308, 0, 1.7e308], "float64") == [0, 128, 255]


def test_non_finite_pixels_are_black_and_white():
    assert drawn([np.nan, -np.inf, np.inf, 0.2], "float32") == [0, 0, 255, 51]
    assert drawn([np.nan, np.nan], "float64") == [0, 0]


def test_shapes_and_dtypes_that_cannot_be_drawn_are_refused():
    strange = [(1, 2, 4, 4), (0, 3, 2, 2), (1, 3, 0, 2), (4,), (1, 1, 1, 1, 1)]
    not_mindspores = [(1, 4, 4, 3), (4, 4)]
    for shape in strange + not_mindspores:
        options = {"compatibility": AS_MINDSPORE} if shape in not_mindspores else {}
        with pytest.raises(InvalidValueError, match=r"shape \(N, C, H, W\)"):
            encode_image(np.zeros(shape), **options)
    with pytest.raises(InvalidTypeError, match="picture"):
        encode_image(np.zeros((1, 1, 2, 2), "complex64"))


def test_compatibility_stretches_bytes_as_mindspore_does():
    picture = np.array([0, 100, 255], np.uint8).reshape(1, 1, 1, 3)
    image = encode_image(picture, compatibility=AS_MINDSPORE)
    assert pixels(image.encoded)[0, :, 0].tolist() == [0, 99, 254]


def test_every_layout_of_a_picture_is_drawn_alike():
    nchw = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 7), np.uint8)
    assert encode_image(nchw.transpose(0, 2, 3, 1)) == encode_image(nchw)
    for single in (nchw[0], nchw[0].transpose(1, 2, 0)):
        assert encode_image(single) == encode_image(nchw[:1])
    grey = nchw[0, 0]
    for single in (grey, grey[np.newaxis], grey[:, :, np.newaxis]):
        assert encode_image(single) == encode_image(nchw[:1, :1])


def test_a_shape_that_fits_two_layouts_has_its_channels_in_front():
    nchw = np.random.default_rng(0).integers(0, 256, (2, 1, 5, 3), np.uint8)
    assert encode_image(nchw).width == 6
    assert (encode_image(nchw[0]).height, encode_image(nchw[0]).width) == (5, 3)


def test_the_pixels_do_not_depend_on_the_compression(monkeypatch: pytest.MonkeyPatch):
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    for compress in (png._run_lengths, zlib.compress):
        monkeypatch.setattr(png, "_deflate", lambda compress=compress: compress)
        assert np.array_equal(pixels(encode_png(picture)), picture)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 1.0], [128, 255]),
        ([0.5, 1.0000001], [128, 255]),
        ([-1e-9, 0.5, 1.0], [0, 128, 255]),
        ([-0.04, 0.5, 1.04], [0, 128, 255]),  # as bicubic interpolation leaves it
        ([-1e-7, 0.0], [0, 0]),
        ([1.0000001, 1.0000001], [255, 255]),
        ([np.nan, -0.01, 0.5, 1.0, np.inf], [0, 0, 128, 255, 255]),
        # Other ranges are stretched.
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([-0.01, 0.0, 0.01], [0, 128, 255]),
        ([0.0, 1.0, 2.0], [0, 128, 255]),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_rounding_error_beyond_a_range_is_no_other_range(values: list, expected: list, dtype: str):
    found = np.array(drawn(values, dtype))
    assert np.abs(found - expected).max() <= 1
