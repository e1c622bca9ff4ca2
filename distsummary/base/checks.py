"""Checks of arguments; each error names the field, the value and the allowed range."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from distsummary.errors import InvalidArgumentError, InvalidTypeError, InvalidValueError

_NAMED = 10  # tags named in a message
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


def check_text(field: str, value: str) -> None:
    """Raise InvalidValueError unless `value` can be written as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{field} must be Unicode text, got {value[:40]!r} with a surrogate; decode it properly"
        ) from error


def check_int(
    field: str, value: object, *, low: int | None = None, high: int | None = None, optional: bool = False
) -> None:
    """Raise InvalidTypeError or InvalidValueError unless `value` is an int (not a bool) in [low, high]."""
    check_type(field, value, int, optional=optional)
    if not isinstance(value, int):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f">= {low}" if high is None else f"in [{low}, {high}]" if low is not None else f"<= {high}"
        raise InvalidValueError(f"{field} must be {bounds}, got {value}")


def check_int_or_both(field: str, value: object, *, low: int, optional: bool = False) -> None:
    """As `check_int`, but a wrong type raises InvalidArgumentError, which is also a ValueError.

    For arguments whose wrong type is a ValueError in MindSpore's documentation and a TypeError in its code.
    """
    try:
        check_int(field, value, low=low, optional=optional)
    except InvalidTypeError as error:
        raise InvalidArgumentError(str(error)) from None


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
