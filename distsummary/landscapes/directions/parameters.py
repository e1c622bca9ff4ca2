"""Finds the parameters that a landscape varies ("moves"), their names, and the axes of their filters."""

import re
from collections import ChainMap
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np

from distsummary.base.checks import check_type
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.normalization import (
    FilterAxis,
    FilterAxisHook,
    mindspore_moves,
    resolve_filter_axes,
)
from distsummary.landscapes.directions.recipe import SHOWN, Array, Weights, check_fit, is_real, uncompiled

Patterns: TypeAlias = str | Sequence[str] | None

_PREFIX = re.compile(r"((module|_orig_mod)\.)*")
NEAR = 0.5  # least difflib ratio for a name to be suggested

_log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """The parameters that move: their shapes by canonical name, in the order of the model.

    The first name of a tied parameter is canonical, and `tied` maps each of the parameter's other names to
    it. `filter_axes` holds the filter axes other than 0. `patterns` are the requested regular expressions.
    `precisions` are the dtypes of the model's values, see `rounding`. `own` holds all values of the model;
    they replace a checkpoint's missing values.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str] = field(default_factory=dict)
    filter_axes: Mapping[str, FilterAxis] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    precisions: Mapping[str, str] = field(default_factory=dict)
    own: Weights = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical names of the parameters that move."""
        return tuple(self.shapes)

    def named(self, what: str, weights: Weights) -> Weights:
        """`weights` under canonical names; raises InvalidValueError if a tied parameter has two values.

        Names may have the prefixes of wrappers, or none.
        """
        if isinstance(weights, Mapping):
            for name in weights:
                check_type(f"a name in {what}", name, str)
            weights = fitting(weights, {*self.shapes, *self.own, *self.tied})
        return canonical(what, weights, self.tied)

    def check(self, what: str, state: Weights) -> Weights:
        """`state` under canonical names; raises InvalidValueError if it does not fit the model.

        Parameters that move must be present; buffers and frozen parameters may be missing.
        """
        named = self.named(what, state)
        nothing = np.zeros((), np.float32)
        moved = {name: np.broadcast_to(nothing, shape) for name, shape in self.shapes.items()}
        check_fit(what, named, ChainMap(moved, dict.fromkeys(self.own, nothing)), self.shapes)
        held = [name for name in self.own if name in named]
        to_fit = []
        for name in held:
            given, expected = rows_of(named, name), rows_of(self.own, name)
            dtype, own_dtype = given(0, 0).dtype, expected(0, 0).dtype
            if is_real(own_dtype) and not is_real(dtype):
                raise InvalidValueError(
                    f"{what} has {name} as {dtype}, the model has it as {own_dtype}; give the model "
                    "that made the checkpoints"
                )
            # Some formats give a single number the shape (1,).
            numbers = ((), (1,))
            if given.shape not in numbers or expected.shape not in numbers:
                to_fit.append(name)
        check_fit(what, named, self.own, to_fit)
        return named


def moving(model: Any, mode: str, patterns: Patterns = None, filter_axis: FilterAxisHook = None) -> Moving:
    """The parameters that move: the trainable ones, or those that match a pattern.

    Mode "mindspore" chooses them as MindSpore does, even frozen ones. Raises InvalidValueError for a pattern
    without a match and for different parameters that share memory, LandscapeError for a model without
    trainable parameters.
    """
    framework, own = framework_of(model), own_state(model)
    axes, tied = _axes_and_ties(model)
    tensors = dict(framework.tensors(model))
    trainable = {tied.get(name, name): tensor for name, tensor in framework.named_parameters(model)}
    trainable = {name: tensor for name, tensor in tensors.items() if name in trainable}
    shapes = {name: tuple(map(int, tensor.shape)) for name, tensor in trainable.items()}
    if mode == "mindspore":
        shapes = _mindspore_shapes(framework.state(model), trainable=shapes, tied=tied)
    elif not shapes:
        raise LandscapeError(
            f"the model, a {type(model).__name__}, has no trainable parameters, so there is no landscape "
            "around it; make the parameters that are to move trainable (in torch: "
            "parameter.requires_grad_(True)), or use mode='mindspore'"
        )
    if patterns is not None:
        names = select(shapes, patterns, others=lambda: framework.state(model), tied=tied)
        shapes = {name: shapes[name] for name in names}
    if framework.name == "torch":
        from distsummary.landscapes.directions.torch_parameters import in_memory

        arrays = in_memory(model, tied)
    else:
        named = {name: array for name, array in framework.named_parameters(model) if name not in tied}
        arrays = {n: array for n, array in named.items() if isinstance(array, np.ndarray) and array.size}
    refuse_overlaps(arrays, shapes)
    precisions = {name: str(tensors[name].dtype).removeprefix("torch.").lower() for name in shapes}
    for name, precision in precisions.items():
        if not precision.startswith(("float", "bfloat")):
            raise InvalidTypeError(
                f"only floating-point parameters can move, but {name} is {precision}; convert it, freeze it "
                "(in numpy models: make it a buffer), or choose others with parameters="
            )
    # The first names of tied parameters replace their other names.
    if isinstance(filter_axis, Mapping):
        by_first: dict[str, FilterAxis] = {}
        for name, axis in filter_axis.items():
            first = tied.get(name, name)
            if by_first.setdefault(first, axis) != axis:
                raise InvalidValueError(
                    f"filter_axis has both {by_first[first]!r} and {axis!r} for {first}, a parameter with "
                    "several names; give one axis"
                )
        filter_axis = by_first
    return Moving(
        shapes=shapes,
        tied=tied,
        filter_axes=resolve_filter_axes(filter_axis, shapes, axes),
        patterns=() if patterns is None else (patterns,) if isinstance(patterns, str) else tuple(patterns),
        precisions=precisions,
        own=own,
    )


