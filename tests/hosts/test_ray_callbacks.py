"""Ray Train's callbacks: its workers recorded, and noted in the run what only Ray knows."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from distsummary.diagnosis.alerts import read_alerts
from distsummary.rundir.run_dir import RunDir
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

PYTHON = ROOT / ".venv-hosts/bin/python"
DIED = "Ray Train: its process died, by a signal"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trainings wrote, and their runs."""
    directory = tmp_path_factory.mktemp("callbacks")
    variables = {k: v for k, v in os.environ.items() if not k.startswith("DISTSUMMARY")}
    done = subprocess.run(
        [PYTHON, "-W", "ignore", ROOT / "tests/hosts/ray_callbacks.py", directory], cwd=directory,
        env=variables | {"RAY_AUTH_MODE": "disabled", "RAY_TRAIN_V2_ENABLED": "1"},
        timeout=PATIENCE_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


def raised(out: Path, name: str) -> str:
    return str(json.loads((out / "raised.json").read_text())[name])


def deaths(run_dir: Path, attempt: int) -> dict[str, Any]:
    return RunDir(run_dir).read_manifest()["attempts"][attempt].get("deaths", {})


def test_a_killed_worker_and_the_restart_are_noted(out: Path) -> None:
    assert raised(out, "killed") == ""
    found = deaths(out / "killed", 0)
    assert found["1"]["reason"].startswith(DIED)
    assert found["0"]["reason"] == "ended by Ray Train, since rank 1 failed"
    assert found["0"]["state"] == "interrupted"
    said = [alert["evidence"] for alert in read_alerts(RunDir(out / "killed")) if alert["cause"] == "message"]
    assert said == ["Ray Train starts the workers again, since rank 1 failed"]


def test_the_workers_are_recorded_with_the_options_of_the_callback(out: Path) -> None:
    run = ds.open_run(out / "killed")
    assert run.state == "finished"
    assert run.attempts["attempt"].tolist() == [0, 1]
    for rank in range(2):
        assert run.scalars("loss", rank=rank)["step"].tolist() == [*range(1, 9)]
    assert "norms" in run.tags


def test_the_variables_of_the_driver_alone_record_a_training_that_fails(out: Path) -> None:
    assert "as arranged" in raised(out, "raises")
    [run_dir] = (out / "runs").glob("2*")
    run = ds.open_run(run_dir)
    assert run.state == "failed"
    found = deaths(run_dir, 0)
    assert found["1"]["reason"] == "RuntimeError: as arranged"
    assert found["0"]["reason"] == "ended by Ray Train, since rank 1 failed"


def test_the_public_api_alone_tells_why_a_worker_died(out: Path) -> None:
    assert raised(out, "public").startswith("WorkerGroupError")
    assert deaths(out / "public", 0)["0"]["reason"].startswith(DIED)


def test_a_wrong_path_in_rays_variable_ends_the_call_of_fit(out: Path) -> None:
    assert raised(out, "wrong").startswith("ValueError: Failed to import callback from")
