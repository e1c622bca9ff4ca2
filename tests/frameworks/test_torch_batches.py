"""Batches of any kind through the engines: moved, converted and recorded."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import distsummary as ds
from distsummary.errors import LandscapeError
from distsummary.landscapes.model.torch_loan import placed
from distsummary.landscapes.model.torch_memory import to_device
from tests.frameworks.landscape_nets import Data, Encoding
from tests.landscape_arguments import grouped


class Pair(NamedTuple):
    x: Any
    y: Any


class Graph:
    """As Data of PyG: an object, whose repr shows shapes alone."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return f"Graph(x={list(self.x.shape)})"


KINDS: list[Callable[..., Any]] = [Data, Pair, Graph, lambda x, y: Encoding(x=x, y=y)]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


def batches(kind: Any = Pair, seed: int = 0) -> list[Any]:
    """Three of different sizes, the first and the last row of each zero."""
    numbers = torch.Generator().manual_seed(seed)
    found = []
    for rows in (40, 30, 40):
        x = torch.randn(rows, 12, generator=numbers)
        x[0] = x[-1] = 0
        found.append(kind(x=x, y=torch.arange(rows) % 3))
    return found


def draw(batches: Any, batch_loss: Any = loss, **more: Any) -> ds.LossGrid:
    torch.manual_seed(0)
    given: dict[str, Any] = {} if "loss_fn" in more else {"batch_loss": batch_loss}
    given |= {"size": 3, "workers": 0, "progress": False, "engine": "row"}
    grid = ds.landscape(nn.Linear(12, 3), **grouped(batches=batches, **(given | more)))
    assert isinstance(grid, ds.LossGrid)
    return grid


@pytest.mark.parametrize("engine", ["row", "graph", "inference"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_every_kind_give_the_same_losses(kind: Any, engine: str) -> None:
    expected, found = draw(batches()), draw(batches(kind), engine=engine)
    assert found.samples == 110
    np.testing.assert_allclose(found.z, expected.z, rtol=1e-5)


@pytest.mark.parametrize("engine", ["row", "graph", "inference"])
@pytest.mark.parametrize("kind", [Data, Pair, KINDS[-1]])
def test_batches_of_known_kinds_are_evaluated_in_float64(kind: Any, engine: str) -> None:
    precise = ds.Evaluation(precision="float64")
    data = batches(kind)
    found = draw(data, engine=engine, evaluation=precise)
    np.testing.assert_allclose(found.z, draw(batches()).z, rtol=1e-5)
    assert data[0].x.dtype == torch.float32


def test_a_recording_is_not_shared_by_arrays_that_look_alike() -> None:
    def of_arrays(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(torch.as_tensor(batch[0])), torch.as_tensor(batch[1]))

    numbers = np.random.default_rng(0)
    data = [(np.zeros((200, 12), np.float32), np.arange(200) % 3) for _ in range(3)]
    for x, _ in data:
        x[50:150] = numbers.normal(size=(100, 12))  # printed, they are the same
    assert repr(data[0]) == repr(data[1])
    found = draw(data, of_arrays, engine="graph")
    np.testing.assert_allclose(found.z, draw(data, of_arrays).z, rtol=1e-5)
    with pytest.raises(LandscapeError, match="streamed batches hold a ndarray"):
        draw(data, of_arrays, engine="graph", evaluation=ds.Evaluation(streamed=True))


def test_a_recording_is_not_shared_by_a_tensor_that_is_there_twice_and_two_tensors() -> None:
    def of_names(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch["x"]), batch["y"].softmax(1)[:, :3])

    one, other = torch.randn(2, 30, 12)
    data = [{"x": one, "y": one}, {"x": other, "y": one}, {"x": one, "y": other}]
    found = draw(data, of_names, engine="graph")
    np.testing.assert_allclose(found.z, draw(data, of_names).z, rtol=1e-5)


def test_what_moves_itself_is_moved_as_a_copy_and_packed_sequences_as_torch_does() -> None:
    batch = Encoding(x=torch.ones(2), y=torch.zeros(2, dtype=torch.long))
    moved = to_device(batch, "meta", torch.float64)
    assert isinstance(moved, Encoding)
    assert (moved.x.device.type, moved.x.dtype, moved.y.dtype) == ("meta", torch.float64, torch.long)
    assert (batch.x.device.type, batch.x.dtype) == ("cpu", torch.float32)
    packed = to_device([pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])], "meta")[0]
    assert isinstance(packed, PackedSequence)
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("meta", "cpu")


WEIGHT = torch.tensor([1.0, 2.0, 30.0])


class Penalised(nn.Module):
    """A criterion that looks at the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.inner = model, nn.CrossEntropyLoss(weight=WEIGHT)

    def forward(self, outputs: Tensor, targets: Tensor) -> Any:
        return self.inner(outputs, targets) + sum(p.square().sum() for p in self.model.parameters())


CRITERIA = [
    nn.CrossEntropyLoss(weight=WEIGHT),
    partial(cross_entropy, weight=WEIGHT),
    partial(nn.CrossEntropyLoss(weight=WEIGHT)),
]


@pytest.mark.parametrize("engine", ["row", "graph", "inference"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_weighted_criterion_is_evaluated_in_float64_and_stays_as_it_is(criterion: Any, engine: str) -> None:
    precise = ds.Evaluation(precision="float64", metrics={"again": criterion})
    found = draw(batches(), loss_fn=criterion, engine=engine, evaluation=precise)
    np.testing.assert_allclose(found.z, draw(batches(), loss_fn=criterion).z, rtol=1e-5)
    np.testing.assert_array_equal(found.quantities["again"], found.z)
    assert WEIGHT.dtype == torch.float32


@pytest.mark.parametrize("engine", ["row", "inference"])
def test_a_criterion_that_holds_the_model_follows_it(engine: str) -> None:
    def drawn(engine: str, **evaluation: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(12, 3)
        given: dict[str, Any] = {"size": 3, "workers": 0, "progress": False, "engine": engine}
        given["evaluation"] = ds.Evaluation(**evaluation)
        return ds.landscape(model, Penalised(model), batches(), **grouped(**given))

    np.testing.assert_allclose(drawn(engine, precision="float64").z, drawn("row").z, rtol=1e-5)


def test_a_criterion_that_is_where_it_must_be_is_no_copy() -> None:
    model, criterion = nn.Linear(12, 3), nn.CrossEntropyLoss(weight=WEIGHT)
    assert placed(criterion, model, torch.device("cpu")) is criterion
    assert placed(loss, model, torch.device("cpu"), torch.float64) is loss
    there = placed(criterion, model, "meta")
    assert (there.weight.device.type, criterion.weight.device.type) == ("meta", "cpu")
