import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, landscape
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.landscapes.request import (
    Request,
    check_arguments,
    choose_engine,
    refuse_unused,
    requested_directions,
)
from distsummary.rundir.run_dir import RunDir
from tests.refusals import refused
from tests.unit.landscapes.golden_mlp import Mlp

GIVEN = Directions(x={"d2.bias": np.arange(3.0)}, y={"d2.bias": np.ones(3)})


def asked(**changes: Any) -> Request:
    """A request with what `landscape` takes by default."""
    defaults = {name: one.default for name, one in inspect.signature(landscape).parameters.items()}
    return Request(**(defaults | {"model": Mlp(), "loss_fn": max, "batches": []} | changes))


def directions(given: Any, **changes: Any) -> list[Any]:
    return list(requested_directions(asked(directions=given, **changes)))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"gpus_per_worker": -1}, InvalidValueError, r"in \[0, 1\] or a whole number from 1 on, got -1"),
        ({"unit": "banana"}, InvalidValueError, "unit must be one of"),
        ({"step_per_epoch": -3}, InvalidValueError, "step_per_epoch must be >= 1"),
        ({"step_per_epoch": "x"}, InvalidTypeError, "step_per_epoch must be int"),
        ({"workers": True}, InvalidTypeError, "workers must be 'auto', 'ray' or an int >= 0, got True"),
        ({"workers": -1}, InvalidValueError, "workers must be 'auto', 'ray' or an int >= 0, got -1"),
        ({"address": 6379}, InvalidTypeError, "address must be str"),
        ({"address": "local", "workers": 0}, InvalidValueError, "leave one of them out"),
    ],
)
def test_numbers_out_of_their_range_are_refused(
    changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    check_arguments(asked())
    with pytest.raises(error, match=match):
        check_arguments(asked(**changes))


def test_a_name_that_is_asked_for_twice_is_drawn_once() -> None:
    assert directions(["random", GIVEN, "random", GIVEN]) == ["random", GIVEN, GIVEN]


def test_a_run_that_is_given_twice_is_refused(nasty_tmp_path: Path) -> None:
    run, other = RunDir(nasty_tmp_path / "run"), RunDir(nasty_tmp_path / "other")
    read = Trajectory(
        ckpt_dir=run.ckpt_dir, spec=LandscapeSpec(intervals=((1,),)), step_per_epoch=0, run_id="", files={}
    )
    for again in (run, run.base, str(run.base), run.ckpt_dir, run.base / ".." / "run", read):
        with pytest.raises(InvalidValueError, match=r"runs= has .*run twice; give each run once"):
            directions("pca", runs=[run, other, again])
    file = run.ckpt_dir / "Mlp_1_step.ckpt"
    directions("pca", runs=[run, other, file, {}, {}])
    with pytest.raises(InvalidValueError, match="give each run once"):
        directions("line", runs=[file, str(file)])


def test_arguments_that_cannot_be_combined_are_refused() -> None:
    refused(
        InvalidValueError,
        (
            lambda: choose_engine(Mlp(), "auto", "inference"),
            "is for torch models, got a Mlp",
        ),
        (lambda: directions(GIVEN, runs=["a", "b"]), r"got Directions of your own((?!array).)*$"),
        (lambda: refuse_unused(asked(normalization="filter"), ["line"]), "no meaning for directions='line'"),
        (
            lambda: refuse_unused(asked(centering="mean"), ["random", GIVEN]),
            "applies to .*.pca. alone",
        ),
    )
    refused(InvalidTypeError, (lambda: directions(3), "directions must be"))
    refuse_unused(asked(normalization="filter", centering="mean"), ["line", "pca"])


@pytest.mark.parametrize("axis", [{"d1.weight": 1}, lambda name, shape: 1])
def test_filter_axes_without_filters_are_refused(axis: Any) -> None:
    mindspore = {"mode": "mindspore", "filter_axis": axis}
    refuse_unused(asked(filter_axis=axis), ["random"])
    refuse_unused(asked(filter_axis=axis), ["line", GIVEN])
    refuse_unused(asked(filter_axis=axis, normalization="filter"), ["pca"])
    refuse_unused(asked(**mindspore, normalization="filter"), ["random"])
    alone = "filter_axis= applies to normalization='filter' alone"
    refused(
        InvalidValueError,
        (lambda: refuse_unused(asked(filter_axis=axis), ["pca", "line"]), alone),
        (lambda: refuse_unused(asked(filter_axis=axis), ["hessian"]), alone),
        (lambda: refuse_unused(asked(filter_axis=axis, normalization="layer"), ["random"]), alone),
        (lambda: refuse_unused(asked(**mindspore), ["random"]), alone),
    )
