"""The identity of a landscape: hashes of everything that its losses depend on, to recognise its journal.

Code is hashed as compiled (bytecode, constants, names), not as source text: a file may have been edited since
it was imported, and two lambdas may share a line. Hashes are the same in another process, since addresses,
file names and the order of sets are excluded. A difference without effect, such as a docstring, only causes
the landscape to be evaluated again.
"""

import hashlib
import logging
import re
import secrets
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial, partialmethod
from operator import length_hint
from types import CodeType, FunctionType, MappingProxyType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import own_state
from distsummary.landscapes.engines.worker import Task
from distsummary.landscapes.model.repeatable_loader import steady

PLAIN = str | bytes | int | float | complex | None | slice | range | np.dtype | Enum
TORCH_PLAIN = ("dtype", "device", "layout", "memory_format")
FOREIGN = ("builtins", "numpy", "torch")  # packages whose code is hashed only by its name
MODULE_STATE = ("training", "_parameters", "_buffers", "_modules")  # hashed separately, or not at all
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
NO_ARRAY = (InvalidTypeError, InvalidValueError, RuntimeError, TypeError)  # nested, quantized, without values
DIGEST = 16  # bytes
PICKLE = 4  # the protocol
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_log = logging.getLogger(__name__)


def landscape_identity(task: Task, refine: float | None = None) -> dict[str, str]:
    """Name -> hash of each part of a task, and of the tolerance that decides which points it evaluates.

    The model and functions count by their code and the values that they hold; data counts by the content of
    its batches (objects as pickle would store them), streamed data by its first batch and its length. Call
    this before anything is evaluated: a model may count its calls.
    """
    model, evaluation = task.model, task.evaluation
    states = [state for plane in task.planes for state in plane.states]
    framework = framework_of(model)
    # Tensors that every checkpoint has count by their names: their values are those of the checkpoints.
    tensors = {id(t): name for name, t in framework.tensors(model) if all(name in state for state in states)}
    modules = {id(model): "model"}
    if framework.name == "torch":  # losses and metrics may hold them
        modules = {id(part): f"module {name}" for name, part in model.named_modules()}
    own = {name: (array.dtype.str, array.shape) for name, array in own_state(model).items()}
    asked = {name: getattr(evaluation, name) for name in evaluation.__slots__ if name != "metrics"}
    known = tensors | modules
    return {
        "model": _code_digest(tensors, model, own),
        "loss_fn": _code_digest(known, task.loss_fn),
        "data": digest(_first_batches(task.batches) if evaluation.streamed else task.batches),
        "evaluation": _code_digest(known, asked, dict(evaluation.metrics)),
        "mode": digest(task.mode),
        "checkpoints": digest([plane.states for plane in task.planes]),
        "directions": digest([(plane.names, plane.recipe) for plane in task.planes]),
        "refine": digest(refine),
        "points": digest([(plane.x, plane.y, plane.points) for plane in task.planes]),
    }


def _first_batches(batches: Any) -> Any:
    """The first batch of each data set, and how many batches there are if it has a length."""
    if isinstance(batches, Mapping):
        return {name: _first_batches(source) for name, source in batches.items()}
    return next(iter(steady(batches)), None), length_hint(batches)


def digest(value: object) -> str:
    """The blake2b hash of a value and of everything that it holds."""
    walk = _Walk(is_data=True)
    walk.take(value)
    if walk.unreadable:
        _log.warning(
            "batches hold %s, which cannot be read: a landscape that is stopped does not go on; "
            "give tensors, arrays, or objects that can be pickled",
            ", ".join(sorted(walk.unreadable)),
        )
    return walk.hexdigest()


def _code_digest(known: Mapping[int, str], *values: object) -> str:
    walk = _Walk(known)
    for value in values:
        walk.take(value, whole=True)
    return walk.hexdigest()


