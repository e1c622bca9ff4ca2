"""Axes that span no plane, through the public function, on numpy models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions
from distsummary.errors import LandscapeError
from distsummary.rundir.run_dir import RunDir
from tests.landscapes.test_prepare import between, start_of
from tests.unit.landscapes.test_generator import draw, save_path


class One:
    def __init__(self) -> None:
        self.parameters = {"weight": np.ones((1, 1), np.float32)}


@pytest.mark.parametrize(("scale", "normalization"), [(np.float32(0.3), "none"), (-2.0, "filter")])
def test_directions_that_are_parallel_are_refused(scale: float, normalization: str) -> None:
    y = {"d1.weight": start_of(1)["d1.weight"], "d2.weight": start_of(1)["d2.weight"]}
    given = Directions(x={name: array * scale for name, array in y.items()}, y=y)
    times = scale if normalization == "none" else np.sign(scale)
    with pytest.raises(
        LandscapeError,
        match=rf"x direction is {times:.4g} times the y .*\(d2\.weight, d1\.weight\).*directions='line'",
    ):
        draw(around=None, directions=given, normalization=normalization)
    turned = Directions(x=given.x, y=y | {"d1.weight": y["d1.weight"][::-1]})
    assert draw(around=None, directions=turned, normalization=normalization, size=3).z.shape == (3, 3)


def test_a_single_number_has_a_line_but_no_plane(tmp_path: Path) -> None:
    states = [{"weight": np.full((1, 1), value, np.float32)} for value in (1.0, 0.5, 0.2)]
    run = RunDir(tmp_path / "run").create()
    save_path(run, states, [[1, 2, 3]])
    more: dict[str, Any] = {
        "model": One(),
        "batch_loss": lambda model, _: float(model.parameters["weight"][0, 0]),
    }
    for centering in ("last", "mean", "mindspore"):
        with pytest.raises(LandscapeError, match=r"lie on a straight line.*directions='line'"):
            draw(around=run, centering=centering, **more)
    with pytest.raises(LandscapeError, match=r"x direction is .* times the y.*\(weight\)"):
        draw(around=run, directions="random", **more)
    assert draw(around=run, directions="line", size=3, **more).z == pytest.approx(
        np.array([[1.0, 0.6, 0.2]]), rel=1e-6
    )


def test_parameters_without_a_number_have_no_landscape() -> None:
    model = One()
    model.parameters["weight"] = np.zeros((0, 3), np.float32)
    with pytest.raises(LandscapeError, match="without any parameter to move"):
        draw(model=model, batch_loss=lambda model, batch: 0.0, around=None, normalization="none")


def test_a_path_loses_its_plane_where_normalization_leaves_one_number(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    pairs = [(1.0, 2.0), (0.5, 0.1), (0.2, 0.4)]
    states = [{"weight": np.full((1, 1), w), "bias": np.full(1, b)} for w, b in pairs]
    save_path(run, states, [[1, 2, 3]])
    model = One()
    model.parameters["bias"] = np.ones(1, np.float32)
    more: dict[str, Any] = {"model": model, "batch_loss": lambda model, _: 0.0, "around": run}
    with pytest.raises(LandscapeError, match=r"after normalization='filter', in all that varies \(weight\)"):
        draw(normalization="filter", **more)
    assert draw(**more).kind == "pca"


@pytest.mark.parametrize("step", [1.0, 1e-4])
def test_checkpoints_on_a_line_span_no_plane_by_their_rounding(tmp_path: Path, step: float) -> None:
    start, way = start_of(1), start_of(2)
    end = {name: array + np.float32(step) * way[name] for name, array in start.items()}
    states = [
        {name: array.astype(np.float32) for name, array in between(start, end, share).items()}
        for share in (0.0, 0.3, 0.7, 1.0)
    ]
    run = RunDir(tmp_path / "run").create()
    save_path(run, states, [[1, 2, 3, 4]])
    with pytest.raises(LandscapeError, match="lie on a straight line"):
        draw(around=run)
    with pytest.raises(LandscapeError, match=r"\(step 1, step 3, step 4\) lie on a straight line"):
        draw(around=run, directions="triangle")
    for directions in ("pca", "triangle"):
        with pytest.raises(LandscapeError, match="lie on a straight line"):
            draw(around=None, runs=states[:3], directions=directions)
    with pytest.raises(LandscapeError, match=r"ends of the line \(state \(1\), state \(2\)\) are equal"):
        draw(around=None, runs=[start, start], directions="line")
    assert draw(around=run, directions="line").kind == "line"


@pytest.mark.parametrize("directions", ["pca", "triangle"])
def test_values_of_bfloat16_are_known_by_themselves_though_checkpoints_keep_them_as_float32(directions: str):
    start, way = start_of(1), start_of(2)
    states = [
        {name: rounded(array + np.float32(share) * way[name]) for name, array in start.items()}
        for share in (0.0, 0.3, 1.0)
    ]
    with pytest.raises(LandscapeError, match=r"rounding"):
        draw(around=None, runs=states, directions=directions)


def test_a_narrow_path_to_whole_numbers_has_its_plane() -> None:
    end = {name: np.full_like(array, 3) for name, array in start_of(1).items()}
    way, aside = start_of(2), start_of(3)
    states = [
        {name: end[name] + np.float32(t) * way[name] + np.float32(s) * aside[name] for name in end}
        for t, s in ((1.0, 0.0), (0.5, 0.005), (0.0, 0.0))
    ]
    assert draw(around=None, runs=states, directions="pca", size=3).kind == "joint"
    assert draw(around=None, runs=states, directions="triangle", size=3).kind == "triangle"


def rounded(array: Any) -> Any:
    """float32 to the nearest of bfloat16, which has the upper 16 bits."""
    return ((array.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
