"""What makes another landscape, what does not, and what is in doubt, so that the landscape begins again."""

import functools
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.model.quantities import Evaluation
from distsummary.landscapes.run.landscape_identity import landscape_identity


class Net:
    def __init__(self, weight: Any = 0.0, more: Any = 0.0, **attributes: Any) -> None:
        self.parameters = {"w": np.full(3, weight), "more": np.full(2, more)}
        vars(self).update(attributes)

    def __repr__(self) -> str:
        return "Net()"

    def __call__(self, x: Any) -> Any:
        return x


class Doubled(Net):
    def __call__(self, x: Any) -> Any:
        return 2 * x


class Unnamed(Net):
    __repr__ = object.__repr__


class Loss:
    def __init__(self, **settings: Any) -> None:
        self.settings, self.me = settings, self

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return outputs

    def bound(self, outputs: Any, targets: Any) -> Any:
        return outputs


class OtherLoss(Loss):
    pass


def mean(outputs: Any, targets: Any, scale: Any = 1.0) -> Any:
    return scale * outputs.mean()


def total(outputs: Any, targets: Any) -> Any:
    return outputs.sum()


def closing(held: Any) -> Callable[..., Any]:
    return lambda outputs, targets: held


def without_source() -> Any:
    space: dict[str, Any] = {"__name__": "somewhere"}
    exec("def loss(outputs, targets): return 1", space)
    return space["loss"]


def planes(**changes: Any) -> dict[str, Any]:
    """One, whose only checkpoint has the parameter w, but not `more`."""
    axis = np.linspace(-1, 1, 3)
    given = {"recipe": RandomDirections(names=("w",), seed=7), "states": [{"w": np.ones(3)}], "x": axis}
    return {"planes": [PlanePlan(names=("w",), y=axis, points=axis, **(given | changes))]}


def identity(refine: float | None = None, **changes: Any) -> dict[str, str]:
    given = {"model": Net(), "loss_fn": mean, "batches": [(np.ones(2), 3)]} | planes()
    return landscape_identity(Task(**(given | changes)), refine)


def loss(function: Any) -> dict[str, Any]:
    return {"loss_fn": function}


def metric(function: Any) -> dict[str, Any]:
    return {"evaluation": Evaluation(metrics={"a": function})}


def batch(*values: Any) -> dict[str, Any]:
    return {"batches": [values]}


mean_lambda = lambda outputs, targets: outputs.mean()  # noqa: E731 (users have such)
pair = (lambda outputs, targets: outputs.mean(), lambda outputs, targets: outputs.sum())

