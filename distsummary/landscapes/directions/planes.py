"""Plans a landscape's plane from checkpoints: its centre, directions, axes and path. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.hessian import Eigenpairs, unflatten
from distsummary.landscapes.directions.interpolate import line, triangle
from distsummary.landscapes.directions.normalization import FilterAxis, mindspore_moves, normalize
from distsummary.landscapes.directions.normals import RNG
from distsummary.landscapes.directions.pca import locate, pca_plane
from distsummary.landscapes.directions.recipe import (
    ONE_ROW,
    Array,
    Directions,
    RandomDirections,
    Recipe,
    Weights,
    is_real,
    refuse_parallel,
)

MARGIN = 0.2  # of the path's extent, on each side


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanePlan:
    """One landscape to evaluate.

    Attributes:
        states: the checkpoints of the path, with all parameters and buffers; the last one is the centre.
        names: the parameters that move, in the order of the model.
        recipe: makes the directions, with the same values wherever it runs.
        x, y: the axes of the grid, of shapes (n,) and (m,).
        points: the path in the plane, (k, 2), one row per state.
    """

    states: Sequence[Weights]
    names: tuple[str, ...]
    recipe: Recipe
    x: Array
    y: Array
    points: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings of a landscape. Empty `centering` and `normalization` mean the default."""

    size: int
    mode: str = "standard"
    centering: str = ""
    normalization: str = ""
    seed: int = 0
    unit: str = "step"
    step_per_epoch: int = 1
    filter_axes: Mapping[str, FilterAxis] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    bn_mode: str = ""

    @property
    def reads_statistics(self) -> bool:
        """Whether the losses depend on the running statistics of BatchNorm at the centre."""
        return self.mode == "standard" and self.bn_mode in ("", "eval")

    def pick_normalization(self, usual: str) -> str:
        """The requested normalization; by default "mindspore" in the mode of this name, otherwise `usual`."""
        return self.normalization or ("mindspore" if self.mode == "mindspore" else usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plane to evaluate, and (in `known`) the fields of its LossGrid that are known before evaluation.

    `precisions` are the dtypes of the model's parameters, see `rounding`.
    """

    plane: PlanePlan
    known: Mapping[str, Any] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)


def prepare_pca(
    states: Sequence[Weights], numbers: Sequence[int], names: Sequence[str], settings: Settings
) -> Prepared:
    """The PCA plane of a path; raises LandscapeError if the path spans no plane."""
    usual = "mindspore" if settings.mode == "mindspore" else "last"
    centering = settings.centering or usual
    labels = [f"checkpoint {number}" for number in numbers]
    found = pca_plane(states, names, centering=centering, labels=labels)
    known = {
        "kind": "pca",
        "decomposition": "PCA",
        "explained_variance": found.explained_variance,
        "centering": centering,
    }
    return _prepare_path(states, numbers, names, found.directions, settings, known)


def prepare_joint(
    runs: Mapping[str, Sequence[Weights]], numbers: Sequence[int], names: Sequence[str], settings: Settings
) -> Prepared:
    """The PCA plane of the checkpoints of several runs; its centre is the last checkpoint of the last run.

    `numbers` holds the step or epoch of each checkpoint (0 if it has none), in the order of `runs`.
    """
    centering = settings.centering or "mean"
    states = [state for run in runs.values() for state in run]
    whose = [label for label, run in runs.items() for _ in run]
    labels = [f"checkpoint {n} of {run}" if n else run for n, run in zip(numbers, whose, strict=True)]
    found = pca_plane(states, names, centering=centering, labels=labels)
    known = {
        "kind": "joint",
        "decomposition": "PCA",
        "explained_variance": found.explained_variance,
        "centering": centering,
        "runs": tuple(runs),
        "run_lengths": tuple(map(len, runs.values())),
    }
    return _prepare_path(states, numbers, names, found.directions, settings, known)


def prepare_triangle(
    runs: Mapping[str, Weights], numbers: Sequence[int], names: Sequence[str], settings: Settings
) -> Prepared:
    """The plane through three checkpoints, given by label; the last one is the grid's centre."""
    states = list(runs.values())
    known = {"kind": "triangle", "decomposition": "PCA", "runs": tuple(runs), "run_lengths": (1, 1, 1)}
    return _prepare_path(states, numbers, names, triangle(states, names, list(runs)), settings, known)


def _prepare_path(
    states: Sequence[Weights],
    numbers: Sequence[int],
    names: Sequence[str],
    found: Directions,
    settings: Settings,
    known: Mapping[str, Any],
) -> Prepared:
    """The plane spanned by the directions `found` for a path, with the coordinates of the path's states."""
    normalization = settings.pick_normalization("none")
    directions = _normalized(found, states[-1], normalization, settings)
    refuse_parallel(directions, states[-1], names, normalization)
    path = locate(states, names, directions)
    x, y = path_axes(path.points, settings.size)
    plane = PlanePlan(states=states, names=tuple(names), recipe=directions, x=x, y=y, points=path.points)
    more = {"residuals": path.residuals, "normalization": normalization}
    return Prepared(plane=plane, known={**known, **more, **_common(numbers, settings)})


def prepare_line(
    start: Weights,
    end: Weights,
    numbers: Sequence[int],
    names: Sequence[str],
    settings: Settings,
    runs: Sequence[str] = (),
) -> Prepared:
    """The straight line between two checkpoints, as a grid of one row: x = -1 is `start`, x = 0 is `end`.

    `runs` are the labels of the ends if these belong to two runs.
    """
    points = np.array([[-1.0, 0.0], [0.0, 0.0]])
    plane = PlanePlan(
        states=[start, end],
        names=tuple(names),
        recipe=line(start, end, names, runs or [f"checkpoint {number}" for number in numbers]),
        x=np.linspace(-1.0, 0.0, settings.size),
        y=np.zeros(1),
        points=points,
    )
    known = {
        "kind": "line",
        "decomposition": "PCA",
        "residuals": np.zeros(2),
        "normalization": "none",
        "runs": tuple(runs),
        "run_lengths": tuple(1 for _ in runs),
    }
    return Prepared(plane=plane, known=known | _common(numbers, settings))


def prepare_random(state: Weights, number: int | None, names: Sequence[str], settings: Settings) -> Prepared:
    """A random plane through one checkpoint."""
    normalization = settings.pick_normalization("filter")
    recipe = RandomDirections(
        names=tuple(names),
        seed=settings.seed,
        normalization=normalization,
        filter_axes=settings.filter_axes,
    )
    # "filter" varies only tensors with at least two dimensions, "mindspore" only those with certain names.
    # Each normalization but "none" scales a direction to the norm of the weights: zero weights stay fixed.
    every = {n: rows_of(state, n) for n in names if normalization != "mindspore" or mindspore_moves(n)}
    filters = {n: rows for n, rows in every.items() if len(rows.shape) > 1 or normalization != "filter"}
    still = [
        name
        for name, rows in filters.items()
        if 0 in rows.shape
        or (normalization != "none" and not any(rows(*block).any() for block in rows.blocks()))
    ]
    if len(still) == len(filters):
        raise LandscapeError(
            f"normalization={normalization!r} leaves random directions without any parameter to move; "
            "use normalization='none', or choose parameters that this normalization "
            "moves and that are not all zero"
        )
    matrices = [name for name, rows in filters.items() if len(rows.shape) > 1]
    zero = [name for name in matrices if name in still]
    if 2 * len(zero) >= len(matrices) > 0 and settings.mode != "mindspore":
        raise LandscapeError(
            f"normalization={normalization!r} leaves {len(zero)} of {len(matrices)} matrices fixed, because "
            f"they are all zero, as half of those of LoRA are before it is trained: {', '.join(zero[:3])}; "
            "the losses would be nearly the same everywhere. Use a checkpoint of the training (around=), or "
            "normalization='none'"
        )
    known = {
        "kind": "random",
        "decomposition": "Random",
        "normalization": normalization,
        "seed": settings.seed,
        "rng": RNG,
    }
    return _prepare_centre(state, number, names, recipe, settings, known)


def prepare_given(
    state: Weights, number: int | None, names: Sequence[str], settings: Settings, given: Directions
) -> Prepared:
    """The plane of the user's directions, normalized; parameters without a direction stay fixed.

    Raises InvalidValueError for values not finite in float32, InvalidTypeError for values that are not real.
    """
    normalization = settings.pick_normalization("filter")
    centre = {name: state[name] for name in names}

    def read(value: Any) -> Array:
        # The value may be a tensor that requires gradients or is on a device.
        framework = framework_of(value)
        is_array = framework.name == "numpy" or not framework.is_tensor(value)
        return value if is_array else framework.to_numpy(value)

    x, y = ({name: read(value) for name, value in axis.items()} for axis in (given.x, given.y))
    # This raises an error if the directions do not fit.
    Directions(x=x, y=y).make(centre)
    found = []
    for axis, direction in (("x", x), ("y", y)):
        for name, array in direction.items():
            if not is_real(np.asarray(array).dtype):
                raise InvalidTypeError(
                    f"the {axis} direction of {name} is {np.asarray(array).dtype}; give real numbers"
                )
            with np.errstate(over="ignore"):
                is_finite = np.isfinite(np.asarray(array, np.float32)).all()
            if not is_finite:
                raise InvalidValueError(
                    f"the {axis} direction holds NaN, Inf or a number too large for float32 in {name}; "
                    "give other numbers"
                )
        # Parameters without a direction get zeros that take no memory.
        nothing = np.float32(0)
        rest = {n: np.broadcast_to(nothing, np.shape(a)) for n, a in centre.items() if n not in direction}
        found.append({name: np.asarray(array, order="C") for name, array in direction.items()} | rest)
    recipe = _normalized(Directions(x=found[0], y=found[1]), centre, normalization, settings)
    known = {"kind": "given", "decomposition": "Random", "normalization": normalization}
    return _prepare_centre(state, number, names, recipe, settings, known)


def prepare_eigenvectors(
    kind: str,
    state: Weights,
    number: int | None,
    names: Sequence[str],
    settings: Settings,
    pairs: Eigenpairs,
) -> Prepared:
    """The plane of two eigenvectors, of the kind "hessian" or "curvature", by default with unit length."""
    normalization = settings.pick_normalization("none")
    x, y = (unflatten(vector, state, names) for vector in pairs.vectors[:2])
    recipe = _normalized(Directions(x=x, y=y), state, normalization, settings)
    known = {
        "kind": kind,
        "decomposition": kind.capitalize(),
        "normalization": normalization,
        **({"seed": settings.seed, "rng": RNG} if kind == "hessian" else {}),
        "eigenvalues": tuple(map(float, pairs.values)),
        "eigenvalue_errors": tuple(map(float, pairs.residuals)),
    }
    return _prepare_centre(state, number, names, recipe, settings, known)


def _prepare_centre(
    state: Weights,
    number: int | None,
    names: Sequence[str],
    recipe: RandomDirections | Directions,
    settings: Settings,
    known: Mapping[str, Any],
) -> Prepared:
    """The plane whose centre is one checkpoint; both axes run from -1 to 1."""
    refuse_parallel(recipe, state, names, known["normalization"])
    # Random directions are as long as the weights.
    x, y = (np.linspace(-1.0, 1.0, settings.size) for _ in "xy")
    points = np.zeros((1, 2))
    plane = PlanePlan(states=[state], names=tuple(names), recipe=recipe, x=x, y=y, points=points)
    common = _common([] if number is None else [number], settings)
    return Prepared(plane=plane, known={**known, "residuals": np.zeros(1), **common})


def _common(numbers: Sequence[int], settings: Settings) -> dict[str, Any]:
    return {
        "numbers": tuple(numbers),
        "mode": settings.mode,
        "unit": settings.unit,
        "step_per_epoch": settings.step_per_epoch,
        "parameters": settings.parameters,
    }


def _normalized(
    directions: Directions, centre: Weights, normalization: str, settings: Settings
) -> Directions:
    """Both directions, normalized to the weights; raises LandscapeError if a direction becomes zero."""
    x, y = (
        normalize(direction, centre, normalization, settings.filter_axes)
        for direction in (directions.x, directions.y)
    )
    for axis, direction in (("x", x), ("y", y)):
        if not any(array.any() for array in direction.values()):
            raise LandscapeError(
                f"the {axis} direction is zero with normalization={normalization!r}, so there is no plane; "
                f"give a direction that moves something, or choose another normalization; {ONE_ROW}"
            )
    return Directions(x=x, y=y)


def path_axes(points: Array, size: int) -> tuple[Array, Array]:
    """The axes (size,) around a path (k, 2): its bounding box plus a fifth of its extent on each side."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    axes = np.linspace(low - MARGIN * span, high + MARGIN * span, size)
    return axes[:, 0].copy(), axes[:, 1].copy()
