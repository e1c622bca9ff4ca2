"""The command line in a shell, and the verb that imports Ray."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from distsummary import LossGrid
from distsummary.base.processes import in_ray
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.cli.main import main
from distsummary.rundir.run_dir import RunDir
from tests.programs import run_python
from tests.unit.cli.test_main import two_ranks


def test_dump_into_a_pipe_that_closes_ends_quietly(tmp_path):
    run_dir = two_ranks(tmp_path / "run")
    command = f'"{sys.executable}" -m distsummary dump "{run_dir.base}" | head -n 1'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if ": working, " not in line]  # on a busy machine
    assert (len(done.stdout.splitlines()), said) == (1, [])


FACTORY = """
import numpy as np

class Bowl:
    def __init__(self):
        self.parameters = {"w": np.array([1.0, 2.0], np.float32)}

def loss(model, batch):
    return float((model.parameters["w"] ** 2).sum() + batch.mean())

def parts():
    return {"model": Bowl(), "batch_loss": loss, "batches": [np.zeros(4)]}
"""


def test_landscape_of_a_factory_without_ray(tmp_path, capsys, monkeypatch):
    run_dir = two_ranks(tmp_path / "run")
    (tmp_path / "bowl_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = [
        "landscape", str(run_dir.base), "bowl_factory:parts", "--size", "5", "--workers", "0", "--json",
    ]  # fmt: skip
    assert main([*arguments, "--directions", "random"]) == 2  # the run kept no checkpoints
    assert "train_metadata.json" in capsys.readouterr().err
    assert main(["landscape", str(run_dir.base), "nowhere:parts", "--workers", "0"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_landscape_without_a_terminal_reports_its_progress_and_its_doubts(tmp_path):
    run_dir = recorded_bowl(tmp_path / "run")
    (tmp_path / "nan_bowl.py").write_text(FACTORY.replace("np.zeros(4)", "np.full(4, np.nan)"))
    command = ["landscape", str(run_dir.base), "nan_bowl:parts", "--workers", "0", "--directions", "pca"]
    done = run_python("-m", "distsummary", *command, "--size", "5", cwd=tmp_path, code=None)
    assert (done.returncode, "25 of 25 computed losses not finite" in done.stdout) == (0, True)
    assert done.stdout.endswith(f"pictures and grids: {run_dir.landscape_dir}\n")
    assert re.search(r"^landscape: 31/31 points, .*, 1 worker$", done.stderr, re.MULTILINE)
    again, doubt = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert "begins again if it is stopped, since its model cannot be identified" in again
    assert "pca: not one of the 25 computed losses is finite" in doubt


@pytest.mark.parametrize("directions", ["pca, line", " line,pca "])
def test_names_in_a_list_may_have_blanks_around_them(directions, bowl, capsys):
    assert main([*bowl, "--directions", directions, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["landscapes"] == ["line", "pca"]
    assert main([*bowl, "--directions", "pca, Line"]) == 2
    assert "--directions must be one of" in capsys.readouterr().err


def drawn(bowl, name):
    """A landscape that the command wrote."""
    return LossGrid.load(RunDir(bowl[1]).landscape_dir / name)


def test_the_centering_and_the_subspace_of_a_landscape(bowl, capsys):
    assert main([*bowl, "--directions", "pca", "--centering", "mean"]) == 0
    assert drawn(bowl, "landscape_1-3.npz").centering == "mean"
    assert main([*bowl, "--directions", "line", "--centering", "mean"]) == 2
    assert "--centering applies to --directions 'pca' alone" in capsys.readouterr().err
    assert main([*bowl, "--directions", "pca", "--parameters", "w"]) == 0
    assert drawn(bowl, "landscape_only_w_1-3.npz").parameters == ("w",)
    assert main([*bowl, "--parameters", "lora"]) == 2
    assert "--parameters 'lora' matches no trainable parameter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (["--size", "1000"], 2, "--size must be in [3, 256], got 1000"),
        (["--directions", "hessian"], 2, "--directions 'hessian' needs a torch model"),
        (["--engine", "fast"], 2, "--engine must be 'auto' or 'naive'"),
        (["--around", "absent"], 2, "absent does not exist; check the path"),
    ],
)
def test_what_cannot_be_is_refused_before_ray_is_started(wrong, code, said, bowl, capsys):
    assert main([*bowl, "--workers", "auto", *wrong]) == code
    assert said in capsys.readouterr().err
    assert not in_ray()


def test_a_landscape_around_another_run_or_a_file(bowl, capsys, tmp_path):
    other = recorded_bowl(tmp_path / "other", scale=2)
    assert main([*bowl, "--directions", "pca", "--around", str(other.base)]) == 0
    assert drawn(bowl, "landscape_1-3.npz").true_loss[0] == pytest.approx(20)
    [file] = other.ckpt_dir.glob("*_2_*.ckpt")
    assert main([*bowl, "--around", str(file)]) == 1  # the bowl has no filters for random directions
    assert "normalization='filter' leaves random directions" in capsys.readouterr().err
    assert main([*bowl, "--around", str(file), "--directions", "pca"]) == 2
    assert "--directions 'pca' needs --around with a run" in capsys.readouterr().err
    assert main([*bowl, "--around", str(file.with_name("absent.ckpt"))]) == 2
    assert "absent.ckpt does not exist" in capsys.readouterr().err


def test_one_landscape_through_several_runs(bowl, capsys, tmp_path):
    other = recorded_bowl(tmp_path / "other", scale=2)
    runs = ["--runs", bowl[1], "--runs", str(other.base)]
    assert main([*bowl, *runs]) == 0
    grid = drawn(bowl, "landscape_joint_1-3.npz")
    assert (grid.runs, grid.run_lengths, grid.centering) == (("run", "other"), (3, 3), "mean")
    assert main([*bowl, *runs, "--directions", "line", "--json"]) == 0
    assert drawn(bowl, "landscape_line_3-3.npz").runs == ("run", "other")
    assert main([*bowl, *runs, "--around", bowl[1]]) == 2
    assert "--runs cannot be combined with --around" in capsys.readouterr().err
    assert main([*bowl, *runs[:2]]) == 2
    assert "--runs must be a list of at least two runs" in capsys.readouterr().err


@pytest.fixture
def bowl(tmp_path, monkeypatch, no_matplotlib):
    """The arguments that draw landscapes of 3 x 3 points around a recorded bowl, in this process."""
    (tmp_path / "recorded_bowl_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    run_dir = recorded_bowl(tmp_path / "run")
    return ["landscape", str(run_dir.base), "recorded_bowl_factory:parts", "--workers", "0", "--size", "3"]


def recorded_bowl(path, scale=1):
    """A run with three checkpoints of the bowl."""
    run_dir = RunDir(path).create()
    spec = LandscapeSpec(intervals=((1, 2, 3),), landscape_size=5)
    writer = TrajectoryWriter(run_dir.ckpt_dir, spec, model_name="Bowl", run_id="0" * 16, step_per_epoch=1)
    for number, w in enumerate(([1, 2], [0.5, 0.5], [0.1, 0.3]), 1):
        writer.save(number, {"w": scale * np.array(w, np.float32)})
    return run_dir


def test_an_interrupted_landscape_says_how_far_it_came_and_continues(
    tmp_path, capsys, monkeypatch, no_matplotlib
):
    run_dir = recorded_bowl(tmp_path / "run")
    (tmp_path / "bowl_that_stops.py").write_text(
        FACTORY.replace("    return float", STOP + "    return float")
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["landscape", str(run_dir.base), "bowl_that_stops:parts", "--workers", "0", "--size", "9"]
    stop = tmp_path / "stop"
    monkeypatch.setenv("STOP_AT", str(stop))
    stop.write_text("x" * 50)
    assert main([*arguments, "--directions", "pca"]) == 130
    reported = capsys.readouterr().err
    assert re.search(r"interrupted \(pca: \d+ of 81 points\)", reported)
    assert "readable, and the same command resumes from there" in reported
    stop.write_text("x" * 30)
    assert main([*arguments, "--directions", "pca", "--fresh"]) == 130
    assert "and the same command without --fresh resumes from there" in capsys.readouterr().err
    stop.write_text("x")
    assert main([*arguments, "--directions", "pca", "--fresh"]) == 130
    assert "from there" not in capsys.readouterr().err  # there is nothing to resume
    stop.write_text("x" * 1000)
    assert main([*arguments, "--directions", "pca"]) == 0
    assert re.search(r"pca: 9 x 9 points by numpy-naive, .*explained variance 0\.", capsys.readouterr().out)


STOP = """
    import os, pathlib
    file = pathlib.Path(os.environ["STOP_AT"])
    left = file.read_text()[1:]
    file.write_text(left)
    if not left:
        raise KeyboardInterrupt
"""