CHANGED: dict[str, tuple[str, Any, Any]] = {
    "function": ("loss_fn", loss(mean), loss(total)),
    "lambda": ("loss_fn", loss(mean), loss(mean_lambda)),
    "argument of a partial": (
        "loss_fn", loss(functools.partial(mean, scale=1.0)), loss(functools.partial(mean, scale=2.0)),
    ),
    "function of a partial": ("loss_fn", loss(functools.partial(mean)), loss(functools.partial(total))),
    "array of a partial": (
        "loss_fn",
        loss(functools.partial(mean, scale=np.ones(2))),
        loss(functools.partial(mean, scale=np.zeros(2))),
    ),
    "number of an object": ("loss_fn", loss(Loss(k=1)), loss(Loss(k=2))),
    "kind of number": ("loss_fn", loss(Loss(k=1)), loss(Loss(k=1.0))),
    "function of an object": ("loss_fn", loss(Loss(k=mean)), loss(Loss(k=total))),
    "class": ("loss_fn", loss(Loss()), loss(OtherLoss())),
    "object of a method": ("loss_fn", loss(Loss(k=1).bound), loss(Loss(k=2).bound)),
    "function of NumPy": ("loss_fn", loss(np.dot), loss(np.vdot)),
    "metric": ("evaluation", metric(mean), metric(total)),
    "number of a model": ("model", {"model": Net(scale=1)}, {"model": Net(scale=2)}),
    "array of a model": ("model", {"model": Net(mask=np.ones(2))}, {"model": Net(mask=np.zeros(2))}),
    "method of a model": ("model", {"model": Net()}, {"model": Doubled()}),
    "value that no checkpoint has": ("model", {"model": Net(more=1.0)}, {"model": Net(more=2.0)}),
    "dtype of a value": ("model", {"model": Net(weight=1.0)}, {"model": Net(weight=np.float32(1))}),
    "array": ("data", batch(np.zeros(3)), batch(np.array([0, 0, 1.0]))),
    "shape": ("data", batch(np.zeros((2, 3))), batch(np.zeros((3, 2)))),
    "dtype": ("data", batch(np.zeros(2)), batch(np.zeros(2, np.int64))),
    "objects of an array": (
        "data", batch(np.array(["a", None], object)), batch(np.array(["b", None], object)),
    ),
    "text": ("data", batch("a", "bc"), batch("ab", "c")),
    "attribute of a batch": ("data", batch(Loss(x=Path("a"))), batch(Loss(x=Path("b")))),
    "order": ("data", batch({"x": 1, "y": 2}), batch({"x": 2, "y": 1})),
    "mode": ("mode", {}, {"mode": "mindspore"}),
    "points": ("points", planes(), planes(x=np.linspace(-2, 2, 3))),
    "directions": ("directions", planes(), planes(recipe=RandomDirections(names=("w",), seed=8))),
    "checkpoints": ("checkpoints", planes(), planes(states=[{"w": np.zeros(3)}])),
    "refine": ("refine", {}, {"refine": 0.01}),
}  # fmt: skip
SAME: dict[str, tuple[Any, Any]] = {
    "equal objects": (loss(Loss(k=[1, (2, 3)])), loss(Loss(k=[1, (2, 3)]))),
    "equal arrays": (batch(np.arange(3)), batch(np.arange(3))),
    "order of a set": (batch({0, 8}), batch({8, 0})),  # both want the same place, which the first one gets
    "values that all checkpoints have": ({"model": Net(weight=1.0)}, {"model": Net(weight=2.0)}),
    "the model in a loss": (
        {"model": (one := Net()), **loss(functools.partial(mean, scale=one))},
        {"model": (other := Net(weight=2.0)), **loss(functools.partial(mean, scale=other))},
    ),
}
DOUBTFUL: dict[str, tuple[Any, str]] = {
    "closure": (loss(closing(1)), r"its loss_fn .* closing\.<locals>\.<lambda> holds held of"),
    "closure of an object": (loss(Loss(k=closing(1))), "its loss_fn .* holds held of the function around it"),
    "lambdas in a line": (loss(pair[0]), "its loss_fn .* a lambda shares its line with another"),
    "no source": (loss(without_source()), "its loss_fn .* loss has no source text .*; define it in a file"),
    "metric": (metric(closing(1)), "its evaluation cannot be identified"),
    "repr with an address": ({"model": Unnamed()}, "its model .* has an address, .* a __repr__"),
    "lock": (batch(threading.Lock()), "its data cannot be identified: cannot pickle '_thread.lock' object"),
    "generator": (batch(number for number in range(3)), "its data .* cannot pickle 'generator' object"),
}


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [part for part in one if one[part] != other[part]]


@pytest.mark.parametrize("kind", CHANGED)
def test_another_landscape_differs_in_what_changed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    part, one, other = CHANGED[kind]
    assert identity(**one) == identity(**one)
    assert differing(identity(**one), identity(**other)) == [part]
    assert not caplog.messages


@pytest.mark.parametrize("kind", SAME)
def test_the_same_landscape_is_found_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    one, other = SAME[kind]
    assert identity(**one) == identity(**other)
    assert not caplog.messages


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_in_doubt_a_landscape_begins_again_and_says_why(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    changes, said = DOUBTFUL[kind]
    with caplog.at_level(logging.WARNING, "distsummary"):
        found = differing(identity(**changes), identity(**changes))
    assert len(found) == 1
    [message, again] = caplog.messages
    assert message == again
    assert re.search(f"begins again if it is stopped, since {said}", message)
