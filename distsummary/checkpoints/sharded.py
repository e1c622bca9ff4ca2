"""A checkpoint in shards as if it were one: each array is put together from its slices when asked for.

Nothing is kept open and nothing read ahead: of a model on 64 ranks, 20 checkpoints are 1280 files.
"""

import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from distsummary.checkpoints.mapped import Array, Layout, StoredState, decode
from distsummary.checkpoints.shard_file import ShardFile, Source
from distsummary.errors import DamagedFileError


@dataclass(frozen=True, slots=True)
class Box:
    """A slice of an array of at least one axis: where it lies in the array, and from which byte of a file."""

    source: Source
    begin: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def row(self, row: int, itemsize: int) -> "Box":
        """The part at index `row` of the first axis, an array of one axis less."""
        inner = math.prod(self.shape[1:]) * itemsize
        begin = self.begin + (row - self.offset[0]) * inner
        return Box(self.source, begin, self.offset[1:], self.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """One array: its shape, its dtype as in a Layout, and the boxes that make it up, by their offsets."""

    shape: tuple[int, ...]
    layout: Layout
    boxes: tuple[Box, ...]


class ShardedState(StoredState):
    """The arrays of the files of one checkpoint, read again at each access; bfloat16 becomes float32.

    Raises DamagedFileError unless the slices of each array make it up, each element once; and at an access to
    a file that was replaced since it was opened.
    """

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self._arrays = {
            name: _pieces(name, [file for file in files if name in file.layouts])
            for name in dict.fromkeys(name for file in files for name in file.header.slices)
        }

    def __getitem__(self, name: str) -> Array:
        pieces = self._arrays[name]
        return self._read(name, 0, math.prod(pieces.shape)).reshape(pieces.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """See StoredState."""
        return self._arrays[name].shape

    def part(self, name: str, start: int, stop: int) -> Array:
        """See StoredState."""
        size = math.prod(self._arrays[name].shape)
        return self._read(name, min(max(start, 0), size), min(stop, size))

    def selected(self, names: Mapping[str, str]) -> Self:
        """See StoredState."""
        chosen = type(self)(())
        chosen._arrays = {new: self._arrays[old] for new, old in names.items()}
        return chosen

    def _read(self, name: str, start: int, stop: int) -> Array:
        pieces = self._arrays[name]
        stored = np.empty(max(stop - start, 0), pieces.layout.stored)
        fill(stored, start, stop, pieces.shape or (1,), pieces.boxes)
        spans = ((0, stored.nbytes),)
        return decode(stored, Layout(dtype=pieces.layout.dtype, shape=stored.shape, spans=spans))


def fill(out: Array, start: int, stop: int, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Read elements start .. stop-1 (in C order) of an array of this shape, which the boxes make up.

    . . . s s s    In up to three parts: the end of one row, whole rows, the beginning of another one. A row
    s s s s s s    is an array of one axis less, cut by the same boxes.
    s s . . . .
    """
    if start >= stop:
        return
    inner = math.prod(shape[1:])
    low, high = -(-start // inner), stop // inner  # the whole rows
    if low > high:
        _fill_row(out, high, start, stop, shape, boxes)
        return
    head, body = low * inner - start, high * inner - start
    if head:
        _fill_row(out[:head], low - 1, start, low * inner, shape, boxes)
    if low < high:
        _fill_rows(out[head:body].reshape(high - low, *shape[1:]), low, high, boxes)
    if body < len(out):
        _fill_row(out[body:], high, high * inner, stop, shape, boxes)


def _fill_row(
    out: Array, row: int, start: int, stop: int, shape: Sequence[int], boxes: Sequence[Box]
) -> None:
    """Elements start .. stop-1 of an array, all in one row of it."""
    before = row * math.prod(shape[1:])
    rows = [box.row(row, out.itemsize) for box in _overlapping(boxes, row, row + 1)]
    fill(out, start - before, stop - before, shape[1:], rows)


def _fill_rows(out: Array, low: int, high: int, boxes: Sequence[Box]) -> None:
    """Rows low .. high-1 of an array, of the shape of `out`."""
    for box in _overlapping(boxes, low, high):
        begin, end = max(low, box.offset[0]), min(high, box.offset[0] + box.shape[0])
        inside = zip(box.offset[1:], box.shape[1:], strict=True)
        target = out[(slice(begin - low, end - low), *(slice(o, o + size) for o, size in inside))]
        _read_box(box.source, box.row(begin, out.itemsize).begin, target)


def _overlapping(boxes: Sequence[Box], low: int, high: int) -> Sequence[Box]:
    """Those that hold something of rows low .. high-1: neighbours, since boxes go by offset in a grid."""

    def first_row(box: Box) -> int:
        return box.offset[0]

    last_before = boxes[bisect_right(boxes, low, key=first_row) - 1].offset[0]
    begin = bisect_left(boxes, last_before, key=first_row)
    return boxes[begin : bisect_left(boxes, high, key=first_row)]


def _read_box(source: Source, begin: int, out: Array) -> None:
    if out.flags.c_contiguous:
        _read_bytes(source, begin, out)
        return
    read = np.empty(out.shape, out.dtype)
    _read_bytes(source, begin, read)
    out[...] = read


def _read_bytes(source: Source, begin: int, out: Array) -> None:
    rest = memoryview(out.reshape(-1).view(np.uint8).data)
    with open(source.path, "rb", buffering=0) as file:
        source.check(os.fstat(file.fileno()))
        file.seek(begin)
        while rest:
            count = file.readinto(rest)  # the system reads at most 2 GiB at a time
            if not count:
                raise DamagedFileError(f"{source.path} ends early; train again or choose another number")
            rest = rest[count:]


def _pieces(name: str, files: Sequence[ShardFile]) -> Pieces:
    """One array out of the files that hold slices of it."""
    told = {(f.header.slices[name].global_shape, f.layouts[name].dtype) for f in files}
    if len(told) > 1:
        raise DamagedFileError(
            f"{files[0].source.path} and its siblings disagree on {name!r}: {sorted(told)}; "
            "train again or choose another number"
        )
    ((shape, _),) = told
    boxes = sorted((_box(name, file) for file in files), key=lambda box: box.offset)
    filled = tuple(box for box in boxes if math.prod(box.shape))
    _check_grid(name, shape or (1,), filled)
    return Pieces(shape=shape, layout=files[0].layouts[name], boxes=filled)


def _box(name: str, file: ShardFile) -> Box:
    layout, offset = file.layouts[name], file.header.slices[name].offset
    ((begin, _),) = layout.spans
    return Box(file.source, begin, offset or (0,), layout.shape or (1,))


def _check_grid(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Raise DamagedFileError unless the boxes are the cells of a grid, as meshes of ranks cut one."""
    if not math.prod(shape) and not boxes:
        return
    cuts = [sorted({0, size, *(box.offset[axis] for box in boxes)}) for axis, size in enumerate(shape)]
    ends = [dict(pairwise(along)) for along in cuts]
    cells = math.prod(len(along) - 1 for along in cuts)
    are_cells = all(
        start + size == end.get(start)
        for box in boxes
        for start, size, end in zip(box.offset, box.shape, ends, strict=True)
    )
    if not are_cells or len({box.offset for box in boxes}) != len(boxes) or len(boxes) != cells:
        where = f" in {boxes[0].source.path} and its siblings" if boxes else ""
        raise DamagedFileError(
            f"the slices of {name!r}{where} do not make up the whole, {shape}, each element once; "
            "train again or choose another number"
        )
