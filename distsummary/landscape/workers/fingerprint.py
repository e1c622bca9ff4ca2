"""What the losses of a landscape depend on, as hashes: by these a journal knows its landscape again."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions.parameters import own_state
from distsummary.landscape.engines.worker import Task

DIGEST = 16  # bytes


def fingerprint(task: Task, refine: float | None = None) -> dict[str, str]:
    """Name -> hash of each part of a task, and of the tolerance that says which points it evaluates.

    Of the model its class and the names, dtypes and shapes of its values, of functions their names: a changed
    forward() or criterion is not noticed. Of streamed data the first batch alone.
    """
    state = {name: (array.dtype.str, array.shape) for name, array in own_state(task.model).items()}
    evaluation = task.evaluation
    return {
        "model": _hash((type(task.model).__qualname__, state)),
        "loss_fn": _hash(_name(task.loss_fn)),
        "data": _hash(_first(task.batches) if evaluation.streamed else task.batches),
        "evaluation": _hash({name: getattr(evaluation, name) for name in evaluation.__slots__}),
        "mode": _hash(task.mode),
        "checkpoints": _hash([plane.states for plane in task.planes]),
        "directions": _hash([(plane.names, plane.recipe) for plane in task.planes]),
        "refine": _hash(refine),
        "points": _hash([(plane.x, plane.y, plane.points) for plane in task.planes]),
    }


def _first(batches: Any) -> Any:
    if isinstance(batches, Mapping):
        return {name: _first(source) for name, source in batches.items()}
    return next(iter(batches), None)


def _hash(value: object) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST)
    _feed(digest, value)
    return digest.hexdigest()


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
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
