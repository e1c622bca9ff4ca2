"""Parameters that share memory and yet are not one, such as a head that is a transposed view; pure."""

from collections.abc import Container, Mapping

import numpy as np

from distsummary.errors import InvalidValueError
from distsummary.landscapes.directions.normals import Array


def refuse_overlaps(arrays: Mapping[str, Array], moved: Container[str]) -> None:
    """Raise InvalidValueError for parameters with an element in common, one of which moves.

    A landscape would move them as two, which they are not. `arrays` hold each parameter once; of these only
    the addresses are looked at.
    """
    begun: list[tuple[int, str]] = []  # (end, name) of those that begin before
    for start, end, name in sorted((*_bounds(array), name) for name, array in arrays.items()):
        begun = [(stop, other) for stop, other in begun if stop > start]
        for _, other in begun:
            if (name in moved or other in moved) and np.shares_memory(arrays[name], arrays[other]):
                raise InvalidValueError(
                    f"{other} {arrays[other].shape} and {name} {arrays[name].shape} share memory, and a "
                    "landscape would move them as two; let the model compute with one parameter and views of "
                    "it (weight.t()), or give each its own memory (a clone)"
                )
        begun.append((end, name))


def _bounds(array: Array) -> tuple[int, int]:
    """The addresses of the first byte, and of the one behind the last."""
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    start, end = (sum(pick(step, 0) for step in steps) for pick in (min, max))
    return array.ctypes.data + start, array.ctypes.data + end + array.itemsize
