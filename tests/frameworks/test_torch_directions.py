"""Directions of one's own for torch models: tensors of any kind, parameters of any shape."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import distsummary as ds
from tests.landscape_arguments import grouped

BATCH = torch.linspace(-1, 1, 360).reshape(30, 12), torch.arange(30) % 3


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(12, 3), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) * self.scale


AS_GIVEN: dict[str, Callable[[Tensor], Any]] = {
    "arrays": Tensor.numpy,
    "parameters": nn.Parameter,
    "with gradients": lambda tensor: tensor.requires_grad_() * 1,
    "bfloat16": Tensor.bfloat16,
}


@pytest.mark.parametrize("engine", ["row", "graph", "inference"])
@pytest.mark.parametrize("kind", AS_GIVEN)
def test_own_directions_of_a_model_with_a_number_among_its_parameters(kind: str, engine: str) -> None:
    torch.manual_seed(0)
    model, numbers = Scaled(), torch.Generator().manual_seed(1)

    def direction() -> dict[str, Tensor]:  # which bfloat16 holds
        draws = {name: torch.randn(p.shape, generator=numbers) for name, p in model.named_parameters()}
        return {name: draw.bfloat16().float() for name, draw in draws.items()}

    drawn = direction(), direction()
    x, y = ({name: AS_GIVEN[kind](tensor.clone()) for name, tensor in axis.items()} for axis in drawn)
    more: dict[str, Any] = {"size": 3, "workers": 0, "progress": False, "normalization": "none"}
    grid = ds.landscape(
        model, cross_entropy, [BATCH], **grouped(directions=ds.Directions(x=x, y=y), engine=engine, **more)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += drawn[0][name] - drawn[1][name]
        expected = cross_entropy(model(BATCH[0]), BATCH[1]).item()
    assert grid.z[0, -1] == pytest.approx(expected, rel=1e-5)
