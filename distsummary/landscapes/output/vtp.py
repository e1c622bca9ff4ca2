"""Encodes a loss grid as VTK PolyData (.vtp) for ParaView: surface and path. Pure functions.

A file is XML. Arrays are float64 and int64, little endian, in base64 (text in VTK's "ascii" cannot hold NaN):

    <DataArray type="Float64" format="binary">  base64(uint64 count of data's bytes | data)  </DataArray>

The points are those of the grid, row by row; then the checkpoints of the path; then points on the surface,
between checkpoints and at training steps (`LossGrid.steps`). The cells are, in PolyData's order, a vertex
for each checkpoint, lines (each run's path, the steps, a grid of one row), and a quad for each grid cell.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

import numpy as np

from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.output.cells import drape, finite_runs, whole_cells
from distsummary.landscapes.output.grid import Grid, finite_bounds, make_finite

SURFACE, PATH, STEPS_BETWEEN = 0, 1, 2
NO_CHECKPOINT = -1
QUANTITY = "quantity:"  # prefix of a quantity whose name is used already
STEPS = 16  # points from one checkpoint of the path to the next
_TYPES = {"f": ("Float64", "<f8"), "i": ("Int64", "<i8")}


def to_vtp(grid: Grid) -> bytes:
    """The bytes of the file. The z of a point is its loss; the z of a checkpoint is its loss in the plane.

    Point data:
        loss: interpolated from the grid at points between checkpoints.
        log10_loss: NaN unless the loss is above 0.
        true_loss: a checkpoint's own loss; the same as `loss` at grid points; NaN between checkpoints.
        residual: see `LossGrid.residuals`; 0 at grid points, NaN between checkpoints.
        checkpoint: the checkpoint's step or epoch, -1 at other points.
        run: the index of the checkpoint's run (joint planes), 0 at other points.
        computed: 1 where the loss was computed by the model, 0 where it is interpolated or missing.
        Each of the grid's quantities by its name, NaN outside grid points; with the prefix "quantity:" if an
        array above has the same name.
    Cell data: `part`, 0 for the surface, 1 for the path, 2 for the steps known from sketches.
    Field data, left out if unknown: `explained_variance`, `precision_error`, `rounding` (along x and y),
        `hardware` (a string).

    Losses that are not finite are kept in `loss` and `true_loss`, but a coordinate must be finite: the
    z of such a point is the largest finite loss (for -Inf the smallest). The surface and the
    lines leave out such points.
    """
    is_line = min(grid.z.shape) == 1
    stride = 1 if is_line else STEPS  # points of a path from one checkpoint to the next
    runs = [list(part) for part in grid.parts.values()]

    # The path of each run with the points between its checkpoints, then the steps known from sketches: each
    # (points, 3), with NaN as height where there is no surface.
    if is_line:
        laid = [np.column_stack((grid.path[run], np.full(len(run), np.nan))) for run in runs]
    else:
        laid = [drape(grid.x, grid.y, grid.z, grid.path[run], STEPS) for run in runs]
        laid += [drape(grid.x, grid.y, grid.z, grid.step_path, 1)] if grid.steps else []

    # The points: those of the grid, the checkpoints, then those between checkpoints and the steps.
    between = [path[np.arange(len(path)) % stride != 0] for path in laid[: len(runs)]]
    extra = np.concatenate(between + laid[len(runs) :])
    x, y = np.meshgrid(grid.x, grid.y)
    loss = np.concatenate((grid.z.reshape(-1), grid.path_loss, extra[:, 2]))
    heights = make_finite(loss, finite_bounds(grid.z, grid.path_loss))
    plane = np.concatenate((np.column_stack((x.reshape(-1), y.reshape(-1))), grid.path, extra[:, :2]))
    unknown = np.full(len(extra), np.nan)
    numbers = np.array(grid.numbers or (0,) * len(grid.path), np.int64)
    run_numbers = np.repeat(np.arange(len(runs)), [len(run) for run in runs])
    is_computed = np.concatenate((grid.computed.reshape(-1), np.ones(len(grid.path), bool)))
    before, after = grid.z.size, len(extra)
    data = {
        "loss": loss,
        "log10_loss": np.log10(loss, out=np.full(loss.shape, np.nan), where=loss > 0),
        "true_loss": np.concatenate((grid.z.reshape(-1), grid.true_loss, unknown)),
        "residual": np.concatenate((np.zeros(before), grid.residuals, unknown)),
        "checkpoint": np.pad(numbers, (before, after), constant_values=NO_CHECKPOINT),
        "run": np.pad(run_numbers, (before, after)),
        "computed": np.pad(is_computed.astype(np.int64), (0, after)),
    }
    for name, values in grid.quantities.items():
        while name in data:
            name = f"{QUANTITY}{name}"
        padding = (0, len(loss) - values.size)
        data[name] = np.pad(values.reshape(-1).astype(np.float64), padding, constant_values=np.nan)

    # The cells, by indices of points: a vertex for each checkpoint, lines as (part, indices), quads.
    checkpoints = before + np.arange(len(grid.path))
    lines: list[tuple[int, Array]] = []
    at = before + len(grid.path)
    for number, path in enumerate(laid):
        path_heights, is_extra = path[:, 2].copy(), np.ones(len(path), bool)
        indices = np.empty(len(path), np.int64)
        if number < len(runs):
            is_extra[::stride] = False
            indices[~is_extra] = checkpoints[runs[number]]
            path_heights[~is_extra] = grid.path_loss[runs[number]]
        indices[is_extra] = at + np.arange(is_extra.sum())
        at += int(is_extra.sum())
        lines += _split(PATH if number < len(runs) else STEPS_BETWEEN, indices, path_heights)
    if is_line:
        lines += _split(SURFACE, np.arange(before), grid.z.reshape(-1))
        quads = np.empty((0, 4), np.int64)
    else:
        width = grid.z.shape[1]
        rows, columns = whole_cells(grid.z).T
        first = rows * width + columns
        quads = np.stack((first, first + 1, first + width + 1, first + width), axis=1)

    of_grid = {
        "explained_variance": grid.explained_variance,
        "precision_error": np.array([grid.precision_error] if grid.precision_error else []),
        "rounding": np.array([grid.rounding.get(axis, np.nan) for axis in "xy"] if grid.rounding else []),
    }
    fields = [_array(name, values) for name, values in of_grid.items() if values.size]
    if grid.hardware:
        head = '<Array type="String" Name="hardware" NumberOfTuples="1" format="binary">'
        fields.append("\n".join((head, _encoded(grid.hardware.encode() + b"\0"), "</Array>")))
    part = [PATH] * len(checkpoints) + [kind for kind, _ in lines] + [SURFACE] * len(quads)
    points = np.column_stack((plane, heights))
    lines_alone = [line for _, line in lines]
    return polydata(fields, points, data, checkpoints, lines_alone, quads, np.array(part, np.int64))


def polydata(
    fields: Sequence[str],
    points: Array,
    data: Mapping[str, Array],
    verts: Array,
    lines: Sequence[Array],
    quads: Array,
    part: Array,
) -> bytes:
    """VTK PolyData as XML: points with their `data`, and cells, as indices of points, with their `part`."""
    counts = {"Points": points, "Verts": verts, "Lines": lines, "Strips": (), "Polys": quads}
    numbers_of = " ".join(f'NumberOf{name}="{len(items)}"' for name, items in counts.items())
    return "\n".join(
        (
            '<?xml version="1.0"?>',
            '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
            "<PolyData>",
            *([_section("FieldData", fields)] if fields else []),
            f"<Piece {numbers_of}>",
            _section("PointData", [_array(name, values) for name, values in data.items()], 'Scalars="loss"'),
            _section("CellData", [_array("part", part)]),
            _section("Points", [_array("Points", points)]),
            _connections("Verts", verts[:, None]),
            _connections("Lines", lines),
            _connections("Polys", quads),
            "</Piece>",
            "</PolyData>",
            "</VTKFile>\n",
        )
    ).encode()


def _split(part: int, indices: Array, heights: Array) -> list[tuple[int, Array]]:
    """(part, indices) of the lines through points with a finite height, one for each unbroken run."""
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


def _encoded(data: bytes) -> str:
    # Count and data are encoded together: with padding after the count, VTK misreads cell data.
    return base64.b64encode(struct.pack("<Q", len(data)) + data).decode()
