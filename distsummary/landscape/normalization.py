"""Directions scaled to the weights that they will move, a parameter at a time.

"filter" (Li et al. 2018, section 4): each filter of the direction gets the norm of the weights' filter, and
tensors with less than two dimensions become 0 (the `biasbn` rule of their code). What that means by layer:

    Linear, Conv             a filter is what makes one output: a slice along axis 0
    ConvTranspose, Conv1D    the same; their outputs lie along axis 1, in each group of a ConvTranspose
    Embedding                the row of one token or position
    attention                in_proj_weight holds the rows of q, k and v, each a filter of its own, so packed
                             and separate projections are scaled alike; out_proj is Linear
    BatchNorm, LayerNorm, biases, other vectors and scalars: 0, they do not move
    anything else            a slice along axis 0

"layer": each tensor gets the norm of the weights' tensor. "mindspore": the same, and 0 for parameters that
MindSpore does not move (`mindspore_moves`). "none": as it is. A direction of norm 0 is 0, and so is one where
the weights have norm 0. Norms are sums in float64, results float32.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from distsummary.checks import check_choice, check_type
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscape.normals import Array

NORMALIZATIONS = ("none", "filter", "layer", "mindspore")
_TINY = 1e-10  # Li et al.'s guard against a filter of norm 0

FilterAxis: TypeAlias = int | tuple[int, int]  # where outputs lie: an axis, or (axis, groups of axis 0)
FilterAxisHook: TypeAlias = (
    Mapping[str, FilterAxis] | Callable[[str, tuple[int, ...]], FilterAxis | None] | None
)


def normalize(
    direction: Mapping[str, Array],
    centre: Mapping[str, Array],
    how: str,
    filter_axes: Mapping[str, FilterAxis] | None = None,
) -> dict[str, Array]:
    """Scale each parameter of a direction, float32; `filter_axes` are those that are not 0."""
    axes = filter_axes or {}
    return {
        name: normalize_one(name, array, centre[name], how, axes.get(name, 0))
        for name, array in direction.items()
    }


def normalize_one(name: str, array: Array, weights: Array, how: str, filter_axis: FilterAxis = 0) -> Array:
    """One parameter's direction scaled to its weights; raises LandscapeError where they are not finite."""
    check_choice("normalization", how, NORMALIZATIONS)
    d, w = np.asarray(array), np.asarray(weights)
    if how == "none":
        return d.astype(np.float32, copy=False)
    if (how == "filter" and d.ndim <= 1) or (how == "mindspore" and not mindspore_moves(name)):
        return np.zeros(d.shape, np.float32)
    kept: list[int] = []
    if how == "filter":
        axis, groups = _axis(d, filter_axis)
        d = d.reshape(groups, d.shape[0] // groups, *d.shape[1:])
        kept = [0, axis + 1]
    norms, wanted = _norms(d, kept), _norms(w.reshape(d.shape), kept)
    if not (np.isfinite(norms).all() and np.isfinite(wanted).all()):
        raise LandscapeError(
            f"{name} holds NaN or Inf, in the weights or in their direction, so no norm can be given to it; "
            "choose a checkpoint from before the training diverged"
        )
    tiny = _TINY if how == "filter" else 0.0
    scale = np.divide(wanted, norms + tiny, out=np.zeros_like(norms), where=norms > 0)
    out = np.empty(d.shape, np.float32)
    np.multiply(d, scale, out=out, dtype=np.float64, casting="same_kind")
    return out.reshape(w.shape)


def resolve_filter_axes(
    hook: FilterAxisHook, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, FilterAxis]
) -> dict[str, FilterAxis]:
    """The filter axes of the parameters `shapes`: those that the model's modules tell, overruled by the hook.

    The hook is a mapping by name, or a function of (name, shape) that returns None where it has nothing to
    say. Raises InvalidTypeError and InvalidValueError for names and axes that the parameters do not have.
    """
    axes = {name: axis for name, axis in found.items() if name in shapes}
    if isinstance(hook, Mapping):
        unknown = sorted(set(hook) - set(shapes))
        if unknown:
            raise InvalidValueError(
                f"filter_axis names {', '.join(map(str, unknown[:5]))}, which do not move; "
                f"the parameters are {', '.join(list(shapes)[:5])} ..."
            )
        axes.update(hook)
    elif callable(hook):
        told = {name: hook(name, shape) for name, shape in shapes.items()}
        axes.update({name: axis for name, axis in told.items() if axis is not None})
    elif hook is not None:
        raise InvalidTypeError(f"filter_axis must be a mapping or a function of (name, shape), got {hook!r}")
    for name, axis in axes.items():
        if len(shapes[name]) > 1:
            _check_axis(name, shapes[name], axis)
    return axes


def mindspore_moves(name: str) -> bool:
    """Whether MindSpore's landscape moves a parameter: by its name."""
    return ("weight" in name or "bias" in name) and "moment" not in name


def _axis(array: Array, filter_axis: FilterAxis) -> tuple[int, int]:
    axis, groups = filter_axis if isinstance(filter_axis, tuple) else (filter_axis, 1)
    return axis % array.ndim, groups


def _check_axis(name: str, shape: tuple[int, ...], filter_axis: FilterAxis) -> None:
    field = f"filter_axis of {name}"
    if isinstance(filter_axis, tuple) and len(filter_axis) == 2:
        axis, groups = filter_axis
    else:
        axis, groups = filter_axis, 1
    check_type(field, axis, int)
    check_type(f"the groups in {field}", groups, int)
    if not -len(shape) <= axis < len(shape):
        raise InvalidValueError(
            f"{field} must be in [{-len(shape)}, {len(shape) - 1}], got {axis}; its shape is {shape}"
        )
    if groups < 1 or shape[0] % groups or (groups > 1 and axis % len(shape) == 0):
        raise InvalidValueError(
            f"the groups in {field} must divide axis 0 of {shape} and need another axis, got {filter_axis}"
        )


def _norms(array: Array, kept: list[int]) -> Array:
    """Norms over all axes but the kept ones, which stay in place: float64, without a copy in float64."""
    axes = list(range(array.ndim))
    squares = np.einsum(array, axes, array, axes, kept, dtype=np.float64)
    shape = [array.shape[axis] if axis in kept else 1 for axis in axes]
    return np.asarray(np.sqrt(squares).reshape(shape))
