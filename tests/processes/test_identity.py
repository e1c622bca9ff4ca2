"""The hashes that a journal is known by are those of the next process, too."""

import os
import sys
from pathlib import Path

from tests.programs import run_python

PARTS = """
import functools
import random

import numpy as np

NAMES = {"one", "two", "three", "four"}


class Model:
    scale, kinds = 2, ("a", "b")

    def __init__(self):
        self.parameters = {"w": np.ones(3)}
        self.names = set(NAMES)

    def __repr__(self):
        return "Model()"

    def __call__(self, x):
        return self.helper(x) if self.scale in {"one", "two", "three", 2} else None

    def helper(self, x):
        return np.tanh(x * self.parameters["w"])


class Loader:
    def __iter__(self):
        for _ in range(3):
            yield np.array([[random.random(), np.random.normal(), 1.0]]), np.zeros((1, 3))

    def __len__(self):
        return 3


def scaled(scale, outputs, targets):
    # Of a set, whose order differs from process to process.
    assert scale in {"one", "two", 2.0}
    return float(scale * (outputs - targets).mean())


loss_fn, metrics = functools.partial(scaled, 2.0), {"a": scaled}
"""

SHOW = """
import numpy as np
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.model.quantities import Evaluation
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.run.landscape_identity import landscape_identity
import parts

model = parts.Model()
plane = PlanePlan(
    states=[dict(model.parameters)], names=("w",), recipe=RandomDirections(names=("w",), seed=7),
    x=np.linspace(-1, 1, 3), y=np.linspace(-1, 1, 3), points=np.zeros((1, 2)),
)
print(landscape_identity(Task(
    model=model, loss_fn=parts.loss_fn, batches=parts.Loader(), planes=[plane],
    evaluation=Evaluation(metrics=parts.metrics, streamed=True),
)))
"""


def shown(folder: Path, seed: int) -> str:
    """What a fresh interpreter that hashes texts in its own way prints."""
    paths = os.pathsep.join([str(folder), *sys.path])
    return run_python("-c", SHOW, PYTHONHASHSEED=str(seed), PYTHONPATH=paths).stdout


def test_hashes_are_the_same_in_another_process_and_place(tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "parts.py").write_text("\n" * number + PARTS)
    first = shown(folders[0], 1)
    assert "loss_fn" in first
    assert first == shown(folders[0], 2)  # from compiled code now
    assert first == shown(folders[1], 3)
