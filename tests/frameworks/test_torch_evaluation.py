"""What is computed at a point in addition to the loss, and how the batches are gone through."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary import Evaluation
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.torch_engines import TorchEngine
from distsummary.landscapes.model.quantities import refuse_unfit
from distsummary.landscapes.model.torch_memory import to_device
from tests.frameworks.landscape_nets import (
    CRITERION,
    XS,
    Cnn,
    Mlp,
    Net,
    ResNet8,
    engine_at,
    fingerprint,
    float64_losses,
    make_net,
)
from tests.refusals import refused

ROW, GRAPH = EngineChoice(), EngineChoice(engine="graph")


def of_model(model: Any, batch: Any) -> Any:
    return CRITERION(model(batch[0]), batch[1])


CHUNKED = EngineChoice(engine="graph", chunk=4)
ENGINES = pytest.mark.parametrize("choice", [ROW, GRAPH, CHUNKED], ids=lambda choice: choice.label)


def accuracy(outputs: Any, labels: Any) -> Any:
    return (outputs.argmax(1) == labels).float().mean()


def values_of(engine: Any, y: float = 0.4) -> dict[str, Any]:
    """The quantities of a row by name; the engine is closed."""
    try:
        return dict(zip(engine.quantities, engine.row_values(y, XS).T, strict=True))
    finally:
        engine.close()


def by_hand(net: Any, batches: list[Any], y: float = 0.4) -> list[tuple[Any, Any]]:
    """(losses of all rows, outputs) at every point of the row, float64."""
    found: list[tuple[Any, Any]] = []

    def collect(outputs: Any, labels: Any) -> Any:
        rows = nn.functional.cross_entropy(outputs, labels, reduction="none")
        found.append((rows.numpy(), outputs.numpy()))
        return rows.mean()

    float64_losses(net, batches, collect, points=[(y, x) for x in XS])
    count = len(batches)
    return [
        tuple(np.concatenate(parts) for parts in zip(*found[k : k + count], strict=True))  # type: ignore[misc]
        for k in range(0, len(found), count)
    ]


@ENGINES
def test_all_quantities_come_from_one_pass(choice: EngineChoice) -> None:
    net = make_net(Mlp)
    batches, calls = net.batches(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    engine = engine_at(net, batches, choice, metrics={"accuracy": accuracy}, stderr=True)
    before = len(calls)
    found = values_of(engine)
    if choice == ROW:
        assert len(calls) - before == len(XS) * len(batches)
    labels = np.concatenate([b.numpy() for _, b in batches])
    assert list(found) == ["loss", "accuracy", "stderr"]
    for k, (losses, outputs) in enumerate(by_hand(net, batches)):
        assert found["loss"][k] == pytest.approx(losses.mean(), rel=5e-6)
        assert found["accuracy"][k] == pytest.approx((outputs.argmax(1) == labels).mean(), rel=1e-6)
        assert found["stderr"][k] == pytest.approx(losses.std(ddof=1) / np.sqrt(len(losses)), rel=1e-5)


@ENGINES
def test_several_data_sets_are_evaluated_at_each_point(choice: EngineChoice) -> None:
    net = make_net(Mlp)
    data = {"train": net.batches(), "test": [net.batch(7)]}
    engine = engine_at(net, data, choice, metrics={"accuracy": accuracy})
    assert engine.samples == 29
    found = values_of(engine)
    assert list(found) == ["train/loss", "train/accuracy", "test/loss", "test/accuracy"]
    points = [(0.4, x) for x in XS]
    for name, batches in data.items():
        exact = float64_losses(net, batches, points=points)
        np.testing.assert_allclose(found[f"{name}/loss"], exact, rtol=5e-6)


def test_a_loss_of_model_and_batch_may_give_its_outputs_to_metrics() -> None:
    net = make_net(Mlp)
    batches = net.batches()

    def loss_fn(model: Any, batch: Any) -> Any:
        outputs = model(batch[0])
        return CRITERION(outputs, batch[1]), outputs

    def errors(outputs: Any, batch: Any) -> Any:
        return 1 - accuracy(outputs, batch[1])

    found = values_of(engine_at(net, batches, GRAPH, batch_loss=loss_fn, metrics={"errors": errors}))
    plain = values_of(engine_at(net, batches, ROW, metrics={"accuracy": accuracy}))
    np.testing.assert_allclose(found["loss"], plain["loss"], rtol=5e-6)
    np.testing.assert_allclose(found["errors"], 1 - plain["accuracy"], rtol=1e-6)


def test_without_losses_of_rows_the_error_comes_from_batches() -> None:
    net = make_net(Mlp)
    batches = [net.batch(8) for _ in range(6)]

    def loss_fn(model: Any, batch: Any) -> Any:
        return CRITERION(model(batch[0]), batch[1])

    found = values_of(engine_at(net, batches, ROW, batch_loss=loss_fn, stderr=True))
    for k, (losses, _) in enumerate(by_hand(net, batches)):
        means = losses.reshape(6, 8).mean(axis=1)
        assert found["stderr"][k] == pytest.approx(means.std(ddof=1) / np.sqrt(6), rel=1e-4)


@ENGINES
@pytest.mark.parametrize("first", ["even", "uneven"])
@pytest.mark.parametrize("kind", ["weight", "ignore_index"])
def test_of_a_criterion_that_weighs_its_rows_the_loss_is_its_own_and_the_error_the_batches(
    choice: EngineChoice, kind: str, first: str
) -> None:
    net = make_net(Mlp)
    batches = [net.batch(8) for _ in range(5)]
    if kind == "weight":
        criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))
        even = (batches[0][0], torch.zeros(8, dtype=torch.long))
    else:
        criterion, even = nn.CrossEntropyLoss(), batches[0]
        batches = [(x, torch.where(torch.arange(8) < 3, -100, labels)) for x, labels in batches]
    if first == "even":  # which says nothing about the others
        batches[0] = even
    found = values_of(engine_at(net, batches, choice, loss_fn=criterion, stderr=True))
    plain = values_of(engine_at(net, batches, choice, loss_fn=criterion))
    np.testing.assert_allclose(found["loss"], plain["loss"], rtol=1e-6)
    means = np.stack([values_of(engine_at(net, [batch], loss_fn=criterion))["loss"] for batch in batches])
    np.testing.assert_allclose(found["stderr"], means.std(axis=0, ddof=1) / np.sqrt(5), rtol=1e-4)


@ENGINES
@pytest.mark.parametrize("kind", ["regression", "labels", "pixels"])
def test_criteria_of_several_numbers_a_row_have_an_error_from_rows(choice: EngineChoice, kind: str) -> None:
    torch.manual_seed(3)
    shape, criterion, targets = {
        "regression": ((1,), nn.MSELoss(), torch.randn(24, 1)),
        "labels": ((5,), nn.BCEWithLogitsLoss(), torch.rand(24, 5).round()),
        "pixels": ((3, 2, 2), nn.CrossEntropyLoss(), torch.randint(0, 3, (24, 2, 2))),
    }[kind]
    net = nn.Sequential(nn.Linear(6, int(np.prod(shape))), nn.Unflatten(1, shape))
    inputs = torch.randn(24, 6)
    batches = [(inputs[k : k + 8], targets[k : k + 8]) for k in (0, 8, 16)]
    found = values_of(engine_at(net, batches, choice, loss_fn=criterion, stderr=True))
    alone = [(inputs[k : k + 1], targets[k : k + 1]) for k in range(24)]
    rows = np.stack([values_of(engine_at(net, [row], loss_fn=criterion))["loss"] for row in alone])
    np.testing.assert_allclose(found["loss"], rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found["stderr"], rows.std(axis=0, ddof=1) / np.sqrt(24), rtol=1e-4)


class MeanOnly(nn.CrossEntropyLoss):
    """A criterion that has no losses of rows."""

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.reduction != "mean":
            raise NotImplementedError(f"reduction={self.reduction!r} is not there yet")
        return super().forward(outputs, labels)


@ENGINES
def test_a_criterion_that_raises_when_it_is_asked_for_rows_has_the_error_of_the_batches(choice: EngineChoice):
    net = make_net(Mlp)
    batches = [net.batch(8) for _ in range(4)]
    found, once = (
        values_of(engine_at(net, batches, choice, **loss, stderr=True))
        for loss in ({"loss_fn": MeanOnly()}, {"batch_loss": of_model})
    )
    np.testing.assert_allclose(found["stderr"], once["stderr"], rtol=1e-4)


def test_one_loss_for_each_part_of_a_row_gives_the_error_of_the_batches() -> None:
    net = make_net(Mlp)
    batches = [net.batch(8) for _ in range(4)]

    def twice(outputs: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(outputs, labels, reduction="none").repeat(2)

    found, once = (
        values_of(engine_at(net, batches, **loss, stderr=True))
        for loss in ({"loss_fn": twice}, {"batch_loss": of_model})
    )
    np.testing.assert_allclose(found["loss"], once["loss"], rtol=1e-6)
    np.testing.assert_allclose(found["stderr"], once["stderr"], rtol=1e-4)


@ENGINES
def test_large_losses_have_an_error(choice: EngineChoice) -> None:
    net = make_net(Mlp)
    batches = [net.batch(40) for _ in range(3)]

    def far(outputs: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(outputs, labels, reduction="none") + 3e3

    found = values_of(engine_at(net, batches, choice, loss_fn=far, stderr=True))
    for k, (losses, _) in enumerate(by_hand(net, batches)):
        assert found["stderr"][k] == pytest.approx(losses.std(ddof=1) / np.sqrt(120), rel=1e-2)


class Reader:
    """A loader that counts how often it is read."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.reads = batches, 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return iter(self.batches)


