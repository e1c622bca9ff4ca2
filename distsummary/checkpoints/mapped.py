"""A checkpoint file in place: arrays by name, decoded from the mapped file when they are asked for."""

import math
import mmap
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import DamagedFileError, MissingFileError

Array: TypeAlias = NDArray[Any]

MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 1024
MAX_SLICES = 1 << 12
MAX_DIMENSIONS = 32  # NumPy 1.26's limit

# What is stored under a dtype's name here; bool is checked byte by byte, text is UTF-32.
_STORED = {"bfloat16": "<u2", "bool": "|u1", "text": "<u4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where one array lies: `spans` are byte ranges of the file, in order.

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


class StoredState(Mapping[str, Array]):
    """Arrays by name that lie in files and are read when they are asked for."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one array, without reading it."""

    @abstractmethod
    def part(self, name: str, start: int, stop: int) -> Array:
        """Elements start .. stop-1 of one array in C order, up to its end; no other is read."""

    @abstractmethod
    def selected(self, names: Mapping[str, str]) -> Self:
        """Some of the arrays, under new names: those that `names` leads from (new to old)."""

    def release(self, name: str) -> None:
        """Give back the memory that reading one array took; what looks at it reads the file again."""

    def own(self) -> dict[str, Array]:
        """All arrays as aligned, writable copies."""
        return {name: np.array(self[name]) for name in self}

    def __reduce__(self) -> tuple[type, tuple[dict[str, Array]]]:
        """Another process may not see the files: it gets the arrays."""
        return dict, ({name: self[name] for name in self},)


class MappedState(StoredState):
    """Arrays by name, read-only views of the file where its dtype allows, else decoded at each access.

    bfloat16 becomes float32 (exactly), text a 0-d array of str. The file stays mapped as long as one of its
    arrays lives; that is safe because checkpoints are replaced whole, never rewritten in place.
    """

    def __init__(self, data: mmap.mmap, layouts: dict[str, Layout]) -> None:
        self._data = data
        self._layouts = layouts

    def __getitem__(self, name: str) -> Array:
        return decode(self._data, self._layouts[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def shape(self, name: str) -> tuple[int, ...]:
        """See StoredState."""
        return self._layouts[name].shape

    def part(self, name: str, start: int, stop: int) -> Array:
        """See StoredState."""
        layout = self._layouts[name]
        size = layout.stored.itemsize
        spans, at = [], 0
        for begin, end in layout.spans:
            low, high = begin + start * size - at, begin + stop * size - at
            spans.append((min(max(low, begin), end), max(min(high, end), begin)))
            at += end - begin
        count = sum(end - begin for begin, end in spans) // size
        return decode(self._data, Layout(dtype=layout.dtype, shape=(count,), spans=tuple(spans)))

    def release(self, name: str) -> None:
        """See StoredState."""
        if not hasattr(mmap, "MADV_DONTNEED"):  # not on this system
            return
        for start, stop in self._layouts[name].spans:
            begin = start - start % mmap.PAGESIZE
            self._data.madvise(mmap.MADV_DONTNEED, begin, stop - begin)

    def selected(self, names: Mapping[str, str]) -> Self:
        """See StoredState."""
        return type(self)(self._data, {new: self._layouts[old] for new, old in names.items()})


def decode(data: mmap.mmap | Array, layout: Layout) -> Array:
    """The array that lies at `layout` of these bytes."""
    stored = layout.stored
    pieces = [
        np.frombuffer(data, stored, count=(stop - start) // stored.itemsize, offset=start)
        for start, stop in layout.spans
        if stop > start
    ]
    flat = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, stored), *pieces])
    if layout.dtype == "text":
        return np.array(flat.tobytes().decode("utf-32-le"))
    if layout.dtype == "bfloat16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    elif layout.dtype == "bool":
        flat = flat != 0
    return flat.reshape(layout.shape)


def check_layout(name: str, layout: Layout) -> None:
    """Raise DamagedFileError unless the array is within bounds and has the bytes that its shape says."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise DamagedFileError(f"a name has more than {MAX_NAME_BYTES} bytes: {name[:60]!r}...")
    if len(layout.shape) > MAX_DIMENSIONS or any(size < 0 for size in layout.shape):
        raise DamagedFileError(f"{name!r} has the shape {layout.shape[: MAX_DIMENSIONS + 1]}")
    itemsize = layout.stored.itemsize
    if math.prod(max(size, 1) for size in layout.shape) * itemsize >= 1 << 63:
        raise DamagedFileError(f"{name!r} has the shape {layout.shape}, which no array can have")
    if layout.nbytes != math.prod(layout.shape) * itemsize:
        raise DamagedFileError(
            f"{name!r} has {layout.nbytes} bytes, but {layout.dtype} of shape {layout.shape} "
            f"has {math.prod(layout.shape) * itemsize}"
        )
    if any((stop - start) % itemsize for start, stop in layout.spans):
        raise DamagedFileError(f"{name!r} is split inside an element")


def map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file for reading; raises MissingFileError or DamagedFileError."""
    if not path.is_file():
        if path.exists():
            raise DamagedFileError(f"the checkpoint {path} is not a regular file")
        raise MissingFileError(f"the checkpoint {path} does not exist; train again or choose another number")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DamagedFileError(f"the checkpoint {path} is empty; remove it and train again")
        if sys.version_info >= (3, 13):  # older ones keep a descriptor open as long as the file is mapped
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
