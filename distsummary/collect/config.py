"""A user's configuration as plain data: nested for run.json, flat for lineage and TensorBoard's HParams."""

import argparse
import dataclasses
import enum
import inspect
import json
import math
import re
import reprlib
import sys
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.base.redaction import redacted
from distsummary.errors import InvalidTypeError

logger = guarded_log(__name__)

Json: TypeAlias = Any  # dicts, lists, texts, numbers, bools and None
FlatValue: TypeAlias = str | int | float
Names: TypeAlias = tuple[str, ...]

SEPARATOR = "."
MAX_TEXT = 4096  # characters of a text or of a name
MAX_ITEMS = 100  # elements of a list, tensor or array
MAX_ENTRIES = 1000  # of the whole configuration
MAX_DEPTH = 16
# The limit of an integer: Python refuses to write one of more than about 14,000 bits in decimal.
_MAX_BITS = 1024
_NAMED = 10  # names listed in a message
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_METHODS = ("model_dump", "to_container", "to_dict")

_repr = reprlib.Repr()
_repr.maxother = _repr.maxstring = _repr.maxlong = MAX_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A configuration as plain data.

    `nested` holds only what JSON can: dicts, lists, texts, finite numbers, bools and None. `flat` has one
    text or number for each name; the names of nested entries are joined by dots ("optimizer.lr"), lists are
    JSON, and bools and None are the texts "True", "False" and "None".
    """

    nested: dict[str, Json] = field(default_factory=dict)
    flat: dict[str, FlatValue] = field(default_factory=dict)


def read_config(source: object, what: str = "config", *, is_quiet: bool = False) -> Config:
    """The configuration in `source`, with secrets replaced by ***; its entries may be of any kind.

    An entry that JSON cannot hold becomes a text: a path as it is written, a class, function, dtype or device
    as its name, any other object as its repr without addresses. A member of an enum becomes its value if that
    is a text or number, else its name. Tensors and arrays of up to MAX_ITEMS elements become numbers or
    lists. One log line names the entries that became their repr, were shortened or left out (see MAX_TEXT to
    MAX_DEPTH).

    Args:
        source: a mapping, dataclass, argparse.Namespace, named tuple, an object with `model_dump`,
            `to_container` or `to_dict`, an OmegaConf container, or an object, class or module with
            attributes (those that begin with _ are left out). None: an empty configuration.
        what: the name of the argument, for messages.
        is_quiet: do not log.

    Raises:
        InvalidTypeError: `source` has no names to record, such as a number, a text or a list.
    """
    if source is None:
        return Config()
    reader = _Reader(source)
    try:
        entries = _entries(source)
        if entries is None and not _is_plain(source):
            entries = _attributes(source)
    except Exception as error:
        # The methods of `source` are the user's code, which may raise anything.
        raise InvalidTypeError(
            f"{what} of type {type(source).__name__} cannot be read ({type(error).__name__}: {error}); "
            "pass a dict"
        ) from error
    if entries is None:
        raise InvalidTypeError(
            f"{what} must have named values, got {_text_of(source)[:80]} of type {type(source).__name__}; "
            "pass a dict, a dataclass or an argparse.Namespace"
        )
    # Secrets are replaced before the flat names are made, so that both forms are without them.
    nested = redacted(reader.mapping(entries, ()))
    flat = dict(reader.flattened(nested))
    if not is_quiet:
        reader.report(what)
    return Config(nested=nested, flat=flat)


class _Reader:
    """Reads one configuration, and notes which entries are not recorded as they were given."""

    def __init__(self, source: object) -> None:
        self._path = [id(source)]  # the containers around the current value, to find cycles
        self._left = MAX_ENTRIES
        self._as_text: list[str] = []
        self._shortened: list[str] = []
        self._left_out: list[str] = []

    def mapping(self, entries: Mapping[Any, Any], names: Names) -> dict[str, Json]:
        """The entries as JSON, by name; `names`: the path to this mapping."""
        found: dict[str, Json] = {}
        for index, (key, value) in enumerate(entries.items()):
            if self._left <= 0:
                where = SEPARATOR.join(names)
                self._left_out.append(f"{len(entries) - index} entries" + (f" of {where}" if where else ""))
                break
            name = self._bounded(key if isinstance(key, str) else _text_of(key), names)
            self._left -= 1
            found[name] = self._value(value, (*names, name))
        return found

    def _value(self, value: object, names: Names) -> Json:
        """The value as JSON; never raises, whatever the value does."""
        try:
            # A container that holds itself, or lies too deep, is recorded by its repr.
            if not _is_plain(value) and id(value) not in self._path and len(self._path) < MAX_DEPTH:
                self._path.append(id(value))
                try:
                    entries = _entries(value)
                    if entries is not None:
                        return self.mapping(entries, names)
                    value = _elements(value)
                    if isinstance(value, list):
                        return self._list(value, names)
                finally:
                    self._path.pop()
            return self._leaf(value, names)
        except Exception:
            # The user's own code may raise anything, and Python itself raises in deep structures.
            return self._as_repr(value, names)

    def _leaf(self, value: object, names: Names) -> Json:
        if isinstance(value, enum.Enum):
            value = value.value if isinstance(value.value, (str, int, float)) else value.name
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return _qualified(value)
        if isinstance(value, (str, PurePath, np.dtype)) or _is_name_of_torch(value):
            return self._bounded(str(value), names)
        return self._as_repr(value, names)

    def _as_repr(self, value: object, names: Names) -> str:
        self._as_text.append(SEPARATOR.join(names))
        return self._bounded(_text_of(value), names)

    def _list(self, items: list[object], names: Names) -> list[Json]:
        kept = items[: min(MAX_ITEMS, max(0, self._left))]
        self._left -= len(kept)
        found = [self._value(item, (*names, str(i))) for i, item in enumerate(kept)]
        if len(kept) < len(items):
            self._shortened.append(SEPARATOR.join(names))
            found.append(f"... {len(items) - len(kept)} more")
        return found

    def _bounded(self, text: str, names: Names) -> str:
        # UTF-8 cannot encode lone surrogates.
        text = text.encode(errors="backslashreplace").decode()
        if len(text) > MAX_TEXT:
            self._shortened.append(SEPARATOR.join(names))
            text = text[: MAX_TEXT - 3] + "..."
        return text

    def flattened(self, nested: Mapping[str, Json]) -> Iterable[tuple[str, FlatValue]]:
        """The entries by their joined names; of two entries with the same joined name, only the first."""
        seen: set[str] = set()
        for name, value in _leaves(nested, ()):
            if name in seen:
                self._left_out.append(name)
                continue
            seen.add(name)
            if isinstance(value, (list, dict)):
                yield name, self._bounded(json.dumps(value), (name,))
            elif value is None or isinstance(value, bool):
                yield name, str(value)
            else:
                yield name, value

    def report(self, what: str) -> None:
        """Say in one line what is not recorded as it was given."""
        parts = [
            f"{listed(names)} {why}"
            for names, why in (
                (
                    self._as_text,
                    "recorded by repr(), because JSON cannot hold them (give numbers, texts, lists or dicts "
                    "to choose what is recorded)",
                ),
                (self._shortened, f"shortened to {MAX_TEXT} characters or {MAX_ITEMS} elements"),
                (
                    self._left_out,
                    f"left out (beyond {MAX_ENTRIES} entries, or of the same joined name as another)",
                ),
            )
            if names
        ]
        if parts:
            logger.warning("%s: %s", what, "; ".join(parts))


def _leaves(nested: Mapping[str, Json], names: Names) -> Iterable[tuple[str, Json]]:
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*names, name))
        else:
            yield SEPARATOR.join((*names, name)), value


def differing(one: Mapping[str, Json], other: Mapping[str, Json]) -> list[str]:
    """The names of the entries that two nested configurations do not share."""
    flat, other_flat = dict(_leaves(one, ())), dict(_leaves(other, ()))
    missing = object()
    names = dict.fromkeys((*flat, *other_flat))
    return [name for name in names if flat.get(name, missing) != other_flat.get(name, missing)]


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:80] for name in names[:_NAMED]) + more


def _is_plain(value: object) -> bool:
    """Whether a value has no parts: texts and numbers, but also bytes, and code such as functions."""
    plain = (str, bytes, bytearray, int, float, complex, PurePath, enum.Enum)
    return value is None or isinstance(value, plain) or inspect.isroutine(value)


def _entries(value: Any) -> dict[Any, Any] | None:
    """The named values in a container of a kind that is known here, such as a dataclass; else None."""
    if isinstance(value, type):
        return None
    # A container of OmegaConf exists only if the user has imported it, so it is not imported here.
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        try:
            value = omegaconf.OmegaConf.to_container(value, resolve=True)
        except Exception:
            # An interpolation that cannot be resolved is shown as it was written.
            value = omegaconf.OmegaConf.to_container(value, resolve=False)
        return value if isinstance(value, dict) else None
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return vars(value)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        return dict(zip(fields, value, strict=True)) if fields else None
    for name in _METHODS:
        method = getattr(type(value), name, None)
        if callable(method):
            found = getattr(value, name)()
            if isinstance(found, Mapping):
                return dict(found)
    return None


def _elements(value: Any) -> object:
    """A list, tuple or set as a list; of a small tensor or array its numbers; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, np.floating):
        # By way of its text, np.float32(0.1) becomes 0.1 and not 0.10000000149011612.
        return float(str(value))
    if _is_array(value):
        size = math.prod(value.shape)
        if size == 1:
            return value.reshape(-1).tolist()[0]
        if size <= MAX_ITEMS:
            return value.tolist()
    return value


