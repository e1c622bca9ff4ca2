"""Rows are cut by time, which no loss may show, and not where points share what a call costs."""

from typing import Any

import numpy as np
import pytest
import torch

from distsummary import Evaluation, LossGrid, landscape
from distsummary.landscapes.run import scheduler
from tests.frameworks.landscape_nets import CRITERION, Mlp, make_net
from tests.frameworks.test_torch_evaluation import Reader


def draw(batches: Any, **more: Any) -> LossGrid:
    torch.manual_seed(0)
    grid = landscape(make_net(Mlp), CRITERION, batches, workers=0, progress=False, **more)
    assert isinstance(grid, LossGrid)
    return grid


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call has as few points as it may."""
    monkeypatch.setattr(scheduler, "CALL_S", 0.0)
    monkeypatch.setattr(scheduler, "LEAST_S", 0.0)


@pytest.mark.parametrize("engine", ["torch-row", "torch-graph", "torch-graph x4"])
@pytest.mark.parametrize("evaluation", [None, Evaluation(tolerance=0.05)], ids=["all", "tolerance"])
def test_the_losses_are_the_same_bits_however_long_a_point_takes(
    engine: str, evaluation: Evaluation | None, request: pytest.FixtureRequest
) -> None:
    net = make_net(Mlp)
    more: dict[str, Any] = {"size": 9, "engine": engine, "evaluation": evaluation}
    batches = [net.batch(16) for _ in range(4)]
    quick = draw(batches, **more)
    if evaluation:
        assert len(np.unique(quick.quantities["rows"])) > 1
    request.getfixturevalue("slowly")
    assert draw(batches, **more).z.tobytes() == quick.z.tobytes()


@pytest.mark.usefixtures("slowly")
def test_streamed_data_is_read_once_a_row_however_long_that_takes() -> None:
    loader = Reader(make_net(Mlp).batches())
    draw(loader, size=11, engine="torch-row", evaluation=Evaluation(streamed=True))
    assert 11 <= loader.reads < 2 * 11
