"""What a landscape is before and after its evaluation: checkpoints -> plane, losses -> grid; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distsummary.errors import LandscapeError
from distsummary.landscape.directions import RNG, Array, Directions, RandomDirections, Weights, normalize
from distsummary.landscape.grid import LossGrid, path_axes, unit_axes
from distsummary.landscape.pca import locate, pca_plane
from distsummary.landscape.plan import Chunk, Kind, PlanePlan
from distsummary.landscape.worker import EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked of a landscape, checked. Empty `centring` and `normalization` mean the usual one."""

    size: int = 21
    mode: str = "standard"
    centring: str = ""
    normalization: str = ""
    seed: int = 0
    unit: str = "step"
    step_per_epoch: int = 1

    def pick_normalization(self, usual: str) -> str:
        """The one asked for, else MindSpore's in its mode, else `usual`."""
        return self.normalization or ("mindspore" if self.mode == "mindspore" else usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plane to evaluate, and what its grid will say beside the losses (fields of LossGrid by name)."""

    plane: PlanePlan
    known: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came back from the workers."""

    results: Mapping[Chunk, Array]
    abandoned: Sequence[Chunk]
    facts: EngineFacts
    worker_seconds: Mapping[str, float]


def prepare_pca(
    states: Sequence[Weights], numbers: Sequence[int], names: Sequence[str], settings: Settings
) -> Prepared:
    """The PCA plane of a path; raises LandscapeError when the path has none."""
    usual = "mindspore" if settings.mode == "mindspore" else "last"
    centring = settings.centring or usual
    normalization = settings.pick_normalization("none")
    found = pca_plane(states, names, centring=centring)
    centre = states[-1]
    directions = Directions(
        x=normalize(found.directions.x, centre, normalization),
        y=normalize(found.directions.y, centre, normalization),
    )
    _refuse_zero(directions)
    path = locate(states, names, directions)
    x, y = path_axes(path.points, settings.size)
    plane = PlanePlan(states=states, names=tuple(names), recipe=directions, x=x, y=y, points=path.points)
    known = {
        "decomposition": "PCA",
        "explained_variance": found.explained_variance,
        "residuals": path.residuals,
        "centring": centring,
        "normalization": normalization,
    }
    return Prepared(plane=plane, known=known | _common(numbers, settings))


def prepare_random(
    state: Weights,
    number: int | None,
    names: Sequence[str],
    settings: Settings,
    given: Directions | None = None,
) -> Prepared:
    """A random plane through one checkpoint, or the plane of `given` directions (normalised here)."""
    normalization = settings.pick_normalization("filter")
    centre = {name: state[name] for name in names}
    recipe: RandomDirections | Directions
    if given is None:
        recipe = RandomDirections(names=tuple(names), seed=settings.seed, normalization=normalization)
        _refuse_no_filters(centre, normalization)
    else:
        fitting = given.make(centre)
        recipe = Directions(
            x=normalize(fitting.x, centre, normalization), y=normalize(fitting.y, centre, normalization)
        )
        _refuse_zero(recipe)
        names = list(recipe.x)
    x, y = unit_axes(settings.size)
    points = np.zeros((1, 2))
    plane = PlanePlan(states=[state], names=tuple(names), recipe=recipe, x=x, y=y, points=points)
    known = {
        "decomposition": "Random",
        "residuals": np.zeros(1),
        "normalization": normalization,
        "seed": settings.seed if given is None else None,
        "rng": RNG if given is None else "",
    }
    return Prepared(plane=plane, known=known | _common([] if number is None else [number], settings))


def assemble(number: int, prepared: Prepared, evaluated: Evaluated) -> LossGrid:
    """The grid of landscape `number` from the losses of its chunks."""
    plane = prepared.plane
    rows = [_collect(evaluated, number, "grid", row, len(plane.x)) for row in range(len(plane.y))]
    z = np.stack(rows)
    path_loss = _collect(evaluated, number, "path", 0, len(plane.states))
    return LossGrid(
        x=plane.x,
        y=plane.y,
        z=z,
        path=plane.points,
        path_loss=path_loss,
        true_loss=_collect(evaluated, number, "checkpoint", 0, len(plane.states)),
        convergence_point=_convergence(plane, z, float(path_loss[-1]), prepared.known),
        bn_mode=evaluated.facts.bn_mode,
        engine=evaluated.facts.name,
        samples=evaluated.facts.samples,
        lost_points=sum(len(chunk) for chunk in evaluated.abandoned if chunk.plane == number),
        worker_seconds=dict(evaluated.worker_seconds),
        **prepared.known,
    )


def _common(numbers: Sequence[int], settings: Settings) -> dict[str, Any]:
    return {
        "numbers": tuple(numbers),
        "mode": settings.mode,
        "unit": settings.unit,
        "step_per_epoch": settings.step_per_epoch,
    }


def _collect(evaluated: Evaluated, plane: int, kind: Kind, row: int, count: int) -> Array:
    losses = np.full(count, np.nan)
    for chunk, values in evaluated.results.items():
        if (chunk.plane, chunk.kind, chunk.row) == (plane, kind, row):
            losses[chunk.start : chunk.stop] = values
    return losses


def _convergence(
    plane: PlanePlan, z: Array, at_centre: float, known: Mapping[str, Any]
) -> tuple[float, float, float]:
    """The centre; for a random plane in mode "mindspore" point n // 2 of the grid: not it for even sizes."""
    if known["decomposition"] == "Random" and known["mode"] == "mindspore":
        i, j = len(plane.y) // 2, len(plane.x) // 2
        return float(plane.x[j]), float(plane.y[i]), float(z[i, j])
    return 0.0, 0.0, at_centre


def _refuse_zero(directions: Directions) -> None:
    for axis, direction in (("x", directions.x), ("y", directions.y)):
        if not any(array.any() for array in direction.values()):
            raise LandscapeError(
                f"the {axis} direction is zero after normalisation; choose another normalization"
            )


def _refuse_no_filters(centre: Weights, normalization: str) -> None:
    """Under "filter" only tensors with two dimensions move, and only where they are not zero."""
    arrays = [array for array in centre.values() if array.ndim > 1 or normalization != "filter"]
    if not any(array.any() or normalization == "none" for array in arrays):
        raise LandscapeError(
            f"normalization={normalization!r} leaves random directions without any parameter to move; "
            "use normalization='none' or a model with weights that are not zero"
        )
