"""Scales directions to the norms of the weights, one parameter at a time.

"filter" (Li et al. 2018, section 4): each filter of the direction gets the norm of the weights' filter, and
tensors with less than two dimensions become 0 (the `biasbn` rule of their code). The filters of each layer:

    Linear, Conv             the weights of one output: a slice along axis 0
    ConvTranspose, Conv1D    the weights of one output: a slice along axis 1 (within a group of ConvTranspose)
    Embedding                the row of one token or position
    attention                in_proj_weight holds the rows of q, k and v; each row is a filter, so packed and
                             separate projections are scaled alike; out_proj is Linear
    BatchNorm, LayerNorm, biases, other vectors and scalars: 0, so they stay fixed
    anything else            a slice along axis 0

"layer": each tensor gets the norm of the weights' tensor. "mindspore": like "layer", but 0 for parameters
that MindSpore does not vary (`mindspore_moves`). "none": unchanged. Where the direction or the weights have
norm 0, the result is 0. Norms are computed in float64, in blocks of rows (see `array_rows`); results are
float32.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.checks import check_int
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.array_rows import Rows, array_rows
from distsummary.landscapes.directions.normals import Array

NORMALIZATIONS = ("none", "filter", "layer", "mindspore")

FilterAxis: TypeAlias = int | tuple[int, int]  # the axis of outputs, or (that axis, number of groups)
FilterAxisHook: TypeAlias = (
    Mapping[str, FilterAxis] | Callable[[str, tuple[int, ...]], FilterAxis | None] | None
)


def normalize(
    direction: Mapping[str, Array],
    centre: Mapping[str, Array],
    how: str,
    filter_axes: Mapping[str, FilterAxis] | None = None,
) -> dict[str, Array]:
    """Scale each parameter of a direction, float32; `filter_axes` holds the filter axes other than 0."""
    axes = filter_axes or {}
    return {
        name: normalize_one(name, array, centre[name], how, axes.get(name, 0))
        for name, array in direction.items()
    }


def normalize_one(name: str, array: Array, weights: Array, how: str, filter_axis: FilterAxis = 0) -> Array:
    """One parameter's direction scaled to its weights; raises LandscapeError if a norm is not finite."""
    if how == "none":
        return np.asarray(array).astype(np.float32, copy=False)
    return normalized(name, array_rows(array), array_rows(weights), how, filter_axis).whole()


def normalized(name: str, direction: Rows, weights: Rows, how: str, filter_axis: FilterAxis = 0) -> Rows:
    """One parameter's direction scaled to its weights, as rows that are computed when they are read.

    If a norm spans several rows, this reads the direction and the weights once and keeps only the norms.
    Raises LandscapeError for norms that are not finite, either at once or when the rows are read.
    """
    if how == "none":
        return direction
    shape = direction.shape
    is_still = (how == "filter" and len(shape) <= 1) or (how == "mindspore" and not mindspore_moves(name))
    if is_still or 0 in shape:
        return Rows(shape, lambda start, stop: np.zeros((stop - start, *shape[1:]), np.float32), is_zero=True)
    if how != "filter":
        return _by_groups(name, direction, weights, groups=1, kept=[])
    axis, groups = filter_axis if isinstance(filter_axis, tuple) else (filter_axis, 1)
    axis %= len(shape)
    # A filter across several rows needs the norm of all of them; otherwise each row is a filter, and any
    # block of rows can be scaled by itself.
    if axis:
        return _by_groups(name, direction, weights, groups=groups, kept=[axis])

    def read(start: int, stop: int) -> Any:
        d, w = direction(start, stop), weights(start, stop)
        scales = _scale(name, squares(d, [0]), squares(w, [0]))
        return times(d, scales.reshape(-1, *(1 for _ in shape[1:])))

    return replace(direction, read=read)


def check_filter_axis(hook: object) -> None:
    """Raise InvalidTypeError unless `hook` is None, a mapping by name or a function of (name, shape)."""
    if hook is not None and not isinstance(hook, Mapping) and not callable(hook):
        raise InvalidTypeError(f"filter_axis must be a mapping or a function of (name, shape), got {hook!r}")


