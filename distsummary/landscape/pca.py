"""The PCA plane of a trajectory, from a Gram matrix streamed in float64.

Notation: theta_1 .. theta_n the checkpoints, theta_n the centre, d_k = theta_k - theta_n (n x D). The last
checkpoint is subtracted BEFORE anything is multiplied: a raw Gram matrix loses all digits when the path is
short against the weights. G = d d^T and s_k = sum_i d_ki are sums over parameters, so they add up over blocks
(and shards). Every centring follows from the same G and s:

    "last"       G                                  directions v = d^T q / sigma
    "mean"       J G J,  J = I - 1 1^T / n           directions v = d^T J q / sigma
    "mindspore"  G - s s^T / D without the last row  directions v = (d - s/D)^T q, not of unit length

with G' q = sigma^2 q. The sign makes the entry of largest size positive (the first of equals).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.checks import check_choice
from distsummary.errors import LandscapeError
from distsummary.landscape.directions import Array, Directions, Weights, check_fit

BLOCK = 1 << 16  # elements: larger blocks leave the cache, 3 times slower
CENTRINGS = ("last", "mean", "mindspore")
RANK_TOLERANCE = 1e-14  # relative to the largest eigenvalue, per checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The two leading directions and what the path has of them.

    `explained_variance` (2,) is the share of each direction in the trace of the centred Gram matrix.
    """

    directions: Directions
    singular_values: Array  # (2,), descending
    explained_variance: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Checkpoints in the coordinates of a plane: `points` (n, 2) least squares, `residuals` (n,) the relative
    distance from the plane, |d_k - A c| / |d_k| (0 for the centre).
    """

    points: Array
    residuals: Array


def pca_plane(states: Sequence[Weights], names: Sequence[str], *, centring: str = "last") -> Plane:
    """The plane of the path `states` over the parameters `names`, through the last state.

    Raises LandscapeError when the path has no two directions: less than 3 checkpoints, equal ones, a line.
    """
    check_choice("centring", centring, CENTRINGS)
    if len(states) < 3:
        raise LandscapeError(
            f"a PCA plane needs at least 3 checkpoints, got {len(states)}; "
            "save more or use directions='random'"
        )
    for k, state in enumerate(states):
        check_fit(f"checkpoint {k}", state, states[-1], names)
    total, sums, size = gram(states, names)
    if not np.isfinite(total).all():
        raise LandscapeError("a checkpoint holds NaN or Inf; leave it out of the intervals")
    centred = _centre(total, sums, size, centring)
    values, vectors = np.linalg.eigh(centred)
    largest = float(values[-1])
    if largest <= 0 or values[-2] <= RANK_TOLERANCE * len(states) * largest:
        what = "are all equal" if largest <= 0 else "lie on a straight line"
        raise LandscapeError(
            f"the {len(states)} checkpoints {what}, which spans no plane; use directions='random'"
        )
    singular = np.sqrt(values[[-1, -2]])
    weights = _row_weights(vectors[:, [-1, -2]].T, singular, centring, len(states))
    x, y = _combine(states, names, weights, sums / size if centring == "mindspore" else None)
    return Plane(
        directions=Directions(x=x, y=y),
        singular_values=singular,
        explained_variance=values[[-1, -2]] / np.trace(centred),
    )


def gram(states: Sequence[Weights], names: Sequence[str]) -> tuple[Array, Array, int]:
    """G (n, n) and s (n,) in float64, and the number of parameters D, in one pass over the states."""
    n = len(states)
    total, sums, size = np.zeros((n, n)), np.zeros(n), 0
    for _, _, block in _displacements(states, names):
        total += block @ block.T
        sums += block.sum(axis=1)
        size += block.shape[1]
    return total, sums, size


def locate(states: Sequence[Weights], names: Sequence[str], directions: Directions) -> Path:
    """Where the checkpoints lie in the plane through the last one, by 2 x 2 normal equations.

    Directions need not be orthogonal, so plain dot products would be wrong. The last checkpoint is exactly
    (0, 0).
    """
    n = len(states)
    products, rights, squares = np.zeros((2, 2)), np.zeros((2, n)), np.zeros(n)
    for name, part, block in _displacements(states, names):
        axes = np.stack([np.asarray(d[name]).reshape(-1)[part] for d in (directions.x, directions.y)])
        axes = axes.astype(np.float64)
        products += axes @ axes.T
        rights += axes @ block.T
        squares += (block * block).sum(axis=1)
    points = (np.linalg.pinv(products, hermitian=True) @ rights).T
    points[-1] = 0.0
    outside = np.clip(squares - (rights.T * points).sum(axis=1), 0.0, None)
    residuals = np.sqrt(np.divide(outside, squares, out=np.zeros(n), where=squares > 0))
    return Path(points=points, residuals=residuals)


def _displacements(states: Sequence[Weights], names: Sequence[str]) -> Iterator[tuple[str, slice, Array]]:
    """(name, slice of the flat parameter, d over it: float64 (n, elements)), block by block."""
    for name in names:
        flats = [np.asarray(state[name]).reshape(-1) for state in states]
        for start in range(0, flats[-1].size, BLOCK):
            part = slice(start, start + BLOCK)
            last = flats[-1][part].astype(np.float64)
            yield name, part, np.stack([flat[part].astype(np.float64) - last for flat in flats])


def _centre(total: Array, sums: Array, size: int, centring: str) -> Array:
    if centring == "last":
        return total
    if centring == "mean":
        rows = total - total.mean(axis=0)
        return np.asarray(rows - rows.mean(axis=1, keepdims=True))
    return np.asarray((total - np.outer(sums, sums) / size)[:-1, :-1])


def _row_weights(vectors: Array, singular: Array, centring: str, n: int) -> Array:
    """What each checkpoint's displacement contributes to the two directions, (2, n)."""
    if centring == "last":
        return np.asarray(vectors / singular[:, None])
    if centring == "mean":
        return np.asarray((vectors - vectors.mean(axis=1, keepdims=True)) / singular[:, None])
    return np.hstack((vectors, np.zeros((2, 1))))


def _combine(
    states: Sequence[Weights], names: Sequence[str], weights: Array, offsets: Array | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The directions `weights` (2, n) @ (d - offsets), float32 by name, with their signs settled."""
    axes: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
    for axis in axes:
        axis.update({name: np.empty(np.shape(states[-1][name]), np.float32) for name in names})
    largest = np.zeros(2)
    for name, part, block in _displacements(states, names):
        rows = weights @ (block if offsets is None else block - offsets[:, None])
        at = np.abs(rows).argmax(axis=1)
        for i, axis in enumerate(axes):
            axis[name].reshape(-1)[part] = rows[i]
            if abs(rows[i, at[i]]) > abs(largest[i]):
                largest[i] = rows[i, at[i]]
    for i, axis in enumerate(axes):
        for name in names if largest[i] < 0 else ():
            np.negative(axis[name], out=axis[name])
    return axes
