"""What models of transformers, Lightning and PyG do, in small nets of torch alone."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import distsummary as ds
from distsummary.errors import CannotTraceError, InvalidTypeError, LandscapeError
from distsummary.landscapes.engines.engine_choice import EngineChoice
from tests.frameworks.landscape_nets import (
    Mlp,
    Net,
    Recurrent,
    engine_at,
    fingerprint,
    float64_losses,
    make_net,
)
from tests.frameworks.test_torch_engines import EXACT, losses_of
from tests.landscape_arguments import grouped

GRAPHS = [EngineChoice(engine="graph"), EngineChoice(engine="graph", chunk=4)]


class Output(OrderedDict[str, Any]):
    """As ModelOutput of transformers: items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class WithLoss(Mlp):
    """Called with the items of a batch it returns logits, and with labels their loss."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(x)
        return Output(loss=None if labels is None else cross_entropy(logits, labels), logits=logits)


class Pooling(Net):
    """The hidden state of each sequence's last token, at an index computed from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc(self.table(x)))
        return self.head(hidden[torch.arange(len(x)), (x > 2).sum(1) - 1])

    def batch(self, rows: int) -> Any:
        return torch.randint(0, 9, (rows, 5)), torch.arange(rows) % 3


def draw(model: nn.Module, batches: Any, **more: Any) -> Any:
    loss = {} if "batch_loss" in more else {"loss_fn": nn.CrossEntropyLoss()}
    given: dict[str, Any] = {"size": 3, "workers": 0, "progress": False, "engine": "row"}
    return ds.landscape(model, **grouped(batches=batches, **(loss | given | more)))


def named(pairs: Any) -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in pairs]


@pytest.mark.parametrize("choice", GRAPHS, ids=lambda choice: choice.label)
def test_an_index_of_numbers_can_be_recorded(choice: EngineChoice) -> None:
    net = make_net(Pooling)
    batches = net.batches()
    found = losses_of(engine_at(net, batches, choice))
    np.testing.assert_allclose(found, float64_losses(net, batches), rtol=EXACT)


class Shuffled(Net):
    """Of shuffled channels torch records another order of memory than they have."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(torch.relu(self.conv(x)[:, :3])))
        return self.head(nn.functional.channel_shuffle(hidden, 2).flatten(1))

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 3, 4, 4), torch.arange(rows) % 3


def test_a_recording_that_cannot_be_evaluated_is_reported_of_as_one() -> None:
    net = make_net(Shuffled)
    with pytest.raises(CannotTraceError, match=r"the recorded loss cannot be evaluated: .*leave engine= out"):
        losses_of(engine_at(net, net.batches(), EngineChoice(engine="graph", options=("channels_last",))))


class Padded(Net):
    """Looks whether anything is padded before it masks, but where it is compiled, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        hidden = torch.tanh(self.table(x))
        if torch.compiler.is_compiling() or not mask.all():
            hidden = hidden * mask[..., None]
        return self.head(hidden.sum(1))

    def batch(self, rows: int) -> Any:
        return torch.randint(0, 9, (rows, 5)), torch.arange(rows) % 3


@pytest.mark.parametrize("choice", GRAPHS, ids=lambda choice: choice.label)
def test_what_asks_for_values_unless_it_is_compiled_is_recorded_as_if_it_were(choice: EngineChoice) -> None:
    net = make_net(Padded)
    whole, *others = net.batches()
    batches = [(whole[0].clamp(min=1), whole[1]), *others]  # of the first nothing is padded
    found = losses_of(engine_at(net, batches, choice))
    np.testing.assert_allclose(found, float64_losses(net, batches), rtol=EXACT)
    assert not torch.compiler.is_compiling()


def test_what_torch_evaluates_point_by_point_is_no_line_in_the_terminal(capfd: Any) -> None:
    net = make_net(Recurrent)
    batches = net.batches()
    found = losses_of(engine_at(net, batches, GRAPHS[1]))
    np.testing.assert_allclose(found, float64_losses(net, batches), rtol=EXACT)
    assert capfd.readouterr().err == ""


def as_a_whole(net: Any, backend: Callable[..., Any]) -> None:
    net.compile(backend=backend)


def in_part(net: Any, backend: Callable[..., Any]) -> None:
    net.layers[0] = torch.compile(net.layers[0], backend=backend)


@pytest.mark.parametrize("compiled", [as_a_whole, in_part])
def test_compiled_modules_run_their_own_code_meanwhile(compiled: Callable[..., None]) -> None:
    calls: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            calls.append(graph)
            return graph.forward(*arguments)

        return run

    net = make_net(Mlp)
    batches = net.batches()
    plain = draw(net, batches)
    eigen = draw(net, batches, directions="hessian")
    compiled(net, backend)
    at_first = fingerprint(net)
    for engine in ("row", "graph", "inference"):
        found = draw(net, batches, engine=engine)
        np.testing.assert_allclose(found.z, plain.z, rtol=EXACT)
    again = draw(net, batches, directions="hessian")
    np.testing.assert_allclose(again.z, eigen.z, rtol=1e-4)
    assert not calls
    assert fingerprint(net) == at_first
    net(batches[0][0])
    assert calls


class Scaled(nn.Module):
    """A wrapper that calls what it wraps as torch.compile does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner

    def forward(self, x: Any) -> Any:
        return 3.0 * self._orig_mod(x)


@pytest.mark.parametrize("engine", ["row", "inference"])
@pytest.mark.parametrize("outside", [nn.Sequential, lambda net: net], ids=["a part", "the model"])
def test_a_wrapper_that_is_not_of_torch_compile_runs_its_own_code(outside: Any, engine: str) -> None:
    net = outside(Scaled(make_net(Mlp)))
    batch = make_net(Mlp).batches()[0]
    found = draw(net, [batch], engine=engine)
    expected = cross_entropy(net(batch[0]), batch[1]).item()
    np.testing.assert_allclose(found.true_loss, [expected], rtol=EXACT)


@pytest.mark.parametrize("engine", ["naive", "row", "graph", "torch-graph x3", "inference"])
def test_a_model_that_computes_its_loss_takes_batches_as_mappings(engine: str) -> None:
    net = make_net(WithLoss)
    pairs = net.batches()
    expected = draw(
        net, pairs, batch_loss=lambda model, batch: cross_entropy(model(batch[0]).logits, batch[1])
    )
    found = draw(net, named(pairs), batch_loss=lambda model, batch: model(**batch).loss, engine=engine)
    np.testing.assert_allclose(found.z, expected.z, rtol=EXACT)


def test_the_output_of_such_a_model_is_no_loss_and_nothing_for_a_criterion() -> None:
    net = make_net(WithLoss)
    with pytest.raises(LandscapeError, match=r"got Output\(.*of type Output; return the loss it holds"):
        draw(net, named(net.batches()), batch_loss=lambda model, batch: model(**batch))
    with pytest.raises(LandscapeError, match=r"hint: .*batch_loss=lambda .*: model\(\*\*batch\)\.loss"):
        draw(net, net.batches())


def test_a_batch_in_the_place_of_batches_is_reported() -> None:
    net = make_net(WithLoss)
    with pytest.raises(
        InvalidTypeError, match=r"names to data sets.* got a Tensor for 'x'; .*give \[batch\]"
    ):
        draw(net, named(net.batches())[0], batch_loss=lambda model, batch: model(**batch).loss)
