"""The norm of an optimizer's gradients."""

import math

import pytest
import torch

from distsummary.integrations.gradient_norm import gradient_norm


def optimizer_with(*gradients: torch.Tensor | None) -> torch.optim.Optimizer:
    parameters = []
    for gradient in gradients:
        shape = (3,) if gradient is None else gradient.shape
        parameters.append(torch.nn.Parameter(torch.zeros(shape)))
        parameters[-1].grad = gradient
    return torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1)


def test_it_is_that_of_all_groups_together() -> None:
    assert gradient_norm(optimizer_with(torch.tensor([3.0, 0.0]), None, torch.tensor([[4.0]]))) == 5.0


def test_it_is_not_finite_as_that_of_torch_is() -> None:
    gradients = torch.tensor([math.inf]), torch.tensor([math.nan])
    for chosen in (gradients, gradients[:1], gradients[1:]):
        expected = torch.nn.utils.get_total_norm(chosen).item()
        assert gradient_norm(optimizer_with(*chosen)) == pytest.approx(expected, nan_ok=True)


def test_without_gradients_there_is_none() -> None:
    assert gradient_norm(optimizer_with(None, None)) is None


def test_rows_that_a_sparse_gradient_has_twice_are_added() -> None:
    sparse = torch.sparse_coo_tensor([[1, 1]], [[1.0, 2.0], [2.0, 2.0]], (4, 2), check_invariants=True)
    assert gradient_norm(optimizer_with(sparse)) == 5.0


def test_it_is_unscaled_where_the_optimizer_unscales() -> None:
    optimizer = optimizer_with(torch.tensor([512.0]))
    optimizer.grad_scale = torch.tensor(256.0)  # type: ignore[attr-defined]  # as GradScaler does
    assert gradient_norm(optimizer) == 2.0
