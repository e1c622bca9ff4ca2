"""A loss grid as VTK PolyData (.vtp), for ParaView: the surface and the path on it; pure.

A file is XML. Arrays are float64 and int64, little endian, in base64 (text in VTK's "ascii" cannot hold NaN):

    <DataArray type="Float64" format="binary">  base64(uint64 count of data's bytes | data)  </DataArray>

Points are those of the grid, row by row, then the checkpoints of the path, then points on the surface:
between these, and of steps known by sketches. Cells are, in PolyData's order, a vertex for each checkpoint,
lines (of each run, of the steps, of a grid of one row), a quad for each grid cell.
"""

import base64
import struct
from collections.abc import Container, Mapping, Sequence
from xml.sax.saxutils import quoteattr

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.cells import drape, finite_runs, whole_cells
from distsummary.landscapes.output.grid import Grid, finite_bounds, make_finite

SURFACE, PATH, STEPS_BETWEEN = 0, 1, 2
NO_CHECKPOINT = -1
QUANTITY = "quantity:"  # before the name of one whose name is taken
STEPS = 16  # of the path from checkpoint to checkpoint
_TYPES = {"f": ("Float64", "<f8"), "i": ("Int64", "<i8")}


def to_vtp(grid: Grid) -> bytes:
    """The file. A point's z is its loss; a checkpoint lies at its loss in the plane.

    Point data:
        loss: between checkpoints interpolated from the grid.
        log10_loss: NaN unless the loss is above 0.
        true_loss: of a checkpoint its own; of the grid `loss`, for its points lie in the plane; NaN between.
        residual: how much of a checkpoint is outside the plane; 0 for the grid, NaN between.
        checkpoint: its number, -1 for other points. run: which one (joint planes), 0 for other points.
        computed: 1 where the loss is that of the model, 0 where it is interpolated or missing.
        each of the grid's quantities by its name, NaN for other points; one that is called as an array above
        is "quantity:" and its name.
    Cell data: `part`, 0 for the surface, 1 for the path, 2 for the steps known by sketches.
    Field data, if there is one: `explained_variance`, `precision_error`, `rounding` (along x and y),
        `hardware` (a string).

    Losses that are not finite are so in `loss` and `true_loss`, but a coordinate must be finite: such a point
    lies at the largest finite loss (-Inf at the smallest) and is in no surface and no line, which have a hole
    there.
    """
    laid = _laid(grid)
    points, data = _points(grid, laid)
    verts, lines, quads = _cells(grid, laid)
    part = [PATH] * len(verts) + [kind for kind, _ in lines] + [SURFACE] * len(quads)
    sections = [
        _section("PointData", [_array(name, values) for name, values in data.items()], 'Scalars="loss"'),
        _section("CellData", [_array("part", np.array(part, np.int64))]),
        _section("Points", [_array("Points", points)]),
        _connections("Verts", verts),
        _connections("Lines", [line for _, line in lines]),
        _connections("Polys", quads),
    ]
    counts = {
        "Points": len(points),
        "Verts": len(verts),
        "Lines": len(lines),
        "Strips": 0,
        "Polys": len(quads),
    }
    return _document(_fields(grid), counts, sections)


def _document(fields: Sequence[str], counts: Mapping[str, int], sections: Sequence[str]) -> bytes:
    """The whole file around its sections."""
    numbers = " ".join(f'NumberOf{name}="{count}"' for name, count in counts.items())
    return "\n".join(
        (
            '<?xml version="1.0"?>',
            '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
            "<PolyData>",
            *([_section("FieldData", fields)] if fields else []),
            f"<Piece {numbers}>",
            *sections,
            "</Piece>",
            "</PolyData>",
            "</VTKFile>\n",
        )
    ).encode()


def _fields(grid: Grid) -> list[str]:
    """The arrays that belong to the grid as a whole."""
    known = {
        "explained_variance": grid.explained_variance,
        "precision_error": np.array([grid.precision_error] if grid.precision_error else []),
        "rounding": np.array([grid.rounding.get(axis, np.nan) for axis in "xy"] if grid.rounding else []),
    }
    arrays = [_array(name, values) for name, values in known.items() if values.size]
    return [*arrays, _string("hardware", grid.hardware)] if grid.hardware else arrays


def _laid(grid: Grid) -> list[Array]:
    """The path of each run with what lies between its checkpoints, then the steps known by sketches.

    Each (points, 3), the height NaN where there is no surface; every STEPS-th point of a run is a checkpoint.
    """
    if min(grid.z.shape) == 1:
        flat = [grid.path[list(part)] for part in grid.parts.values()]
        return [np.column_stack((path, np.full(len(path), np.nan))) for path in flat]
    paths = [(grid.path[list(part)], STEPS) for part in grid.parts.values()]
    paths += [(grid.step_path, 1)] if grid.steps else []
    return [drape(grid.x, grid.y, grid.z, points, per_leg) for points, per_leg in paths]


def _stride(grid: Grid) -> int:
    return 1 if min(grid.z.shape) == 1 else STEPS


def _extras(grid: Grid, laid: list[Array]) -> list[Array]:
    """The points of `laid` that are no checkpoints."""
    runs = len(grid.parts)
    between = [path[np.arange(len(path)) % _stride(grid) != 0] for path in laid[:runs]]
    return between + laid[runs:]


