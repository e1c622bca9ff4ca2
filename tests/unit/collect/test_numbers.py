"""Lists of Python numbers, and objects that NumPy reads, recorded as arrays."""

import numpy as np
import PIL.Image
import pytest

from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError
from tests.refusals import refused


class Readable:
    """An array of a library that distsummary does not know."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 2), np.float32)


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise OSError("the device is lost")


@pytest.mark.parametrize("plugin", ["tensor", "histogram"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 2.5], [1.0, 2.5]),
        (([1, 2], (3, 4)), [[1, 2], [3, 4]]),
        ([np.ones(2), np.zeros(2)], [[1.0, 1.0], [0.0, 0.0]]),
        ([], []),
        (Readable(), [[1.0, 1.0], [1.0, 1.0]]),
    ],
)
def test_lists_of_numbers_are_arrays(plugin, given, expected):
    assert checked_value(plugin, "x", given).data.result().tolist() == expected


def test_pictures_may_be_lists_and_pictures_of_pillow():
    rows = [[0, 255], [128, 7]]
    assert checked_value("image", "x", rows).data.result().tolist() == rows
    assert checked_value("image", "x", PIL.Image.new("RGB", (4, 3))).data.result().shape == (3, 4, 3)


def test_what_is_no_array_is_refused_with_its_name():
    def check(wrong, plugin="tensor"):
        return lambda: checked_value(plugin, "x", wrong)

    refused(
        InvalidValueError,
        (check([[1, 2], [3]]), r"the tensor 'x' .*in a regular shape, got a list .*sequence\); make"),
        (check(Broken(), "histogram"), "the histogram 'x' .*got a Broken that .*the device is lost"),
        (check(2.5), "the tensor 'x' must have at least one .*as a scalar"),
        (check(np.array(7), "histogram"), "the histogram 'x' must have at least one .*as a scalar"),
    )
    refused(
        InvalidTypeError,
        (check(["a"]), "the tensor 'x' .*got <U1; convert it to numbers"),
        (check([2**70], "image"), "the image 'x' .*got object; convert it to numbers"),
        (check([[1j]]), "got complex128; record its absolute value"),
        (check({1, 2}), "must be an array, a tensor or numbers in lists, got set"),
        (check(None, "image"), "the image 'x' .*numbers in lists, got NoneType"),
    )
