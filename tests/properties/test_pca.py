"""The streamed plane of a path compared with that of an SVD of the whole matrix."""

import numpy as np
import pytest

from distsummary.landscapes.directions import CENTERINGS
from distsummary.landscapes.directions.pca import pca_plane
from tests.unit.landscapes.test_pca import random_path, svd_plane


@pytest.mark.parametrize("centering", CENTERINGS)
@pytest.mark.parametrize("step", [1e-1, 1e-5])
def test_the_streamed_plane_is_that_of_an_svd_also_for_a_short_path(centering: str, step: float) -> None:
    states = random_path(8, step)
    plane = pca_plane(states, ["a.weight", "a.bias"], centering=centering)
    singular, v = svd_plane(states, centering)
    np.testing.assert_allclose(plane.singular_values, singular[:2], rtol=1e-9)
    np.testing.assert_allclose(plane.explained_variance, singular[:2] ** 2 / (singular**2).sum(), rtol=1e-9)
    scale = singular[:2] if centering == "mindspore" else np.ones(2)
    for axis, direction in enumerate((plane.directions.x, plane.directions.y)):
        got = np.concatenate([direction["a.weight"].reshape(-1), direction["a.bias"]]) / scale[axis]
        np.testing.assert_allclose(got, v[axis], atol=2e-7)
