"""Lists of Python numbers, and objects that NumPy reads, recorded as arrays."""

import numpy as np
import PIL.Image
import pytest

from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError


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


@pytest.mark.parametrize("plugin", ["tensor", "histogram"])
@pytest.mark.parametrize("number", [2.5, 3, True, np.float16(0.5), np.array(7)])
def test_a_single_number_is_a_scalar(plugin, number):
    with pytest.raises(InvalidValueError, match=f"the {plugin} 'x' must have at least one .*as a scalar"):
        checked_value(plugin, "x", number)


@pytest.mark.parametrize("plugin", ["tensor", "histogram", "image"])
@pytest.mark.parametrize(
    ("wrong", "error", "reason"),
    [
        (
            [[1, 2], [3]],
            InvalidValueError,
            r"numbers in a regular shape, got a list .*sequence\); make",
        ),
        (([1], 2), InvalidValueError, "got a tuple that NumPy cannot read"),
        (Broken(), InvalidValueError, "got a Broken that NumPy cannot read .*the device is lost"),
        (["a"], InvalidTypeError, "got <U1; convert it to numbers"),
        ([None], InvalidTypeError, "got object; convert it to numbers"),
        ([2**70], InvalidTypeError, "got object; convert it to numbers"),
        ([[1j]], InvalidTypeError, "got complex128; record its absolute value"),
        ({1, 2}, InvalidTypeError, "must be an array, a tensor or numbers in lists, got set"),
        ("1", InvalidTypeError, "numbers in lists, got str"),
        (None, InvalidTypeError, "numbers in lists, got NoneType"),
        (range(3), InvalidTypeError, "numbers in lists, got range"),
    ],
)
def test_what_is_no_array_is_refused_with_its_name(plugin, wrong, error, reason):
    with pytest.raises(error, match=f"the {plugin} 'x' .*{reason}"):
        checked_value(plugin, "x", wrong)
