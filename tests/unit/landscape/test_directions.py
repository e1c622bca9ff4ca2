import hashlib

import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions import (
    BLOCK,
    Directions,
    RandomDirections,
    normalize,
    random_direction,
    random_normals,
)

WEIGHTS = {
    "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fc.bias": np.array([3.0, 4.0], np.float32),
    "bn.gamma": np.array([1.0, 2.0], np.float32),
}


def test_normals_do_not_depend_on_the_slice_they_are_asked_in() -> None:
    whole = random_normals(7, 0, "a", 0, 2 * BLOCK + 5)
    for start, stop in [
        (0, 1),
        (1, 2),
        (3, 8),
        (BLOCK - 3, BLOCK + 4),
        (BLOCK, 2 * BLOCK),
        (2 * BLOCK, 2 * BLOCK + 5),
    ]:
        assert random_normals(7, 0, "a", start, stop).tobytes() == whole[start:stop].tobytes()


def test_normals_differ_by_seed_axis_name_and_block() -> None:
    first = random_normals(7, 0, "a", 0, 64)
    others = [(8, 0, "a"), (7, 1, "a"), (7, 0, "b"), (-7, 0, "a")]
    for other in others:
        assert not np.array_equal(random_normals(*other, 0, 64), first)
    assert not np.array_equal(random_normals(7, 0, "a", BLOCK, BLOCK + 64), first)


def test_normals_are_philox_bm_v1() -> None:
    # Values of the recipe in the module's docstring, written down once: a change of them is a new name.
    values = random_normals(0, 0, "fc1.weight", 0, 4)
    np.testing.assert_allclose(values, [-0.449074, -0.477850, -1.473166, -0.824571], rtol=0, atol=1e-5)


def test_normals_are_standard_normal() -> None:
    values = random_normals(3, 1, "w", 0, 4 * BLOCK).astype(np.float64)
    assert abs(values.mean()) < 4 / np.sqrt(values.size)
    assert abs(values.var() - 1) < 4 * np.sqrt(2 / values.size)
    assert abs((values**4).mean() - 3) < 0.1
    assert np.isfinite(values).all()
    inside = (np.abs(values) < 1.959964).mean()
    assert abs(inside - 0.95) < 0.003


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


def test_the_recipe_makes_the_same_directions_for_any_order_of_names() -> None:
    centre = {"a": np.ones((3, 2), np.float32), "b": np.ones((2, 2), np.float32)}
    one = RandomDirections(names=("a", "b"), seed=5).make(centre)
    other = RandomDirections(names=("b", "a"), seed=5).make(centre)
    digests = [
        {n: hashlib.sha256(d[n].tobytes()).hexdigest() for n in "ab"}
        for d in (one.x, other.x, one.y, other.y)
    ]
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    assert digests[0] != digests[2]


def test_given_directions_must_fit_the_weights() -> None:
    good = {"fc.weight": np.ones((3, 4), np.float32)}
    with pytest.raises(InvalidValueError, match="nothing"):
        Directions(x={"nothing": np.ones(2)}, y={"nothing": np.ones(2)}).make(WEIGHTS)
    with pytest.raises(InvalidValueError, match=r"shape \(2,\)"):
        Directions(x={"fc.weight": np.ones(2)}, y=good).make(WEIGHTS)
    with pytest.raises(InvalidValueError, match="same parameters"):
        Directions(x=good, y=good | {"fc.bias": np.ones(2)}).make(WEIGHTS)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_out_of_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(InvalidValueError, match="seed"):
        RandomDirections(names=("a",), seed=seed)
