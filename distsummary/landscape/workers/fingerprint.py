"""What the losses of a landscape depend on, as hashes: by these a journal knows its landscape again."""

import hashlib
from collections.abc import Iterable, Mapping
from operator import length_hint
from typing import Any

import numpy as np

from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions.parameters import own_state
from distsummary.landscape.engines.steady import steady
from distsummary.landscape.engines.worker import Task
from distsummary.landscape.workers.meaning import Meaning, name_of

DIGEST = 16  # bytes


def fingerprint(task: Task, refine: float | None = None) -> dict[str, str]:
    """Name -> hash of each part of a task, and of the tolerance that says which points it evaluates.

    Of the model and of functions their code and what they hold, see `meaning`. Of streamed data the first
    batch and the length alone. To be called before anything is evaluated: a model may count its calls.
    """
    model, evaluation = task.model, task.evaluation
    state = {name: (array.dtype.str, array.shape) for name, array in own_state(model).items()}
    asked = {name: getattr(evaluation, name) for name in evaluation.__slots__ if name != "metrics"}
    tensors = _tensors(task)
    parts = tensors | _modules(model)
    return {
        "model": digest((Meaning(tensors).of(model, whole=True), state)),
        "loss_fn": digest(Meaning(parts).of(task.loss_fn)),
        "data": digest(_first(task.batches) if evaluation.streamed else task.batches),
        "evaluation": digest((asked, Meaning(parts).of(dict(evaluation.metrics)))),
        "mode": digest(task.mode),
        "checkpoints": digest([plane.states for plane in task.planes]),
        "directions": digest([(plane.names, plane.recipe) for plane in task.planes]),
        "refine": digest(refine),
        "points": digest([(plane.x, plane.y, plane.points) for plane in task.planes]),
    }


def _tensors(task: Task) -> dict[int, str]:
    """The names of the model's tensors by their id, but for those whose values no checkpoint has."""
    states = [state for plane in task.planes for state in plane.states]
    tensors = framework_of(task.model).tensors(task.model)
    return {id(tensor): name for name, tensor in tensors if all(name in state for state in states)}


def _modules(model: Any) -> dict[int, str]:
    """The names of a torch model's modules by their id: losses and metrics may hold them."""
    if framework_of(model).name != "torch":
        return {id(model): "model"}
    return {id(part): f"module {name}" for name, part in model.named_modules()}


def _first(batches: Any) -> Any:
    """Of each data set the first batch, and how many there are if it tells."""
    if isinstance(batches, Mapping):
        return {name: _first(source) for name, source in batches.items()}
    return next(iter(steady(batches)), None), length_hint(batches)


def digest(value: object) -> str:
    """The blake2b hash of a value and of all that it holds."""
    found = hashlib.blake2b(digest_size=DIGEST)
    _feed(found, value)
    return found.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Feed a value with its kind, so that no two different ones are the same bytes."""
    digest.update(type(value).__name__.encode() + b"(")
    if isinstance(value, Mapping):
        for name in value:
            _feed(digest, name)
            _feed(digest, value[name])
    elif hasattr(value, "__dataclass_fields__"):
        _feed(digest, {name: getattr(value, name) for name in value.__dataclass_fields__})
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).view(np.uint8).reshape(-1).data)
    elif framework_of(value).is_tensor(value):
        _feed(digest, framework_of(value).to_numpy(value))
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(_name(value).encode())
    digest.update(b")")


def _name(value: Any) -> str:
    """What does not change from one process to the next: no address of an object."""
    return repr(value) if isinstance(value, str | bytes | int | float | None) else name_of(value)
