"""Checks of arguments; each error names the field, the value and the allowed range."""

import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, TypeVar, overload

from distsummary.errors import InvalidArgumentError, InvalidTypeError, InvalidValueError

_NAMED = 10  # tags named in a message
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash: Path turns s3://bucket/run into s3:/bucket/run
P = ParamSpec("P")
R = TypeVar("R")


def check_type(
    field: str, value: object, expected: type | tuple[type, ...], *, optional: bool = False
) -> None:
    """Raise InvalidTypeError unless `value` is an instance of `expected` (a bool is not an int)."""
    kinds = expected if isinstance(expected, tuple) else (expected,)
    if optional and value is None:
        return
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(k.__name__ for k in kinds) + (" or None" if optional else "")
        raise InvalidTypeError(f"{field} must be {names}, got {value!r} of type {type(value).__name__}")


def is_url(path: str) -> bool:
    """Whether a text is the URL of a directory, such as s3://bucket/run."""
    return _URL.match(path) is not None


def anchored(path: str | os.PathLike[str]) -> str:
    """A path that is used later: absolute, since the script may change its working directory until then.

    `~` is expanded; a URL stays as it is.
    """
    text = os.fspath(path)
    return text if is_url(text) else os.path.abspath(os.path.expanduser(text))


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: an argument that there is not raises InvalidTypeError, which says what there is instead.

    So does the missing first one, the directory of the run.
    """
    names = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> R:
        for name in named.keys() - names:
            from distsummary.base.names_elsewhere import ARGUMENTS, GUIDE

            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"its arguments are {', '.join(names)}"
            if name in ARGUMENTS:
                hint = f"{ARGUMENTS[name]} ({GUIDE})"
            raise InvalidTypeError(f"{function.__name__} has no argument {name!r}; {hint}")
        if not args and names[0] not in named:
            raise InvalidTypeError(
                f"{function.__name__} needs {names[0]}, the directory of the run; write "
                f'{function.__name__}("runs/a"), or "runs/{{time}}" for one that is named by its start'
            )
        return function(*args, **named)

    return call


def check_text(field: str, value: str) -> None:
    """Raise InvalidValueError unless `value` can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{field} must be Unicode text, got {value[:40]!r} with a surrogate; decode it properly"
        ) from error


@overload
def check_int(
    field: str,
    value: object,
    *,
    low: int | None = None,
    high: int | None = None,
    optional: Literal[False] = False,
) -> int: ...
@overload
def check_int(
    field: str, value: object, *, low: int | None = None, high: int | None = None, optional: bool
) -> int | None: ...
def check_int(
    field: str, value: object, *, low: int | None = None, high: int | None = None, optional: bool = False
) -> int | None:
    """An integer of any kind, such as NumPy's or a tensor of one element, as an int in [low, high].

    Raises InvalidTypeError or InvalidValueError. A bool is none, nor are 5.0 and "5".
    """
    if optional and value is None:
        return None
    try:
        number = None if _is_bool(value) else operator.index(value)  # type: ignore[arg-type]  # it finds out
    except (TypeError, RuntimeError):
        number = None
    if number is None:
        expected = "int or None" if optional else "int"
        kind = type(value).__name__
        remedy = "" if _is_bool(value) else "; write int(...) if it is a whole number"
        raise InvalidTypeError(f"{field} must be {expected}, got {value!r} of type {kind}{remedy}")
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f">= {low}" if high is None else f"in [{low}, {high}]" if low is not None else f"<= {high}"
        raise InvalidValueError(f"{field} must be {bounds}, got {number}")
    return number


@overload
def check_number(field: str, value: object, *, optional: Literal[False] = False) -> float: ...
@overload
def check_number(field: str, value: object, *, optional: bool) -> float | None: ...
def check_number(field: str, value: object, *, optional: bool = False) -> float | None:
    """A real number of any kind, such as NumPy's, Decimal or a tensor of one element, as a float.

    Raises InvalidTypeError. A bool and "5" are none.
    """
    if optional and value is None:
        return None
    dtype = getattr(value, "dtype", None)
    is_text = getattr(dtype, "kind", "f") not in "iuf"
    is_real = hasattr(type(value), "__float__") and not is_text and "complex" not in str(dtype)
    # Arrays of several elements have that method, too.
    with suppress(TypeError, ValueError, RuntimeError, OverflowError):
        if is_real and not _is_bool(value):
            item = getattr(value, "item", None)  # NumPy: float() of [0.5] is an error
            return float(item() if callable(item) else value)  # type: ignore[arg-type]
    expected = "int or float or None" if optional else "int or float"
    raise InvalidTypeError(f"{field} must be {expected}, got {value!r} of type {type(value).__name__}")


def is_int(value: object) -> bool:
    """Whether `check_int` takes a value."""
    with suppress(InvalidTypeError):
        check_int("it", value)
        return True
    return False


def _is_bool(value: object) -> bool:
    return isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))


@overload
def check_int_or_both(field: str, value: object, *, low: int, optional: Literal[False] = False) -> int: ...
@overload
def check_int_or_both(field: str, value: object, *, low: int, optional: bool) -> int | None: ...
def check_int_or_both(field: str, value: object, *, low: int, optional: bool = False) -> int | None:
    """As `check_int`, but a wrong type raises InvalidArgumentError, which is also a ValueError.

    For arguments whose wrong type is a ValueError in MindSpore's documentation and a TypeError in its code.
    """
    try:
        return check_int(field, value, low=low, optional=optional)
    except InvalidTypeError as error:
        raise InvalidArgumentError(str(error)) from None


def set_ints(record: object, **options: Any) -> None:  # Any: low, high and optional, by field
    """Check fields of a frozen dataclass as `check_int` does, and set them to the ints."""
    for field, bounds in options.items():
        object.__setattr__(record, field, check_int(field, getattr(record, field), **bounds))


def check_choice(field: str, value: object, choices: Collection[object]) -> None:
    """Raise InvalidValueError unless `value` is one of `choices`."""
    # `in` is not used: it would fail for values that cannot be hashed or compared
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        raise InvalidValueError(f"{field} must be one of {sorted(map(str, choices))}, got {value!r}")


def check_recorded(name: str, known: Collection[str], what: str, *, field: str = "tag") -> None:
    """Raise InvalidValueError, which names the nearest, unless `name` is in `known`, the names of `what`."""
    if name not in known:
        # A lineage has no tag: its empty name is not listed.
        near = get_close_matches(name, known, 3) or sorted(filter(None, known))
        more = f" and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
        names = f"the nearest are {', '.join(near[:_NAMED])}{more}" if near else f"there are no {what}"
        raise InvalidValueError(f"{field} must be one that was recorded, got {name!r}; {names}")


def check_keys(field: str, value: Mapping[Any, Any], known: Collection[str]) -> None:
    """Raise InvalidTypeError or InvalidValueError unless all keys of `value` are strings among `known`."""
    for key in value:
        check_type(f"a key of {field}", key, str)
        if key not in known:
            raise InvalidValueError(f"{field} has the unknown key {key!r}; known keys are {sorted(known)}")


def as_unicode(text: str) -> str:
    """Text that UTF-8 can encode: halves of surrogate pairs, as of paths that are no text, become "?"."""
    return text.encode(errors="replace").decode()