@ENGINES
def test_streamed_data_is_read_once_for_a_block_of_points(choice: EngineChoice) -> None:
    net = make_net(Cnn)
    batches = net.batches()
    resident = values_of(engine_at(net, batches, choice, metrics={"accuracy": accuracy}))
    loader = Reader(batches)
    engine = engine_at(net, loader, choice, metrics={"accuracy": accuracy}, streamed=True)
    assert engine.samples == 29
    before = loader.reads
    streamed = values_of(engine)
    assert loader.reads - before == 1
    for name, values in resident.items():
        np.testing.assert_allclose(streamed[name], values, rtol=5e-6)
    with pytest.raises(InvalidTypeError, match="streamed batches are read repeatedly"):
        engine_at(net, iter(batches), choice, streamed=True)


@ENGINES
def test_data_that_does_not_fit_into_a_gpu_is_brought_there_batch_by_batch(choice, monkeypatch, fill_device):
    net = make_net(Cnn)
    batches = net.batches()
    resident = values_of(engine_at(net, batches, choice))
    moved: list[Any] = []
    engines = sys.modules[TorchEngine.__module__]
    fill_device()
    monkeypatch.setattr(engines, "to_device", lambda batch, *to: moved.append(batch) or to_device(batch, *to))
    engine = engine_at(net, batches, choice)
    begun = len(moved)
    streamed = values_of(engine)
    assert len(moved) - begun == len(batches)
    for name, values in resident.items():
        np.testing.assert_allclose(streamed[name], values, rtol=5e-6)


