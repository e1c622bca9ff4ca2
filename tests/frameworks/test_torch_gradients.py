"""Losses that take gradients themselves: how they can, and which error is raised where they cannot."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from distsummary import Evaluation, landscape
from distsummary.errors import CannotTraceError, LandscapeError
from tests.frameworks.test_torch_landscape import Mlp, golden_batches
from tests.landscape_arguments import grouped


def penalised(model: Any, batch: Any) -> torch.Tensor:
    inputs = batch[0].clone().requires_grad_(True)
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, batch[1]) + (outputs * batch[0][:, :3]).square().mean()
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    return loss + slope.square().mean()


def with_gradients(model: Any, batch: Any) -> torch.Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        return penalised(model, batch)


def draw(batch_loss: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    given: dict[str, Any] = {"size": 3, "progress": False, "workers": 0}
    return landscape(Mlp(), **grouped(batch_loss=batch_loss, batches=golden_batches(), **given, **more))


@pytest.mark.parametrize(
    "more",
    [
        {"engine": "row"},
        {"engine": "naive"},
        {"memory": "inference"},
        {"evaluation": Evaluation(streamed=True, precision="float64")},
        {"evaluation": Evaluation(precision="float64"), "memory": "inference"},
    ],
)
def test_a_loss_may_take_gradients_out_of_inference_mode(more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, batches = Mlp(), golden_batches()
    expected = sum(penalised(model, b).item() * len(b[1]) for b in batches) / sum(len(b[1]) for b in batches)
    assert draw(with_gradients, **more).z[1, 1] == pytest.approx(expected, rel=1e-5)


def test_the_way_is_reported_where_a_loss_does_not_take_it() -> None:
    with pytest.raises(
        LandscapeError,
        match=r"require.* grad.*hint: .*inference_mode\(False\), torch\.enable_grad.*with the model as it is",
    ):
        draw(penalised)


def by_value(model: Any, batch: Any) -> torch.Tensor:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return loss if loss.item() > 0.5 else 2 * loss


def by_shape(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0])[batch[1] > 0], batch[1][batch[1] > 0])


@pytest.mark.parametrize("loss_fn", [by_value, by_shape, with_gradients])
def test_what_cannot_be_recorded_is_reported_in_one_line_with_what_to_do(loss_fn: Any) -> None:
    with pytest.raises(
        CannotTraceError, match=r"cannot be recorded as a graph: .*; leave engine= out, or"
    ) as failed:
        draw(loss_fn, engine="graph")
    assert "\n" not in str(failed.value)
    assert "TORCH_LOGS" not in str(failed.value)
