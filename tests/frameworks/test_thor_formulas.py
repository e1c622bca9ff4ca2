"""THOR against an independent oracle of MindSpore's formulas, in float64, by kind of layer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distsummary.thor import THOR
from tests.frameworks.thor_oracle import Oracle

STEPS, FREQUENCY, BATCH = 20, 5, 8


class Words(nn.Module):
    """Embedding, LayerNorm and a Linear layer that is applied to sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(30, 140), nn.LayerNorm(140)
        self.out = nn.Linear(140, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.norm(self.words(ids))).mean(1)


def conv(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, 4))


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 4)),
    "linear wider than a block": lambda: nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 4)),
    "linear without bias": lambda: nn.Sequential(nn.Linear(20, 12, bias=False), nn.Tanh(), nn.Linear(12, 4)),
    "conv": lambda: conv(nn.Conv2d(4, 6, 3, padding=1), features=216),
    "conv wider than a block": lambda: conv(nn.Conv2d(20, 6, 3), features=96),
    "conv with stride and dilation": lambda: conv(
        nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), features=144
    ),
    "grouped conv": lambda: conv(nn.Conv2d(4, 6, 3, groups=2, bias=False), features=96),
    "depthwise conv": lambda: conv(nn.Conv2d(4, 4, 3, groups=4), features=64),
    "conv with padding same": lambda: conv(nn.Conv2d(4, 6, (5, 3), padding="same"), features=216),
    "conv with reflected padding": lambda: conv(
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), features=216
    ),
    "embedding, layer norm, sequences": Words,
    "batch norm": lambda: nn.Sequential(nn.Linear(20, 12), nn.BatchNorm1d(12), nn.Linear(12, 4)),
}


def batches(net: nn.Module, count: int = STEPS, size: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    first = next(net.modules() if isinstance(net, Words) else net.children())
    found = []
    for _ in range(count):
        if isinstance(first, Words):
            x = torch.randint(0, 30, (size, 5), generator=generator)
        elif isinstance(first, nn.Conv2d):
            x = torch.randn(size, first.in_channels, 6, 6, generator=generator, dtype=torch.float64)
        else:
            x = torch.randn(size, 20, generator=generator, dtype=torch.float64)
        found.append((x, torch.randint(0, 4, (size,), generator=generator)))
    return found


def compare(net: nn.Module, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Train the network and the oracle's copy of it, and compare their parameters at every step."""
    common = {"lr": 0.02, "damping": 0.03, "momentum": 0.9, "frequency": FREQUENCY}
    oracle = Oracle(net, batch=BATCH, **common, **theirs)
    optimizer = THOR(net, batch_size=BATCH, **common, **ours)
    scale = ours.get("loss_scale", 1.0)
    start = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    for x, y in batches(net):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(net(x), y) * scale).backward()
        optimizer.step()
        expected = oracle.step(x, y)
        for name, parameter in net.named_parameters():
            np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=1e-6, atol=1e-9)
    for name, parameter in net.named_parameters():
        assert not torch.equal(parameter, start[name]), f"{name} did not change"


@pytest.mark.parametrize("kind", NETS)
def test_twenty_steps_are_those_of_mindspore(kind: str) -> None:
    torch.manual_seed(0)
    compare(NETS[kind]().double(), {}, {})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"use_nesterov": True}, {"nesterov": True}),
        ({"enable_clip_grad": True}, {"clip": True}),
        ({"loss_scale": 128.0}, {"loss_scale": 128.0}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.1}),
        (
            {"weight_decay": 0.1, "decay_filter": lambda name, parameter: "bias" not in name},
            {"weight_decay": 0.1, "decays": lambda name: "bias" not in name},
        ),
    ],
    ids=["nesterov", "clip", "loss scale", "weight decay", "decay filter"],
)
def test_each_argument_does_what_mindspores_does(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    torch.manual_seed(0)
    compare(NETS["conv"]().double(), ours, theirs)


def test_batches_that_are_accumulated_have_the_factors_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    whole, parts = NETS["conv"]().double(), NETS["conv"]().double()
    parts.load_state_dict(whole.state_dict())
    optimizers = [THOR(net, 0.02, 0.03, batch_size=BATCH, frequency=FREQUENCY) for net in (whole, parts)]
    for x, y in batches(whole):
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(whole(x), y).backward()
        for part in range(0, BATCH, 2):
            (nn.functional.cross_entropy(parts(x[part:][:2]), y[part:][:2]) / 4).backward()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
