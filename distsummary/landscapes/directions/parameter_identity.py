"""Removes the prefixes of wrappers from names, and refuses parameters that share memory. Pure functions."""

import re
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

import numpy as np

from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import InvalidValueError
from distsummary.landscapes.directions.normals import Array

_PREFIX = re.compile(r"((module|_orig_mod)\.)*")
_COMPILED = "_orig_mod."


def fitting(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """`state` under the given names, if its own names differ only by prefixes of wrappers; else unchanged.

    Wrappers such as DDP add a prefix to all names; torch.compile may also add one within the names of
    single layers. Two names of the state never get the same new name.
    """
    if all(name in names for name in state):
        return state
    there = {bare: name for name, bare in _bare(names).items()}
    renamed = {name if name in names else there.get(bare, name): name for name, bare in _bare(state).items()}
    is_clear = len(there) == len(names) and len(renamed) == len(state)
    if not is_clear or all(new == old for new, old in renamed.items()):
        return state
    if isinstance(state, StoredState):
        return state.selected(renamed)
    return {new: state[old] for new, old in renamed.items()}


def _bare(names: Iterable[str]) -> dict[str, str]:
    """The names without prefixes of wrappers."""
    prefix = common_prefix(names)
    return {name: uncompiled(name.removeprefix(prefix)) for name in names}


def uncompiled(name: str) -> str:
    """The name of a parameter without the prefixes of compiled layers."""
    return name.replace(_COMPILED, "")


def common_prefix(names: Iterable[str]) -> str:
    """The prefix of wrappers that all names share, such as "module._orig_mod."."""
    prefixes = [match.group() for name in names if (match := _PREFIX.match(name))]
    shortest = min(prefixes, key=len, default="")
    return shortest if all(prefix.startswith(shortest) for prefix in prefixes) else ""


def refuse_overlaps(arrays: Mapping[str, Array], moved: Container[str]) -> None:
    """Raise InvalidValueError if a parameter in `moved` shares elements with another parameter.

    A landscape would vary the two independently. `arrays` holds each parameter once; only the addresses of
    the arrays are used.
    """
    begun: list[tuple[int, str]] = []  # (end, name) of earlier arrays that may overlap the next one
    bounds = []  # (address of the first byte, address after the last byte, name)
    for name, array in arrays.items():
        steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low, high = (array.ctypes.data + sum(pick(step, 0) for step in steps) for pick in (min, max))
        bounds.append((low, high + array.itemsize, name))
    for start, end, name in sorted(bounds):
        begun = [(stop, other) for stop, other in begun if stop > start]
        for _, other in begun:
            if (name in moved or other in moved) and np.shares_memory(arrays[name], arrays[other]):
                raise InvalidValueError(
                    f"{other} {arrays[other].shape} and {name} {arrays[name].shape} share memory, and a "
                    "landscape would move them independently; let the model compute with one parameter and "
                    "views of it (weight.t()), or give each its own memory (a clone)"
                )
        begun.append((end, name))
