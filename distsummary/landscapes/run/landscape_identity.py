"""Hashes everything that a landscape's losses depend on (its identity), to find its journal again.

Code is hashed as compiled (bytecode, constants, names), not as source text: a file may have been edited since
it was imported, and two lambdas may share a line. Hashes are the same in another process, since addresses,
file names and the order of sets are excluded. A change without effect, such as a new docstring, may change
the hashes too; then the landscape is evaluated again.
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
FOREIGN = ("builtins", "numpy", "torch")  # packages: of their functions and classes only the names are hashed
MODULE_STATE = ("training", "_parameters", "_buffers", "_modules")  # hashed separately, or not at all
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
NO_ARRAY = (InvalidTypeError, InvalidValueError, RuntimeError, TypeError)  # if NumPy cannot hold a tensor
DIGEST = 16  # bytes of a hash
PICKLE = 4  # the pickle protocol
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_log = logging.getLogger(__name__)


def landscape_identity(task: Task, refine: float | None = None) -> dict[str, str]:
    """The hash of each part of a task, by name, and of `refine`, which decides which points are evaluated.

    The model and functions are hashed by their code and the values that they hold, data by the content of
    its batches (objects as pickle would store them), streamed data by its first batch and its length. Call
    this before anything is evaluated: evaluation may change values, for example if a model counts its calls.
    """
    model, evaluation = task.model, task.evaluation
    states = [state for plane in task.planes for state in plane.states]
    framework = framework_of(model)
    # Tensors that every checkpoint has are hashed by name only: the checkpoints replace their values.
    tensors = {id(t): name for name, t in framework.tensors(model) if all(name in state for state in states)}
    modules = {id(model): "model"}
    if framework.name == "torch":  # loss functions and metrics may hold the model's modules
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
    """The first batch and the number of batches (0: unknown); for several data sets, a dict of such pairs."""
    if isinstance(batches, Mapping):
        return {name: _first_batches(source) for name, source in batches.items()}
    return next(iter(steady(batches)), None), length_hint(batches)


def digest(value: object) -> str:
    """The blake2b hash of a value and of everything that it holds."""
    walk = _Walk(is_data=True)
    walk.take(value)
    if walk.unreadable:
        _log.warning(
            "batches hold %s, which cannot be hashed, so this landscape cannot be resumed if it is stopped; "
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
    """The torch modules, except the model's own, that functions hold or refer to as globals."""
    walk = _Walk({id(part): "model" for part in model.modules()}, hashes=False)
    walk.take(functions)
    held = [value for _, value in walk.met.values()]
    named = [item for value in held if isinstance(value, FunctionType) for item in _globals(value)]
    found = [value for value in (*held, *named) if hasattr(type(value), "named_modules")]
    return [module for module in found if id(module) not in walk.known]


def _globals(function: FunctionType) -> list[Any]:
    """The globals that a function and its inner functions may use; a name may be that of an attribute."""
    codes, held = [function.__code__], function.__globals__
    for code in codes:  # this loop also visits the codes that it appends
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return [held[name] for code in codes for name in code.co_names if name in held]