def resolve_filter_axes(
    hook: FilterAxisHook, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, FilterAxis]
) -> dict[str, FilterAxis]:
    """The filter axes of the parameters in `shapes`: those `found` in the model, overridden by the hook.

    A function of (name, shape) returns None for the default. Raises InvalidTypeError and InvalidValueError
    for names and axes that the parameters do not have.
    """
    axes = {name: axis for name, axis in found.items() if name in shapes}
    if isinstance(hook, Mapping):
        unknown = sorted(set(hook) - set(shapes))
        if unknown:
            raise InvalidValueError(
                f"filter_axis names {', '.join(map(str, unknown[:5]))}, not among the varied parameters, "
                f"which are {', '.join(list(shapes)[:5])} ...; name some of these"
            )
        axes.update(hook)
    elif hook is not None:
        chosen = {name: hook(name, shape) for name, shape in shapes.items()}
        axes.update({name: axis for name, axis in chosen.items() if axis is not None})
    for name, filter_axis in axes.items():
        shape, field = shapes[name], f"filter_axis of {name}"
        # Vectors and scalars have no filters: this normalization leaves them fixed.
        if len(shape) < 2:
            continue
        given: Any = filter_axis
        axis, groups = given if isinstance(given, tuple) and len(given) == 2 else (given, 1)
        axis, groups = check_int(field, axis), check_int(f"the groups in {field}", groups)
        if not -len(shape) <= axis < len(shape):
            raise InvalidValueError(
                f"{field} must be in [{-len(shape)}, {len(shape) - 1}], got {axis}; its shape is {shape}"
            )
        if groups < 1 or shape[0] % groups or (groups > 1 and axis % len(shape) == 0):
            raise InvalidValueError(
                f"the groups in {field} must divide the size of axis 0 of {shape}, and several groups need a "
                f"filter axis other than 0, got {given}"
            )
    return axes


def mindspore_moves(name: str) -> bool:
    """Whether MindSpore's landscape varies a parameter that has this name."""
    return ("weight" in name or "bias" in name) and "moment" not in name


def _by_groups(name: str, direction: Rows, weights: Rows, *, groups: int, kept: list[int]) -> Rows:
    """Scale each group of rows, separately for each index along the `kept` axes."""
    shape, each = direction.shape, len(direction) // groups

    def sums(rows: Rows) -> Array:
        # For each group, the sums of squares over all axes that are not in `kept`, float64.
        groups_of_blocks = (rows.blocks(at * each, (at + 1) * each) for at in range(groups))
        return np.stack(
            [np.asarray(sum(squares(rows(*block), kept) for block in blocks)) for blocks in groups_of_blocks]
        )

    scales = _scale(name, sums(direction), sums(weights))
    scales = scales.reshape(groups, *(size if at in kept else 1 for at, size in enumerate(shape[1:], 1)))

    def read(start: int, stop: int) -> Any:
        return times(direction(start, stop), scales[np.arange(start, stop) // each])

    return replace(direction, read=read)


@singledispatch
def squares(array: Any, kept: list[int]) -> Array:
    """Sums of squares over all axes that are not in `kept`, float64, without a copy in float64."""
    axes = list(range(array.ndim))
    return np.asarray(np.einsum(array, axes, array, axes, kept, dtype=np.float64))


def _scale(name: str, found: Array, wanted: Array) -> Array:
    """The factors that scale norms `found` to `wanted` (both given squared); 0 where a found norm is 0."""
    norms, wanted = np.sqrt(found), np.sqrt(wanted)
    if not (np.isfinite(norms).all() and np.isfinite(wanted).all()):
        raise LandscapeError(
            f"{name} holds NaN or Inf, in the weights or in their direction, so it cannot be normalized; "
            "choose a checkpoint from before the training diverged"
        )
    return np.divide(wanted, norms, out=np.zeros_like(norms), where=norms > 0)


@singledispatch
def times(array: Any, scale: Array) -> Any:
    """`array` * `scale`, computed in float64 and rounded to float32."""
    out = np.empty(array.shape, np.float32)
    return np.multiply(array, scale, out=out, dtype=np.float64, casting="same_kind")
