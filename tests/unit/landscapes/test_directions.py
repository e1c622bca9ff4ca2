import hashlib

import numpy as np

from distsummary import Directions
from distsummary.errors import InvalidValueError
from distsummary.landscapes.directions.recipe import RandomDirections
from tests.refusals import refused

WEIGHTS = {
    "fc.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fc.bias": np.array([3.0, 4.0], np.float32),
    "bn.gamma": np.array([1.0, 2.0], np.float32),
}


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
    good, short = {"fc.weight": np.ones((3, 4), np.float32)}, {"fc.weight": np.ones(2)}
    absent = {"nothing": np.ones(2)}
    refused(
        InvalidValueError,
        (lambda: Directions(x=absent, y=absent).make(WEIGHTS), "nothing"),
        (lambda: Directions(x=short, y=good).make(WEIGHTS), r"shape \(2,\)"),
        (lambda: Directions(x=good, y=good | {"fc.bias": np.ones(2)}).make(WEIGHTS), "same parameters"),
    )


def test_a_filter_axis_changes_the_scale_and_not_the_normals() -> None:
    rows = RandomDirections(names=("fc.weight",)).make(WEIGHTS).x["fc.weight"]
    columns = (
        RandomDirections(names=("fc.weight",), filter_axes={"fc.weight": 1}).make(WEIGHTS).x["fc.weight"]
    )
    assert np.array_equal(np.sign(rows[1:]), np.sign(columns[1:]))
    norms = np.linalg.norm(WEIGHTS["fc.weight"], axis=0)
    np.testing.assert_allclose(np.linalg.norm(columns, axis=0), norms, rtol=1e-6)
