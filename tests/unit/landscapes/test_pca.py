from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from distsummary import Directions
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions import CENTERINGS, displacements
from distsummary.landscapes.directions.normalization import normalize
from distsummary.landscapes.directions.pca import Plane, gram, locate, pca_plane
from tests.refusals import refused

States = Sequence[Mapping[str, Any]]

NAMES = ["one.weight", "two.bias"]
SMALL = [
    {"one.weight": np.array(t[:2], np.float32), "two.bias": np.array(t[2:], np.float32)}
    for t in [(0, 0, 0), (2, 0, 1), (3, 1, 1), (4, 2, 2)]
]
EXPECTED = {
    "last": {
        "eigenvalues": (35.149746, 0.683843),
        "explained": (0.976382, 0.018996),
        "x": (0.769127, 0.491660, 0.408306),
        "y": (-0.518258, 0.853661, -0.051688),
        "points": [(-4.876441, 0.469089), (-2.929881, -0.619116), (-1.669093, -0.283714), (0, 0)],
    },
    "mean": {
        "eigenvalues": (12.803148, 0.556500),
        "explained": (0.948381, 0.041222),
        "x": (0.821304, 0.423297, 0.382464),
        "y": (-0.404453, 0.904847, -0.132929),
        "points": [(-4.896740, 0.073975), (-2.871667, -0.867859), (-1.627065, -0.367465), (0, 0)],
    },
    "mindspore": {
        "eigenvalues": (2.868517, 0.464816),
        "explained": (2.868517 / (10 / 3), 0.464816 / (10 / 3)),
        "x": (1.372717, -0.541467, -0.831251),
        "y": (-0.067348, 0.512220, -0.444872),
        "points": [(-0.439876, -0.210162), (-0.193988, -0.283666), (-0.042345, -0.087184), (0, 0)],
    },
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' paths, too, are cut into blocks, and these into strips."""
    monkeypatch.setattr(displacements, "BLOCK", 3_001)
    monkeypatch.setattr(displacements, "_SERIAL", 1 << 13)


def flat(direction: Mapping[str, Any]) -> Any:
    return np.concatenate([direction[name].reshape(-1) for name in NAMES])


@pytest.mark.parametrize("centering", CENTERINGS)
def test_the_worked_example_of_four_points_in_three_dimensions(centering: str) -> None:
    expected, plane = EXPECTED[centering], pca_plane(SMALL, NAMES, centering=centering)
    np.testing.assert_allclose(plane.singular_values**2, expected["eigenvalues"], atol=1e-6)
    np.testing.assert_allclose(plane.explained_variance, expected["explained"], atol=1e-6)
    np.testing.assert_allclose(flat(plane.directions.x), expected["x"], atol=1e-6)
    np.testing.assert_allclose(flat(plane.directions.y), expected["y"], atol=1e-6)
    directions = plane.directions
    if centering == "mindspore":
        directions = Directions(
            x=normalize(directions.x, SMALL[-1], "mindspore"),
            y=normalize(directions.y, SMALL[-1], "mindspore"),
        )
        np.testing.assert_allclose(flat(directions.x), (4.160190, -1.640982, -2), atol=1e-6)
        np.testing.assert_allclose(flat(directions.y), (-0.582992, 4.433973, -2), atol=1e-6)
    path = locate(SMALL, NAMES, directions)
    np.testing.assert_allclose(path.points, expected["points"], atol=2e-6)
    assert path.points[-1].tolist() == [0.0, 0.0]


def test_the_gram_matrix_is_that_of_the_worked_example() -> None:
    total = gram(SMALL, NAMES)
    assert total.products[:3, :3].tolist() == [[24, 14, 8], [14, 9, 5], [8, 5, 3]]
    assert total.sums.tolist() == [-8, -5, -3, 0]
    assert total.size == 3


def random_path(n: int, step: float, seed: int = 0) -> list[dict[str, Any]]:
    """A random walk of float32 checkpoints of 7,004 parameters, more than a block."""
    rng = np.random.default_rng(seed)
    now = rng.normal(size=7_004)
    states = []
    for k in range(n):
        now = now + step * rng.normal(size=now.size) * (0.2 + k % 3)
        states.append(
            {
                "a.weight": now[:7_000].reshape(700, 10).astype(np.float32),
                "a.bias": now[7_000:].astype(np.float32),
            }
        )
    return states


def svd_plane(states: States, centering: str) -> tuple[Any, Any]:
    """Singular values and unit directions (2, D) by numpy's SVD in float64."""
    rows = np.stack(
        [np.concatenate([s["a.weight"].reshape(-1), s["a.bias"]]).astype(np.float64) for s in states]
    )
    d = rows - rows[-1]
    matrix = {"last": d, "mean": d - d.mean(axis=0), "mindspore": (d - d.mean(axis=1, keepdims=True))[:-1]}[
        centering
    ]
    _, s, v = np.linalg.svd(matrix, full_matrices=False)
    v = v[:2] * np.sign(v[:2][[0, 1], np.abs(v[:2]).argmax(axis=1)])[:, None]
    return s, v


def test_residuals_are_what_lies_outside_the_plane() -> None:
    states = random_path(6, 0.1)
    names = ["a.weight", "a.bias"]
    plane = pca_plane(states, names)
    path = locate(states, names, plane.directions)
    flats = [np.concatenate([s["a.weight"].reshape(-1), s["a.bias"]]).astype(np.float64) for s in states]
    x, y = (
        np.concatenate([d["a.weight"].reshape(-1), d["a.bias"]]).astype(np.float64)
        for d in (plane.directions.x, plane.directions.y)
    )
    for k in range(5):
        d = flats[k] - flats[-1]
        outside = d - path.points[k, 0] * x - path.points[k, 1] * y
        assert path.residuals[k] == pytest.approx(np.linalg.norm(outside) / np.linalg.norm(d), rel=1e-6)
    assert path.residuals[-1] == 0


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_residuals_do_not_depend_on_the_length_of_the_path(length: float) -> None:
    directions = Directions(x={"w": np.array([1.0, 0, 0])}, y={"w": np.array([0, 1.0, 0])})
    path = locate([{"w": length * np.array([2.0, 1, 2])}, {"w": np.zeros(3)}], ["w"], directions)
    np.testing.assert_allclose(path.points, [[2 * length, length], [0, 0]])
    np.testing.assert_allclose(path.residuals, [2 / 3, 0])


def test_coordinates_in_oblique_directions_are_least_squares() -> None:
    x, y = {"w": np.array([1.0, 0, 0], np.float32)}, {"w": np.array([1.0, 1.0, 0], np.float32)}
    states = [{"w": np.array(v, np.float32)} for v in [(3, 2, 0), (1, 1, 0), (0, 0, 0)]]
    path = locate(states, ["w"], Directions(x=x, y=y))
    np.testing.assert_allclose(path.points, [(1, 2), (0, 1), (0, 0)], atol=1e-12)
    np.testing.assert_allclose(path.residuals, 0, atol=1e-7)


def test_coordinates_along_axes_of_very_different_lengths_are_least_squares() -> None:
    long, short = np.array([2.0**30, 0]), np.array([1.0, 1.0])
    directions = Directions(x={"w": long}, y={"w": short})
    path = locate([{"w": 3 * long - 5 * short}, {"w": 0 * long}], ["w"], directions)
    np.testing.assert_allclose(path.points, [[3, -5], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(path.residuals, 0, atol=1e-7)


def test_parameters_that_never_change_have_no_direction() -> None:
    states = [dict(s, frozen=np.ones(3, np.float32)) for s in SMALL]
    plane = pca_plane(states, [*NAMES, "frozen"])
    assert not plane.directions.x["frozen"].any()
    assert not plane.directions.y["frozen"].any()


def test_paths_without_a_plane_are_refused_by_name() -> None:
    line = [{name: a * k for name, a in SMALL[-1].items()} for k in range(4)]
    broken = [dict(SMALL[0], **{"two.bias": np.array([np.nan], np.float32)}), *SMALL[1:]]
    other = [SMALL[0], {"one.weight": SMALL[1]["one.weight"]}, *SMALL[2:]]
    refused(
        LandscapeError,
        (lambda: pca_plane(SMALL[:2], NAMES), "at least 3 checkpoints, got 2"),
        (lambda: pca_plane([SMALL[0]] * 4, NAMES), "all equal"),
        (lambda: pca_plane(line, NAMES), "straight line"),
        (lambda: pca_plane(broken, NAMES), "NaN"),
    )
    refused(InvalidValueError, (lambda: pca_plane(other, NAMES), r"checkpoint 1.*two\.bias"))


def test_the_plane_does_not_depend_on_how_parameters_are_cut_into_tensors() -> None:
    whole: list[dict[str, Any]] = [{"w": np.concatenate([s["one.weight"], s["two.bias"]])} for s in SMALL]
    one: Plane = pca_plane(SMALL, NAMES)
    other = pca_plane(whole, ["w"])
    np.testing.assert_allclose(flat(one.directions.x), other.directions.x["w"], rtol=1e-6)
    np.testing.assert_allclose(one.explained_variance, other.explained_variance, rtol=1e-12)


@pytest.mark.parametrize(("centering", "shares"), [("last", (0.81, 0.09)), ("mean", (0.61, 0.15))])
def test_a_random_walk_has_the_shares_that_the_documents_warn_of(centering: str, shares: tuple[float, float]):
    steps = np.random.default_rng(0).normal(size=(200, 10_000))
    walk = [{"w": at} for at in np.cumsum(steps, axis=0)]
    found = pca_plane(walk, ["w"], centering=centering).explained_variance
    np.testing.assert_allclose(found, shares, atol=0.01)