def held_modules(model: Any, *functions: object) -> list[Any]:
    """The torch modules that functions hold, or refer to as globals, except those of the model."""
    walk = _Walk({id(part): "model" for part in model.modules()}, hashes=False)
    walk.take(functions)
    held = [value for _, value in walk.met.values()]
    named = [item for value in held if isinstance(value, FunctionType) for item in _globals(value)]
    found = [value for value in (*held, *named) if hasattr(type(value), "named_modules")]
    return [module for module in found if id(module) not in walk.known]


def _globals(function: FunctionType) -> list[Any]:
    """The globals that a function and its inner functions name; also globals named like an attribute."""
    codes, held = [function.__code__], function.__globals__
    for code in codes:  # which grows
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return [held[name] for code in codes for name in code.co_names if name in held]


class _Walk:
    """Hashes values with their kinds, so that no two different values are the same bytes.

    Args:
        known: id -> name of objects that are hashed only by this name.
        is_data: objects are hashed as pickle would store them; one that cannot be pickled gets a new hash
            each time. With False (models and functions) callable objects and dataclasses are hashed by their
            attributes, other objects only by their class.
        hashes: False only collects the objects that are met, without hashing arrays.
    """

    def __init__(
        self, known: Mapping[int, str] | None = None, *, is_data: bool = False, hashes: bool = True
    ) -> None:
        self.known, self._is_data, self._hashes = known or {}, is_data, hashes
        self.met: dict[int, tuple[int, object]] = {}  # with the objects, so that no id is used again
        self.unreadable: set[str] = set()
        self._digest = hashlib.blake2b(digest_size=DIGEST)
        self.hexdigest = self._digest.hexdigest

    def take(self, value: Any, *, whole: bool = False) -> None:
        """Hash a value and its content; `whole`: with the attributes of any object."""
        if id(value) in self.known:
            self._text(f"known {self.known[id(value)]}")
            return
        self._text(type(value).__name__ + "(")
        if is_plain(value):
            self._text(repr(value))
        elif type(value) is tuple:  # equal ones may or may not be one object
            self._all(value)
        elif isinstance(value, np.ndarray) or framework_of(value).is_tensor(value):
            self._array(value)
        elif isinstance(value, set | frozenset):
            self._all(sorted(map(digest, value)))  # a set has no order
        elif isinstance(value, MethodType):
            self.take(value.__func__)
            self.take(value.__self__, whole=True)
        elif id(value) in self.met:  # recursive functions, a module that knows its parent
            self._text(f"met {self.met[id(value)][0]}")
        else:
            self.met[id(value)] = len(self.met), value
            self._object(value, whole)
        self._text(")")

    def _text(self, text: str) -> None:
        self._digest.update(text.encode())

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.take(value)

    def _array(self, value: Any) -> None:
        if not self._hashes:
            return
        array = value
        if not isinstance(value, np.ndarray):
            self._text(str(value.dtype))  # not all of torch's are NumPy's
            try:
                array = framework_of(value).to_numpy(value)
            except NO_ARRAY:
                self._unreadable(value)
                return
        self._text(f"{array.dtype.str}{array.shape}")
        if array.dtype.hasobject:
            self.take(array.tolist())
        else:
            self._digest.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def _object(self, value: Any, whole: bool) -> None:
        kind = type(value)
        fields = getattr(kind, "__dataclass_fields__", None)
        if kind is list:
            self._all(value)
        elif kind in (dict, MappingProxyType):
            self._all(part for item in value.items() for part in item)
        elif isinstance(value, FunctionType | type):
            is_data, self._is_data = self._is_data, False  # code counts as code, in data too
            if isinstance(value, type):
                self._class(value)
            else:
                self._function(value)
            self._is_data = is_data
        elif (inner := _wrapped(value)) is not None:
            self.take(inner)
        elif self._is_data and fields is not None:  # without caches beside them
            self.take({name: getattr(value, name) for name in fields if hasattr(value, name)})
        elif self._is_data or isinstance(value, partial | Mapping | list | tuple):
            try:
                kept = value.__reduce_ex__(PICKLE)  # class, attributes, slots and items
            except Exception:  # of any kind: it cannot be pickled
                self._unreadable(value)
                return
            for part in [kept] if isinstance(kept, str) else kept:
                self.take(list(part) if isinstance(part, Iterator) else part)  # items come as an iterator
        elif hasattr(kind, "named_modules"):
            self._module(value)
        elif isinstance(value, SimpleNamespace | Namespace) or (
            (whole or callable(value) or fields is not None) and not _is_foreign(kind)
        ):
            self.take(kind)
            self._attributes(value)
        else:
            self._text(name_of(value))

    def _function(self, function: FunctionType) -> None:
        self._text(name_of(function))
        if _is_foreign(function):
            return
        self._code(function.__code__)
        self._all((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.take(cell.cell_contents)
            except ValueError:  # nothing in it yet
                self._text("empty")

    def _code(self, code: CodeType) -> None:
        """Hash code; on Python 3.13 a class in a function counts with its line number, a constant."""
        self._all((code.co_code, code.co_exceptiontable, code.co_names))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self.take(constant)

    def _class(self, kind: type) -> None:
        """Hash a class: its name and what its author defined; attributes show the effects of __init__."""
        self._text(name_of(kind))
        for base in kind.__mro__:
            for name, item in () if _is_foreign(base) else vars(base).items():
                is_code = isinstance(item, FunctionType) or _wrapped(item) is not None
                if name != "__init__" and (is_code or not name.startswith("__")):
                    self._text(f"{name_of(base)}.{name}")
                    self.take(item)

    def _module(self, module: Any) -> None:
        """Hash a torch module: its repr, and the class, attributes, hooks and tensors of all its modules."""
        if type(module).__name__ == "OptimizedModule":  # torch.compile's
            module = module._modules["_orig_mod"]
        self._text(_ADDRESS.sub("", repr(module)))
        for name, part in module.named_modules():
            self._text(name)
            self.take(type(part))
            self._attributes(part)
            for hook in (hook for kind in HOOKS for hook in vars(part).get(kind, {}).values()):
                if isinstance(hook, FunctionType):  # the code alone: what it keeps changes with every call
                    self._code(hook.__code__)
                else:
                    self._text(name_of(hook))
            for held, tensor in {**part._parameters, **part._buffers}.items():
                if tensor is not None:
                    self._text(f"{held} {tensor.dtype} {tuple(tensor.shape)}")
                    self.take(tensor)

    def _attributes(self, value: Any) -> None:
        """Hash the content of an object, without what it computes from its tensors at each call."""
        fields = getattr(type(value), "__dataclass_fields__", ())
        held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in fields}
        for name, item in held.items():
            if name not in MODULE_STATE and "_hooks" not in name and getattr(item, "grad_fn", None) is None:
                self._text(name)
                self.take(item)

    def _unreadable(self, value: Any) -> None:
        """Hash a unique value: unreadable data may differ the next time, so it never counts as the same."""
        self.unreadable.add(type(value).__name__)
        if self._is_data:
            self._digest.update(secrets.token_bytes(DIGEST))


def name_of(value: Any) -> str:
    """The name of a function or class, or of an object's class; never an address."""
    kind = value if callable(value) and hasattr(value, "__name__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind.__name__)}"


def is_plain(value: object) -> bool:
    """Whether the repr of a value says all of it."""
    kind = type(value)
    is_torchs = kind.__module__ == "torch" and kind.__name__ in TORCH_PLAIN
    return isinstance(value, PLAIN) or is_torchs or value is ...


def _wrapped(value: Any) -> Any:
    """What a property, staticmethod, classmethod, cache or partialmethod is made of; None for others."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, partialmethod):
        return value.func, value.args, value.keywords
    if type(value).__module__ == "functools" and not isinstance(value, partial):
        return getattr(value, "__wrapped__", None) or getattr(value, "func", None)
    return None


def _is_foreign(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in FOREIGN