class _Walk:
    """Hashes values, their types and all that they hold; different values give the hash different bytes.

    Args:
        known: id -> name of some objects; of such an object only the name is hashed.
        is_data: True hashes objects as pickle would store them; an object that cannot be pickled gets a new
            hash each time. False (for models and functions) hashes callable objects, dataclasses and
            namespaces by their attributes, containers and partials as pickle would store them, and other
            objects only by their class.
        hashes: False skips arrays: the walk only collects the objects that it meets, in `met`.
    """

    def __init__(
        self, known: Mapping[int, str] | None = None, *, is_data: bool = False, hashes: bool = True
    ) -> None:
        self.known, self._is_data, self._hashes = known or {}, is_data, hashes
        self.met: dict[int, tuple[int, object]] = {}  # id -> (number, object); a kept object keeps its id
        self.unreadable: set[str] = set()
        self._digest = hashlib.blake2b(digest_size=DIGEST)
        self.hexdigest = self._digest.hexdigest

    def take(self, value: Any, *, whole: bool = False) -> None:
        """Hash a value and its content; `whole` includes the attributes of objects that are not callable."""
        if id(value) in self.known:
            self._text(f"known {self.known[id(value)]}")
            return
        self._text(type(value).__name__ + "(")
        if is_plain(value):
            self._text(repr(value))
        elif type(value) is tuple:  # not in `met`: equal tuples may be one object or two
            self._all(value)
        elif isinstance(value, np.ndarray) or framework_of(value).is_tensor(value):
            self._array(value)
        elif isinstance(value, set | frozenset):
            self._all(sorted(map(digest, value)))  # a set has no order
        elif isinstance(value, MethodType):
            self.take(value.__func__)
            self.take(value.__self__, whole=True)
        elif id(value) in self.met:  # a recursive function, a module that holds its parent
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
            self._text(str(value.dtype))  # NumPy has only some of torch's dtypes
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
            is_data, self._is_data = self._is_data, False  # code is hashed as code, even within data
            if isinstance(value, type):
                self._class(value)
            else:
                self._function(value)
            self._is_data = is_data
        elif (inner := _wrapped(value)) is not None:
            self.take(inner)
        elif self._is_data and fields is not None:  # without cached attributes
            self.take({name: getattr(value, name) for name in fields if hasattr(value, name)})
        elif self._is_data or isinstance(value, partial | Mapping | list | tuple):
            try:
                kept = value.__reduce_ex__(PICKLE)  # class, attributes, slots and items
            except Exception:  # of any type: the value cannot be pickled
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
            except ValueError:  # the cell has no content yet
                self._text("empty")

    def _code(self, code: CodeType) -> None:
        """Hash a code object. Since Python 3.13 that of a class body holds its line number as a constant."""
        self._all((code.co_code, code.co_exceptiontable, code.co_names))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self.take(constant)

    def _class(self, kind: type) -> None:
        """Hash a class's name and definitions, except __init__: instances' attributes show its effects."""
        self._text(name_of(kind))
        for base in kind.__mro__:
            for name, item in () if _is_foreign(base) else vars(base).items():
                is_code = isinstance(item, FunctionType) or _wrapped(item) is not None
                if name != "__init__" and (is_code or not name.startswith("__")):
                    self._text(f"{name_of(base)}.{name}")
                    self.take(item)

    def _module(self, module: Any) -> None:
        """Hash a torch module: its repr, and the class, attributes, hooks and tensors of all its modules."""
        if type(module).__name__ == "OptimizedModule":  # made by torch.compile
            module = module._modules["_orig_mod"]
        self._text(_ADDRESS.sub("", repr(module)))
        for name, part in module.named_modules():
            self._text(name)
            self.take(type(part))
            self._attributes(part)
            for hook in (hook for kind in HOOKS for hook in vars(part).get(kind, {}).values()):
                if isinstance(hook, FunctionType):  # only the code: values that it holds may change
                    self._code(hook.__code__)
                else:
                    self._text(name_of(hook))
            for held, tensor in {**part._parameters, **part._buffers}.items():
                if tensor is not None:
                    self._text(f"{held} {tensor.dtype} {tuple(tensor.shape)}")
                    self.take(tensor)

    def _attributes(self, value: Any) -> None:
        """Hash an object's attributes, except MODULE_STATE, hooks, and computed tensors (with a grad_fn)."""
        fields = getattr(type(value), "__dataclass_fields__", ())
        held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in fields}
        for name, item in held.items():
            if name not in MODULE_STATE and "_hooks" not in name and getattr(item, "grad_fn", None) is None:
                self._text(name)
                self.take(item)

    def _unreadable(self, value: Any) -> None:
        """Note an unreadable value. In data, hash random bytes, as it may differ the next time."""
        self.unreadable.add(type(value).__name__)
        if self._is_data:
            self._digest.update(secrets.token_bytes(DIGEST))


def name_of(value: Any) -> str:
    """The name of a function or class, or of an object's class; never an address."""
    kind = value if callable(value) and hasattr(value, "__name__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind.__name__)}"


def is_plain(value: object) -> bool:
    """Whether the repr of a value describes it completely."""
    kind = type(value)
    is_torchs = kind.__module__ == "torch" and kind.__name__ in TORCH_PLAIN
    return isinstance(value, PLAIN) or is_torchs or value is ...


def _wrapped(value: Any) -> Any:
    """What a property, staticmethod, classmethod, cache or partialmethod wraps; None for any other value."""
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
