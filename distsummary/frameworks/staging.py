"""Copies host arrays into reused memory: page faults in new memory take ten times as long as copying."""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SMALLEST = 64 << 10  # bytes; the allocator reuses smaller blocks itself
LARGEST = 64 << 20
KEPT_BYTES = 64 << 20  # limit for unused blocks


def staged(array: Array) -> Array:
    """A copy in C order and native byte order, in memory from `blank`."""
    copy = blank(array.shape, array.dtype.newbyteorder("="))
    np.copyto(copy, array)
    return copy


def blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized array; its memory is reused once the array and all its views are gone.

    Very small and very large arrays, and dtypes with Python objects, get ordinary memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not SMALLEST <= nbytes <= LARGEST or dtype.hasobject:
        return np.empty(shape, dtype)
    return np.asarray(_Lease(_pool.take(size_class(nbytes)), shape, dtype))


def is_frozen(array: Array) -> bool:
    """Whether no one can write to the array: it and all arrays that it is a view of are read-only."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to a block size; four sizes per power of two waste at most a fifth."""
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class _Pool:
    """Unused blocks of memory by size, at most KEPT_BYTES in all."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self._kept_bytes = 0
        # Reentrant: garbage collection may end a lease while the lock is held.
        self._lock = threading.RLock()

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
    """The object that owns an array's block; gives the block back once the array and its views are gone."""

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
        if _pool is not None:  # the interpreter ends
            _pool.give_back(self._block)


_pool = _Pool()
