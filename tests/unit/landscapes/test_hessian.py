from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.hessian import (
    GROUPS,
    flat_size,
    lanczos,
    mean_product,
    members,
    unflatten,
)


def symmetric(eigenvalues: Sequence[float], seed: int = 0) -> tuple[Any, Any]:
    """A dense matrix with these eigenvalues, and its eigenvectors (k, D) in their order."""
    values = np.asarray(eigenvalues, np.float64)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    return (q * values) @ q.T, q.T


SPREAD = [50.0, 30.0, *np.linspace(5, -5, 78)]


def test_the_leading_eigenpairs_are_those_of_the_dense_matrix() -> None:
    matrix, vectors = symmetric(SPREAD)
    found = lanczos(lambda v: matrix @ v, 80, count=2, tolerance=1e-10)
    np.testing.assert_allclose(found.values, [50, 30], rtol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * vectors[:2], axis=1)), 1, rtol=1e-12)
    assert found.has_converged
    assert found.products < 50


@pytest.mark.parametrize("dominating", [-1e5, 1e4])
def test_a_dominating_eigenvalue_does_not_hide_the_leading_ones(dominating: float) -> None:
    matrix, _ = symmetric([dominating, 2.0, 1.0, *np.linspace(0.5, -0.5, 197)])
    found = lanczos(lambda v: matrix @ v, 200)
    expected = sorted([dominating, 2.0, 1.0])[::-1][:2]
    assert found.has_converged
    np.testing.assert_allclose(found.values, expected, rtol=1e-3)


def test_the_largest_eigenvalues_are_those_with_their_signs() -> None:
    matrix, _ = symmetric([-9.0, -5.0, -1.0, -0.5])
    np.testing.assert_allclose(lanczos(lambda v: matrix @ v, 4).values, [-0.5, -1])


def test_residuals_are_those_of_the_vectors() -> None:
    matrix, _ = symmetric(SPREAD)
    for most in (4, 9, 20):
        found = lanczos(lambda v: matrix @ v, 80, count=2, max_products=most, tolerance=1e-12)
        rest = found.vectors @ matrix - found.values[:, None] * found.vectors
        np.testing.assert_allclose(found.residuals, np.linalg.norm(rest, axis=1), rtol=1e-6, atol=1e-10)
        assert not found.has_converged
        assert found.products == most
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(2), atol=1e-13)


@pytest.mark.parametrize("times", [2, 3])
def test_an_eigenvalue_is_found_as_often_as_it_is_there(times: int) -> None:
    matrix, vectors = symmetric([7.0] * times + [1.0] * (60 - times))
    found = lanczos(lambda v: matrix @ v, 60, count=times)
    np.testing.assert_allclose(found.values, [7.0] * times, rtol=1e-8)
    within = found.vectors @ vectors[:times].T  # any basis of the same space
    np.testing.assert_allclose(within @ within.T, np.eye(times), atol=1e-8)


def test_the_whole_space_is_enough() -> None:
    matrix, _ = symmetric([3.0, -1.0, -2.0])
    found = lanczos(lambda v: matrix @ v, 3, count=2, tolerance=1e-14)
    np.testing.assert_allclose(found.values, [3, -1], rtol=1e-12)
    assert found.has_converged
    assert found.products <= 3


def test_a_matrix_of_zero_has_the_eigenvalue_zero() -> None:
    found = lanczos(np.zeros_like, 50, count=2)
    assert found.values.tolist() == [0, 0]
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(2), atol=1e-12)
    assert found.has_converged


def test_the_same_seed_gives_the_same_bytes_and_signs_are_settled() -> None:
    matrix, _ = symmetric(SPREAD)
    one, same, other = (lanczos(lambda v: matrix @ v, 80, seed=seed) for seed in (1, 1, 2))
    assert one.vectors.tobytes() == same.vectors.tobytes()
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-3)
    for vector in one.vectors:
        assert vector[np.abs(vector).argmax()] > 0


def test_products_in_single_precision_are_enough_for_directions() -> None:
    matrix, vectors = symmetric(SPREAD)
    rough = matrix.astype(np.float32)
    found = lanczos(lambda v: (rough @ v.astype(np.float32)).astype(np.float64), 80)
    np.testing.assert_allclose(found.values, [50, 30], rtol=1e-5)
    assert np.abs(np.sum(found.vectors * vectors[:2], axis=1)).min() > 0.99999


def test_a_loss_that_is_not_the_same_each_time_is_noticed() -> None:
    matrix, _ = symmetric(SPREAD)
    rng = np.random.default_rng(0)
    with pytest.raises(LandscapeError, match=r"not symmetric.*turn off what is random"):
        lanczos(lambda v: matrix @ v + rng.normal(size=80), 80)
    # Of torch's weight_norm, they are not symmetric, and nothing is random.
    skewed = matrix + rng.normal(size=(80, 80))
    with pytest.raises(LandscapeError, match=r"not symmetric.*though they are the same each time"):
        lanczos(lambda v: skewed @ v, 80)


def test_products_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(LandscapeError, match="NaN or Inf"):
        lanczos(lambda v: v * np.nan, 5)


class Batches:
    """Of each batch its matrix and its rows."""

    def __init__(self, matrices: list[Any], rows: list[float]) -> None:
        self.matrices, self.rows, self.weight = matrices, rows, sum(rows)

    def product(self, vector: Any) -> Any:
        return sum(r * (m @ vector) for m, r in zip(self.matrices, self.rows, strict=True))


def test_batches_count_by_their_rows() -> None:
    matrices = [symmetric(np.arange(6.0), seed)[0] for seed in range(3)]
    rows = [8.0, 8.0, 3.0]
    multiply = mean_product(Batches(matrices, rows))
    v = np.arange(6.0)
    expected = sum(r * (m @ v) for m, r in zip(matrices, rows, strict=True)) / 19
    np.testing.assert_allclose(multiply(v), expected, rtol=1e-12)
    with pytest.raises(LandscapeError, match="no rows"):
        mean_product(Batches([], []))


@pytest.mark.parametrize("count", [1, 7, 8, 19])
def test_groups_hold_every_batch_once(count: int) -> None:
    groups = [list(members(range(count), group)) for group in range(min(count, GROUPS))]
    assert sorted(batch for group in groups for batch in group) == list(range(count))
    assert all(groups)


def test_a_flat_vector_becomes_parameters_in_order() -> None:
    state = {"a": np.zeros((2, 2)), "s": np.zeros(()), "b": np.zeros(3), "other": np.zeros(9)}
    names = ["a", "s", "b"]
    assert flat_size(state, names) == 8
    found = unflatten(np.arange(8.0), state, names)
    assert found["a"].tolist() == [[0, 1], [2, 3]]
    assert found["s"] == 4
    assert found["b"].tolist() == [5, 6, 7]
    assert found["b"].dtype == np.float32
