"""A training in the cells of a notebook, recorded by the variable alone, in a kernel of Jupyter."""

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
MODEL = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        loss = model(torch.rand(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LOOK = "import json; print(json.load(open('run/run.json'))['state'])"
FAILS = "raise ValueError('a cell')"


def recorded(directory: Path, *cells: str) -> tuple[Any, list[str]]:
    """The run of the training of these cells, when the kernel has ended, and what each cell showed."""
    done = subprocess.run(
        [PYTHON, ROOT / "tests/hosts/notebook.py", MODEL, *cells], cwd=directory, timeout=PATIENCE_S,
        env=os.environ | {"DISTSUMMARY": "run"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ds.open_run(directory / "run"), done.stdout.splitlines()[1:]


def test_the_cells_that_train_are_one_run_which_ends_with_the_kernel(tmp_path: Path) -> None:
    run, shown = recorded(tmp_path, "train(5)", LOOK, "train(2)", FAILS, MODEL, "train(3)")
    assert shown[0].startswith("['distsummary: recording run (")
    assert shown[1:] == ["['running\\n']", "[]", "['ValueError']", "[]", "[]"]
    assert run.state == "finished"  # the cell that failed was not the last one
    assert run.scalars("loss")["step"].tolist() == [*range(1, 11)]


def test_a_run_has_failed_if_the_last_cell_has(tmp_path: Path) -> None:
    run, _ = recorded(tmp_path, "train(5)", FAILS)
    assert run.state == "failed"
    assert "a cell" in run.attempts["error"][0]
    assert run.scalars("loss")["step"].tolist() == [*range(1, 6)]
