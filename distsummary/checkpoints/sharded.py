"""A checkpoint in shards, read as if it were whole: each access assembles an array from its slices.

No file is kept open and nothing is read ahead, because 20 checkpoints of a model on 64 ranks are 1280 files.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from distsummary.checkpoints.mapped import Array, StoredArray, StoredState, decode
from distsummary.checkpoints.shard_file import FileVersion, ShardFile, read_shards, sibling_name, verify
from distsummary.errors import DamagedFileError, MissingFileError


@dataclass(frozen=True, slots=True)
class Box:
    """A slice of an array of at least one axis: its place in the array, and its first byte in the file."""

    file: FileVersion
    begin: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def row(self, row: int, itemsize: int) -> "Box":
        """The part of this slice in row `row` of the whole array: a slice with one axis less."""
        inner = math.prod(self.shape[1:]) * itemsize
        begin = self.begin + (row - self.offset[0]) * inner
        return Box(self.file, begin, self.offset[1:], self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedArray:
    """An array in shards. `one`: any slice (for its dtype); `boxes`: non-empty slices, sorted by offset."""

    shape: tuple[int, ...]
    one: StoredArray
    boxes: tuple[Box, ...]


class ShardedState(StoredState):
    """The arrays in the files of one checkpoint, read again at each access; bfloat16 becomes float32.

    The constructor raises DamagedFileError if the slices of an array do not cover every element exactly once.
    An access raises that error if the file has been replaced since it was first opened.
    """

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self._arrays: dict[str, ShardedArray] = {
            name: _sharded_array(name, [file for file in files if name in file.arrays])
            for name in dict.fromkeys(name for file in files for name in file.header.slices)
        }

    def __getitem__(self, name: str) -> Array:
        shape = self.shape(name)
        return self._read(name, 0, math.prod(shape)).reshape(shape)

    def part(self, name: str, start: int, stop: int) -> Array:
        """See StoredState."""
        size = math.prod(self._arrays[name].shape)
        return self._read(name, min(max(start, 0), size), min(stop, size))

    def _read(self, name: str, start: int, stop: int) -> Array:
        array = self._arrays[name]
        stored = np.empty(max(stop - start, 0), array.one.stored)
        fill(stored, start, stop, array.shape or (1,), array.boxes)
        spans = ((0, stored.nbytes),)
        return decode(stored, StoredArray(dtype=array.one.dtype, shape=stored.shape, spans=spans))


def open_shards(first: Path, ranks: int) -> list[ShardFile]:
    """Open and verify the files of all ranks; `first` is rank 0's.

    Raises MissingFileError if one is missing or from another checkpoint, or DamagedFileError.
    """
    files = [read_shards(first.with_name(sibling_name(first.name, rank))) for rank in range(ranks)]
    for rank, file in enumerate(files):
        if file.header.rank != rank or not file.header.is_beside(files[0].header):
            raise MissingFileError(
                f"{file.version.path} is from another checkpoint than {files[0].version.path}; put the right "
                "one back, or load another checkpoint"
            )
        verify(file)
    return files


def fill(out: Array, start: int, stop: int, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Read elements start .. stop-1 (in C order) of an array into `out`; the boxes cover the array.

    The elements (s) are read in up to three parts: the end of a row, whole rows, the beginning of a row:

        . . . s s s
        s s s s s s
        s s . . . .

    A row (one index of the first axis) is an array with one axis less; the rows of the boxes cover it.
    """
    if start >= stop:
        return
    inner = math.prod(shape[1:])
    # The rows low .. high-1 are wanted as a whole.
    low, high = -(-start // inner), stop // inner
    # All wanted elements lie inside one row.
    if low > high:
        _fill_row(out, high, start, stop, shape, boxes)
        return
    head, body = low * inner - start, high * inner - start
    if head:
        _fill_row(out[:head], low - 1, start, low * inner, shape, boxes)
    if low < high:
        rows = out[head:body].reshape(high - low, *shape[1:])
        for box in _overlapping(boxes, low, high):
            # The wanted rows of a slice follow one another in its file, so that one read takes them.
            begin, end = max(low, box.offset[0]), min(high, box.offset[0] + box.shape[0])
            inside = zip(box.offset[1:], box.shape[1:], strict=True)
            target = rows[(slice(begin - low, end - low), *(slice(o, o + size) for o, size in inside))]
            box.file.read_into(box.row(begin, out.itemsize).begin, target)
    if body < len(out):
        _fill_row(out[body:], high, high * inner, stop, shape, boxes)


def _fill_row(
    out: Array, row: int, start: int, stop: int, shape: Sequence[int], boxes: Sequence[Box]
) -> None:
    """Read elements start .. stop-1 of an array into `out`; these elements all lie in row `row`."""
    before = row * math.prod(shape[1:])
    rows = [box.row(row, out.itemsize) for box in _overlapping(boxes, row, row + 1)]
    fill(out, start - before, stop - before, shape[1:], rows)


def _overlapping(boxes: Sequence[Box], low: int, high: int) -> Sequence[Box]:
    """The boxes with elements of rows low .. high-1: a slice of `boxes`, which are sorted by offset."""

    def first_row(box: Box) -> int:
        return box.offset[0]

    # The slices form a grid: of those that begin at or before row `low`, the last ones reach it.
    last_before = boxes[bisect_right(boxes, low, key=first_row) - 1].offset[0]
    begin = bisect_left(boxes, last_before, key=first_row)
    return boxes[begin : bisect_left(boxes, high, key=first_row)]


def _sharded_array(name: str, files: Sequence[ShardFile]) -> ShardedArray:
    """The array `name`, whose slices these files hold.

    Raises DamagedFileError unless the slices form a grid without gaps, as every mesh of ranks makes them.
    """
    seen = {(f.header.slices[name].global_shape, f.arrays[name].dtype) for f in files}
    if len(seen) > 1:
        raise DamagedFileError(
            f"{files[0].version.path} and the files of the other ranks disagree on {name!r}, with these "
            f"shapes and dtypes: {sorted(seen)}; train again, or choose another {files[0].header.unit}"
        )
    ((shape, _),) = seen
    boxes = []
    for file in files:
        array, offset = file.arrays[name], file.header.slices[name].offset
        ((begin, _),) = array.spans
        if math.prod(array.shape):
            # An array without axes is treated as one with a single axis.
            boxes.append(Box(file.version, begin, offset or (0,), array.shape or (1,)))
    boxes.sort(key=lambda box: box.offset)

    # The borders of all slices along each axis cut the array into cells.
    cuts = [
        sorted({0, size, *(box.offset[axis] for box in boxes)}) for axis, size in enumerate(shape or (1,))
    ]
    ends = [dict(pairwise(along)) for along in cuts]
    cells = math.prod(len(along) - 1 for along in cuts) if math.prod(shape) else 0
    # Each slice must be one of the cells, and each cell one of the slices.
    are_cells = all(
        start + size == end.get(start)
        for box in boxes
        for start, size, end in zip(box.offset, box.shape, ends, strict=True)
    )
    if not are_cells or len({box.offset for box in boxes}) != len(boxes) or len(boxes) != cells:
        raise DamagedFileError(
            f"the slices of {name!r} in {files[0].version.path} and the files of the other ranks do not "
            f"cover the whole array, of shape {shape or (1,)}, with each element once; train again, or "
            f"choose another {files[0].header.unit}"
        )
    return ShardedArray(shape=shape, one=files[0].arrays[name], boxes=tuple(boxes))
