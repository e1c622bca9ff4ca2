"""The naive engine with all its quantities, on the numpy reference net."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, Evaluation
from distsummary.errors import InvalidTypeError, LandscapeError
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.open_engine import open_engine
from distsummary.landscapes.model.user_code import AS_BATCH_LOSS, AS_LOSS_FN, NO_OUTPUTS, BatchLoss
from tests.refusals import refused
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy


def row_losses(logits: Any, labels: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def opened(loss_fn: Any = row_losses, data: Any = None, **evaluation: Any) -> Any:
    model = Mlp(np.float64)
    names = list(model.parameters)
    rng = np.random.default_rng(5)
    x, y = ({n: rng.normal(size=model.parameters[n].shape) for n in names} for _ in range(2))
    asked = Evaluation(**evaluation)
    task = Task(model=model, loss_fn=loss_fn, batches=data or batches(), planes=[], evaluation=asked)
    engine: Any = open_engine(task)
    engine.set_plane({n: a.copy() for n, a in model.parameters.items()}, Directions(x=x, y=y))
    return engine


def accuracy(logits: Any, labels: Any) -> float:
    return float((logits.argmax(axis=1) == labels).mean())


def of_model(net: Any, batch: Any) -> Any:
    return cross_entropy(net(batch[0]), batch[1])


def without_outputs(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("loss", "more", "expected"),
    [
        (of_model, {}, ["hint: " + AS_BATCH_LOSS]),
        (BatchLoss(lambda outputs, targets: outputs - targets), {}, ["hint: " + AS_LOSS_FN]),
        (BatchLoss(without_outputs), {"metrics": {"accuracy": accuracy}}, ["hint: " + NO_OUTPUTS]),
        (lambda outputs, targets: outputs.none, {}, ["hint: " + AS_BATCH_LOSS]),
        (lambda outputs, targets: 1 / 0, {}, []),
        (partial(of_model), {}, []),
        (cross_entropy, {"metrics": {"accuracy": lambda outputs, targets: outputs.none}}, []),
        (BatchLoss(lambda model, batch: model.none), {}, []),
    ],
)
def test_what_looks_like_another_kind_of_loss_function_gets_a_hint(loss: Any, more: Any, expected: list[str]):
    with pytest.raises((TypeError, AttributeError, ZeroDivisionError)) as failed:
        opened(loss, **more).row_values(0.0, np.zeros(1))
    assert [note for note in failed.value.__notes__ if note.startswith("hint: ")] == expected
    assert failed.value.__notes__[-1] == "in batch 1"


def test_a_point_gives_the_loss_metrics_and_its_error() -> None:
    engine = opened(metrics={"accuracy": accuracy}, stderr=True)
    loss, right, error = engine.row_values(0.0, np.array([0.0]))[0]
    net = Mlp(np.float64)
    data, labels = (np.concatenate(parts) for parts in zip(*batches(), strict=True))
    losses = row_losses(net(data), labels)
    assert engine.quantities == ("loss", "accuracy", "stderr")
    assert loss == pytest.approx(losses.mean(), rel=1e-12)
    assert right == pytest.approx(accuracy(net(data), labels), rel=1e-12)
    assert error == pytest.approx(losses.std(ddof=1) / np.sqrt(len(losses)))


def test_data_sets_and_streams_are_those_of_every_engine() -> None:
    read = []

    class Loader:
        def __iter__(self) -> Any:
            read.append(1)
            return iter(batches())

    engine = opened(data={"all": Loader(), "first": batches()[:1]}, streamed=True)
    count = len(read)
    values = engine.row_values(0.3, np.array([0.0, 0.5]))
    assert engine.quantities == ("all/loss", "first/loss")
    expected = opened(data=batches()).row_values(0.3, np.array([0.0, 0.5]))
    np.testing.assert_array_equal(values[:, :1], expected)
    assert len(read) - count == 2  # this engine reads them for each point


def test_means_are_enough_for_the_loss() -> None:
    exact = opened().row_values(0.3, np.array([0.5]))
    np.testing.assert_allclose(opened(cross_entropy).row_values(0.3, np.array([0.5])), exact, rtol=1e-6)
    with pytest.raises(LandscapeError, match=r"got shape \(8, 3\)"):
        opened(lambda logits, _: logits).row_values(0.0, np.array([0.0]))


def test_losses_and_metrics_that_are_no_numbers_are_refused() -> None:
    real = "must return real numbers, got"
    refused(
        LandscapeError,
        (lambda: opened(lambda *_: None), f"loss_fn {real}"),
        (lambda: opened(lambda *_: 1j), f"loss_fn {real}"),
        (lambda: opened(lambda *_: (1.0, 2.0, 3.0)), f"loss_fn {real}"),
        (lambda: opened(metrics={"worst": lambda *_: "high"}), f"metric 'worst' {real}"),
        (
            lambda: opened(metrics={"hits": lambda logits, labels: logits.argmax(axis=1) == labels}),
            r"metric 'hits' must return one number .* got shape \(8,\)",
        ),
    )
    with pytest.raises(InvalidTypeError, match="streamed batches are read repeatedly"):
        opened(data=iter(batches()), streamed=True)
    opened(metrics={"hits": lambda logits, labels: np.array([0.5])}).close()


def test_a_random_loss_is_refused() -> None:
    draws = np.random.default_rng(0)

    def loss_fn(model: Any, batch: Any) -> float:
        return cross_entropy(model(batch[0]), batch[1]) + draws.normal()

    with pytest.raises(LandscapeError, match="different losses for the same parameters"):
        opened(BatchLoss(loss_fn))
