"""Which engines keep freed memory in the process, and for how long."""

import json
import subprocess
import sys

import pytest
import torch

from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.torch_hessian import TorchHessian
from distsummary.landscapes.model import heap
from tests.conftest import ROOT
from tests.frameworks.landscape_nets import CRITERION, XS, Mlp, engine_at, make_net, plane_of
from tests.unit.landscapes.test_heap import pytestmark  # noqa: F401

BATCH = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3

SCRIPT = """
import json, resource
import numpy as np, torch
from torch import nn
from distsummary.landscapes.engines.engine_choice import EngineChoice
from tests.frameworks.landscape_nets import engine_at

torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
batch = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
found = {}
for label in ("row", "graph", "graph channels_last"):
    engine = engine_at(model, [batch], EngineChoice.from_label(label))
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        engine.row_values(0.5, np.linspace(-1, 1, 4))
    found[label] = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4
    engine.close()
print(json.dumps(found))
"""


@pytest.mark.parametrize("is_left_alone", [False, True])
def test_points_take_no_new_pages(is_left_alone: bool) -> None:
    """Unless the environment says that freed memory is given back: each result has 1,024 pages."""
    setting = {"MALLOC_TRIM_THRESHOLD_": "131072"} if is_left_alone else {}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PYTHONPATH": str(ROOT)} | setting, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    faults = json.loads(done.stdout).values()
    assert min(faults) > 1000 if is_left_alone else max(faults) < 100


@pytest.mark.parametrize("label", ["naive", "row", "graph", "graph x3"])
def test_it_is_kept_while_an_engine_is_open(label: str) -> None:
    engine = engine_at(make_net(Mlp), [BATCH], EngineChoice.from_label(label))
    assert heap._users == 1
    engine.row_values(0.5, XS)
    engine.close()
    engine.close()
    assert heap._users == 0


def test_what_cannot_be_opened_keeps_nothing() -> None:
    with pytest.raises(ZeroDivisionError, match="batch 1"):
        engine_at(make_net(Mlp), [BATCH], loss_fn=lambda model, batch: 1 / 0)
    assert heap._users == 0


def test_the_engine_that_is_sparing_with_memory_keeps_nothing() -> None:
    engine = engine_at(make_net(Mlp), [BATCH], EngineChoice(engine="inference"))
    assert heap._users == 0
    engine.close()


def test_hessian_vector_products_keep_it_too() -> None:
    model = make_net(Mlp)
    centre, _, names = plane_of(model)
    with TorchHessian(model, CRITERION, [BATCH], names=names, centre=centre):
        assert heap._users == 1
    assert heap._users == 0