def _mindspore_shapes(
    state: Weights, trainable: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the values that MindSpore moves, which it chooses by name; integers cannot move."""
    names = [n for n in state if mindspore_moves(n) and n not in tied and state[n].dtype.kind not in "iub"]
    frozen = sorted(set(names) - set(trainable))
    if frozen:
        _log.warning("mode='mindspore' moves frozen parameters as MindSpore does: %s", ", ".join(frozen[:5]))
    if not names:
        raise LandscapeError(
            "mode='mindspore' varies parameters with 'weight' or 'bias' in their names, got none; "
            "use mode='standard'"
        )
    return {name: state[name].shape for name in names}


def _axes_and_ties(model: Any) -> tuple[dict[str, FilterAxis], dict[str, str]]:
    """The filter axes other than 0, and the names of tied parameters, see `Moving`."""
    if framework_of(model).name == "torch":
        from distsummary.landscapes.directions.torch_parameters import filter_axes, tied_names

        return filter_axes(model), tied_names(model)
    first: dict[Any, str] = {}
    tied = {}
    for name, array in framework_of(model).named_parameters(model):
        # The memory of values that are not arrays is unknown.
        is_array = isinstance(array, np.ndarray) and array.size
        memory = (array.ctypes.data, array.dtype.str, array.shape, array.strides) if is_array else id(array)
        known = first.setdefault(memory, name)
        if known != name:
            tied[name] = known
    return {}, tied


def own_state(model: Any) -> Weights:
    """The values of a model by canonical name; a torch model's values are not copied, see `OwnState`."""
    if framework_of(model).name == "torch":
        from distsummary.landscapes.directions.torch_parameters import OwnState

        return OwnState.of(model)
    _, tied = _axes_and_ties(model)
    return {name: array for name, array in framework_of(model).state(model).items() if name not in tied}


def select(
    names: Iterable[str],
    patterns: str | Sequence[str],
    others: Callable[[], Iterable[str]] = tuple,
    tied: Mapping[str, str] | None = None,
) -> list[str]:
    """The `names` that match at least one of the regular expressions (`re.search`), in their order.

    An expression may also match another name of a tied parameter, see `Moving.tied`. Raises
    InvalidValueError, which lists similar names, for an expression without a match; `others` returns the
    names of values that cannot move (frozen parameters, buffers).
    """
    names = list(names)
    first = {name: name for name in names} | {n: f for n, f in (tied or {}).items() if f in names}
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = {first[name] for name in _search(pattern, first)}
        if not found:
            fixed = _search(pattern, others())
            raise InvalidValueError(
                f"parameters={pattern!r} matches no trainable parameter"
                + (f", only frozen parameters or buffers: {', '.join(fixed[:SHOWN])}" if fixed else "")
                + f"; similar names are {', '.join(near(pattern, names))}"
                + ("; to move a frozen parameter, let it require gradients" if fixed else "")
            )
        chosen.update(found)
    return [name for name in names if name in chosen]


def near(pattern: str, names: Sequence[str]) -> list[str]:
    """Up to five names with a part similar to `pattern`, best first; if there are none, the first names."""
    plain = re.sub(r"\W+", ".", pattern).strip(".").lower()
    parts = {name: (name.lower(), *name.lower().split(".")) for name in names}
    known = dict.fromkeys(part for some in parts.values() for part in some)
    close = get_close_matches(plain, known, SHOWN, NEAR)
    alike = dict.fromkeys(name for part in close for name in names if part in parts[name])
    return list(alike or names)[:SHOWN]


def _search(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if re.search(pattern, name)]


def check_patterns(patterns: Patterns) -> None:
    """Raise InvalidTypeError or InvalidValueError unless `patterns` are None or regular expressions."""
    check_type("parameters", patterns, (str, Sequence), optional=True)
    listed = [patterns] if isinstance(patterns, str) else patterns
    if listed is not None and not listed:
        raise InvalidValueError("parameters must hold at least one name or regular expression, got none")
    for pattern in listed or ():
        check_type("an item of parameters", pattern, str)
        if not pattern:
            raise InvalidValueError(
                "an item of parameters must not be empty, since '' matches every name; leave parameters= out"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidValueError(
                f"parameters={pattern!r} is not a regular expression ({error}); escape it with re.escape"
            ) from error


def fitting(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """`state` under the given names, if its own names differ only by prefixes of wrappers; else unchanged.

    Wrappers such as DDP add a prefix to all names; torch.compile may also add one within the names of
    single layers. Two names of the state never get the same new name.
    """
    if all(name in names for name in state):
        return state
    there = {bare: name for name, bare in _bare(names).items()}
    renamed = {name if name in names else there.get(bare, name): name for name, bare in _bare(state).items()}
    is_clear = len(there) == len(names) and len(renamed) == len(state)
    if not is_clear or all(new == old for new, old in renamed.items()):
        return state
    if isinstance(state, StoredState):
        return state.selected(renamed)
    return {new: state[old] for new, old in renamed.items()}


def _bare(names: Iterable[str]) -> dict[str, str]:
    """The names without prefixes of wrappers."""
    prefix = common_prefix(names)
    return {name: uncompiled(name.removeprefix(prefix)) for name in names}


def common_prefix(names: Iterable[str]) -> str:
    """The prefix of wrappers that all names share, such as "module._orig_mod."."""
    prefixes = [match.group() for name in names if (match := _PREFIX.match(name))]
    shortest = min(prefixes, key=len, default="")
    return shortest if all(prefix.startswith(shortest) for prefix in prefixes) else ""


def canonical(what: str, state: Weights, tied: Mapping[str, str]) -> Weights:
    """`state` with each tied parameter under its first name, whichever of its names the state uses.

    Raises InvalidValueError if the state has different values under several names of one parameter.
    """
    if not isinstance(state, Mapping):
        raise InvalidTypeError(f"{what} must be arrays by name, got {type(state).__name__}")
    if not any(name in tied for name in state):
        return state
    stored: dict[str, str] = {}  # canonical name -> name in the state
    for name in state:
        first = tied.get(name, name)
        if first != name and first in state:
            one, other = state[first], state[name]
            if np.shape(one) != np.shape(other) or not np.array_equal(one, other, equal_nan=True):
                raise InvalidValueError(
                    f"{what} has different values for {first} and {name}, which are one parameter of the "
                    "model; give the model that made the checkpoints"
                )
        stored.setdefault(first, name)
    if isinstance(state, StoredState):
        return state.selected(stored)
    return {first: state[name] for first, name in stored.items()}


def refuse_overlaps(arrays: Mapping[str, Array], moved: Container[str]) -> None:
    """Raise InvalidValueError if a parameter in `moved` shares elements with another parameter.

    A landscape would vary the two independently. `arrays` holds each parameter once; only the addresses of
    the arrays are used.
    """
    begun: list[tuple[int, str]] = []  # (end, name) of earlier arrays that may overlap the next one
    bounds = []  # (address of the first byte, address after the last byte, name)
    for name, array in arrays.items():
        # A negative stride reaches back to addresses before that of the first element.
        steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
        low, high = (array.ctypes.data + sum(pick(step, 0) for step in steps) for pick in (min, max))
        bounds.append((low, high + array.itemsize, name))
    for start, end, name in sorted(bounds):
        # In the order of addresses, only an array that has not ended yet can overlap the next one.
        begun = [(stop, other) for stop, other in begun if stop > start]
        for _, other in begun:
            if (name in moved or other in moved) and np.shares_memory(arrays[name], arrays[other]):
                raise InvalidValueError(
                    f"{other} {arrays[other].shape} and {name} {arrays[name].shape} share memory, and a "
                    "landscape would move them independently; let the model compute with one parameter and "
                    "views of it (weight.t()), or give each its own memory (a clone)"
                )
        begun.append((end, name))
