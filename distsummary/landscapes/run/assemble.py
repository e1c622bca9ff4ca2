"""What a landscape is after its evaluation: the chunks' quantities -> LossGrid; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distsummary.landscapes.directions.planes import PlanePlan, Prepared
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.directions.rounding import rounding_floors
from distsummary.landscapes.engines.chunks import Chunk
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.worker import EngineFacts
from distsummary.landscapes.output.loss_grid import LossGrid
from distsummary.landscapes.run.identity import digest
from distsummary.landscapes.run.refine import Mask, between_rows, first_points, interpolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came back from the workers."""

    results: Mapping[Chunk, Array]
    abandoned: Sequence[Chunk]
    facts: EngineFacts
    choice: EngineChoice
    worker_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Quantities, float64, NaN where none came: grid (m, n, q), path and checkpoint (k, q).

    `computed` says of which points of the grid some came, bool (m, n).
    """

    grid: Array
    path: Array
    checkpoint: Array
    computed: Mask


def assemble(number: int, prepared: Prepared, evaluated: Evaluated, precision: str = "") -> LossGrid:
    """The grid of landscape `number` from the losses of its chunks.

    Points that were never evaluated are interpolated where they lie between others, else they are NaN, as are
    those that were given up; `LossGrid.computed` tells all of them.
    """
    plane = prepared.plane
    found = gather(evaluated.results, number, plane)
    given_up = [chunk for chunk in evaluated.abandoned if chunk.plane == number]
    computed = found.computed.copy()
    for chunk in given_up:
        if chunk.kind == "grid":
            computed[chunk.row, list(chunk.columns)] = False
    whole = _filled(found)
    path_loss = found.path[:, 0]
    facts = evaluated.facts
    return LossGrid(
        x=plane.x,
        y=plane.y,
        z=whole[..., 0],
        computed=computed,
        path=plane.points,
        path_loss=path_loss,
        true_loss=found.checkpoint[:, 0],
        convergence_point=_convergence(plane, whole[..., 0], float(path_loss[-1]), prepared.known),
        bn_mode=facts.bn_mode,
        engine=facts.name,
        hardware=facts.hardware,
        precision_error=evaluated.choice.precision_error,
        rounding=_rounding(prepared, precision),
        directions=digest((plane.names, plane.recipe)),
        samples=facts.samples,
        quantities={name: whole[..., n] for n, name in enumerate(facts.quantities) if n},
        lost_points=sum(map(len, given_up)),
        worker_seconds=dict(evaluated.worker_seconds),
        **prepared.known,
    )


def gather(results: Mapping[Chunk, Array], number: int, plane: PlanePlan) -> Gathered:
    """The results of landscape `number` in their places."""
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


def _filled(found: Gathered) -> Array:
    """The grid's quantities (m, n, q) with those never evaluated interpolated where that can be."""
    if found.computed.all():
        return found.grid
    is_refined = bool(found.computed[first_points(found.computed.shape)].all())
    fill = interpolate if is_refined else between_rows
    each = np.moveaxis(found.grid, -1, 0)
    return np.stack([fill(values, found.computed) for values in each], axis=-1)


def _rounding(prepared: Prepared, precision: str) -> dict[str, float]:
    """How much of a step along each axis is lost in the weights' precision, see `rounding`."""
    plane, kept = prepared.plane, prepared.precisions
    x, y = (float(axis[1] - axis[0]) if len(axis) > 1 else 0.0 for axis in (plane.x, plane.y))
    return rounding_floors(plane.states[-1], plane.recipe, plane.names, (x, y), precision, kept)


def _convergence(
    plane: PlanePlan, z: Array, at_centre: float, known: Mapping[str, Any]
) -> tuple[float, float, float]:
    """The centre; for a random plane in mode "mindspore" point n // 2 of the grid: not it for even sizes."""
    if known["decomposition"] == "Random" and known["mode"] == "mindspore":
        i, j = len(plane.y) // 2, len(plane.x) // 2
        return float(plane.x[j]), float(plane.y[i]), float(z[i, j])
    return 0.0, 0.0, at_centre
