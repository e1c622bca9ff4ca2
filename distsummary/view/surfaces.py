"""The data of a page's loss landscapes: the surface, the path of the training, what is known of both."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from distsummary.format.records import Landscape
from distsummary.landscapes.output.describe import axis_name, checkpoint_names, ends_of_line, made_from
from distsummary.landscapes.output.draw import notes, title
from distsummary.landscapes.output.grid import Grid, finite_bounds
from distsummary.landscapes.output.scale import clipped, scale_for, thinned, tick_labels
from distsummary.runs.recorded_run import RecordedRun
from distsummary.view.packing import small
from distsummary.view.reduce import Array

MOST = 12  # landscapes on a page
_POINTS = 30_000  # of all surfaces together
_CHECKPOINTS = 3000  # of all paths together
_TICKS = 9  # of the losses' scale
COMPUTED, INTERPOLATED, MISSING, NOT_FINITE = range(4)  # how a point came by its loss
UNKNOWN = ""  # the normalisation of a landscape from event files


def landscapes(run: RecordedRun) -> dict[str, Any] | None:
    """The loss landscapes of a run by name, the first `MOST` of them; None if there are none.

    Returns {"shown": [...], "left_out": names}. Of each: the axes `x` (n,) and `y` (m,), the losses `z`
    (m, n), row by row, `how` each point came by its loss, the `levels` of colours and isolines with their
    `stretch`, the `path` with true loss, loss in the plane and share outside of it, and `facts` as pairs of
    texts.
    """
    found = run.landscapes
    if not found:
        return None
    shown = [*found][:MOST]
    return {
        "shown": [_landscape(name, _grid(found[name]), len(shown)) for name in shown],
        "left_out": [*found][MOST:],
    }


def _landscape(name: str, grid: Grid, count: int) -> dict[str, Any]:
    """One of `count` landscapes."""
    rows, columns = grid.z.shape
    # All landscapes share a number of points: of a fine grid, only some rows and columns remain.
    each = max(1, int(np.ceil((grid.z.size * count / _POINTS) ** 0.5)))
    checkpoints = thinned(len(grid.path), _CHECKPOINTS // count)
    kept_rows, kept_columns = (thinned(size, max(2, -(-size // each))) for size in (rows, columns))
    kept = np.ix_(kept_rows, kept_columns)
    # Later marks replace earlier ones, since a point may fit several.
    how = np.full(grid.z.shape, COMPUTED, np.uint8)
    how[~grid.computed] = INTERPOLATED
    how[~np.isfinite(grid.z)] = NOT_FINITE
    how[grid.missing] = MISSING
    scale = scale_for(grid.z, grid.path_loss, grid.true_loss)
    ticks = scale.ticks(_TICKS)
    is_known = grid.normalization != UNKNOWN
    surface = clipped(grid.z)[kept]
    low, high = finite_bounds(grid.z)
    # float32 would show steps in a surface that is almost flat.
    is_flat = high - low < 1e-3 * max(abs(low), abs(high))
    return {
        "name": name,
        "title": title(grid) if is_known else "",
        "made": made_from(grid) if is_known else f"{len(grid.x):,} x {len(grid.y):,} points",
        "is_line": min(grid.z.shape) == 1,
        "rows": len(kept_rows),
        "columns": len(kept_columns),
        "x": grid.x[kept_columns].astype(np.float64),
        "y": grid.y[kept_rows].astype(np.float64),
        "z": surface if is_flat else surface.astype(np.float32),
        "how": how[kept] if how.any() else None,
        "axes": ["share of the way" if grid.kind == "line" else axis_name(grid, axis) for axis in (0, 1)],
        "ends": [*ends_of_line(grid)] if grid.kind == "line" else None,
        "levels": scale.levels,
        "stretch": scale.stretch,
        "ticks": ticks,
        "tick_labels": tick_labels(ticks),
        "scale": scale.label,
        "is_empty": scale.is_empty,
        "lowest": _extreme(grid, np.nanargmin),
        "highest": _extreme(grid, np.nanargmax),
        "unit": grid.unit,
        "path": _path(grid, checkpoints),
        "facts": _facts(grid),
        "notes": [*notes(grid), *_left_out(grid, len(kept_rows), len(kept_columns), len(checkpoints))],
    }  # fmt: skip


def _grid(found: Any) -> Grid:
    """A landscape of event files as a grid without what these do not hold."""
    if not isinstance(found, Landscape):
        grid: Grid = found
        return grid
    count = found.path_z.size
    px, py, loss = found.convergence_point
    unknown = np.full(count or 1, np.nan)
    return Grid(
        x=found.x, y=found.y, z=found.z, decomposition=found.decomposition, unit=found.unit,
        step_per_epoch=found.step_per_epoch, convergence_point=found.convergence_point,
        numbers=found.intervals if len(found.intervals) == count else (),
        path=np.stack([found.path_x, found.path_y], axis=1) if count else np.array([[px, py]]),
        path_loss=found.path_z if count else np.array([loss]),
        true_loss=unknown, residuals=unknown, normalization=UNKNOWN,
    )  # fmt: skip


def _path(grid: Grid, kept: Array) -> dict[str, Any]:
    """The checkpoints at the places `kept`, each one's run as its place in `runs`, and its `stretch`: the
    line of the path connects checkpoints of equal numbers.
    """
    run_of = np.concatenate([np.full(len(part), place) for place, part in enumerate(grid.parts.values())])
    lines = [part for parts in grid.stretches.values() for part in parts]
    stretch = np.repeat(np.arange(len(lines), dtype=np.int32), [*map(len, lines)])
    has_numbers = len(grid.numbers) == len(grid.path)
    names = checkpoint_names(grid) if has_numbers else [str(k + 1) for k in range(len(grid.path))]
    numbers = np.array(grid.numbers if has_numbers else range(1, len(grid.path) + 1), np.int64)
    losses = clipped(np.concatenate([grid.true_loss, grid.path_loss]))
    low, high = finite_bounds(losses)
    return {
        "x": grid.path[kept, 0].astype(np.float32),
        "y": grid.path[kept, 1].astype(np.float32),
        "names": [names[k] for k in kept],
        "numbers": small(numbers[kept]),
        "true": clipped(grid.true_loss)[kept].astype(np.float32),
        "plane": clipped(grid.path_loss)[kept].astype(np.float32),
        "outside": grid.residuals[kept].astype(np.float32),
        "run": run_of[kept].astype(np.int32),
        "stretch": stretch[kept],
        "runs": [*grid.parts],
        "count": len(grid.path),
        "is_log": bool(low > 0 and high > 5 * low),
    }


def _extreme(grid: Grid, find: Any) -> dict[str, float] | None:
    """The lowest or the highest finite loss of the whole surface, and where it is."""
    finite = np.where(np.isfinite(grid.z), grid.z, np.nan)
    if np.isnan(finite).all():
        return None
    row, column = np.unravel_index(find(finite), finite.shape)
    return {"loss": float(grid.z[row, column]), "x": float(grid.x[column]), "y": float(grid.y[row])}


def _facts(grid: Grid) -> list[list[str]]:
    """What is known of how the landscape was made, as pairs of name and text, without what is not known."""
    bn_modes = {"eval": "running statistics", "batch": "statistics of each batch"}
    known: Mapping[str, str] = {
        "plane": grid.kind or grid.decomposition,
        "normalisation of the directions": grid.normalization,
        "seed": "" if grid.seed is None else str(grid.seed),
        "explained variance": " + ".join(f"{share:.1%}" for share in grid.explained_variance),
        "eigenvalues": ", ".join(f"{value:.4g}" for value in grid.eigenvalues),
        "barrier": f"{grid.barrier:.4g}" if grid.kind == "line" else "",
        "data": ", ".join(grid.data_sets),
        "also recorded": ", ".join(grid.quantities),
        "batch norm": bn_modes.get(grid.bn_mode, "") if grid.normalization != UNKNOWN else "",
        "an epoch": f"{grid.step_per_epoch:,} steps" if grid.unit == "epoch" else "",
        "computed by": ", ".join(filter(None, [grid.engine, grid.hardware])),
    }
    return [[name, text] for name, text in known.items() if text]


def _left_out(grid: Grid, rows: int, columns: int, checkpoints: int) -> list[str]:
    found = []
    if (rows, columns) != grid.z.shape:
        found.append(
            f"{columns:,} x {rows:,} of {len(grid.x):,} x {len(grid.y):,} points are in this page; "
            "lowest and highest are of all"
        )
    if len(grid.path) > checkpoints:
        found.append(f"{checkpoints:,} of {len(grid.path):,} checkpoints are in this page")
    return found
