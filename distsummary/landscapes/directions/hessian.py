"""The largest eigenvalues and eigenvectors of a Hessian, or of an optimizer's factors. Pure functions.

Those of a Hessian follow from Hessian-vector products. The method is Lanczos' iteration (Golub & Van Loan
2013, section 10.3) in the band form of Ruhe 1979 (Math. Comp. 33): it begins with p start vectors and
multiplies one vector at a time by the Hessian H. Each product is orthogonalised twice against all earlier
vectors; what remains is a new vector. After m products:

    H V_m = V_(m+p) T     V_m: the first m vectors, orthonormal; T: (m + p, m), its upper m rows symmetric

If (theta, s) is an eigenpair of T's upper m rows, v = V_m s is an approximate eigenvector of H. Its residual
|H v - theta v| follows from the other rows of T without another product, and H has an eigenvalue whose
distance from theta is at most this residual. p is the number of wanted eigenvectors, so that multiple
eigenvalues are found with their multiplicity; a single start vector would find each only once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.frameworks.base import CurvatureSource
from distsummary.landscapes.directions.array_rows import shape_of
from distsummary.landscapes.directions.normals import random_normals
from distsummary.landscapes.directions.recipe import Array, Weights

Multiply: TypeAlias = Callable[[Array], Array]  # v -> H v, both float64 (D,)

MAX_PRODUCTS = 120
GROUPS = 8  # groups of batches; at most this many workers can share the work
TOLERANCE = 1e-4
SMALLEST = 1e-3  # of the largest |eigenvalue|: rounding limits the accuracy of smaller eigenvalues
MAX_ASYMMETRY = 1e-2
_AXIS = 2  # the argument `axis` of `random_normals` for start vectors; random directions use 0 and 1
_DEFLATED = 1e-13  # times the norm of the largest product; a shorter orthogonal part is only rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Eigenpairs:
    """The algebraically largest eigenvalues (negative ones may be larger in magnitude), with eigenvectors.

    Attributes:
        values: float64 (k,), descending; they may be negative.
        vectors: float64 (k, D), orthonormal; in each, the entry of largest magnitude is positive.
        residuals: |H v - value v| of each pair, (k,): H has an eigenvalue at most this far from the value.
        products: how many Hessian-vector products were computed.
        has_converged: whether all residuals are within the tolerance.
    """

    values: Array
    vectors: Array
    residuals: Array
    products: int
    has_converged: bool


class Hessian(Protocol):
    """The Hessian of a loss over batches, as products with vectors.

    The weight of a batch is its number of rows; `weight` is the sum over the batches.
    """

    weight: float

    def product(self, vector: Array) -> Array:
        """H v, float64 (D,), where H is the sum over the batches of weight * Hessian of the batch."""


def mean_product(hessian: Hessian) -> Multiply:
    """The function v -> H v, for the Hessian H of the mean loss."""
    if hessian.weight <= 0:
        raise LandscapeError("the batches hold no rows; give batches with data")
    return lambda vector: hessian.product(vector) / hessian.weight


def members(batches: Iterable[Any], group: int) -> Iterator[Any]:
    """The batches of group number `group` of GROUPS; the sum over a group is the same on any worker."""
    return islice(batches, group, None, GROUPS)


def lanczos(
    multiply: Multiply,
    size: int,
    *,
    count: int = 2,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    max_products: int = MAX_PRODUCTS,
) -> Eigenpairs:
    """The `count` algebraically largest eigenvalues and eigenvectors of a symmetric matrix (size, size).

    Stops when each residual is at most `tolerance` * max(|eigenvalue|, SMALLEST * largest |eigenvalue|), when
    the basis spans an invariant space, or after `max_products` products. Memory: (products + count) * size *
    8 bytes. The start vectors depend only on `seed`.

    Raises LandscapeError if products are not finite, or not symmetric (for example with a stochastic loss).
    """
    basis = _Basis(size, max_products + count)
    for number in range(count):
        basis.extend(random_normals(seed, _AXIS, f"start {number}", 0, size).astype(np.float64), 0.0)
    projected = np.zeros((max_products + count, max_products))
    largest, first = 0.0, np.empty(0)
    for column in range(max_products):
        product = multiply(basis.rows(column + 1)[column])
        if not np.isfinite(product).all():
            raise LandscapeError(
                "a Hessian-vector product holds NaN or Inf; choose a checkpoint with a finite loss, "
                "and a loss that has two derivatives there"
            )
        largest = max(largest, float(np.linalg.norm(product)))
        first = product if column == 0 else first
        coefficients = basis.extend(product, _DEFLATED * largest)
        projected[: len(coefficients), column] = coefficients
        ritz = _ritz(projected[: basis.count, : column + 1], min(count, column + 1))
        if ritz.asymmetry > MAX_ASYMMETRY:
            change = np.linalg.norm(multiply(basis.rows(1)[0]) - first) / np.linalg.norm(first)
            why = (
                "so the loss is not the same each time it is computed; turn off what is random in loss_fn"
                if change > ritz.asymmetry / 10
                else "though they are the same each time: a second derivative in the model is not exact, "
                "such as torch's of weight_norm; remove that part, or choose other directions"
            )
            differ = f"(u.Hv and v.Hu differ by {ritz.asymmetry:.1%})"
            raise LandscapeError(f"Hessian-vector products are not symmetric {differ}, {why}")
        # Once every vector of the basis has been multiplied, the basis spans an invariant space.
        is_whole = basis.count == column + 1
        scale = max(abs(ritz.values[0]), abs(ritz.smallest))
        allowed = tolerance * np.maximum(np.abs(ritz.values), SMALLEST * scale)
        has_converged = column + 1 >= count and bool(np.all(ritz.residuals <= allowed))
        if is_whole or has_converged:
            break
    vectors = ritz.coefficients @ basis.rows(column + 1)
    # The sign of an eigenvector is arbitrary. The entry of largest magnitude becomes positive, so that the
    # same Hessian always gives the same plane.
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    return Eigenpairs(
        values=ritz.values,
        vectors=vectors * signs[:, None],
        residuals=ritz.residuals,
        products=column + 1,
        has_converged=has_converged or is_whole,
    )


class _Basis:
    """Orthonormal vectors; memory is used only for the vectors that were added."""

    def __init__(self, size: int, capacity: int) -> None:
        self._rows: Array = np.empty((capacity, size))
        self.count = 0

    def rows(self, count: int) -> Array:
        return self._rows[:count]

    def extend(self, vector: Array, negligible: float) -> Array:
        """Append the part of `vector` orthogonal to the basis if that part is longer than `negligible`.

        Returns the coefficients of `vector` in the basis, including the appended vector.
        """
        known = self._rows[: self.count]
        rest, coefficients = vector.copy(), np.zeros(self.count)
        # Twice is enough (Parlett 1998, section 6.9).
        for _ in range(2):
            part = known @ rest
            rest -= part @ known
            coefficients += part
        length = float(np.linalg.norm(rest))
        if length <= negligible or self.count == len(vector):
            return coefficients
        np.divide(rest, length, out=self._rows[self.count])
        self.count += 1
        return np.append(coefficients, length)


@dataclass(frozen=True, slots=True)
class _Ritz:
    values: Array
    coefficients: Array  # (k, m)
    residuals: Array
    smallest: float
    asymmetry: float  # of the products, as a share of the largest


def _ritz(projected: Array, count: int) -> _Ritz:
    """The `count` largest eigenpairs of T's upper m rows; T's other p rows give the residuals."""
    m = projected.shape[1]
    square, rest = projected[:m], projected[m:]
    asymmetry = float(np.abs(square - square.T).max() / (np.abs(square).max() or 1.0))
    values, vectors = np.linalg.eigh((square + square.T) / 2)
    order = np.argsort(values)[::-1][:count]
    chosen = vectors[:, order]
    residuals = np.linalg.norm(rest @ chosen, axis=0)
    return _Ritz(values[order], chosen.T, residuals, float(values[0]), asymmetry)


def curvature_pairs(source: CurvatureSource, state: Weights, names: Collection[str]) -> Eigenpairs:
    """The two largest eigenpairs of the damped Kronecker factors of an optimizer, as flat vectors (2, D).

    Each lies in one layer. They are as exact as the stored inverses, so no errors are known.

    Args:
        source: the optimizer. state, names: the centre and its varied parameters, which give the order.

    Raises LandscapeError if there are not two.
    """
    largest = source.largest_curvature(2, names)
    if len(largest) < 2:
        raise LandscapeError(
            "directions='curvature' needs two eigenvectors of factors of varied parameters, got "
            f"{len(largest)}; let the optimizer refresh its factors first, or vary more parameters"
        )
    begins, size = {}, 0
    for name in names:
        begins[name] = size
        size += flat_size(state, [name])
    vectors = np.zeros((2, size))
    for row, one in zip(vectors, largest, strict=True):
        for name, array in one.vector.items():
            row[begins[name] : begins[name] + array.size] = array.ravel()
    values = np.array([one.value for one in largest])
    return Eigenpairs(values=values, vectors=vectors, residuals=np.empty(0), products=0, has_converged=True)


def angles(one: Array, other: Array) -> tuple[float, float]:
    """The principal angles in degrees between two planes of orthonormal vectors (2, D), ascending.

    Their cosines are the singular values of the vectors' products (Bjoerck & Golub 1973).
    """
    cosines = np.linalg.svd(one @ other.T, compute_uv=False)
    smallest, largest = np.degrees(np.arccos(np.clip(cosines, 0, 1))).tolist()
    return smallest, largest


def flat_size(state: Weights, names: Sequence[str]) -> int:
    """D: the number of elements of the parameters `names`, which are concatenated in a flat vector."""
    return sum(int(np.prod(shape_of(state, name), dtype=np.int64)) for name in names)


def unflatten(vector: Array, state: Weights, names: Sequence[str]) -> dict[str, Array]:
    """A flat vector (D,) as arrays by name in the shapes of `state`, float32."""
    found, at = {}, 0
    for name in names:
        shape = shape_of(state, name)
        size = int(np.prod(shape, dtype=np.int64))
        found[name] = vector[at : at + size].reshape(shape).astype(np.float32)
        at += size
    return found