@pytest.mark.parametrize("choice", [ROW, GRAPH, EngineChoice(engine="graph", chunk=4)], ids=lambda c: c.label)
def test_batch_statistics_are_those_of_each_batch_and_leave_the_running_ones(choice: EngineChoice) -> None:
    net = make_net(ResNet8)
    batches, before = net.batches(), fingerprint(net)
    found = values_of(engine_at(net, batches, choice, bn_mode="batch"))

    def in_training(model: Any, batch: Any) -> Any:
        model.train()
        return CRITERION(model(batch[0]), batch[1])

    expected = values_of(engine_at(net, batches, EngineChoice(engine="naive"), batch_loss=in_training))
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=5e-6)
    assert fingerprint(net) == before
    assert abs(found["loss"] / values_of(engine_at(net, batches, choice))["loss"] - 1).max() > 1e-3


def test_recomputed_statistics_are_those_of_all_batches_at_each_point() -> None:
    net = make_net(ResNet8)
    batches, before = [net.batch(8) for _ in range(3)], fingerprint(net)
    engine = engine_at(net, batches, bn_mode="recompute")
    assert engine.bn_mode == "recompute"
    found = values_of(engine)["loss"]
    assert fingerprint(net) == before

    def two_passes(model: Any, batch: Any) -> Any:
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.reset_running_stats()
            norm.momentum = None
        model.train()
        for inputs, _ in batches:
            model(inputs)
        model.eval()
        return CRITERION(model(batch[0]), batch[1])

    expected = values_of(engine_at(net, batches, EngineChoice(engine="naive"), batch_loss=two_passes))["loss"]
    np.testing.assert_allclose(found, expected, rtol=5e-6)
    assert fingerprint(net) == before
    with pytest.raises(LandscapeError, match="does not recompute"):
        engine_at(net, batches, GRAPH, bn_mode="recompute")


