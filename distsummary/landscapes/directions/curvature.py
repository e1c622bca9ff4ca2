"""The plane of an optimizer's curvature: the largest eigenvectors of its Kronecker factors. Pure
functions."""

from collections.abc import Collection

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.frameworks.base import CurvatureSource
from distsummary.landscapes.directions.hessian import Eigenpairs, flat_size
from distsummary.landscapes.directions.recipe import Array, Weights


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
