import inspect
import math
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
        ({"gpus_per_worker": math.inf}, InvalidValueError, "gpus_per_worker must be a share in"),
        ({"gpus_per_worker": math.nan}, InvalidValueError, "gpus_per_worker must be a share in"),
        ({"gpus_per_worker": -1}, InvalidValueError, r"in \[0, 1\] or a whole number from 1 on, got -1"),
        ({"unit": "banana"}, InvalidValueError, "unit must be one of"),
        ({"step_per_epoch": -3}, InvalidValueError, "step_per_epoch must be >= 1"),
        ({"step_per_epoch": "x"}, InvalidTypeError, "step_per_epoch must be int"),
        ({"workers": "x"}, InvalidTypeError, "workers must be 'auto', 'ray' or an int >= 0, got 'x'"),
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


def test_memory_is_refused_by_its_own_name_for_models_that_are_not_torchs() -> None:
    with pytest.raises(InvalidValueError, match="memory='inference' is for torch models, got a Mlp; leave"):
        choose_engine(Mlp(), "auto", "inference")


def test_directions_that_are_none_are_refused_by_type() -> None:
    with pytest.raises(InvalidTypeError, match="directions must be"):
        directions(3)


def test_a_name_that_is_asked_for_twice_is_drawn_once() -> None:
    assert directions(["random", GIVEN, "random", GIVEN]) == ["random", GIVEN, GIVEN]


def test_own_directions_through_runs_are_refused_without_their_arrays() -> None:
    with pytest.raises(InvalidValueError, match="got Directions of your own") as refused:
        directions(GIVEN, runs=["a", "b"])
    assert "array" not in str(refused.value)


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


def test_arguments_that_no_direction_takes_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="normalization= has no meaning for directions='line'"):
        refuse_unused(asked(normalization="filter"), ["line"])
    with pytest.raises(InvalidValueError, match="centering= applies to directions='pca' alone"):
        refuse_unused(asked(centering="mean"), ["random", GIVEN])
    refuse_unused(asked(normalization="filter", centering="mean"), ["line", "pca"])


@pytest.mark.parametrize(
    ("directions", "changes", "is_used"),
    [
        (["random"], {}, True),
        (["line", GIVEN], {}, True),
        (["pca"], {"normalization": "filter"}, True),
        (["random"], {"mode": "mindspore", "normalization": "filter"}, True),
        (["pca", "line"], {}, False),
        (["hessian"], {}, False),
        (["random"], {"normalization": "layer"}, False),
        (["random"], {"normalization": "none"}, False),
        (["random"], {"mode": "mindspore"}, False),
    ],
)
@pytest.mark.parametrize("axis", [{"d1.weight": 1}, lambda name, shape: 1])
def test_filter_axes_without_filters_are_refused(
    directions: Any, changes: dict[str, Any], is_used: bool, axis: Any
) -> None:
    request = asked(**changes, filter_axis=axis)
    if is_used:
        refuse_unused(request, directions)
        return
    with pytest.raises(InvalidValueError, match="filter_axis= applies to normalization='filter' alone"):
        refuse_unused(request, directions)
