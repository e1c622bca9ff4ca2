"""Trainings of Lightning, transformers and Accelerate, recorded by their callbacks in .venv-hosts."""

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

PYTHON = ROOT / ".venv-hosts/bin/python"
TRAININGS = ROOT / "tests/hosts/trainings.py"
HOSTS = ("transformers", "lightning", "accelerate", "fabric")
SMOKE = ("transformers", "lightning")
REPORTED = {
    "transformers": "host/loss",
    "lightning": "host/train_loss",
    "accelerate": "host/reported",
    "fabric": "host/reported",
}
HAS_WIDTH = ("lightning", "accelerate", "fabric")
CONFIG = dict.fromkeys(HAS_WIDTH, ("width", 4)) | {"transformers": ("max_steps", 8)}
EVALUATED = {"transformers": "eval/loss", "lightning": "eval/val_loss"}
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (  # several processes on CPUs are MPI's
    *(PYTHON, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
)


@pytest.fixture(scope="module", autouse=True)
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """DeepSpeed compiles into a directory of these tests: a killed run leaves a lock that others wait for."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCH_EXTENSIONS_DIR", str(shared / "extensions"))
        yield


def start(directory: Path, *arguments: str, launcher: tuple[str | Path, ...] = (), **variables: str) -> str:
    """Train; returns what it wrote to stderr."""
    directory.mkdir(exist_ok=True)
    command = [*(launcher or (PYTHON, "-W", "ignore")), TRAININGS, ".", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def train(
    directory: Path, *arguments: str, launcher: tuple[str | Path, ...] = (), **variables: str
) -> list[Any]:
    """What each rank of a training saw."""
    start(directory, *arguments, launcher=launcher, **variables)
    ranks = 2 if launcher == TORCHRUN else 1
    return [json.loads((directory / f"{arguments[0]}.{rank}.json").read_text()) for rank in range(ranks)]


def check(run: Any, rows: list[Any], first: int = 1, **chosen: Any) -> None:
    """Each step is recorded once, with the numbers that the script saw."""
    for number, tag in enumerate(("loss", "lr", "grad_norm")):
        table = run.scalars(tag, **chosen)
        assert table["step"].tolist() == list(range(first, first + len(rows))), tag
        if rows[0][number] is not None:
            assert table["value"].tolist() == pytest.approx([row[number] for row in rows], rel=1e-6), tag


@pytest.mark.parametrize(
    "host", [pytest.param(host, marks=[pytest.mark.smoke] * (host in SMOKE)) for host in HOSTS]
)
def test_a_host_trains_the_same_bits_and_is_recorded(host: str, tmp_path: Path) -> None:
    [without], [rows] = train(tmp_path / "without", host, "no"), train(tmp_path / "with", host, "yes")
    assert rows == without
    run = ds.open_run(tmp_path / "with/run")
    assert run.state == "finished"
    check(run, rows)
    tags = {*run.scalars().tags}
    assert REPORTED[host] in tags
    assert 1 not in run.scalars("zz_perf/step_ms")["step"].tolist()  # it began before the run
    if host in EVALUATED:
        assert run.scalars(EVALUATED[host])["step"].tolist() == [4, 8]
    if host in CONFIG:
        name, value = CONFIG[host]
        assert run.config[name] == value


def test_lightning_logs_the_same_points_to_its_own_logger(tmp_path: Path) -> None:
    train(tmp_path, "lightning_logged", "yes")
    with (tmp_path / "csv/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    logged = {
        (name, 1 + int(row["step"])): float(text)
        for row in rows
        for name, text in row.items()
        if text and name not in ("step", "epoch")
    }
    run = ds.open_run(tmp_path / "run")
    found: dict[tuple[str, int], float] = {}
    for tag in ("host/train_loss_step", "host/train_loss_epoch", "eval/val_loss", "eval/val_size"):
        table = run.scalars(tag)
        steps, values = table["step"].tolist(), table["value"].tolist()
        found |= {(tag.partition("/")[2], step): value for step, value in zip(steps, values, strict=True)}
    assert found == pytest.approx(logged, rel=1e-6)
    assert run.config == {"size": 32}  # of the data
    assert not {"host/val_loss", "host/val_size"} & {*run.scalars().tags}


@pytest.mark.parametrize("host", ["transformers", "lightning", "accelerate", "fabric"])
def test_each_rank_has_its_own_loss(host: str, tmp_path: Path) -> None:
    seen = train(tmp_path, host, "yes", launcher=TORCHRUN)
    assert seen[0] != seen[1]
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    for rank in range(2):
        check(run, seen[rank], rank=rank)
    assert "config" not in run.verdicts["cause"].tolist()  # all ranks know the settings of the host


@pytest.mark.parametrize("host", ["transformers", "lightning"])
def test_a_resumed_trainer_continues_at_its_step(host: str, tmp_path: Path) -> None:
    train(tmp_path, host, "yes")
    [rows] = train(tmp_path, host, "yes", "yes")
    run = ds.open_run(tmp_path / "run")
    assert run.scalars("loss")["step"].tolist() == list(range(1, 13))
    assert len(rows) == 4


@pytest.mark.parametrize("host", ["transformers", "lightning"])
def test_the_variable_alone_knows_what_the_host_knows(host: str, tmp_path: Path) -> None:
    [rows] = train(tmp_path, host, "no", DISTSUMMARY="run", DISTSUMMARY_OPTIONS='{"norms": true}')
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    check(run, rows)
    assert {REPORTED[host], "zz_norms/gradient"} <= {*run.scalars().tags}
    assert run.scalars(EVALUATED[host])["step"].tolist() == [4, 8]


@pytest.mark.parametrize("host", ["transformers", "lightning"])
def test_a_callback_of_the_script_precedes_the_variable(host: str, tmp_path: Path) -> None:
    train(tmp_path, host, "yes", DISTSUMMARY="by_the_variable")
    assert (tmp_path / "run").exists()
    assert not (tmp_path / "by_the_variable").exists()


def test_accelerate_launch_is_a_launcher_like_others(tmp_path: Path) -> None:
    [rows] = train(tmp_path, "accelerate", "no", launcher=ACCELERATE, DISTSUMMARY="runs/{time}")
    [path] = (tmp_path / "runs").glob("2*")
    run = ds.open_run(path)
    assert run.state == "finished"
    check(run, rows)


def test_trl_reports_to_distsummary(tmp_path: Path) -> None:
    [rows] = train(tmp_path, "trl", "yes", DISTSUMMARY="run")
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    check(run, rows)
    assert "host/loss" in run.scalars().tags


@pytest.mark.parametrize("stage", range(4))
def test_the_variable_alone_records_deepspeed_as_its_engine_steps(stage: int, tmp_path: Path) -> None:
    [without] = train(tmp_path / "without", "deepspeed", str(stage))
    [rows] = train(tmp_path / "with", "deepspeed", str(stage), DISTSUMMARY="run")
    assert rows == without
    run = ds.open_run(tmp_path / "with/run")
    assert run.state == "finished"
    check(run, rows)
    assert run.scalars("lr/1")["value"].tolist() == pytest.approx([0.07] * len(rows))


def test_zero_on_two_ranks_has_phases_of_the_model_and_says_that_norms_are_missing(tmp_path: Path) -> None:
    said = start(
        tmp_path, "deepspeed", "1", launcher=TORCHRUN, DISTSUMMARY="run",
        DISTSUMMARY_OPTIONS='{"norms": true}',
    )  # fmt: skip
    run = ds.open_run(tmp_path / "run")
    assert (run.state, run.world_size) == ("finished", 2)
    for rank in range(2):
        check(run, json.loads((tmp_path / f"deepspeed.{rank}.json").read_text()), rank=rank)
    assert {"zz_perf/phase/forward/cpu_ms", "zz_perf/phase/optimizer/cpu_ms"} <= {*run.scalars(rank=1).tags}
    assert "run.log(grad_norm=engine.get_global_grad_norm())" in said


@pytest.mark.parametrize("logger", ["wandb", "mlflow"])
def test_a_tee_records_what_the_script_logs(logger: str, tmp_path: Path) -> None:
    variables = {"DISTSUMMARY": "run", "DISTSUMMARY_OPTIONS": '{"tee": true}', "WANDB_MODE": "offline"}
    variables |= {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    [rows] = train(tmp_path, logger, "no", **variables)
    run = ds.open_run(tmp_path / "run")
    check(run, rows)
    logged = run.scalars("script/reported")
    assert logged["step"].tolist() == list(range(1, 1 + len(rows)))
    assert logged["value"].tolist() == pytest.approx([row[0] for row in rows], rel=1e-6)
