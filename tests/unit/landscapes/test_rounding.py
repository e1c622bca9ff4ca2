import numpy as np
import pytest

from distsummary import Directions
from distsummary.landscapes.directions.rounding import measure, ulp


def test_an_ulp_is_numpys_spacing() -> None:
    weights = np.array([1.0, 1.5, -0.3, 1e-8, 2.0**-126, 3e5, 1e-42, 0.0])
    np.testing.assert_array_equal(ulp(weights, "float32"), np.spacing(np.abs(weights).astype(np.float32)))
    halves = np.array([1.0, -0.3, 6e-5, 1e-6, 2000.0])
    np.testing.assert_array_equal(ulp(halves, "fp16"), np.spacing(np.abs(halves).astype(np.float16)))
    doubles = np.array([*halves, 2.0**-1022, 1e-310, 0.0])
    np.testing.assert_array_equal(ulp(doubles, "float64"), np.spacing(np.abs(doubles)))


def test_bf16_has_16_bits_less_than_float32() -> None:
    weights = np.array([1.0, -0.3, 77.0, 2.0**-126, 1e-40, 0.0])
    np.testing.assert_array_equal(ulp(weights, "bf16"), ulp(weights, "float32") * 2.0**16)


CENTRE = {"a": np.ones(4, np.float32), "b": np.array([1e-6], np.float32)}
ALONG = {"a": np.array([1e-7, 1e-3, 0.0, 1e-8]), "b": np.array([1e-8])}


@pytest.mark.parametrize(
    ("step", "precision", "share"),
    [(1.0, "", 2 / 4), (2.0, "tf32", 1 / 4), (1.0, "float64", 0.0), (1.0, "bf16", 3 / 4)],
)
def test_the_floor_is_the_share_of_moved_parameters_whose_step_is_lost(step, precision, share):
    recipe = Directions(x=ALONG, y={name: np.zeros_like(array) for name, array in ALONG.items()})
    found = measure(CENTRE, recipe, ["a", "b"], (step, step), precision).rounding
    assert found == {"x": share, "y": 0.0}  # 1e-7 and 1e-8 next to 1: an ulp is 1.2e-7


def test_a_step_of_an_ulp_is_not_lost_whatever_its_sign() -> None:
    ulp_of_1 = float(np.spacing(np.float32(1)))
    along = {"a": ulp_of_1 * np.array([1.0, -1.0, 0.9, -0.9])}
    recipe = Directions(x=along, y={"a": -along["a"]})
    assert measure(CENTRE, recipe, ["a"], (1.0, 1.0)).rounding == {"x": 0.5, "y": 0.5}


def test_both_axes_have_their_own_step_and_weights_their_own_precision() -> None:
    along = {"a": np.array([1e-7, 1e-3])}
    recipe = Directions(x=along, y=along)
    single, double = ({"a": np.ones(2, kind)} for kind in (np.float32, np.float64))
    assert measure(single, recipe, ["a"], (1.0, 10.0)).rounding == {"x": 0.5, "y": 0.0}
    assert measure(double, recipe, ["a"], (1.0, 10.0)).rounding == {"x": 0.0, "y": 0.0}


def test_the_floor_is_that_of_the_models_dtype_and_not_of_the_checkpoints() -> None:
    along = {"a": np.array([1e-7, 1e-5, 1e-2, 1.0])}
    recipe, centre = Directions(x=along, y=along), {"a": np.ones(4)}  # a checkpoint of float64

    def share(kept: str, precision: str = "") -> float:
        return measure(centre, recipe, ["a"], (1.0, 1.0), precision, {"a": kept}).rounding["x"]

    assert [share(kept) for kept in ("float64", "float32", "float16")] == [0, 1 / 4, 1 / 2]
    assert share("bfloat16") == share("float32", "bf16") == 1 / 2
    assert share("bfloat16", "float64") == 0  # which computes with values of that
