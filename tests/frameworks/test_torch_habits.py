"""Models with habits: they write to their parameters, keep what a batch has made, count places in memory."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distsummary.errors import CannotTraceError, LandscapeError
from distsummary.landscapes.engines.engine_choice import EngineChoice
from tests.frameworks.landscape_nets import (
    XS,
    Mlp,
    Net,
    Pooled,
    engine_at,
    fingerprint,
    float64_losses,
    make_net,
)
from tests.frameworks.test_torch_engines import EXACT, losses_of


class Renormed(Net):
    """A table whose rows are made shorter where they are looked up, and that is read as a whole, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 3, max_norm=0.5), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1) @ self.table.weight.T @ self.table.weight)

    def batch(self, rows: int) -> Any:
        return torch.randint(0, 7, (rows, 2)), torch.arange(rows) % 3


def one_by_one(net: nn.Module, batches: list[Any]) -> Any:
    """The float64 loop, where no batch sees what another one has left."""
    each = [float64_losses(net, [batch], normalization="none") for batch in batches]
    return np.average(each, axis=0, weights=[len(labels) for _, labels in batches])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["naive", "row"])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_a_batch_writes_to_the_model_is_not_read_by_the_next(name: str, streamed: bool, is_frozen: bool):
    net = make_net(Renormed)
    nn.init.normal_(net.table.weight)
    net.table.weight.requires_grad_(not is_frozen)
    batches, before = net.batches(), fingerprint(net)
    engine = engine_at(net, batches, EngineChoice(engine=name), normalization="none", streamed=streamed)
    losses = losses_of(engine)
    np.testing.assert_allclose(losses, one_by_one(net, batches), rtol=EXACT)
    assert fingerprint(net) == before


class Cached(Net):
    """What batches of 8 rows have made of the weights is used by the others."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.cached: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 8:
            self.cached = torch.tanh(self.fc.weight)
        return nn.functional.linear(x, self.fc.weight if self.cached is None else self.cached)

    batch = Mlp.batch


@pytest.mark.parametrize("options", [(), ("channels_last",)])
@pytest.mark.parametrize(
    ("kind", "match"), [(Renormed, "reads and writes table.weight"), (Cached, "depends on more")]
)
def test_what_a_batch_leaves_for_the_next_is_not_recorded(kind, match, options):
    """A recording of a batch gives the same whatever came before it; at one point the proof cannot decide."""
    net = make_net(kind)
    nn.init.normal_(next(net.parameters()))
    engine = engine_at(net, net.batches(), EngineChoice(engine="graph", options=options))
    with pytest.raises(CannotTraceError, match=match):
        engine.row_values(0.1, XS)
    engine.close()


class Strided(Net):
    """Every other row of the first channel, by its places in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        picture = x.as_strided((len(x), 1, 4, 8), (128, 64, 16, 1))
        return self.head(torch.relu(self.conv(picture)).flatten(1))

    batch = Pooled.batch


@pytest.mark.parametrize("name", ["row", "graph", "graph x4"])
def test_code_that_counts_places_in_memory_gets_no_other_layout(name: str) -> None:
    net = make_net(Strided)
    batches, before = net.batches(), fingerprint(net)
    with pytest.raises(LandscapeError, match="positions in memory"):
        engine_at(net, batches, EngineChoice.from_label(f"{name} channels_last"))
    assert fingerprint(net) == before
    losses = losses_of(engine_at(net, batches, EngineChoice.from_label(name), normalization="none"))
    np.testing.assert_allclose(losses, float64_losses(net, batches, normalization="none"), rtol=EXACT)
