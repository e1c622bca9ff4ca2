"""Trainings of Lightning, transformers and Accelerate, recorded by their callbacks in .venv-hosts."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import distsummary as ds
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.interop

PYTHON = ROOT / ".venv-hosts/bin/python"
TRAININGS = ROOT / "tests/hosts/trainings.py"
HOSTS = ("transformers", "lightning", "accelerate")
REPORTED = {"transformers": "host/loss", "lightning": "host/train_loss", "accelerate": "host/reported"}
EVALUATED = {"transformers": "eval/loss", "lightning": "eval/val_loss"}


def train(directory: Path, *arguments: str, ranks: int = 1) -> list[Any]:
    """What each rank of a training saw."""
    directory.mkdir(exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [str(PYTHON), *(launcher if ranks > 1 else ["-W", "ignore"]), str(TRAININGS), ".", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return [json.loads((directory / f"{arguments[0]}.{rank}.json").read_text()) for rank in range(ranks)]


def check(run: Any, rows: list[Any], first: int = 1, **chosen: Any) -> None:
    """Each step is recorded once, with the numbers that the script saw."""
    for number, tag in enumerate(("loss", "lr", "grad_norm")):
        table = run.scalars(tag, **chosen)
        assert table["step"].tolist() == list(range(first, first + len(rows))), tag
        if rows[0][number] is not None:
            assert table["value"].tolist() == pytest.approx([row[number] for row in rows], rel=1e-6), tag


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_trains_the_same_bits_and_is_recorded(host: str, tmp_path: Path) -> None:
    [without], [rows] = train(tmp_path / "without", host, "no"), train(tmp_path / "with", host, "yes")
    assert rows == without
    run = ds.open_run(tmp_path / "with/run")
    assert run.state == "finished"
    check(run, rows)
    tags = {*run.scalars().tags}
    assert REPORTED[host] in tags
    if host in EVALUATED:
        assert run.scalars(EVALUATED[host])["step"].tolist() == [4, 8]


@pytest.mark.parametrize("host", HOSTS)
def test_each_rank_has_its_own_loss(host: str, tmp_path: Path) -> None:
    seen = train(tmp_path, host, "yes", ranks=2)
    assert seen[0] != seen[1]
    run = ds.open_run(tmp_path / "run")
    assert run.state == "finished"
    for rank in range(2):
        check(run, seen[rank], rank=rank)


def test_a_resumed_trainer_continues_at_its_step(tmp_path: Path) -> None:
    train(tmp_path, "transformers", "yes")
    [rows] = train(tmp_path, "transformers", "yes", "yes")
    run = ds.open_run(tmp_path / "run")
    assert run.scalars("loss")["step"].tolist() == list(range(1, 13))
    assert len(rows) == 4
