"""Paths from sketches against paths from whole checkpoints."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, LossGrid, training_path
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.sketch.count_sketch import Sketcher, digest
from distsummary.checkpoints.sketch.sketch_file import (
    Sketches,
    SketchHeader,
    SketchWriter,
    read_sketches,
)
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError, MissingFileError
from distsummary.frameworks.numpy import HostCopy
from distsummary.landscapes.directions import sketched
from distsummary.landscapes.directions.checkpoint_sources import open_source
from distsummary.landscapes.directions.pca import locate, pca_plane
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.directions.sketched import path_in_plane, sketched_path
from distsummary.rundir.run_dir import RunDir
from tests.unit.landscapes.golden_mlp import Mlp
from tests.unit.landscapes.test_generator import draw, walk

States = Sequence[dict[str, Any]]


def descent(count: int, size: int = 1500) -> list[dict[str, Any]]:
    """Gradient descent with noise in a bowl of a few steep directions, far from zero."""
    rng = np.random.default_rng(0)
    start, target = 10 * rng.normal(size=(2, size))
    rate = np.where(np.arange(size) % 7 == 0, 0.08, 0.01)
    now, states = start, []
    for _ in range(count):
        now = now - rate * (now - start - target) + 0.02 * rng.normal(size=size)
        states.append({"w": now[: size - 10].reshape(-1, 10).astype(np.float32), "b": now[size - 10 :]})
    return states


NAMES = ["w", "b"]


def write_sketches(
    directory: Path, states: States, steps: Sequence[int] | None = None, **header: Any
) -> Sketches:
    sketcher = Sketcher()
    writer = SketchWriter(directory, SketchHeader(**({"run_id": "0" * 16} | header)))
    steps = steps or range(1, len(states) + 1)
    writer.write([(n, HostCopy(sketcher.sketch(s))) for n, s in zip(steps, states, strict=True)])
    return read_sketches(directory)


def errors(points: Any, exact: Any) -> Any:
    """|p - q| / |q| of each coordinate; the sign of an axis is open."""
    signs = np.sign(np.sum(points * exact, axis=0))
    return np.linalg.norm(points * signs - exact, axis=0) / np.linalg.norm(exact, axis=0)


@pytest.mark.parametrize("centering", ["last", "mean"])
def test_coordinates_residuals_and_variance_are_those_of_whole_checkpoints(
    centering: str, tmp_path: Path
) -> None:
    states = descent(20)
    plane = pca_plane(states, NAMES, centering=centering)
    exact = locate(states, NAMES, plane.directions)
    path = sketched_path(write_sketches(tmp_path, states), centering=centering)
    assert path.steps == tuple(range(1, 21))
    assert errors(path.points, exact.points).max() < 0.02
    np.testing.assert_allclose(path.explained_variance, plane.explained_variance, atol=0.01)
    np.testing.assert_allclose(path.residuals, exact.residuals, atol=0.02)
    assert path.points[-1].tolist() == [0, 0]
    assert path.residuals[-1] == 0


def test_the_plane_of_many_steps_is_that_of_some_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = write_sketches(tmp_path, descent(20))
    all_of_them = sketched_path(sketches)
    monkeypatch.setattr(sketched, "MAX_ROWS", 5)
    some = sketched_path(sketches)
    assert some.steps == all_of_them.steps
    assert errors(some.points, all_of_them.points)[0] < 0.01
    chosen = sketched_path(replace(sketches, steps=sketches.steps[3::4]))
    np.testing.assert_allclose(chosen.points, some.points[3::4], rtol=1e-9, atol=1e-9)


def test_a_path_is_found_in_a_plane_of_whole_directions(tmp_path: Path) -> None:
    states = descent(30)
    sketches = write_sketches(tmp_path, states)
    plane = pca_plane(states[::5], NAMES)
    exact = locate([*states, states[::5][-1]], NAMES, plane.directions)
    path = path_in_plane(sketches, plane.directions, states[::5][-1], NAMES)
    assert errors(path.points, exact.points[:-1]).max() < 0.02


def test_what_lies_in_the_plane_is_found_exactly_however_oblique_it_is(tmp_path: Path) -> None:
    centre = descent(1)[0]
    axes = RandomDirections(names=("w", "b"), normalization="layer").make(centre)
    oblique = Directions(x=axes.x, y={name: axes.x[name] + 0.3 * axes.y[name] for name in NAMES})
    coordinates = [(1.0, 0.0), (0.2, -0.7), (0.0, 0.0)]
    states = [
        {n: (centre[n] + a * oblique.x[n] + b * oblique.y[n]).astype(np.float64) for n in NAMES}
        for a, b in coordinates
    ]
    path = path_in_plane(write_sketches(tmp_path, states), oblique, centre, NAMES)
    np.testing.assert_allclose(path.points, coordinates, atol=2e-3)


def test_the_path_of_a_run_is_found_by_its_directory(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    expected = sketched_path(write_sketches(run.ckpt_dir, descent(6)))
    for around in (run, str(run.base), run.ckpt_dir):
        assert training_path(around).points.tolist() == expected.points.tolist()
    first, second = expected.explained_variance
    assert repr(expected) == (
        f"SketchedPath({len(expected.steps)} steps, explained variance {first:.3g} + {second:.3g})"
    )
    with pytest.raises(MissingFileError, match="'sketch': True"):
        training_path(RunDir(tmp_path / "without").create())
    with pytest.raises(MissingFileError, match="nowhere does not exist; check the path"):
        training_path(tmp_path / "nowhere")
    with pytest.raises(InvalidTypeError, match="around must be"):
        training_path(3)  # type: ignore[arg-type]  # wrong on purpose


def test_paths_without_a_plane_are_refused(tmp_path: Path) -> None:
    states = descent(3)
    with pytest.raises(LandscapeError, match="at least 3 sketches, got 2"):
        sketched_path(write_sketches(tmp_path / "two", states[:2]))
    with pytest.raises(LandscapeError, match="all equal"):
        sketched_path(write_sketches(tmp_path / "equal", [states[0]] * 4))
    with pytest.raises(InvalidValueError, match="centering of sketches must be one of"):
        sketched_path(write_sketches(tmp_path / "three", states), centering="mindspore")


def fine_walk() -> list[dict[str, Any]]:
    """13 steps between four checkpoints, at steps 1, 5, 9 and 13."""
    coarse = walk(4)
    return [
        {n: coarse[k][n] + s / 4 * (coarse[min(k + 1, 3)][n] - coarse[k][n]) for n in coarse[k]}
        for k in range(4)
        for s in range(4 if k < 3 else 1)
    ]


def sketched_run(path: Path, unit: str = "step", **header: Any) -> RunDir:
    run, states = RunDir(path).create(), fine_walk()
    spec = LandscapeSpec(intervals=((1, 5, 9, 13),), unit=unit)
    writer = TrajectoryWriter(run.ckpt_dir, spec, model_name="m", run_id="0" * 16)
    for number in spec.numbers:
        writer.save(number, {n: a.astype(np.float32) for n, a in states[number - 1].items()})
    shapes = {name: array.shape for name, array in Mlp().parameters.items()}
    write_sketches(run.ckpt_dir, states, **({"parameters": digest(shapes)} | header))
    return run


def test_a_landscape_of_checkpoints_shows_the_steps_between_them(tmp_path: Path) -> None:
    grid = draw(around=sketched_run(tmp_path / "run"))
    assert grid.steps == tuple(range(1, 14))
    np.testing.assert_allclose(grid.step_path[::4], grid.path, atol=0.02 * np.abs(grid.path).max())
    middle = (grid.path[0] + grid.path[1]) / 2
    np.testing.assert_allclose(grid.step_path[2], middle, atol=0.02 * np.abs(grid.path).max())
    grid.save(tmp_path / "grid.npz")
    loaded = LossGrid.load(tmp_path / "grid.npz")
    assert loaded.steps == grid.steps
    assert loaded.step_path.tolist() == grid.step_path.tolist()


def test_steps_are_not_shown_where_sketches_are_not_of_what_moves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = sketched_run(tmp_path / "run")
    assert draw(around=run, parameters="d2").steps == ()
    with caplog.at_level(logging.WARNING):
        assert draw(around=sketched_run(tmp_path / "model", parameters="of another model")).steps == ()
    assert "not shown: the sketches cover other parameters" in caplog.text
    with caplog.at_level(logging.WARNING):
        assert draw(around=sketched_run(tmp_path / "other", run_id="1" * 16)).steps == ()
    assert "belong to another run" in caplog.text
    (run.ckpt_dir / "sketch_00000_rank_00000.frames").write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        assert draw(around=run).steps == ()
    assert "the steps between checkpoints are not shown" in caplog.text


def test_steps_of_epochs_of_unknown_length_are_reported_and_shown_once_it_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = sketched_run(tmp_path / "run", unit="epoch")
    with caplog.at_level(logging.WARNING):
        assert draw(around=run).steps == ()
    assert "are not shown: the training did not know the number of steps" in caplog.text
    assert draw(around=run, step_per_epoch=1).steps == tuple(range(1, 14))


def test_steps_that_diverged_are_left_out_of_the_path_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = descent(8)
    for state in states[6:]:
        state["w"][0, 0] = np.nan
    with caplog.at_level(logging.WARNING):
        path = sketched_path(write_sketches(tmp_path, states))
    assert (path.steps, path.diverged) == ((1, 2, 3, 4, 5, 6), (7, 8))
    assert "2 of 8 steps are left out of the path, the earliest of them step 7: " in caplog.text


def test_sketches_that_are_not_finite_are_reported_where_too_few_are_left(tmp_path: Path) -> None:
    states = descent(5)
    for state in states[1:]:
        state["b"][0] = np.inf
    with pytest.raises(LandscapeError, match="got 1; at 4 other steps, the earliest step 2, the par"):
        sketched_path(write_sketches(tmp_path, states))


def test_a_landscape_of_a_run_with_sketches_alone_says_what_it_needs(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_sketches(run.ckpt_dir, descent(6))
    with pytest.raises(MissingFileError, match=r"sketches alone.*'intervals'.*training_path"):
        open_source(Mlp(), run.base)
