import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.landscapes.directions.recipe import Directions
from distsummary.landscapes.request import check_directions, check_numbers, choose_engine, refuse_unused
from distsummary.run_dir import RunDir
from tests.unit.landscapes.golden_mlp import Mlp

GIVEN = Directions(x={"d2.bias": np.arange(3.0)}, y={"d2.bias": np.ones(3)})
USUAL: dict[str, Any] = {
    "size": 5, "seed": 0, "mode": "standard", "normalization": None, "centering": None, "workers": 0,
    "gpus_per_worker": None, "refine": None, "unit": None, "step_per_epoch": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"gpus_per_worker": math.inf}, InvalidValueError, "gpus_per_worker must be a share in"),
        ({"gpus_per_worker": math.nan}, InvalidValueError, "gpus_per_worker must be a share in"),
        ({"gpus_per_worker": -1}, InvalidValueError, r"in \[0, 1\] or a whole number from 1 on, got -1"),
        ({"unit": "banana"}, InvalidValueError, "unit must be one of"),
        ({"step_per_epoch": -3}, InvalidValueError, "step_per_epoch must be >= 1"),
        ({"step_per_epoch": "x"}, InvalidTypeError, "step_per_epoch must be int"),
    ],
)
def test_numbers_out_of_their_range_are_refused(
    changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    check_numbers(**USUAL)
    with pytest.raises(error, match=match):
        check_numbers(**(USUAL | changes))


def test_memory_is_refused_by_its_own_name_for_models_that_are_not_torchs() -> None:
    with pytest.raises(InvalidValueError, match="memory='inference' is for torch models, got a Mlp; leave"):
        choose_engine(Mlp(), "auto", "inference")


def test_directions_that_are_none_are_refused_by_type() -> None:
    with pytest.raises(InvalidTypeError, match="directions must be"):
        check_directions(Mlp(), 3, None, None, "standard")  # type: ignore[arg-type]  # wrong on purpose


def test_a_name_that_is_asked_for_twice_is_drawn_once() -> None:
    asked = check_directions(Mlp(), ["random", GIVEN, "random", GIVEN], None, None, "standard")
    assert asked == ["random", GIVEN, GIVEN]


def test_own_directions_through_runs_are_refused_without_their_arrays() -> None:
    with pytest.raises(InvalidValueError, match="got Directions of your own") as refused:
        check_directions(Mlp(), GIVEN, None, ["a", "b"], "standard")
    assert "array" not in str(refused.value)


def test_a_run_that_is_given_twice_is_refused(nasty_tmp_path: Path) -> None:
    run, other = RunDir(nasty_tmp_path / "run"), RunDir(nasty_tmp_path / "other")
    read = Trajectory(
        ckpt_dir=run.ckpt_dir, spec=LandscapeSpec(intervals=((1,),)), step_per_epoch=0, run_id="", files={}
    )
    for again in (run, run.base, str(run.base), run.ckpt_dir, run.base / ".." / "run", read):
        with pytest.raises(InvalidValueError, match=r"runs= has .*run twice; give each run once"):
            check_directions(Mlp(), "pca", None, [run, other, again], "standard")
    file = run.ckpt_dir / "Mlp_1_step.ckpt"
    check_directions(Mlp(), "pca", None, [run, other, file, {}, {}], "standard")
    with pytest.raises(InvalidValueError, match="give each run once"):
        check_directions(Mlp(), "line", None, [file, str(file)], "standard")


NOTHING: dict[str, Any] = {
    "mode": "standard", "normalization": None, "centering": None, "filter_axis": None,
}  # fmt: skip


def test_arguments_that_no_direction_takes_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="normalization= has no meaning for directions='line'"):
        refuse_unused(["line"], **NOTHING | {"normalization": "filter"})
    with pytest.raises(InvalidValueError, match="centering= is that of directions='pca' alone"):
        refuse_unused(["random", GIVEN], **NOTHING | {"centering": "mean"})
    refuse_unused(["line", "pca"], **NOTHING | {"normalization": "filter", "centering": "mean"})


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
    arguments = NOTHING | changes | {"filter_axis": axis}
    if is_used:
        refuse_unused(directions, **arguments)
        return
    with pytest.raises(
        InvalidValueError, match="filter_axis= has a meaning with normalization='filter' alone"
    ):
        refuse_unused(directions, **arguments)