@pytest.mark.parametrize("kind", [Mlp, ResNet8], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_is_used_when_asked_for_and_only_then(precision: str, kind: type[Net]) -> None:
    net = make_net(kind)
    batches = net.batches()
    exact = values_of(engine_at(net, batches))["loss"]
    rough = values_of(engine_at(net, batches, precision=precision))["loss"]
    error = np.abs(rough / exact - 1).max()
    assert 1e-6 < error < 3e-2
    recorded = values_of(engine_at(net, batches, GRAPH, precision=precision))["loss"]
    np.testing.assert_allclose(recorded, rough, rtol=1e-2)


NO_NUMBERS: dict[str, Any] = {
    "nothing": lambda loss: None,
    "text": lambda loss: "high",
    "a tuple": lambda loss: (loss, loss, loss),
    "complex": lambda loss: loss * 1j,
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_losses_and_metrics_that_are_no_numbers_are_refused(kind: str) -> None:
    net, change = make_net(Mlp), NO_NUMBERS[kind]

    def opened(**more: Any) -> Any:
        return lambda: engine_at(net, net.batches(), **more)

    real = "must return real numbers, got"
    refused(
        LandscapeError,
        (opened(loss_fn=lambda o, t: change(CRITERION(o, t)), stderr=True), f"loss_fn {real}"),
        (opened(loss_fn=lambda o, t: change(CRITERION(o, t))), f"loss_fn {real}"),
        (opened(metrics={"worst": lambda o, t: change(o.mean())}), f"metric 'worst' {real}"),
        (opened(metrics={"hits": lambda o, t: o.argmax(1) == t}), r"'hits' must .* got shape \(8,\)"),
    )


def test_losses_that_are_right_or_wrong_are_counted() -> None:
    net = make_net(Mlp)
    batches = net.batches()
    found = values_of(engine_at(net, batches, loss_fn=lambda o, t: o.argmax(1) != t, stderr=True))
    right = values_of(engine_at(net, batches, metrics={"accuracy": accuracy}))["accuracy"]
    np.testing.assert_allclose(found["loss"], 1 - right, atol=1e-6)


def test_what_cannot_be_is_refused_by_name() -> None:
    net = make_net(Mlp)
    batches, before = net.batches(), fingerprint(net)
    empty = (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long))
    refused(
        InvalidValueError,
        (
            lambda: refuse_unfit(Evaluation(bn_mode="eval"), "mindspore", is_torch=True),
            "bn_mode must be 'batch' in mode 'mindspore'",
        ),
        (lambda: engine_at(net, {"train": batches, "test": []}), "at least one batch"),
    )
    refused(LandscapeError, (lambda: engine_at(net, [empty]), "no rows"))
    assert fingerprint(net) == before
