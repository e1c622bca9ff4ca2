"""Assembles the quantities (losses and metrics) of all chunks into a LossGrid. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distsummary.landscapes.directions.planes import PlanePlan, Prepared
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.directions.rounding import measure
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.worker import EngineFacts
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.run.landscape_identity import digest
from distsummary.landscapes.run.refine import Mask, between_rows, first_points, interpolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The q quantities of one landscape, float64, NaN where missing.

    `grid` (m, n, q) has m rows and n columns. `checkpoint` (k, q): at each checkpoint; `path` (k, q): at its
    projection onto the plane. `computed`, bool (m, n): which points of the grid have a result.
    """

    grid: Array
    path: Array
    checkpoint: Array
    computed: Mask


def assemble(
    number: int,
    prepared: Prepared,
    results: Mapping[Chunk, Array],
    abandoned: Sequence[Chunk],
    *,
    facts: EngineFacts,
    worker_seconds: Mapping[str, float],
    precision: str,
    precision_error: float,
) -> LossGrid:
    """The grid of landscape `number` from the results of all chunks; the workers of `abandoned` kept dying.

    Points that were not evaluated are interpolated if they lie between evaluated points, otherwise NaN;
    points of abandoned chunks are NaN. `LossGrid.computed` is False for all of these.
    """
    plane, known = prepared.plane, prepared.known
    found = gather(results, number, plane)
    given_up = [chunk for chunk in abandoned if chunk.plane == number]
    # The results of abandoned chunks are NaN and do not count as computed.
    computed = found.computed.copy()
    for chunk in given_up:
        if chunk.kind == "grid":
            computed[chunk.row, list(chunk.columns)] = False
    # Points that were not evaluated are interpolated: in levels if all first points of refinement are known,
    # otherwise only between rows.
    whole = found.grid
    if not found.computed.all():
        is_refined = bool(found.computed[first_points(found.computed.shape)].all())
        fill = interpolate if is_refined else between_rows
        each = np.moveaxis(found.grid, -1, 0)
        whole = np.stack([fill(values, found.computed) for values in each], axis=-1)
    path_loss = found.path[:, 0]
    convergence_point = 0.0, 0.0, float(path_loss[-1])
    if known["decomposition"] == "Random" and known["mode"] == "mindspore":
        # As in MindSpore: for even sizes this is not the centre.
        i, j = len(plane.y) // 2, len(plane.x) // 2
        convergence_point = float(plane.x[j]), float(plane.y[i]), float(whole[i, j, 0])
    x_step, y_step = (float(axis[1] - axis[0]) if len(axis) > 1 else 0.0 for axis in (plane.x, plane.y))
    measured = measure(
        plane.states[-1], plane.recipe, plane.names, (x_step, y_step), precision, prepared.precisions
    )
    return LossGrid(
        x=plane.x,
        y=plane.y,
        z=whole[..., 0],
        computed=computed,
        path=plane.points,
        path_loss=path_loss,
        true_loss=found.checkpoint[:, 0],
        convergence_point=convergence_point,
        bn_mode=facts.bn_mode,
        engine=facts.name,
        hardware=facts.hardware,
        precision_error=precision_error,
        rounding=measured.rounding,
        lengths=measured.lengths,
        directions=digest((plane.names, plane.recipe)),
        samples=facts.samples,
        quantities={name: whole[..., n] for n, name in enumerate(facts.quantities) if n},
        lost_points=sum(map(len, given_up)),
        worker_seconds=dict(worker_seconds),
        **known,
    )


def gather(results: Mapping[Chunk, Array], number: int, plane: PlanePlan) -> Gathered:
    """The results of landscape `number` as arrays."""
    quantities = max((np.shape(measured)[1] for measured in results.values()), default=1)
    rows = {"grid": len(plane.y), "path": 1, "checkpoint": 1}
    columns = {"grid": len(plane.x), "path": len(plane.states), "checkpoint": len(plane.states)}
    found = {kind: np.full((rows[kind], columns[kind], quantities), np.nan) for kind in rows}
    computed = np.zeros((len(plane.y), len(plane.x)), bool)
    for chunk, measured in results.items():
        if chunk.plane == number:
            found[chunk.kind][chunk.row, list(chunk.columns)] = measured
            if chunk.kind == "grid":
                computed[chunk.row, list(chunk.columns)] = True
    return Gathered(
        grid=found["grid"], path=found["path"][0], checkpoint=found["checkpoint"][0], computed=computed
    )
