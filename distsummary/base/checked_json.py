"""Reads JSON of files: it is bounded and has its declared type; all else is damage."""

import json
import math
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from distsummary.errors import DamagedFileError

_Kind = TypeVar("_Kind")
MOST_BYTES = 32 << 20  # of a file; as objects of Python it takes up to twenty times as much
MOST_DEPTH = 64  # of lists and dicts in each other: the code behind may call itself for each


def read_json(path: Path, kind: Any = Any, *, remedy: str = "") -> Any:
    """What a file holds, of the type `kind`; see `parse_json`.

    Raises DamagedFileError, with the path and the `remedy`, and as `open` if the file cannot be read.
    """
    with open(path, "rb") as file:
        # One byte more than is allowed shows that the file is too large, without reading all of it.
        data = file.read(MOST_BYTES + 1)
    return parse_json(data, kind, name=str(path), remedy=remedy)


def parse_json(
    data: bytes | str,
    kind: Any = Any,  # Any: a type form, such as a TypedDict or dict[str, int]
    *,
    name: str,
    most_bytes: int = MOST_BYTES,
    is_finite: bool = True,
    remedy: str = "",
) -> Any:
    """What JSON text holds, of the type `kind`: dicts keep the keys that a TypedDict does not name.

    Raises DamagedFileError for anything else. If `is_finite`, NaN and infinite numbers are damage, too.
    `name`: what holds the text, as in "its header".
    """
    if len(data) > most_bytes:
        raise damaged(name, f"has more than {most_bytes} bytes", remedy)
    try:
        if is_finite:
            found = json.loads(data, parse_constant=_not_finite, parse_float=_finite)
        else:
            found = json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise damaged(name, f"is not JSON ({error})", remedy) from error
    # Level by level, because a function that calls itself could exceed Python's limit of recursion here.
    level = [found]
    for _ in range(MOST_DEPTH):
        if not level:
            break
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, (dict, list))]
    if level:
        raise damaged(name, f"is nested deeper than {MOST_DEPTH} levels", remedy)
    return check_kind(found, kind, name=name, remedy=remedy)


def check_kind(value: Any, kind: Any, *, name: str, remedy: str = "") -> Any:
    """The value itself, if it has the type `kind`; raises DamagedFileError otherwise."""
    try:
        # Only checked: the converted value would be without the keys that a TypedDict does not name.
        msgspec.convert(value, prepared(kind))
    except (msgspec.ValidationError, ValueError, RecursionError, MemoryError) as error:
        raise damaged(name, f"is not what it should be ({error})", remedy) from error
    return value


def prepared(kind: _Kind) -> _Kind:
    """The type itself, which msgspec may now check in any thread.

    Before 0.23, msgspec ends a process in which two threads use a type for the first time at once.
    """
    if kind not in _prepared:
        with _lock:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)
    return kind


_prepared: set[Any] = set()
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def damaged(name: str, reason: str, remedy: str = "") -> DamagedFileError:
    """The error that says what is wrong, and the remedy."""
    return DamagedFileError(f"{name} {reason[:500]}{'; ' * bool(remedy)}{remedy}")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
