"""What an engine of DeepSpeed does in a step, as a follower sees it; tests/hosts trains with DeepSpeed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from distsummary.integrations.follower import Follower


class Recorded:
    """What a follower gives to its run."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float | None]] = []
        self._norms: list[Any] = []

    def begin_backward(self) -> None:
        pass

    def add(self, optimizer: torch.optim.Optimizer, losses: list[Tensor], norm: Any, wrapped: Any) -> None:
        self.steps.append((len(losses), None if norm is None else float(norm)))

    def end_step(self) -> bool:
        return True


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def follower(recorded: Recorded) -> Follower:
    return Follower(lambda optimizer, model: (recorded, optimizer))  # type: ignore[arg-type, return-value]


OPTIMIZER = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)


def step(follower: Follower, calls: int, norm: Any = None, is_done: bool = True) -> None:
    """A backward pass, and an engine's step in which the optimizer is called for each of its groups."""
    follower.call(follower.begin_backward, torch.ones(()), None)
    follower.call(follower.end_backward)
    follower.call(follower.begin_parts)
    for _ in range(calls):
        follower.call(follower.begin_step, OPTIMIZER, False)
        follower.call(follower.end_step, OPTIMIZER, True)
    follower.call(follower.note_norm, norm)
    follower.call(follower.end_parts, is_done)


def test_the_parts_of_a_step_are_one_with_the_norm_of_the_engine(follower: Follower, recorded: Recorded):
    for norm in (2.5, torch.tensor(3.5), None):
        step(follower, 3, norm)
    assert recorded.steps == [(1, 2.5), (1, 3.5), (1, None)]


def test_a_step_that_is_left_out_has_no_loss_in_the_next(follower: Follower, recorded: Recorded) -> None:
    step(follower, 2, 1.0)
    step(follower, 0, float("inf"))
    step(follower, 2, 2.0)
    assert recorded.steps == [(1, 1.0), (1, 2.0)]


def test_after_a_step_that_failed_the_next_is_counted(follower: Follower, recorded: Recorded) -> None:
    step(follower, 1, 1.0)
    step(follower, 1, 1.0, is_done=False)
    step(follower, 2, 2.0)
    assert recorded.steps[0] == (1, 1.0)
    assert recorded.steps[-1] == (2, 2.0)
