"""Hashes everything that a landscape's losses depend on (its identity), to find its journal again.

Values are hashed as pickle stores them, arrays by their content, functions and classes by their source text.
A model counts by its repr, its values, and the source text of what its modules compute. What cannot be
pickled or has no source text of its own is in doubt: it gets another hash each time, so that the landscape
begins again, and a warning says so.
"""

import hashlib
import inspect
import pickle
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from operator import length_hint
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.errors import LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import own_state
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.model.repeatable_loader import steady

PLAIN = str | bytes | int | float
COMPUTES = ("forward", "construct", "__call__")  # the methods by which modules of the frameworks compute
FOREIGN = {"distsummary", "numpy", "torch", *sys.stdlib_module_names}  # their functions count by their names
SHOWN = 80  # characters of a repr in a message
DIGEST = 16  # bytes of a hash
PICKLE = 4  # the pickle protocol
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LAMBDA = re.compile(r"\blambda\b")
_log = guarded_log(__name__)


def landscape_identity(task: Task, refine: float | None = None) -> dict[str, str]:
    """The hash of each part of a task, by name, and of `refine`, which decides which points are evaluated.

    Streamed data counts by its first batch and its length. Call this before anything is evaluated: evaluation
    may change values, for example if a model counts its calls.
    """
    model, batches = task.model, task.batches
    modules = dict(model.named_modules()) if hasattr(model, "named_modules") else {"": model}
    parts: dict[str, Callable[[], object]] = {
        "model": lambda: _architecture(task, modules),
        "loss_fn": lambda: task.loss_fn,
        "data": lambda: _first_batches(batches) if task.evaluation.streamed else batches,
        "evaluation": lambda: task.evaluation,
        "mode": lambda: task.mode,
        "checkpoints": lambda: [plane.states for plane in task.planes],
        "directions": lambda: [(plane.names, plane.recipe) for plane in task.planes],
        "refine": lambda: refine,
        "points": lambda: [(plane.x, plane.y, plane.points) for plane in task.planes],
    }
    # A loss function or a metric may hold the model.
    known = {id(module): f"module {name}" for name, module in modules.items()}
    found = {}
    for name, part in parts.items():
        try:
            found[name] = digest(part(), known)
        except Exception as error:
            # Any error is possible, since pickle calls code of the objects.
            _log.warning(
                "this landscape begins again if it is stopped, since its %s cannot be identified: %s",
                name, error,
            )  # fmt: skip
            found[name] = secrets.token_hex(DIGEST)
    return found


def _architecture(task: Task, modules: Mapping[str, Any]) -> object:
    """What a model is without the values that all checkpoints have, which replace its own."""
    model, framework = task.model, framework_of(task.model)
    text = repr(model)
    if _ADDRESS.search(text):
        raise LandscapeError(f"its repr has an address, {text[:SHOWN]}; give its class a __repr__")
    kinds = dict.fromkeys(map(type, modules.values()))
    methods = [getattr(kind, name, None) for kind in kinds for name in COMPUTES]
    # A tensor with a grad_fn is a result of an earlier call.
    held = {
        (module, name): value
        for module, holder in modules.items()
        for name, value in getattr(holder, "__dict__", {}).items()
        if name != "training"
        if isinstance(value, PLAIN) or (framework.is_tensor(value) and not getattr(value, "grad_fn", None))
    }
    own, states = own_state(model), [state for plane in task.planes for state in plane.states]
    stored = {id(tensor) for _, tensor in framework.tensors(model)}
    buffers = model.buffers() if hasattr(model, "buffers") else ()
    return (
        text,
        [method for method in methods if isinstance(method, FunctionType)],
        held,
        {name: (array.dtype.str, array.shape) for name, array in own.items()},
        {name: own[name] for name in own if not all(name in state for state in states)},
        [buffer for buffer in buffers if id(buffer) not in stored],
    )


def _first_batches(batches: Any) -> Any:
    """The first batch and the number of batches (0: unknown); for several data sets, a dict of such pairs."""
    if isinstance(batches, Mapping):
        return {name: _first_batches(source) for name, source in batches.items()}
    return next(iter(steady(batches)), None), length_hint(batches)


def digest(value: object, known: Mapping[int, str] | None = None) -> str:
    """The blake2b hash of a value and of everything that it holds; of `known` objects, by id, only the name.

    Raises LandscapeError for a function or class without source text of its own, and whatever pickle raises.
    """
    found = _Hash(known or {})
    found.dump(value)
    return found.hexdigest()


class _Hash(pickle.Pickler):
    """Hashes what it would pickle, and what `persistent_id` gives in place of some values."""

    def __init__(self, known: Mapping[int, str]) -> None:
        self._known = known
        self._digest = hashlib.blake2b(digest_size=DIGEST)
        self.hexdigest = self._digest.hexdigest
        super().__init__(self, PICKLE)

    def write(self, data: Any) -> None:
        """Hash what the Pickler writes to its file."""
        self._digest.update(data)

    def persistent_id(self, value: Any) -> Any:
        """What is hashed in place of a value; None: what pickle stores, the parts of which come here too."""
        if isinstance(value, PLAIN):
            return None
        if id(value) in self._known:
            return "known", self._known[id(value)]
        framework = framework_of(value)
        if framework.is_tensor(value):
            array = value if isinstance(value, np.ndarray) else framework.to_numpy(value)
            # NumPy has only some of torch's dtypes, so the array may have another than the value.
            kinds = str(value.dtype), array.dtype.str, array.shape
            if array.dtype.hasobject:
                return *kinds, array.tolist()
            content = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
            return *kinds, hashlib.blake2b(content, digest_size=DIGEST).digest()
        if isinstance(value, set | frozenset):
            # A set has no order.
            return type(value).__name__, sorted(digest(item, self._known) for item in value)
        # Of a method, pickle stores the object and the name.
        if not (callable(value) and hasattr(value, "__qualname__")) or isinstance(value, MethodType):
            return None
        is_foreign = str(getattr(value, "__module__", "")).split(".")[0] in FOREIGN
        # Of a class, the text of its bases counts, too.
        return None if is_foreign else (value.__qualname__, _source(value), getattr(value, "__bases__", ()))


def _source(value: Any) -> str:
    """The source text of a function or class; raises LandscapeError unless it says all about it."""
    name = value.__qualname__
    held = {*getattr(getattr(value, "__code__", None), "co_freevars", ())} - {"__class__"}
    if held:
        raise LandscapeError(
            f"{name} holds {', '.join(sorted(held))} of the function around it; define it at the top level"
        )
    try:
        # Several texts may be of this name, and Python 3.13 may give that of another one.
        if (file := inspect.getfile(value)) in ("<string>", "<stdin>"):
            raise OSError(f"it was made of a {file}")
        text = inspect.getsource(value)
    except (OSError, TypeError) as error:
        raise LandscapeError(f"{name} has no source text ({error}); define it in a file") from error
    if name.endswith("<lambda>") and len(_LAMBDA.findall(text)) > 1:
        raise LandscapeError(f"a lambda shares its line with another, {text.strip()!r}; give it its own line")
    return text
