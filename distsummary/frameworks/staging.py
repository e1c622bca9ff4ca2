"""Copies of host arrays in memory that is used again: page faults cost ten times a copy into it."""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SMALLEST = 64 << 10  # bytes; below, the allocator's own memory is warm
LARGEST = 64 << 20
KEPT_BYTES = 64 << 20  # what may lie unused


def staged(array: Array) -> Array:
    """A copy in C order and native byte order, see `blank`."""
    copy = blank(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return copy


def blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array to be filled; its memory is taken back once nobody holds it or a view of it.

    Python and NumPy objects, and dtypes that hold any, lie in ordinary memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not SMALLEST <= nbytes <= LARGEST or dtype.hasobject:
        return np.empty(shape, dtype)
    return np.asarray(_Lease(_pool.take(size_class(nbytes)), shape, dtype))


def is_frozen(array: Array) -> bool:
    """Whether nobody can write to the array: neither it nor what it is a view of is writeable."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def size_class(nbytes: int) -> int:
    """The next larger block size: four to each power of two, so that at most a fifth is wasted."""
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class _Pool:
    """Blocks of memory by size, unused ones up to KEPT_BYTES in all."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self._kept_bytes = 0
        self._lock = threading.RLock()  # a lease may end in the middle of a call, in the same thread

    def take(self, size: int) -> Array:
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                self._kept_bytes -= size
                return blocks.pop()
        return np.empty(size, np.uint8)

    def give_back(self, block: Array) -> None:
        with self._lock:
            if self._kept_bytes + block.nbytes <= KEPT_BYTES:
                self._kept_bytes += block.nbytes
                self._free.setdefault(block.nbytes, []).append(block)


class _Lease:
    """What an array of a block stands on: when the array and all its views are gone, the block is free."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._block = block
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "descr": dtype.descr,
            "data": (block.ctypes.data, False),
        }

    def __del__(self) -> None:
        _pool.give_back(self._block)


_pool = _Pool()
