"""Hashes everything that a landscape's losses depend on (its identity), to find its journal again.

Values are hashed as pickle stores them, arrays by their content, code as compiled (not as source text: a file
may have been edited since it was imported, and two lambdas may share a line). Hashes are the same in another
process, since addresses, file names and the order of sets are excluded. A change without effect, such as a
new docstring, may change the hashes too; then the landscape is evaluated again.
"""

import hashlib
import logging
import pickle
import re
import secrets
import sys
from argparse import Namespace
from collections.abc import Mapping
from enum import Enum
from functools import cache, cached_property, partial, partialmethod
from operator import length_hint
from types import CodeType, EllipsisType, FunctionType, MethodType, NoneType, SimpleNamespace
from typing import Any

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.parameters import own_state
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.model.repeatable_loader import steady

AS_STORED = (str, bytes, int, float, complex, bool, NoneType, tuple)  # equal ones may be one object or two
PLAIN = str | bytes | int | float | complex | EllipsisType | slice | range | np.dtype | np.generic | Enum
TORCH_PLAIN = ("dtype", "device", "layout", "memory_format")
WRAPPERS = (property, staticmethod, classmethod, partial, partialmethod, cached_property, type(cache(len)))
WRAPPED = ("__wrapped__", "fget", "func", "args", "keywords")  # what they hold
FOREIGN = {"numpy", "torch", *sys.stdlib_module_names}  # of their functions and classes only names count
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
    # Loss functions and metrics may hold the model's modules.
    if framework.name == "torch":
        modules = {id(part): f"module {name}" for name, part in model.named_modules()}
    own = {name: (array.dtype.str, array.shape) for name, array in own_state(model).items()}
    asked = {name: getattr(evaluation, name) for name in evaluation.__slots__ if name != "metrics"}
    of_model, of_loss, of_evaluation = _Hash(tensors), _Hash(tensors | modules), _Hash(tensors | modules)
    of_model.dump((of_model.attributes(model), own))
    of_loss.dump(task.loss_fn)
    of_evaluation.dump((asked, dict(evaluation.metrics)))
    return {
        "model": of_model.hexdigest(),
        "loss_fn": of_loss.hexdigest(),
        "data": digest(_first_batches(task.batches) if evaluation.streamed else task.batches),
        "evaluation": of_evaluation.hexdigest(),
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
    found = _Hash(is_data=True)
    found.dump(value)
    if found.unreadable:
        _log.warning(
            "batches hold %s, which cannot be hashed, so this landscape cannot be resumed if it is stopped; "
            "give tensors, arrays, or objects that can be pickled",
            ", ".join(sorted(found.unreadable)),
        )
    return found.hexdigest()


def held_modules(model: Any, *functions: object) -> list[Any]:
    """The torch modules, except the model's own, that functions hold or refer to as globals."""
    own = {id(part): "model" for part in model.modules()}
    found = _Hash(own)
    found.dump(functions)
    held = [value for _, value in found.met.values()]
    named = [item for value in held if isinstance(value, FunctionType) for item in _globals(value)]
    modules = [value for value in (*held, *named) if hasattr(type(value), "named_modules")]
    return [module for module in modules if id(module) not in own]


def _globals(function: FunctionType) -> list[Any]:
    """The globals that a function and its inner functions may use; a name may be that of an attribute."""
    codes, held = [function.__code__], function.__globals__
    # This loop also visits the codes that it appends.
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return [held[name] for code in codes for name in code.co_names if name in held]


class _Hash(pickle.Pickler):
    """Hashes what it would pickle, and what `persistent_id` gives in place of some values.

    Args:
        known: id -> name of some objects; of such an object only the name is hashed.
        is_data: True hashes objects as pickle would store them; an object that cannot be pickled gets a new
            hash each time. False (for models and functions) hashes callable objects, dataclasses and
            namespaces by their attributes, and objects of other kinds only by their class.
    """

    def __init__(self, known: Mapping[int, str] | None = None, *, is_data: bool = False) -> None:
        self._known, self._is_data = known or {}, is_data
        self.met: dict[int, tuple[int, object]] = {}  # id -> (number, object); a kept object keeps its id
        self.unreadable: set[str] = set()
        self._digest = hashlib.blake2b(digest_size=DIGEST)
        self.hexdigest = self._digest.hexdigest
        super().__init__(self, PICKLE)
        # Without a memo, equal tuples count the same, be they one object or two.
        self.fast = True

    def write(self, data: Any) -> None:
        """Hash what the Pickler writes to its file."""
        self._digest.update(data)

    def persistent_id(self, value: Any) -> Any:
        """What is hashed in place of a value; None: what pickle stores, the parts of which come here too."""
        kind = type(value)
        if kind in AS_STORED:
            return None
        if id(value) in self._known:
            return "known", self._known[id(value)]
        if isinstance(value, np.ndarray) or framework_of(value).is_tensor(value):
            return self._array(value)
        if isinstance(value, set | frozenset):
            # A set has no order.
            return kind.__name__, sorted(map(digest, value))
        # This may be a recursive function, or a module that holds its parent.
        if id(value) in self.met:
            return "met", self.met[id(value)][0]
        self.met[id(value)] = len(self.met), value
        if kind in (list, dict):
            return None
        if not self._is_data:
            return self._code(value)
        # Code is hashed as code, even within data.
        if isinstance(value, FunctionType | type):
            code = _Hash(self._known)
            code.dump(value)
            return code.hexdigest()
        # Only the fields count, not cached attributes.
        if (fields := getattr(kind, "__dataclass_fields__", None)) is not None:
            return kind, {name: getattr(value, name) for name in fields if hasattr(value, name)}
        try:
            stored = value.__reduce_ex__(PICKLE)
        except Exception:
            # Any error is possible; the value cannot be pickled.
            return self._unreadable(value)
        return stored if isinstance(stored, str) else None

    def _code(self, value: Any) -> Any:
        """What is hashed of a model, a function, or an object that they hold."""
        kind = type(value)
        if isinstance(value, PLAIN) or (kind.__module__ == "torch" and kind.__name__ in TORCH_PLAIN):
            return kind.__name__, repr(value)
        if isinstance(value, CodeType):
            return value.co_code, value.co_exceptiontable, value.co_names, value.co_consts
        if isinstance(value, FunctionType):
            cells = [_content(cell) for cell in value.__closure__ or ()]
            held = value.__code__, value.__defaults__, value.__kwdefaults__, cells
            return name_of(value), () if _is_foreign(value) else held
        if isinstance(value, MethodType):
            owner = value.__self__
            return value.__func__, owner if id(owner) in self._known else self.attributes(owner)
        if isinstance(value, type):
            return name_of(value), _definitions(value)
        if isinstance(value, WRAPPERS):
            return kind.__name__, [getattr(value, name, None) for name in WRAPPED]
        if isinstance(value, Mapping | list | tuple):
            return kind, dict(value) if isinstance(value, Mapping) else [*value]
        is_whole = isinstance(value, SimpleNamespace | Namespace) or hasattr(kind, "named_modules")
        is_own = not _is_foreign(kind) and (callable(value) or hasattr(kind, "__dataclass_fields__"))
        return self.attributes(value) if is_whole or is_own else name_of(value)

    def attributes(self, value: Any) -> Any:
        """The class and attributes of an object, except tensors with a grad_fn, which are results.

        The mode of a torch module is left out, and of its hooks only the code is hashed.
        """
        kind = type(value)
        # This wrapper is made by torch.compile.
        if kind.__name__ == "OptimizedModule":
            return self.attributes(value._modules["_orig_mod"])
        fields = getattr(kind, "__dataclass_fields__", ())
        held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in fields}
        kept = {
            name: item
            for name, item in held.items()
            if name != "training" and "_hooks" not in name and getattr(item, "grad_fn", None) is None
        }
        if not hasattr(kind, "named_modules"):
            return kind, kept
        hooks = [hook for each in HOOKS for hook in held.get(each, {}).values()]
        # What hooks hold may change, so only their code counts.
        codes = [getattr(hook, "__code__", name_of(hook)) for hook in hooks]
        return kind, kept, codes, _ADDRESS.sub("", repr(value))

    def _array(self, value: Any) -> Any:
        array = value
        if not isinstance(value, np.ndarray):
            try:
                array = framework_of(value).to_numpy(value)
            except NO_ARRAY:
                return self._unreadable(value)
        # NumPy has only some of torch's dtypes, so the array may have another than the value.
        kinds = str(value.dtype), array.dtype.str, array.shape
        if array.dtype.hasobject:
            return *kinds, array.tolist()
        content = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
        return *kinds, hashlib.blake2b(content, digest_size=DIGEST).digest()

    def _unreadable(self, value: Any) -> Any:
        """Note an unreadable value. In data, hash random bytes, as it may differ the next time."""
        self.unreadable.add(type(value).__name__)
        return type(value).__name__, secrets.token_bytes(DIGEST) if self._is_data else b""


def name_of(value: Any) -> str:
    """The name of a function or class, or of an object's class; never an address."""
    kind = value if callable(value) and hasattr(value, "__name__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind.__name__)}"


def _content(cell: Any) -> Any:
    """What a cell of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        # The cell holds nothing yet.
        return None


def _definitions(kind: type) -> list[Any]:
    """The definitions of a class and its bases, except __init__: instances' attributes show its effects."""
    return [
        (name_of(base), name, item)
        for base in kind.__mro__
        if not _is_foreign(base)
        for name, item in vars(base).items()
        if name != "__init__" and (isinstance(item, (FunctionType, *WRAPPERS)) or not name.startswith("__"))
    ]


def _is_foreign(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in FOREIGN
