"""What the losses of a landscape depend on, as hashes: by these a journal knows its landscape again."""

import hashlib
import logging
import secrets
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from types import FunctionType
from typing import Any

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import own_state
from distsummary.landscapes.engines.worker import Task
from distsummary.landscapes.model.repeatable_loader import steady
from distsummary.landscapes.run.code_identity import Meaning, is_plain

DIGEST = 16  # bytes
PICKLE = 4  # the protocol
_log = logging.getLogger(__name__)


def fingerprint(task: Task, refine: float | None = None) -> dict[str, str]:
    """Name -> hash of each part of a task, and of the tolerance that says which points it evaluates.

    Of the model and of functions their code and what they hold, see `meaning`. Of data all that its batches
    hold, of objects what pickle would keep; of streamed data the first batch and the length alone. To be
    called before anything is evaluated: a model may count its calls.
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
    feed = _Feed(found)
    feed.feed(value)
    if feed.unknown:
        _log.warning(
            "batches hold %s, which cannot be read: a landscape that is stopped does not go on; "
            "give tensors, arrays, or objects that can be pickled",
            ", ".join(sorted(feed.unknown)),
        )
    return found.hexdigest()


class _Feed:
    """Feeds values with their kinds, so that no two different ones are the same bytes."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._met: dict[int, tuple[int, object]] = {}  # the objects too, so that no id is taken again
        self.unknown: set[str] = set()  # kinds

    def feed(self, value: Any) -> None:
        """Feed one, and all that it holds."""
        self._text(type(value).__name__ + "(")
        if is_plain(value):
            self._text(repr(value))
        elif type(value) is dict or (isinstance(value, Mapping) and not isinstance(value, dict | UserDict)):
            self._all(part for item in value.items() for part in item)
        elif type(value) in (tuple, list):  # others may have attributes, too
            self._all(value)
        elif isinstance(value, set | frozenset):
            self._all(sorted(map(digest, value)))  # in no order of its own
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif framework_of(value).is_tensor(value):
            self._tensor(value)
        else:
            self._object(value)
        self._text(")")

    def _text(self, text: str) -> None:
        self._digest.update(text.encode())

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.feed(value)

    def _array(self, array: Any) -> None:
        self._text(f"{array.dtype.str}{array.shape}")
        if array.dtype.hasobject:
            self.feed(array.tolist())
        else:
            self._digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def _tensor(self, tensor: Any) -> None:
        self._text(str(tensor.dtype))  # not all are NumPy's
        try:
            self.feed(framework_of(tensor).to_numpy(tensor))
        except (
            InvalidTypeError,
            InvalidValueError,
            RuntimeError,
            TypeError,
        ):  # nested, quantized, on meta
            self._unknown(tensor)

    def _object(self, value: Any) -> None:
        if id(value) in self._met:
            self._text(f"met {self._met[id(value)][0]}")
            return
        self._met[id(value)] = len(self._met), value
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:  # without caches beside them
            self.feed({name: getattr(value, name) for name in fields if hasattr(value, name)})
        elif isinstance(value, FunctionType | type):
            self.feed(Meaning().of(value))
        else:
            self._pickled(value)

    def _pickled(self, value: Any) -> None:
        """What pickle would keep of it: its class, attributes, slots, items."""
        try:
            kept = value.__reduce_ex__(PICKLE)
        except Exception:  # of any kind: it cannot be pickled
            self._unknown(value)
            return
        self._all([kept] if isinstance(kept, str) else map(_listed, kept))

    def _unknown(self, value: Any) -> None:
        """Nobody can tell whether it is another the next time, so it always is."""
        self.unknown.add(type(value).__name__)
        self._digest.update(secrets.token_bytes(DIGEST))


def _listed(value: Any) -> Any:
    """The items of an iterator, by which pickle gets those of lists and dicts; others as they are."""
    return list(value) if isinstance(value, Iterator) else value
