"""Divides all points of landscapes into chunks, the units of work for workers. Pure functions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distsummary.landscapes.directions.planes import PlanePlan

Kind = Literal["grid", "path", "checkpoint", "batches"]
GRID_CHUNK = 32  # points of one grid row; all of them start from the same state, centre + y * direction_y
PATH_CHUNK = 8  # points or checkpoints of a path


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The unit of work: some points of a grid row or of a path, in the landscape with the number `plane`.

    `columns` are the indices of the points, ascending. For `kind` "grid" the points lie in row number `row`;
    for "path" they are checkpoints projected onto the plane; for "checkpoint", the checkpoints themselves. A
    chunk of the kind "batches" is a group of batches of a Hessian-vector product.
    """

    plane: int
    kind: Kind
    row: int
    columns: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def row_key(self) -> tuple[int, Kind, int]:
        """A key that the chunks of one grid row, or of one path, have in common."""
        return self.plane, self.kind, self.row

    def split(self, size: int) -> list["Chunk"]:
        """The same points in chunks of at most `size` points; an empty chunk gives an empty list."""
        starts = range(0, len(self), size)
        return [replace(self, columns=self.columns[start : start + size]) for start in starts]

    def without(self, columns: Collection[int]) -> "Chunk":
        """The chunk without these columns."""
        return replace(self, columns=tuple(column for column in self.columns if column not in columns))


def plan_chunks(
    planes: Sequence[PlanePlan],
    *,
    grid_chunk: int = GRID_CHUNK,
    wanted: Sequence[NDArray[np.bool_]] | None = None,
) -> list[Chunk]:
    """The chunks of all landscapes, each point in exactly one. In a landscape, path chunks precede grid rows.

    The rows are ordered so that the finished rows are always spread over the grid. `wanted` says which points
    of each grid to evaluate, bool (m, n); None: all. `grid_chunk` must be a multiple of the number of points
    that the engine evaluates together; then a point's loss does not depend on where chunks begin and end.
    """
    chunks = []
    for number, plane in enumerate(planes):
        kinds: tuple[Kind, ...] = ("checkpoint", "path")
        for kind in kinds:
            chunks += _segments(number, kind, 0, range(len(plane.states)), PATH_CHUNK)
        for row in spread(len(plane.y)):
            columns = range(len(plane.x)) if wanted is None else np.flatnonzero(wanted[number][row]).tolist()
            chunks += _segments(number, "grid", row, columns, grid_chunk)
    return chunks


def count_points(planes: Sequence[PlanePlan]) -> int:
    """The number of points of all landscapes, including those of the path and the checkpoints."""
    return sum(len(plane.y) * len(plane.x) + 2 * len(plane.states) for plane in planes)


def spread(count: int) -> list[int]:
    """The numbers below `count`: first both ends, then the rest in bit-reversed order.

    For 8: 0, 7, 4, 2, 6, 1, 5, 3. With both ends, rows between can be interpolated after an early stop.
    """
    bits = (count - 1).bit_length()
    order = sorted(range(count - 1), key=lambda number: f"{number:0{bits}b}"[::-1])
    return [*order[:1], count - 1, *order[1:]]


def _segments(plane: int, kind: Kind, row: int, columns: Sequence[int], size: int) -> list[Chunk]:
    return Chunk(plane=plane, kind=kind, row=row, columns=tuple(columns)).split(size)
