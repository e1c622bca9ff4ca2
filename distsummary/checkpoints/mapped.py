"""Checkpoints read in place: arrays by name, each decoded from the mapped file when it is accessed."""

import math
import mmap
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import DamagedFileError, MissingFileError

Array: TypeAlias = NDArray[Any]

MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 1024
MAX_SLICES = 1 << 12
MAX_DIMENSIONS = 32  # NumPy 1.26's limit

# The NumPy dtype in which the bytes are read; a bool is one byte, true unless it is 0; text is UTF-32.
_STORED = {"bfloat16": "<u2", "bool": "|u1", "text": "<u4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """An array in a file: its dtype and shape, and the byte ranges (`spans`) that hold it, in order.

    `dtype` is a little-endian NumPy dtype ("<f4"), or "bfloat16", "bool", "text".
    """

    dtype: str
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype of the bytes in the file."""
        return np.dtype(_STORED.get(self.dtype, self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(stop - start for start, stop in self.spans)


class Shaped(Protocol):
    """Where an array is stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""


class StoredState(Mapping[str, Array]):
    """A mapping from names to arrays that stay in files; each access to an array reads it from its file."""

    _arrays: Mapping[str, Shaped]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one array, without reading it."""
        return self._arrays[name].shape

    @abstractmethod
    def part(self, name: str, start: int, stop: int) -> Array:
        """Elements start .. stop-1 of one array in C order, clipped to its size; reads no other elements."""

    def selected(self, names: Mapping[str, str]) -> Self:
        """A state with some of the arrays, under new names; `names` is {new: old}."""
        chosen = object.__new__(type(self))
        vars(chosen).update(vars(self), _arrays={new: self._arrays[old] for new, old in names.items()})
        return chosen

    def release(self, name: str) -> None:
        """Free the memory that reading an array took; existing views of it will read the file again."""

    def own(self) -> dict[str, Array]:
        """All arrays as aligned, writable copies."""
        return {name: np.array(self[name]) for name in self}

    def __reduce__(self) -> tuple[type, tuple[dict[str, Array]]]:
        """Pickles as a dict of arrays, since another process may not see the files."""
        return dict, ({name: self[name] for name in self},)


class MappedState(StoredState):
    """Arrays by name, each a read-only view of the mapped file if possible, else decoded at each access.

    bfloat16 becomes float32 (exactly), text a 0-d array of str. The file stays mapped as long as any of its
    arrays is alive, which is safe because checkpoints are replaced as whole files, never rewritten in place.
    """

    def __init__(self, data: mmap.mmap | bytes, arrays: dict[str, StoredArray]) -> None:
        self._data = data
        self._arrays: dict[str, StoredArray] = arrays

    def __getitem__(self, name: str) -> Array:
        return decode(self._data, self._arrays[name])

    def part(self, name: str, start: int, stop: int) -> Array:
        """See StoredState."""
        array = self._arrays[name]
        size = array.stored.itemsize
        spans, at = [], 0
        # Of each span of the file, the bytes that hold wanted elements.
        for begin, end in array.spans:
            low, high = begin + start * size - at, begin + stop * size - at
            spans.append((min(max(low, begin), end), max(min(high, end), begin)))
            at += end - begin
        count = sum(end - begin for begin, end in spans) // size
        return decode(self._data, StoredArray(dtype=array.dtype, shape=(count,), spans=tuple(spans)))

    def release(self, name: str) -> None:
        """See StoredState."""
        # Not every system can take the memory of a mapping back.
        if isinstance(self._data, bytes) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        for start, stop in self._arrays[name].spans:
            # madvise accepts only addresses where a page begins.
            begin = start - start % mmap.PAGESIZE
            self._data.madvise(mmap.MADV_DONTNEED, begin, stop - begin)


def decode(data: mmap.mmap | bytes | Array, array: StoredArray) -> Array:
    """The array that is stored in the byte ranges `array.spans` of `data`."""
    stored = array.stored
    pieces = [
        np.frombuffer(data, stored, count=(stop - start) // stored.itemsize, offset=start)
        for start, stop in array.spans
        if stop > start
    ]
    # A single span stays a view of the file; several are copied into one array.
    flat = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, stored), *pieces])
    if array.dtype == "text":
        return np.array(text_in(flat, "utf-32-le"))
    if array.dtype == "bfloat16":
        # bfloat16 is the upper half of a float32.
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    elif array.dtype == "bool":
        flat = flat != 0
    return flat.reshape(array.shape)


def text_in(octets: Array, encoding: str = "utf-8") -> str:
    """The text that an array holds as bytes; raises DamagedFileError."""
    try:
        return str(octets.tobytes(), encoding)
    except ValueError as error:
        raise DamagedFileError(f"a text in the checkpoint is damaged: {error}") from error


def check_stored(name: str, array: StoredArray) -> None:
    """Raise DamagedFileError unless name and shape are within the limits and the spans fit the shape."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise DamagedFileError(f"a name has more than {MAX_NAME_BYTES} bytes: {name[:60]!r}...")
    if len(array.shape) > MAX_DIMENSIONS or any(size < 0 for size in array.shape):
        raise DamagedFileError(f"{name!r} has an impossible shape, {array.shape[: MAX_DIMENSIONS + 1]}")
    itemsize = array.stored.itemsize
    # Axes of size 0 count as 1: NumPy refuses a shape that is too large apart from them.
    if math.prod(max(size, 1) for size in array.shape) * itemsize >= 1 << 63:
        raise DamagedFileError(f"{name!r} has the shape {array.shape}, which is too large for any array")
    if array.nbytes != math.prod(array.shape) * itemsize:
        raise DamagedFileError(
            f"{name!r} has {array.nbytes} bytes, but {array.dtype} of shape {array.shape} "
            f"has {math.prod(array.shape) * itemsize}"
        )
    if any((stop - start) % itemsize for start, stop in array.spans):
        raise DamagedFileError(f"{name!r} is split inside an element")


def map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file for reading; raises MissingFileError or DamagedFileError."""
    if not path.is_file():
        if path.exists():
            raise DamagedFileError(f"the checkpoint {path} is not a regular file")
        siblings = [path.with_suffix(suffix) for suffix in (".safetensors", ".ckpt")]
        found = next((other.name for other in siblings if other.is_file()), "")
        raise MissingFileError(
            f"the checkpoint {path} does not exist; "
            + (f"next to it is {found}" if found else "choose the checkpoint of another step or epoch")
        )
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DamagedFileError(f"the checkpoint {path} is empty; remove it and train again")
        # Before Python 3.13, a file stays open as long as it is mapped.
        if sys.version_info >= (3, 13):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
