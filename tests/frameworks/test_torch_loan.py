"""Modules that a loss function or a metric holds: in eval mode for a landscape, then as they were."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from distsummary import Evaluation, landscape
from tests.frameworks.test_torch_landscape import CRITERION, Mlp, fingerprint, golden_batches
from tests.landscape_arguments import grouped


class Noisy(nn.Module):
    """What distinguishes training from evaluation, one that is frozen, and a buffer written to in both."""

    def __init__(self, seen: set[bool]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.frozen = nn.BatchNorm1d(3).eval()
        self.register_buffer("written", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(3))
        self.seen, self.calls = (seen,), 0

    def forward(self, outputs: torch.Tensor, targets: Any = None) -> torch.Tensor:
        self.seen[0].add(self.net[1].training)
        self.calls += 1
        self.written += outputs.detach().mean(0)
        self.replaced = self.replaced + 1
        return self.frozen(self.net(outputs)).square().mean()


class Holder:
    def __init__(self, held: Noisy) -> None:
        self.held = [held]

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        return self.held[0](model(batch[0]))

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return self(model, batch)


def within(held: Noisy, outputs: Any, targets: Any) -> torch.Tensor:
    return held(outputs)


def in_a_global(held: Noisy) -> Any:
    space: dict[str, Any] = {"__name__": "somewhere", "noisy": held}
    exec("def loss_fn(outputs, targets):\n return max(noisy(o) for o in [outputs])", space)
    return space["loss_fn"]


def in_a_closure(held: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda outputs, targets: held(outputs)  # type: ignore[no-any-return]


def draw(model: nn.Module, **given: Any) -> None:
    landscape(model, **grouped(batches=golden_batches(), size=3, progress=False, workers=0, **given))


@pytest.mark.parametrize(
    "hold",
    [
        lambda held: {"loss_fn": held},
        lambda held: {"loss_fn": in_a_closure(held)},
        lambda held: {"loss_fn": in_a_closure(nn.Sequential(held))},
        lambda held: {"loss_fn": partial(within, held)},
        lambda held: {"loss_fn": in_a_global(held)},
        lambda held: {"batch_loss": Holder(held)},
        lambda held: {"batch_loss": Holder(held).loss},
        lambda held: {"loss_fn": CRITERION, "evaluation": Evaluation(metrics={"noisy": held})},
    ],
    ids=["criterion", "closure", "module", "partial", "global", "object", "method", "metric"],
)
@pytest.mark.parametrize("directions", ["random", "hessian"])
def test_modules_that_are_held_are_evaluated_and_given_back(hold, directions, caplog):
    seen: set[bool] = set()
    held = Noisy(seen)
    held(torch.randn(8, 3))
    before, calls, buffer = fingerprint(held), held.calls, held.replaced
    seen.clear()
    with caplog.at_level(logging.WARNING, "distsummary"):
        draw(Mlp(), directions=directions, **hold(held))
    assert seen == {False}
    assert fingerprint(held) == before
    assert (held.calls, held.replaced) == (calls, buffer)
    assert not caplog.records


def test_in_mindspores_mode_they_are_as_they_are() -> None:
    seen: set[bool] = set()
    draw(Mlp(), loss_fn=Noisy(seen), mode="mindspore")
    assert seen == {True}


def test_one_that_holds_the_model_too_is_given_back() -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.noisy = Mlp(), Noisy(set())

        def step(self, model: Any, batch: Any) -> torch.Tensor:
            return self.noisy(self.model(batch[0]))  # type: ignore[no-any-return]

    task = Task()
    task.model.d1.eval()
    before = fingerprint(task)
    draw(task.model, batch_loss=task.step)
    assert fingerprint(task) == before


def test_they_are_given_back_after_an_error() -> None:
    held = Noisy(set())
    before = fingerprint(held)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        held(model(batch[0]))
        raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        draw(Mlp(), batch_loss=loss_fn)
    assert fingerprint(held) == before
