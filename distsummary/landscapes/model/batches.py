"""Takes batches of any structure apart: their parts and leaves, and copies with changed leaves."""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

OPAQUE = type | FunctionType | MethodType | ModuleType  # objects that hold code, not data
HIDDEN = ("__dict__", "__weakref__")  # names in __slots__ that hold no data of the user


def parts(batch: Any) -> dict[Any, Any] | None:
    """The items of a list, tuple, mapping or dataclass by index, key or name; None for anything else."""
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if hasattr(type(batch), "__dataclass_fields__"):
        names = type(batch).__dataclass_fields__
        return {name: getattr(batch, name) for name in names if hasattr(batch, name)}
    return None


def leaves(batch: Any) -> list[Any]:
    """The values in a batch that have no parts, in order."""
    held = parts(batch)
    return [batch] if held is None else [leaf for part in held.values() for leaf in leaves(part)]


def structure(batch: Any) -> Any:
    """The container structure of a batch without its leaves, in a form that can be compared."""
    held = parts(batch)
    return held and (type(batch), tuple((name, structure(part)) for name, part in held.items()))


def mapped(
    batch: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = lambda part: False
) -> Any:
    """The batch with `change(leaf)` instead of each leaf; unchanged containers are not copied.

    A part for which `is_leaf(part)` is true counts as a leaf. Containers keep their class, except that
    mappings other than dict and UserDict become dicts.
    """
    held = None if is_leaf(batch) else parts(batch)
    if held is None:
        return change(batch)
    found = {name: mapped(part, change, is_leaf) for name, part in held.items()}
    if all(found[name] is held[name] for name in held):
        return batch
    if isinstance(batch, tuple | list):
        is_named = hasattr(batch, "_fields")
        return type(batch)(*found.values()) if is_named else type(batch)(found.values())
    is_mapping = isinstance(batch, Mapping)
    if is_mapping and not isinstance(batch, dict | UserDict):
        # A copy of such a mapping might share the memory of the original, so the result is a dict.
        return found
    # A copy is changed part by part, because the constructor may need other arguments, or convert them.
    other: Any = copy.copy(batch)
    for name, part in found.items():
        if is_mapping:
            other[name] = part
        else:
            # Setting it in this way works for frozen dataclasses too.
            object.__setattr__(other, name, part)
    return other


def inside(batch: Any) -> Iterator[Any]:
    """Every value in a batch, in order: the batch itself, its parts, and the attributes of objects in it.

    A value with parts comes only once, because objects may refer to each other.
    """
    # The values met so far, by id. Keeping them here keeps them alive, so that no id is reused.
    met: dict[int, Any] = {}
    todo = [batch]
    while todo:
        value = todo.pop()
        held = parts(value)
        if held is None:
            # An array counts as a whole; any other object may hold arrays in its attributes.
            held = {} if shape_of(value) is not None else attributes(value)
        if held and id(value) in met:
            continue
        met[id(value)] = value
        yield value
        # The last entry is taken first, so reversing keeps the order of the batch.
        todo += reversed(held.values())


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array; None for other objects, even if they have an attribute called shape."""
    if isinstance(value, OPAQUE) or not hasattr(type(value), "shape"):
        return None
    shape = value.shape
    return shape if isinstance(shape, tuple) else None


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, from __dict__ and __slots__."""
    if isinstance(value, OPAQUE):
        return {}
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    found = {name: getattr(value, name) for name in names if name not in HIDDEN and hasattr(value, name)}
    return found | getattr(value, "__dict__", {})
