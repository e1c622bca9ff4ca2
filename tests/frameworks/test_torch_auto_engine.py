"""`landscape(engine="auto")`: the engine that timing chose gives the losses of the row engine."""

import numpy as np
import pytest
import torch
from torch import nn

import distsummary as ds
from distsummary.errors import InvalidValueError
from distsummary.landscape import planner


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    data = [(torch.randn(256, 16), torch.randint(0, 4, (256,))) for _ in range(2)]
    return model, nn.CrossEntropyLoss(), data


@pytest.mark.timeout(300)
def test_the_engine_chosen_agrees_with_the_row_engine_and_is_named(monkeypatch):
    monkeypatch.setattr(planner, "LEAST_PLAN_S", 0.0)  # else too short to be planned
    grids = {e: ds.landscape(*parts(), size=15, workers=0, engine=e, progress=False) for e in ("row", "auto")}
    assert grids["row"].engine == "torch-row"
    assert grids["auto"].engine.startswith("torch-")
    np.testing.assert_allclose(grids["auto"].z, grids["row"].z, rtol=5e-6)


def test_another_engine_is_refused_by_name():
    with pytest.raises(InvalidValueError, match="engine"):
        ds.landscape(*parts(), engine="fastest")