def _is_array(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "tolist") and hasattr(value, "shape")


def _attributes(value: Any) -> dict[str, Any] | None:
    """The public attributes of an object, class or module, those of its base classes first."""
    if not hasattr(value, "__dict__") or _is_array(value):
        return None
    found: dict[str, Any] = {}
    for owner in reversed(value.__mro__ if isinstance(value, type) else (value, *type(value).__mro__)):
        # Classes and modules also hold methods, imports and so on, which are no settings.
        holds_code = isinstance(owner, (type, types.ModuleType))
        for name, item in () if owner is object else vars(owner).items():
            if not name.startswith("_") and not (holds_code and _is_code(item)):
                found[name] = item
    return found


def _is_code(value: object) -> bool:
    kinds = (types.ModuleType, type, property, classmethod, staticmethod)
    return isinstance(value, kinds) or inspect.isroutine(value)


def _is_name_of_torch(value: object) -> bool:
    """Whether a value is one of torch's whose text is its name, such as torch.float32 or cuda:0."""
    # Compare names, so that torch is not imported for this.
    kind = type(value)
    return kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout", "memory_format")


def _qualified(value: Any) -> str:
    name = getattr(value, "__qualname__", value.__name__)
    module = getattr(value, "__module__", None)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def _text_of(value: object) -> str:
    """The repr of an object without its address, which differs between ranks; never raises."""
    try:
        return _ADDRESS.sub("", _repr.repr(value))
    except Exception:
        return f"<{type(value).__name__}>"
