"""Rows are cut by time, which no loss may show, and not where points share what a call costs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from distsummary import Evaluation, LossGrid, landscape
from tests.frameworks.landscape_nets import CRITERION, Mlp, make_net
from tests.frameworks.test_torch_evaluation import Reader
from tests.landscape_arguments import grouped


def draw(batches: Any, **more: Any) -> LossGrid:
    torch.manual_seed(0)
    grid = landscape(make_net(Mlp), CRITERION, batches, **grouped(workers=0, progress=False, **more))
    assert isinstance(grid, LossGrid)
    return grid


@pytest.mark.parametrize("engine", ["torch-row", "torch-graph", "torch-graph x4"])
def test_the_losses_are_the_same_bits_however_long_a_point_takes(engine, cut_calls):
    net = make_net(Mlp)
    more: dict[str, Any] = {"size": 9, "engine": engine}
    batches = [net.batch(16) for _ in range(4)]
    quick = draw(batches, **more)
    cut_calls(1)
    assert draw(batches, **more).z.tobytes() == quick.z.tobytes()


def test_streamed_data_is_read_once_a_row_however_long_that_takes(cut_calls: Callable[[int], None]) -> None:
    cut_calls(1)
    loader = Reader(make_net(Mlp).batches())
    draw(loader, size=11, engine="torch-row", evaluation=Evaluation(streamed=True))
    assert 11 <= loader.reads < 2 * 11