def _points(grid: Grid, laid: list[Array]) -> tuple[Array, dict[str, Array]]:
    """Coordinates (n, 3) and the data of each point, (n,)."""
    x, y = np.meshgrid(grid.x, grid.y)
    extra = np.concatenate(_extras(grid, laid))
    loss = np.concatenate((grid.z.reshape(-1), grid.path_loss, extra[:, 2]))
    heights = make_finite(loss, finite_bounds(grid.z, grid.path_loss))
    plane = np.concatenate((np.column_stack((x.reshape(-1), y.reshape(-1))), grid.path, extra[:, :2]))
    unknown = np.full(len(extra), np.nan)
    numbers = np.array(grid.numbers or (0,) * len(grid.path), np.int64)
    runs = np.repeat(np.arange(len(grid.parts)), [len(part) for part in grid.parts.values()])
    is_computed = np.concatenate((grid.computed.reshape(-1), np.ones(len(grid.path), bool)))
    before, after = grid.z.size, len(extra)
    data = {
        "loss": loss,
        "log10_loss": np.log10(loss, out=np.full(loss.shape, np.nan), where=loss > 0),
        "true_loss": np.concatenate((grid.z.reshape(-1), grid.true_loss, unknown)),
        "residual": np.concatenate((np.zeros(before), grid.residuals, unknown)),
        "checkpoint": np.pad(numbers, (before, after), constant_values=NO_CHECKPOINT),
        "run": np.pad(runs, (before, after)),
        "computed": np.pad(is_computed.astype(np.int64), (0, after)),
    }
    return np.column_stack((plane, heights)), data | _quantities(grid, data, len(loss))


def _quantities(grid: Grid, taken: Container[str], points: int) -> dict[str, Array]:
    """The quantities by names that are not taken, (points,), NaN behind the grid's own points."""
    found: dict[str, Array] = {}
    for name, values in grid.quantities.items():
        while name in taken or name in found:
            name = f"{QUANTITY}{name}"
        padding = (0, points - values.size)
        found[name] = np.pad(values.reshape(-1).astype(np.float64), padding, constant_values=np.nan)
    return found


def _cells(grid: Grid, laid: list[Array]) -> tuple[Array, list[tuple[int, Array]], Array]:
    """Vertices (k, 1), lines as (part, indices) and quads (q, 4), by indices of points."""
    checkpoints = grid.z.size + np.arange(len(grid.path))
    lines = _paths(grid, laid, checkpoints)
    if min(grid.z.shape) == 1:
        lines += _split(SURFACE, np.arange(grid.z.size), grid.z.reshape(-1))
        return checkpoints[:, None], lines, np.empty((0, 4), np.int64)
    width = grid.z.shape[1]
    rows, columns = whole_cells(grid.z).T
    first = rows * width + columns
    return checkpoints[:, None], lines, np.stack((first, first + 1, first + width + 1, first + width), axis=1)


def _paths(grid: Grid, laid: list[Array], checkpoints: Array) -> list[tuple[int, Array]]:
    """The lines of the runs and of the steps: the indices of their points."""
    lines: list[tuple[int, Array]] = []
    parts = [list(part) for part in grid.parts.values()]
    at = int(checkpoints[-1]) + 1
    for number, path in enumerate(laid):
        heights = path[:, 2].copy()
        is_extra = np.ones(len(path), bool)
        indices = np.empty(len(path), np.int64)
        if number < len(parts):
            is_extra[:: _stride(grid)] = False
            indices[~is_extra] = checkpoints[parts[number]]
            heights[~is_extra] = grid.path_loss[parts[number]]
        indices[is_extra] = at + np.arange(is_extra.sum())
        at += int(is_extra.sum())
        lines += _split(PATH if number < len(parts) else STEPS_BETWEEN, indices, heights)
    return lines


def _split(part: int, indices: Array, heights: Array) -> list[tuple[int, Array]]:
    """The lines through points that have a height, one for each unbroken run."""
    return [(part, indices[run.start : run.stop]) for run in finite_runs(heights) if len(run) > 1]


def _connections(name: str, cells: Sequence[Array] | Array) -> str:
    connectivity = np.concatenate([*cells, np.empty(0, np.int64)]).astype(np.int64)
    offsets = np.cumsum([len(cell) for cell in cells], dtype=np.int64)
    return _section(name, [_array("connectivity", connectivity), _array("offsets", offsets)])


def _section(name: str, arrays: Sequence[str], attributes: str = "") -> str:
    opening = f"{name} {attributes}".rstrip()
    return "\n".join((f"<{opening}>", *arrays, f"</{name}>"))


def _array(name: str, values: Array) -> str:
    kind, dtype = _TYPES[values.dtype.kind]
    shape = (
        f'NumberOfComponents="{values.shape[1]}"' if values.ndim > 1 else f'NumberOfTuples="{len(values)}"'
    )
    head = f'<DataArray type="{kind}" Name={quoteattr(name)} {shape} format="binary">'
    return "\n".join((head, _encoded(np.ascontiguousarray(values, dtype).tobytes()), "</DataArray>"))


def _string(name: str, text: str) -> str:
    head = f'<Array type="String" Name={quoteattr(name)} NumberOfTuples="1" format="binary">'
    return "\n".join((head, _encoded(text.encode() + b"\0"), "</Array>"))


def _encoded(data: bytes) -> str:
    # In one piece: with padding behind the count, VTK reads cell data from the wrong byte on.
    return base64.b64encode(struct.pack("<Q", len(data)) + data).decode()
