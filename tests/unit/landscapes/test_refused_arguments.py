"""Arguments that `landscape`, `Plane` and `Compute` refuse: each by its name, before a plane is made."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Compute, Directions, Evaluation, Plane
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory import Trajectory
from distsummary.errors import (
    DistSummaryError,
    InvalidTypeError,
    InvalidValueError,
    LandscapeError,
    MissingFileError,
    NotADirectoryPathError,
    RunDirError,
)
from distsummary.landscapes import generator
from distsummary.rundir.run_dir import RunDir
from tests.unit.landscapes.golden_mlp import Mlp, batches
from tests.unit.landscapes.test_generator import draw

GIVEN = Directions(x={"d2.bias": np.arange(3.0)}, y={"d2.bias": np.ones(3)})
OF_RUNS = {"runs": [{}, {}], "around": None}
AXIS = {"d1.weight": 1}
NO_MODEL = r"model must be a torch.nn.Module, or have parameters: dict"
WORKERS = "workers must be 'auto', 'ray' or an int >= 0, got"
SHARE = r"gpus_per_worker must be a share in \[0, 1\] or a whole number from 1 on, got"
NO_FILTERS = "filter_axis= applies to normalization='filter' alone"
TYPE, VALUE = InvalidTypeError, InvalidValueError

# fmt: off
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    # the fields of Plane
    ({"size": 2}, VALUE, r"size must be in \[3, 256\], got 2"),
    ({"size": 257}, VALUE, r"size must be in \[3, 256\], got 257"),
    ({"size": 5.0}, TYPE, "size must be int"),
    ({"size": True}, TYPE, "size must be int"),
    ({"parameters": []}, VALUE, "at least one name"),
    ({"parameters": ""}, VALUE, "must not be empty"),
    ({"parameters": 3}, TYPE, "parameters must be str or Sequence"),
    ({"parameters": ["lora", 3]}, TYPE, "an item of parameters must be str"),
    ({"parameters": ["lora("]}, VALUE, "not a regular expression"),
    ({"normalization": "weight"}, VALUE, "normalization must be one of"),
    ({"filter_axis": 1}, TYPE, "filter_axis must be a mapping or a function"),
    ({"centering": "first"}, VALUE, "centering must be one of"),
    ({"seed": 2**63}, VALUE, "seed must be in"),
    ({"curvature": 3}, TYPE, "curvature must be an optimizer that keeps Kronecker factors, .* got a int"),
    ({"unit": "banana"}, VALUE, "unit must be one of"),
    ({"step_per_epoch": -3}, VALUE, "step_per_epoch must be >= 1"),
    ({"step_per_epoch": "x"}, TYPE, "step_per_epoch must be int"),
    # those of Compute
    ({"workers": -1}, VALUE, f"{WORKERS} -1"),
    ({"workers": "all"}, TYPE, f"{WORKERS} 'all'"),
    ({"workers": True}, TYPE, f"{WORKERS} True"),
    ({"address": 6379}, TYPE, "address must be str"),
    ({"address": "local", "workers": 0}, VALUE, "leave one of them out"),
    ({"gpus_per_worker": math.inf}, VALUE, f"{SHARE} inf"),
    ({"gpus_per_worker": math.nan}, VALUE, f"{SHARE} nan"),
    ({"gpus_per_worker": -1}, VALUE, f"{SHARE} -1"),
    ({"gpus_per_worker": 1.5}, VALUE, f"{SHARE} 1.5"),
    ({"gpus_per_worker": "1"}, TYPE, "gpus_per_worker must be int or float, got '1'"),
    ({"engine": 3}, TYPE, "engine must be str"),
    ({"engine": "row"}, VALUE, "'auto' or 'naive' for a model that is not torch's"),
    ({"memory": "small"}, VALUE, "memory must be one of"),
    ({"memory": "inference", "engine": "row"}, VALUE, "leave engine out"),
    ({"memory": "inference"}, VALUE, "memory='inference' is for torch models, got a Mlp; leave it out"),
    # the other arguments
    ({"plane": 51}, TYPE, "plane must be Plane or None, got 51"),
    ({"compute": 0}, TYPE, "compute must be Compute or None, got 0"),
    ({"evaluation": {"stderr": True}}, TYPE, "evaluation must be Evaluation or None"),
    ({"mode": "fast"}, VALUE, "mode must be one of"),
    ({"refine": 2}, VALUE, "refine must be a share .* got 2"),
    ({"refine": True}, TYPE, "refine must be int or float or None, got True"),
    ({"resume": 1}, TYPE, "resume must be bool"),
    *[({"model": model, "around": None}, TYPE, NO_MODEL) for model in (5, "x", None, len, object())],
    *[({"around": None, name: Mlp}, TYPE, f"^{name} must be an instance, got the class Mlp; give Mlp")
      for name in ("model", "loss_fn", "batch_loss")],
    ({"loss_fn": 3}, TYPE, "loss_fn must be callable with .output, target., got 3"),
    ({"loss_fn": None, "batch_loss": 3}, TYPE, "batch_loss must be callable with .model, batch., got 3"),
    ({"loss_fn": None}, TYPE, "one of loss_fn=, .* and batch_loss=, .*, is required, got neither"),
    ({"loss_fn": max, "batch_loss": max}, TYPE, "exclude each other; leave one of them out"),
    ({"loss_fn": lambda model, batch: 0.0}, TYPE, "called model; pass a function of"),
    ({"batches": None}, TYPE, "batches is required"),
    ({"batches": []}, VALUE, "at least one batch"),
    ({"batches": 3}, TYPE, "batches must be iterable"),
    ({"batches": [*batches(), (np.ones((0, 4)), np.ones(0))]}, LandscapeError, "batch 4 holds no rows"),
    ({"batches": (1 / 0 for _ in "a")}, LandscapeError, "raised ZeroDivisionError: .* when it was read"),
    ({"evaluation": Evaluation(bn_mode="batch")}, VALUE, "precision and bn_mode are for torch models"),
    ({"evaluation": Evaluation(precision="bf16")}, VALUE, "precision and bn_mode are for torch models"),
    ({"mode": "mindspore", "evaluation": Evaluation(bn_mode="eval")}, VALUE, "for torch models"),
    ({"mode": "mindspore", "batches": {"a": batches()}}, VALUE, "rows of one list of batches"),
    ({"batches": {"a": batches(), "a/b": batches()}, "evaluation": Evaluation(metrics={"b/loss": abs})},
     VALUE, "'a/b/loss' twice"),
    ({"around": "nowhere"}, MissingFileError, "nowhere does not exist; check the path"),
    ({"around": "."}, MissingFileError, "train with collect_landscape="),
    *[({"around": around}, DistSummaryError, r"around(\[3\])? must|a name in state must be str")
      for around in ("", "plain.txt", {3: np.ones(2)}, 3)],
    *[({"run_dir": run_dir}, DistSummaryError, "run_dir must") for run_dir in ("", " ", 3)],
    ({"run_dir": "plain.txt/run"}, DistSummaryError, "must be a directory, but it or a parent is a file"),
    # directions, and what only fits to some of them
    ({"directions": 3}, VALUE, "directions must be one of .*, got 3"),
    ({"directions": "tsne"}, VALUE, "directions must be one of"),
    ({"directions": ()}, VALUE, "at least one"),
    ({"directions": "hessian"}, VALUE, "needs a torch model"),
    ({"directions": "curvature"}, VALUE, r"pass plane=ds\.Plane\(curvature=optimizer\)"),
    ({"directions": "pca", "around": None}, VALUE, "needs around="),
    ({"runs": "a", "around": None}, VALUE, "runs must be a list of at least two runs"),
    ({"runs": [{}, {}]}, VALUE, "runs= cannot be combined with around=; leave one of them out"),
    (OF_RUNS | {"mode": "mindspore"}, VALUE, "cannot be combined with mode='mindspore'"),
    (OF_RUNS | {"directions": ["pca", "line", "triangle"]}, VALUE, "through 3 runs, got 2"),
    (OF_RUNS | {"directions": "random"}, VALUE, "directions with runs= must be one of"),
    ({"directions": "line", "normalization": "filter"}, VALUE, "no meaning for directions='line'"),
    ({"directions": ["random", GIVEN], "centering": "mean"}, VALUE, "applies to directions='pca' alone"),
    ({"directions": ["pca", "line"], "filter_axis": AXIS}, VALUE, NO_FILTERS),
    ({"directions": "random", "normalization": "layer", "filter_axis": AXIS}, VALUE, NO_FILTERS),
    ({"directions": "random", "mode": "mindspore", "filter_axis": lambda name, shape: 1}, VALUE, NO_FILTERS),
]
# fmt: on


@pytest.mark.parametrize(("changes", "error", "match"), REFUSED)
def test_a_wrong_argument_is_refused_by_name_before_planes_are_made(
    changes: dict[str, Any],
    error: type[Exception],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("text")
    monkeypatch.setattr(generator, "prepare", lambda *_: pytest.fail("planes were made"))
    monkeypatch.setattr(generator, "prepare_runs", lambda *_: pytest.fail("planes were made"))
    with pytest.raises(error, match=match):
        draw(**changes)


def test_the_classes_check_their_fields_when_they_are_made() -> None:
    with pytest.raises(InvalidValueError, match="size"):
        Plane(size=2)
    with pytest.raises(InvalidValueError, match="workers"):
        Compute(workers=-1)


@pytest.mark.parametrize(
    "changes",
    [
        {"directions": ["line", "random"], "filter_axis": AXIS},
        {"directions": "random", "mode": "mindspore", "normalization": "filter", "filter_axis": AXIS},
        {"directions": ["line", "pca"], "normalization": "filter", "centering": "mean"},
    ],
)
def test_what_one_of_the_directions_uses_is_accepted(changes: dict[str, Any]) -> None:
    draw(size=3, **changes)


def test_own_directions_through_runs_are_refused_without_their_arrays() -> None:
    with pytest.raises(InvalidValueError, match="got Directions of your own") as refused:
        draw(directions=GIVEN, runs=["a", "b"], around=None)
    assert "array" not in str(refused.value)


def test_a_run_that_is_given_twice_is_refused(nasty_tmp_path: Path) -> None:
    run, other = RunDir(nasty_tmp_path / "run"), RunDir(nasty_tmp_path / "other")
    read = Trajectory(
        ckpt_dir=run.ckpt_dir, spec=LandscapeSpec(intervals=((1,),)), step_per_epoch=0, run_id="", files={}
    )
    file = run.ckpt_dir / "Mlp_1_step.ckpt"
    for runs in (
        *[[run, other, again] for again in (run, run.base, str(run.base), run.ckpt_dir, read)],
        [run, other, run.base / ".." / "run"],
        [file, str(file)],
    ):
        with pytest.raises(InvalidValueError, match=r"runs= has .* twice; give each run once"):
            draw(runs=runs, around=None)
    with pytest.raises(MissingFileError):
        draw(runs=[run, file], around=None)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (os.mkfifo, "run"),
        (os.mkfifo, "run/landscape"),
        (os.mkfifo, "run/landscape/landscape.npz"),
        (os.mkdir, "run/landscape/landscape.png"),
    ],
)
def test_an_output_that_is_taken_by_something_else_is_reported_before_anything_is_computed(
    tmp_path: Path, make: Any, name: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / name)
    with pytest.raises((RunDirError, NotADirectoryPathError), match=f"{name} (is not one|cannot be written)"):
        # the loss would raise, too
        draw(batch_loss=lambda model, batch: 1 / 0, around=None, run_dir=tmp_path / "run")
