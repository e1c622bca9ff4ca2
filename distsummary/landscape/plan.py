"""The plan of landscapes: every loss that is wanted, cut into chunks for workers; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distsummary.landscape.directions import Array, Recipe, Weights

Kind = Literal["grid", "path", "checkpoint"]
GRID_CHUNK = 32  # points: a segment of one row, so that the row's base is shared
PATH_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanePlan:
    """One landscape to evaluate.

    Attributes:
        states: the whole checkpoints of the path (parameters and buffers by name); the last is the centre.
        names: the parameters that move, in the order of the model.
        recipe: makes the directions, the same wherever it runs.
        x, y: axes of the grid, (n,) and (m,).
        points: the path in the plane, (k, 2), one row per state.
    """

    states: Sequence[Weights]
    names: tuple[str, ...]
    recipe: Recipe
    x: Array
    y: Array
    points: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The unit of work: points start .. stop-1 of a grid row, or of a path, of the landscape number `plane`.

    `kind` "grid": columns of row `row`. "path": points of the path, in the plane. "checkpoint": the
    checkpoints themselves.
    """

    plane: int
    kind: Kind
    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def plan_chunks(planes: Sequence[PlanePlan], *, grid_chunk: int = GRID_CHUNK) -> list[Chunk]:
    """The chunks of all landscapes, each point in exactly one: first what the path needs, then the rows.

    `grid_chunk` must be a multiple of the engine's chunk: then a point's loss does not depend on the borders.
    """
    chunks = []
    for number, plane in enumerate(planes):
        kinds: tuple[Kind, ...] = ("checkpoint", "path")
        for kind in kinds:
            chunks += _segments(number, kind, 0, len(plane.states), PATH_CHUNK)
        for row in range(len(plane.y)):
            chunks += _segments(number, "grid", row, len(plane.x), grid_chunk)
    return chunks


def _segments(plane: int, kind: Kind, row: int, count: int, size: int) -> list[Chunk]:
    return [
        Chunk(plane=plane, kind=kind, row=row, start=start, stop=min(start + size, count))
        for start in range(0, count, size)
    ]
