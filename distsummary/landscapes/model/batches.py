"""A batch of any kind: what it holds, and the same with other tensors."""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

OPAQUE = type | FunctionType | MethodType | ModuleType  # which hold code
HIDDEN = ("__dict__", "__weakref__")  # slots that are no attributes


def parts(batch: Any) -> dict[Any, Any] | None:
    """What a list, tuple, mapping or dataclass holds, by place or name; None for all else."""
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if hasattr(type(batch), "__dataclass_fields__"):
        names = type(batch).__dataclass_fields__
        return {name: getattr(batch, name) for name in names if hasattr(batch, name)}
    return None


def leaves(batch: Any) -> list[Any]:
    """What lies in a batch and has no parts, in order."""
    held = parts(batch)
    return [batch] if held is None else [leaf for part in held.values() for leaf in leaves(part)]


def structure(batch: Any) -> Any:
    """What of a batch is no leaf, to compare."""
    held = parts(batch)
    return held and (type(batch), tuple((name, structure(part)) for name, part in held.items()))


def mapped(
    batch: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = lambda part: False
) -> Any:
    """The batch with `change(leaf)` for each leaf, in order; what is changed nowhere is the same object.

    Containers keep their class, but for mappings that are neither dict nor UserDict: these become dicts.
    """
    held = None if is_leaf(batch) else parts(batch)
    if held is None:
        return change(batch)
    found = {name: mapped(part, change, is_leaf) for name, part in held.items()}
    return batch if all(found[name] is held[name] for name in held) else _rebuilt(batch, found)


def _rebuilt(batch: Any, held: dict[Any, Any]) -> Any:
    """Another container of the kind of `batch`."""
    if isinstance(batch, tuple | list):
        is_named = hasattr(batch, "_fields")
        return type(batch)(*held.values()) if is_named else type(batch)(held.values())
    is_mapping = isinstance(batch, Mapping)
    if is_mapping and not isinstance(batch, dict | UserDict):
        return held  # a copy of it might look at the same memory
    other: Any = copy.copy(batch)  # no constructor: it may want other arguments, or convert
    for name, part in held.items():
        if is_mapping:
            other[name] = part
        else:
            object.__setattr__(other, name, part)  # a frozen one too
    return other


def inside(batch: Any) -> Iterator[Any]:
    """Everything in a batch in order, itself first; of objects of other kinds what they hold.

    What holds something comes once: objects may hold each other.
    """
    met: dict[int, Any] = {}  # the objects too, so that no id is taken again
    todo = [batch]
    while todo:
        value = todo.pop()
        held = _held(value)
        if held and id(value) in met:
            continue
        met[id(value)] = value
        yield value
        todo += reversed(held.values())


def _held(value: Any) -> dict[Any, Any]:
    """The parts of a container, the attributes of an object; nothing of an array."""
    held = parts(value)
    if held is None:
        held = {} if shape_of(value) is not None else attributes(value)
    return held


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array; None for what is none, though it may say how large its pictures are."""
    if isinstance(value, OPAQUE) or not hasattr(type(value), "shape"):
        return None
    shape = value.shape
    return shape if isinstance(shape, tuple) else None


def attributes(value: Any) -> dict[str, Any]:
    """What an object holds in __dict__ and __slots__."""
    if isinstance(value, OPAQUE):
        return {}
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    found = {name: getattr(value, name) for name in names if name not in HIDDEN and hasattr(value, name)}
    return found | getattr(value, "__dict__", {})
