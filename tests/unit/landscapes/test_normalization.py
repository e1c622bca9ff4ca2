from typing import Any

import numpy as np
import pytest

from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.array_rows import array_rows
from distsummary.landscapes.directions.normalization import (
    normalize,
    normalize_one,
    normalized,
    resolve_filter_axes,
)
from distsummary.landscapes.directions.normals import random_direction

WEIGHTS = {
    "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fc.bias": np.array([3.0, 4.0], np.float32),
    "bn.gamma": np.array([1.0, 2.0], np.float32),
}


def test_filter_normalisation_gives_each_row_the_norm_of_its_weights_and_biases_none() -> None:
    drawn = {name: random_direction(0, 0, name, a.shape) for name, a in WEIGHTS.items()}
    scaled = normalize(drawn, WEIGHTS, "filter")
    np.testing.assert_allclose(
        np.linalg.norm(scaled["fc.weight"], axis=1), np.linalg.norm(WEIGHTS["fc.weight"], axis=1), rtol=1e-6
    )
    assert not scaled["fc.bias"].any()
    assert not scaled["bn.gamma"].any()
    assert scaled["fc.weight"].dtype == np.float32


def test_filter_normalisation_takes_a_filter_as_one_slice() -> None:
    weights = {"conv": np.ones((2, 3, 5, 5), np.float32)}
    scaled = normalize({"conv": random_direction(1, 0, "conv", (2, 3, 5, 5))}, weights, "filter")
    np.testing.assert_allclose(
        np.linalg.norm(scaled["conv"].reshape(2, -1), axis=1), [75**0.5] * 2, rtol=1e-6
    )


def test_layer_normalisation_scales_whole_tensors_and_mindspore_only_weights_and_biases() -> None:
    drawn = {name: random_direction(0, 1, name, a.shape) for name, a in WEIGHTS.items()}
    layer, mindspore = normalize(drawn, WEIGHTS, "layer"), normalize(drawn, WEIGHTS, "mindspore")
    for name, weights in WEIGHTS.items():
        assert np.linalg.norm(layer[name]) == pytest.approx(np.linalg.norm(weights), rel=1e-6)
    assert not mindspore["bn.gamma"].any()
    assert mindspore["fc.bias"].tobytes() == layer["fc.bias"].tobytes()


@pytest.mark.parametrize("how", ["filter", "layer", "mindspore", "none"])
def test_a_direction_of_norm_zero_stays_zero(how: str) -> None:
    zero = {"fc.weight": np.zeros((3, 4), np.float32)}
    assert not normalize(zero, WEIGHTS, how)["fc.weight"].any()


@pytest.mark.parametrize("filter_axis", [0, 1])
def test_a_short_direction_gets_the_norms_of_a_long_one(filter_axis: int) -> None:
    drawn = random_direction(0, 0, "fc.weight", (3, 4))
    long, short = (
        normalize_one("fc.weight", size * drawn, WEIGHTS["fc.weight"], "filter", filter_axis)
        for size in (np.float32(1), np.float32(2.0**-40))
    )
    np.testing.assert_array_equal(short, long)


def filter_norms(array: Any, axis: int, groups: int = 1) -> Any:
    """Norms by the definition: one filter after the other."""
    parts = np.split(np.asarray(array, np.float64), groups, axis=0)
    return [np.linalg.norm(np.take(part, i, axis=axis)) for part in parts for i in range(part.shape[axis])]


@pytest.mark.parametrize(
    ("shape", "filter_axis"),
    [((6, 4, 3, 3), (1, 2)), ((6, 4, 3), 1), ((5, 7), -1), ((5, 7), 0), ((1, 2, 3), 2)],
)
def test_filters_lie_along_the_axis_that_is_named_within_groups(shape: tuple[int, ...], filter_axis: Any):
    axis, groups = filter_axis if isinstance(filter_axis, tuple) else (filter_axis, 1)
    rng = np.random.default_rng(0)
    weights, drawn = rng.normal(size=shape).astype(np.float32), random_direction(0, 0, "w", shape)
    scaled = normalize_one("w", drawn, weights, "filter", filter_axis)
    np.testing.assert_allclose(
        filter_norms(scaled, axis, groups), filter_norms(weights, axis, groups), rtol=1e-6
    )
    cosine = np.vdot(scaled, drawn) / np.linalg.norm(scaled) / np.linalg.norm(drawn)
    assert cosine > 0.8  # scaled, not mixed


def test_packed_projections_of_attention_are_scaled_like_separate_ones() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (scale * rng.normal(size=(4, 4)).astype(np.float32) for scale in (1, 5, 0.1))
    drawn = random_direction(0, 0, "in_proj_weight", (12, 4))
    packed = normalize_one("in_proj_weight", drawn, np.concatenate([q, k, v]), "filter")
    for part, weights in zip(np.split(packed, 3), (q, k, v), strict=True):
        np.testing.assert_allclose(filter_norms(part, 0), filter_norms(weights, 0), rtol=1e-6)


