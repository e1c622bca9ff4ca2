import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscape.rounding import rounding_floor, rounding_floors, ulp


def test_an_ulp_is_numpys_spacing() -> None:
    weights = np.array([1.0, 1.5, -0.3, 1e-8, 2.0**-126, 3e5, 1e-42, 0.0])
    np.testing.assert_array_equal(ulp(weights, "float32"), np.spacing(np.abs(weights).astype(np.float32)))
    halves = np.array([1.0, -0.3, 6e-5, 1e-6, 2000.0])
    np.testing.assert_array_equal(ulp(halves, "fp16"), np.spacing(np.abs(halves).astype(np.float16)))
    np.testing.assert_array_equal(ulp(halves, "float64"), np.spacing(np.abs(halves)))


def test_bf16_has_16_bits_less_than_float32() -> None:
    weights = np.array([1.0, -0.3, 77.0])
    np.testing.assert_array_equal(ulp(weights, "bf16"), ulp(weights, "float32") * 2.0**16)


def test_the_floor_is_the_share_of_moved_parameters_whose_step_is_lost() -> None:
    centre = {"a": np.array([1.0, 1.0, 1.0, 1.0]), "b": np.array([1e-6])}
    direction = {"a": np.array([1e-7, 1e-3, 0.0, 1e-8]), "b": np.array([1e-8])}
    assert rounding_floor(centre, direction, 1.0) == 2 / 4  # 1e-7 and 1e-8 beside 1: an ulp is 1.2e-7
    assert rounding_floor(centre, direction, 2.0) == 1 / 4
    assert rounding_floor(centre, direction, 1.0, "float64") == 0.0
    assert rounding_floor(centre, direction, 1.0, "bf16") == 3 / 4
    assert rounding_floor(centre, {"a": np.zeros(4)}, 1.0) == 0.0


def test_both_axes_have_their_own_step() -> None:
    centre, along = {"a": np.ones(2)}, {"a": np.array([1e-7, 1e-3])}
    assert rounding_floors(centre, along, along, (1.0, 10.0)) == {"x": 0.5, "y": 0.0}


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"precision must be one of .*'int8'"):
        rounding_floor({}, {}, 1.0, "int8")
