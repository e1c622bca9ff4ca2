"""Computes the PCA plane of a trajectory from a Gram matrix, which is summed block by block in float64.

Notation: theta_1 .. theta_n are the checkpoints, theta_n is the centre, and d (n x D) has the rows
d_k = theta_k - theta_n. The last checkpoint is subtracted BEFORE anything is multiplied: the Gram matrix of
the checkpoints themselves loses all digits when the path is short compared with the weights. G = d d^T and
s_k = sum_i d_ki are sums over parameters, so G and s of blocks add up. Each centering derives its matrix G'
from G and s. An eigenvector q, with G' q = sigma^2 q, gives a direction v:

    "last"       G' = G                          directions v = d^T q / sigma
    "mean"       G' = J G J, J = I - 1 1^T / n    directions v = d^T J q / sigma
    "mindspore"  G' = G - s s^T / D without its last row and column
                                                 directions v = (d - s/D)^T q, not of unit length

The sign of a direction makes its entry of largest magnitude positive (the first one among equals).

Checkpoints are decoded block by block, so mapped files cost no memory: a plane needs memory for its two
directions (2 D float32) and `displacements.BLOCK_BYTES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.array_rows import shape_of
from distsummary.landscapes.directions.displacements import combine_rows, displacements, inner
from distsummary.landscapes.directions.finite_weights import refuse_diverged
from distsummary.landscapes.directions.recipe import ONE_ROW, Array, Directions, Weights, check_fit
from distsummary.landscapes.directions.rounding import is_rounding

RANK_TOLERANCE = 1e-14  # times number of checkpoints times largest eigenvalue; smaller eigenvalues count as 0
NARROW = 0.1  # of the first singular value: a smaller second singular value may be due to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """`products` G (n, n) and `sums` s (n,) of the module's notation, float64, over `size` elements."""

    products: Array
    sums: Array
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Two directions as weighted sums over checkpoints: direction i is weights[i] @ (d - offsets[:, None]).

    `weights` (2, n) and `offsets` (n,) are float64. `singular_values` (2,) are descending;
    `explained_variance` (2,) is the share of each direction in the trace of the centred Gram matrix. The
    arrays `singular_values` and `explained_variance` are empty unless PCA found the axes.
    """

    weights: Array
    offsets: Array
    singular_values: Array = field(default_factory=lambda: np.empty(0))
    explained_variance: Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The two leading directions, float32. The other fields are those of `Axes`."""

    directions: Directions
    singular_values: Array
    explained_variance: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Where checkpoints lie relative to a plane.

    Attributes:
        points: the coordinates c of each checkpoint, fitted by least squares, (n, 2).
        residuals: the relative distance from the plane, |d_k - A c| / |d_k|, (n,); 0 for the centre. The
            columns of A are the plane's directions.
    """

    points: Array
    residuals: Array


def pca_plane(
    states: Sequence[Weights], names: Sequence[str], *, centering: str = "last", labels: Sequence[str] = ()
) -> Plane:
    """The plane of the path `states` over the parameters `names`, through the last state.

    Raises LandscapeError if the path spans no plane (fewer than 3 checkpoints, all equal or on a line), or if
    a checkpoint holds NaN or Inf; the error names its label.
    """
    if len(states) < 3:
        raise LandscapeError(
            f"a PCA plane needs at least 3 checkpoints, got {len(states)}; "
            "save more, or use directions='random' around one of them"
        )
    total = gram(states, names)
    refuse_diverged(total.products, states, names, labels)
    axes = pca_axes(total, centering=centering)
    length, width = axes.singular_values
    if width < NARROW * length and is_rounding(width, states, names):
        raise _no_plane(len(states), "lie on a straight line, except for rounding")
    directions, largest = combine(states, names, axes)
    for entry, direction in zip(largest, (directions.x, directions.y), strict=True):
        for array in direction.values() if entry < 0 else ():
            np.negative(array, out=array)
    return Plane(
        directions=directions,
        singular_values=axes.singular_values,
        explained_variance=axes.explained_variance,
    )


def gram(states: Sequence[Weights], names: Sequence[str]) -> Gram:
    """The Gram matrix of the displacements from the last state, in one pass over the states.

    Raises InvalidValueError for states that do not have the same parameters.
    """
    for k, state in enumerate(states):
        check_fit(f"checkpoint {k}", state, states[-1], names)
    n = len(states)
    products, sums, size = np.zeros((n, n)), np.zeros(n), 0
    # Callers check the products.
    with np.errstate(invalid="ignore", over="ignore"):
        for _, _, block in displacements(states, names):
            products += inner(block, block)
            sums += block.sum(axis=1)
            size += block.shape[1]
    return Gram(products=products, sums=sums, size=size)


def pca_axes(total: Gram, *, centering: str = "last") -> Axes:
    """The two leading directions, from the eigenvectors of the centred Gram matrix.

    Raises LandscapeError when the checkpoints are equal or lie on a line.
    """
    n = len(total.products)
    centred = _centre(total, centering)
    values, vectors = np.linalg.eigh(centred)
    largest = float(values[-1])
    if largest <= 0 or len(values) < 2 or values[-2] <= RANK_TOLERANCE * n * largest:
        raise _no_plane(n, "lie on a straight line" if total.products.any() else "are all equal")
    singular = np.sqrt(values[[-1, -2]])
    offsets = total.sums / total.size if centering == "mindspore" else np.zeros(n)
    return Axes(
        weights=_row_weights(vectors[:, [-1, -2]].T, singular, centering),
        offsets=offsets,
        singular_values=singular,
        explained_variance=values[[-1, -2]] / np.trace(centred),
    )


def combine(states: Sequence[Weights], names: Sequence[str], axes: Axes) -> tuple[Directions, Array]:
    """The directions of `axes`, float32, and the entry of largest magnitude in each, (2,), in one pass.

    The signs are those of the eigenvectors, which are arbitrary.
    """
    built: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
    for direction in built:
        direction.update({name: np.empty(shape_of(states[-1], name), np.float32) for name in names})
    largest = np.zeros(2)
    for name, part, block in displacements(states, names):
        if axes.offsets.any():
            block -= axes.offsets[:, None]
        rows = combine_rows(axes.weights, block)
        at = np.abs(rows).argmax(axis=1)
        for i, direction in enumerate(built):
            direction[name].reshape(-1)[part] = rows[i]
            if abs(rows[i, at[i]]) > abs(largest[i]):
                largest[i] = rows[i, at[i]]
    return Directions(x=built[0], y=built[1]), largest


def locate(states: Sequence[Weights], names: Sequence[str], directions: Directions) -> Path:
    """The position of each checkpoint relative to the plane through the last one, from normal equations.

    Directions need not be orthogonal, so plain dot products would be wrong. The last checkpoint is exactly
    (0, 0).
    """
    n = len(states)
    products, rights, squares = np.zeros((2, 2)), np.zeros((2, n)), np.zeros(n)
    for name, part, block in displacements(states, names):
        axes = np.stack([np.asarray(d[name]).reshape(-1)[part] for d in (directions.x, directions.y)])
        axes = axes.astype(np.float64)
        products += inner(axes, axes)
        rights += inner(axes, block)
        squares += np.einsum("kd,kd->k", block, block)
    return solve(products, rights, squares)


def solve(products: Array, rights: Array, squares: Array) -> Path:
    """The coordinates with the least squared error, and the residuals, from normal equations in float64.

    With the plane's directions as the columns of A (D, 2), `products` is A^T A (2, 2), `rights` is A^T d^T
    (2, n), and `squares` has |d_k|^2 (n,).
    """
    lengths = np.sqrt(np.diag(products))
    # Scales the axes to unit length, since pinv would drop a short axis.
    units = np.divide(1.0, lengths, out=np.zeros(2), where=lengths > 0)
    inverse = np.linalg.pinv(products * np.outer(units, units), hermitian=True) * np.outer(units, units)
    points = (inverse @ rights).T
    outside = np.clip(squares - (rights.T * points).sum(axis=1), 0.0, None)
    shares = np.divide(outside, squares, out=np.zeros(len(points)), where=squares > 0)
    return Path(points=points, residuals=np.sqrt(shares))


def _no_plane(count: int, why: str) -> LandscapeError:
    return LandscapeError(
        f"the {count} checkpoints {why}, which spans no plane; use directions='random' around one of them"
        + ("" if "equal" in why else f"; {ONE_ROW}")
    )


def _centre(total: Gram, centering: str) -> Array:
    if centering == "last":
        return total.products
    if centering == "mean":
        rows = total.products - total.products.mean(axis=0)
        return np.asarray(rows - rows.mean(axis=1, keepdims=True))
    return np.asarray((total.products - np.outer(total.sums, total.sums) / total.size)[:-1, :-1])


def _row_weights(vectors: Array, singular: Array, centering: str) -> Array:
    """The weight of each checkpoint's displacement in the two directions, (2, n)."""
    if centering == "last":
        return np.asarray(vectors / singular[:, None])
    if centering == "mean":
        return np.asarray((vectors - vectors.mean(axis=1, keepdims=True)) / singular[:, None])
    return np.hstack((vectors, np.zeros((2, 1))))