def test_weights_of_norm_zero_are_not_moved_by_any_normalisation_but_none() -> None:
    weights = np.array([[0, 0], [3, 4]], np.float32)
    drawn = np.array([[1, 1], [0, 0]], np.float32)
    assert not normalize_one("w", drawn, weights, "filter").any()
    assert not normalize_one("w", drawn, np.zeros_like(weights), "layer").any()
    assert normalize_one("w", drawn, weights, "none") is drawn


@pytest.mark.parametrize(("how", "value"), [("filter", np.nan), ("layer", np.inf), ("mindspore", np.nan)])
def test_weights_or_directions_that_are_not_finite_are_refused_by_name(how: str, value: float) -> None:
    good, bad = np.ones((2, 2), np.float32), np.array([[1, value], [1, 1]], np.float32)
    for drawn, weights in [(good, bad), (bad, good)]:
        with pytest.raises(LandscapeError, match=r"fc\.weight holds NaN or Inf"):
            normalize_one("fc.weight", drawn, weights, how)


@pytest.mark.parametrize(
    ("name", "is_moved"),
    [("fc.weight", True), ("fc.bias", True), ("moment1.fc.weight", False), ("fc.g", False)],
)
def test_mindspore_moves_weights_and_biases_and_no_moments_of_the_optimizer(name: str, is_moved: bool):
    weights = np.ones((2, 3), np.float32)
    assert normalize_one(name, weights, weights, "mindspore").any() == is_moved


def test_any_rows_of_what_does_not_move_are_zeros() -> None:
    bias = array_rows(np.ones(6, np.float32))
    still = normalized("fc.bias", bias, bias, "filter")
    assert still.is_zero
    assert still(2, 5).tolist() == [0, 0, 0]


def test_empty_and_half_precision_parameters_are_normalised_too() -> None:
    assert normalize_one("w", np.zeros((0, 3)), np.zeros((0, 3)), "filter").shape == (0, 3)
    half = np.full((2, 3), 300.0, np.float16)  # its square is beyond float16
    scaled = normalize_one("w", np.ones((2, 3), np.float32), half, "filter")
    np.testing.assert_allclose(scaled, 300.0, rtol=1e-6)


SHAPES = {"up.weight": (8, 4, 3, 3), "fc.weight": (5, 7), "fc.bias": (5,)}


def test_a_hook_overrules_what_the_modules_report() -> None:
    found = {"up.weight": (1, 2), "frozen.weight": 1}
    assert resolve_filter_axes(None, SHAPES, found) == {"up.weight": (1, 2)}
    assert resolve_filter_axes({"fc.weight": -1}, SHAPES, found) == {"up.weight": (1, 2), "fc.weight": -1}

    def hook(name: str, shape: tuple[int, ...]) -> int | None:
        return 1 if len(shape) == 4 else None

    assert resolve_filter_axes(hook, SHAPES, found) == {"up.weight": 1}


@pytest.mark.parametrize(
    "hook", [{"fc.weight": -2}, {"fc.weight": (0, 1)}, {"up.weight": (3, 8)}, {"fc.bias": 1}]
)
def test_a_filter_axis_may_be_any_that_there_is_and_of_a_vector_it_says_nothing(hook: dict[str, Any]) -> None:
    assert resolve_filter_axes(hook, SHAPES, {}) == hook


@pytest.mark.parametrize(
    ("hook", "error", "match"),
    [
        ({"nothing": 0}, InvalidValueError, "filter_axis names nothing"),
        ({"fc.weight": 2}, InvalidValueError, r"fc\.weight must be in \[-2, 1\], got 2"),
        ({"fc.weight": 1.0}, InvalidTypeError, r"filter_axis of fc\.weight must be int"),
        ({"fc.weight": (1, 2)}, InvalidValueError, r"divide the size of axis 0 of \(5, 7\)"),
        ({"up.weight": (0, 2)}, InvalidValueError, "need a filter axis other than 0"),
        ({"up.weight": (1, 2.0)}, InvalidTypeError, r"the groups in filter_axis of up\.weight must be int"),
        ({"up.weight": (1, 2, 1)}, InvalidTypeError, r"filter_axis of up\.weight must be int"),
        (lambda name, shape: 9, InvalidValueError, r"got 9"),
    ],
)
def test_a_filter_axis_that_a_parameter_does_not_have_is_refused(hook, error, match):
    with pytest.raises(error, match=match):
        resolve_filter_axes(hook, SHAPES, {})
