"""Sketches: the definition, sums of shards, and products that are kept."""

import itertools

import numpy as np
import pytest

from distsummary.checkpoints.sketch.count_sketch import (
    BUCKETS,
    CHUNK,
    Sketcher,
    digest,
    philox,
    signs,
)

SIZE = CHUNK + 2 * BUCKETS + 17


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).standard_normal(SIZE, np.float32)


def by_definition(name, flat, seed=0):
    """Element by element, as the module's docstring says."""
    index = np.arange(len(flat))
    chunk, p = index // CHUNK, index % CHUNK
    words = philox(seed, 3, name, 0).random_raw(int(chunk[-1]) + 1)
    offset, shift = (words % 2**18).astype(np.int64), ((words >> np.uint64(32)) % BUCKETS).astype(np.int64)
    flipped = flat.astype(np.float64) * signs(seed)[offset[chunk] + p]
    return np.bincount((p + shift[chunk]) % BUCKETS, weights=flipped, minlength=BUCKETS)


def test_a_sketch_is_that_of_the_definition(values):
    for flat in (values, values[:100], values[: BUCKETS + 5]):
        np.testing.assert_allclose(Sketcher().sketch({"w": flat}), by_definition("w", flat), atol=1e-5)
    two = {"w": values[:50].reshape(5, 10), "b": values[50:60]}
    total = by_definition("w", values[:50]) + by_definition("b", values[50:60])
    np.testing.assert_allclose(Sketcher().sketch(two), total, atol=1e-6)


def test_the_definition_has_not_changed():
    # Written down once: a change of these is a new name for the sketch.
    sketch = Sketcher().sketch({"fc1.weight": np.arange(1.0, 6.0)})
    at = np.flatnonzero(sketch)
    assert BUCKETS == 31_907
    assert (at.tolist(), sketch[at].tolist()) == (
        [20334, 20335, 20336, 20337, 20338],
        [1.0, -2.0, 3.0, 4.0, 5.0],
    )


def test_signs_are_fair_and_a_function_of_the_seed():
    table = signs(0)
    assert set(np.unique(table)) == {-1.0, 1.0}
    assert abs(table.mean()) < 5 / np.sqrt(len(table))
    one = Sketcher(1).sketch({"w": np.ones(9)})
    assert not np.array_equal(one, Sketcher(0).sketch({"w": np.ones(9)}))


def test_parts_of_a_parameter_add_up_wherever_it_is_cut(values):
    sketcher, total = Sketcher(), np.zeros(BUCKETS)
    cuts = [0, 3, BUCKETS, CHUNK - 1, CHUNK, CHUNK + 1, SIZE]
    for start, stop in itertools.pairwise(cuts):
        sketcher.add(total, "w", values[start:stop], start)
    np.testing.assert_allclose(total, sketcher.sketch({"w": values}), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions_are_sketched_as_they_are(values, dtype):
    flat = values[: BUCKETS + 9].astype(dtype)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(Sketcher().sketch({"w": flat}), by_definition("w", flat), atol=tolerance)


def vectors(kind):
    """Two vectors of 64,000 elements by parameter, of a kind that hurts sketches with less randomness."""
    rng = np.random.default_rng(3)
    shapes = {"a": (50, 1000), "b": (14, 1000)}
    if kind == "constant":
        one = {name: np.ones(shape) for name, shape in shapes.items()}
    elif kind == "column":
        one = {name: np.zeros(shape) for name, shape in shapes.items()}
        one["a"][:, 7] = 1
    elif kind == "outer":
        one = {n: np.outer(rng.normal(size=s[0]), np.abs(rng.normal(size=s[1]))) for n, s in shapes.items()}
    else:
        one = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return one, {name: one[name] * 0.5 + rng.normal(size=shape) * 0.5 for name, shape in shapes.items()}


def test_the_digest_reports_names_and_shapes_apart_but_not_their_order():
    one = digest({"a": (2, 3), "b": (4,)})
    assert one == digest({"b": [4], "a": [2, 3]})
    assert len({one, digest({"a": (3, 2), "b": (4,)}), digest({"a": (2, 3), "c": (4,)}), digest({})}) == 4
