"""Arrays that are read in blocks of rows: from memory or from files, or computed when they are read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.mapped import StoredState
from distsummary.landscapes.directions.normals import random_normals

Array = NDArray[Any]

BLOCK = 1 << 18  # elements that are read at once


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """An array read by rows: rows(start, stop) has shape (stop - start, *shape[1:]). A scalar has one row.

    Attributes:
        shape: the shape of the whole array.
        read: returns NumPy arrays, or tensors on a device (see `torch_rows`).
        is_zero: all elements are 0, so the array need not be read.
        draw: computes what `random_normals` computes, on the device of these rows.
        block: elements that are read at once.
    """

    shape: tuple[int, ...]
    read: Callable[[int, int], Any]
    is_zero: bool = False
    draw: Callable[[int, int, str, int, int], Any] = random_normals
    block: int = BLOCK

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """The number of elements in a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def __call__(self, start: int, stop: int) -> Any:
        """Rows start .. stop-1."""
        return self.read(start, stop)

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """(start, stop) of consecutive groups of rows, about `block` elements each."""
        step, stop = max(1, self.block // max(1, self.width)), len(self) if stop is None else stop
        return ((at, min(at + step, stop)) for at in range(start, stop, step))

    def whole(self) -> Array:
        """The whole array, float32, in its own shape."""
        out = np.empty((len(self), *self.shape[1:]), np.float32)
        for start, stop in self.blocks():
            out[start:stop] = self.read(start, stop)
        return out.reshape(self.shape)


@runtime_checkable
class InRows(Protocol):
    """A state (arrays by name) that itself provides the rows of its arrays."""

    def rows(self, name: str) -> Rows:
        """The rows of one array."""


def rows_of(state: Mapping[str, Array], name: str) -> Rows:
    """The rows of one array of a state; from a file only the requested rows are read."""
    if isinstance(state, InRows):
        return state.rows(name)
    if not isinstance(state, StoredState):
        return array_rows(state[name])
    shape = state.shape(name)
    width = int(np.prod(shape[1:], dtype=np.int64))

    def read(start: int, stop: int) -> Array:
        return state.part(name, start * width, stop * width).reshape(stop - start, *shape[1:])

    return Rows(shape, read)


def array_rows(array: Array) -> Rows:
    """The rows of an array in memory."""
    array = np.asarray(array)
    by_row = array if array.ndim else array.reshape(1)
    return Rows(array.shape, lambda start, stop: by_row[start:stop])


def shape_of(state: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """The shape of a parameter, without reading it from a file or device."""
    return rows_of(state, name).shape if isinstance(state, StoredState | InRows) else np.shape(state[name])
