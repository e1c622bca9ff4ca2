"""What models and functions do, as plain values that are the same in the next process.

Nothing of where things lie may be in it: no address, file or line number, and no order that hashing makes.
Not told are globals that functions read, code that is not Python's or is torch's and NumPy's own, and what an
object is like that is neither plain nor called.
"""

import dis
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from itertools import pairwise
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import framework_of

PLAIN = str | bytes | int | float | complex | None | slice | range | np.dtype | Enum
KINDS = ("dtype", "device", "layout", "memory_format")  # of torch, which are plain too
FOREIGN = ("builtins", "numpy", "torch")  # their code is not looked at
STATE = ("training", "_parameters", "_buffers", "_modules")  # of a torch module; told apart, if at all
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Meaning:
    """Describes values, one after another: nested tuples of texts and arrays.

    Args:
        known: names of objects by their id, which are told by these alone: the model's tensors, for their
            values are those of the checkpoints.
    """

    def __init__(self, known: Mapping[int, str] | None = None) -> None:
        self._known = known or {}
        self._met: dict[int, tuple[int, object]] = {}  # the objects too, so that no id is taken again

    def of(self, value: Any, *, whole: bool = False) -> Any:
        """A description; `whole`: with all that an object holds, though it may not be called."""
        if id(value) in self._known:
            return "of the model", self._known[id(value)]
        if is_plain(value):
            return repr(value)
        if framework_of(value).is_tensor(value):
            return self._tensor(value)
        if isinstance(value, tuple):  # equal ones may or may not be one object
            return "tuple", tuple(map(self.of, value))
        if isinstance(value, set | frozenset):
            return "set", tuple(sorted(repr(item) for item in value if is_plain(item)))
        if isinstance(value, MethodType):
            return "method", self.of(value.__func__), self.of(value.__self__, whole=True)
        if id(value) in self._met:  # recursive functions, a module that knows its parent
            return "met", str(self._met[id(value)][0])
        self._met[id(value)] = len(self._met), value
        return self._object(value, whole)

    @property
    def modules(self) -> list[Any]:
        """The torch modules that were met, or that functions which were met name as globals."""
        met = [value for _, value in self._met.values()]
        read = [item for value in met if isinstance(value, FunctionType) for item in _globals(value)]
        found = [value for value in (*met, *read) if hasattr(type(value), "named_modules")]
        return [module for module in found if id(module) not in self._known]

    def _tensor(self, value: Any) -> Any:
        """Its values; of what is no array (nested, on no device) the kind alone."""
        try:
            dtype = framework_of(value).array_spec(value).dtype
        except (InvalidTypeError, InvalidValueError):
            return name_of(value), str(value.dtype)
        return self.of(value.tolist()) if dtype.hasobject else value

    def _object(self, value: Any, whole: bool) -> Any:
        kind = type(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, list):
            return "list", tuple(map(self.of, value))
        if isinstance(value, dict):
            return "dict", tuple((self.of(name), self.of(item)) for name, item in value.items())
        if isinstance(value, partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        if (inner := _inside(value)) is not None:
            return kind.__name__, self.of(inner)
        if hasattr(kind, "named_modules"):
            return self._module(value)
        whole |= callable(value) or hasattr(kind, "__dataclass_fields__")
        if isinstance(value, SimpleNamespace | Namespace) or (whole and not _is_foreign(kind)):
            return self.of(kind), self._attributes(value)
        return name_of(value)

    def _function(self, function: FunctionType) -> Any:
        if _is_foreign(function):
            return name_of(function)
        defaults = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        return name_of(function), self._code(function.__code__), defaults, cells

    def _cell(self, cell: Any) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # nothing in it yet
            return "empty"

    def _code(self, code: CodeType) -> Any:
        line = _line_constant(code)
        constants = tuple(
            self._code(constant) if isinstance(constant, CodeType) else self.of(constant)
            for number, constant in enumerate(code.co_consts)
            if number != line
        )
        return code.co_code, code.co_exceptiontable, constants, code.co_names

    def _class(self, kind: type) -> Any:
        """Its name and what is defined in it and its bases; what __init__ does shows in the attributes."""
        defined = [
            (name_of(base), name, self.of(item))
            for base in kind.__mro__
            if not _is_foreign(base)
            for name, item in vars(base).items()
            if name != "__init__" and (_inside(item) or isinstance(item, FunctionType) or _is_own(name, item))
        ]
        return name_of(kind), tuple(defined)

    def _module(self, module: Any) -> Any:
        """A torch module: what it shows, and of it and all below class, attributes, hooks and tensors."""
        if type(module).__name__ == "OptimizedModule":  # torch.compile's
            module = module._modules["_orig_mod"]
        parts = [
            (name, self.of(type(part)), self._attributes(part), self._hooks(part), self._tensors(part))
            for name, part in module.named_modules()
        ]
        return _ADDRESS.sub("", repr(module)), tuple(parts)

    def _hooks(self, part: Any) -> Any:
        """Their code alone: what they keep changes with every call."""
        hooks = [hook for name in HOOKS for hook in vars(part).get(name, {}).values()]
        return tuple(
            self._code(hook.__code__) if isinstance(hook, FunctionType) else name_of(hook) for hook in hooks
        )

    def _tensors(self, part: Any) -> Any:
        """Those of a module itself."""
        held: Iterable[tuple[str, Any]] = {**part._parameters, **part._buffers}.items()
        return tuple(
            (name, str(t.dtype), str(tuple(t.shape)), self.of(t)) for name, t in held if t is not None
        )

    def _attributes(self, value: Any) -> Any:
        """What an object holds, without what it computes from its tensors whenever it is called."""
        fields = getattr(type(value), "__dataclass_fields__", ())
        held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in fields}
        return tuple(
            (name, self.of(item))
            for name, item in held.items()
            if name not in STATE and "_hooks" not in name and getattr(item, "grad_fn", None) is None
        )


def _line_constant(code: CodeType) -> int | None:
    """Which constant says nothing but where a class stands: since Python 3.13 the body of a class has one."""
    if "__firstlineno__" not in code.co_names:
        return None
    steps = list(dis.get_instructions(code))
    used = [step.arg for step in steps if step.opcode in dis.hasconst]
    stored = [before.arg for before, step in pairwise(steps) if _stores_line(step)]
    return next((number for number in stored if used.count(number) == 1), None)


def _stores_line(step: dis.Instruction) -> bool:
    return step.opname == "STORE_NAME" and step.argval == "__firstlineno__"


def _globals(function: FunctionType) -> list[Any]:
    """What a function and those inside it name; attributes that are called as a global is, too."""
    codes, held = [function.__code__], function.__globals__
    for code in codes:  # which grows
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return [held[name] for code in codes for name in code.co_names if name in held]


def name_of(value: Any) -> str:
    """The name of a function or class, of another object that of its class: no address."""
    kind = value if callable(value) and hasattr(value, "__name__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind.__name__)}"


def is_plain(value: object) -> bool:
    """Whether its repr tells all of it."""
    kind = type(value)
    is_torchs = kind.__module__ == "torch" and kind.__name__ in KINDS
    return isinstance(value, PLAIN) or is_torchs or value is ...


def _is_own(name: str, value: object) -> bool:
    """Whether something in a class is a plain value of its author's."""
    return is_plain(value) and not name.startswith("__")


def _inside(value: Any) -> Any:
    """The function that a property, a staticmethod or functools.cache is made of; None for others."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return getattr(value, "__wrapped__", None) if type(value).__module__ == "functools" else None


def _is_foreign(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in FOREIGN
