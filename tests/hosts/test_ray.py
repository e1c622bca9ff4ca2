"""Ray's doors: a job, Ray Train and Ray Tune, recorded by the variable alone."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

PYTHON = ROOT / ".venv-hosts/bin/python"
TRAININGS = ROOT / "tests/hosts/ray_trainings.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trainings wrote, and their runs."""
    directory = tmp_path_factory.mktemp("ray")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", TRAININGS, directory], cwd=directory, timeout=PATIENCE_S,
        env=os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


def check(run: Any, rows: list[Any], **chosen: Any) -> None:
    for number, tag in enumerate(("loss", "grad_norm")):
        table = run.scalars(tag, **chosen)
        assert table["step"].tolist() == list(range(1, 1 + len(rows)))
        assert table["value"].tolist() == pytest.approx([row[number] for row in rows], rel=1e-6)


def runs(out: Path, ranks: int) -> list[Any]:
    found = [ds.open_run(path) for path in sorted((out / "runs").glob("2*"))]
    return [run for run in found if run.world_size == ranks]


def test_a_job_is_recorded(out: Path) -> None:
    run = ds.open_run(out / "job")
    assert run.state == "finished"
    check(run, json.loads((out / "job.json").read_text()))


def test_the_attempts_of_ray_train_are_one_run(out: Path) -> None:
    [run] = runs(out, ranks=2)
    assert run.state == "finished"
    assert run.attempts["attempt"].tolist() == [0, 1]
    assert "once" in run.attempts["error"][0]
    assert run.config == {"out": str(out)}
    for rank in range(2):
        check(run, json.loads((out / f"train.{rank}.json").read_text()), rank=rank)


def test_each_trial_of_ray_tune_is_a_run(out: Path) -> None:
    found = {run.scalars("lr")["value"][0]: run for run in runs(out, ranks=1)}
    assert sorted(found) == pytest.approx([0.05, 0.1])
    for lr, run in found.items():
        assert run.state == "finished"
        assert run.config == {"out": str(out), "lr": pytest.approx(lr)}
        check(run, json.loads((out / f"tune.{round(lr, 2)}.json").read_text()))
