"""The two directions that span a loss grid: as arrays, or a recipe that gives every worker the same bits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions.array_rows import Rows, array_rows, rows_of, shape_of
from distsummary.landscapes.directions.displacements import inner
from distsummary.landscapes.directions.normalization import (
    FilterAxis,
    normalize_one,
    normalized,
)
from distsummary.landscapes.directions.normals import random_direction

COMPILED = "_orig_mod."  # torch.compile adds this to the names of the parameters of a layer
SHOWN = 5  # the most names that a message lists
COLLINEAR = 1e-6  # axes count as parallel if the sine of the angle between them is smaller
ONE_ROW = "directions='line' draws one row of points, between two checkpoints or two of runs="

Array: TypeAlias = NDArray[Any]
Weights: TypeAlias = Mapping[str, Array]  # parameters by name; tied parameters only under their first name


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The axes of a grid: `x` and `y` hold, for each varied parameter, a float32 array of its shape."""

    x: Weights
    y: Weights

    def make(self, centre: Weights) -> "Directions":
        """Return self; raises InvalidValueError, naming the parameters, unless both axes fit `centre`."""
        for axis, direction in (("x", self.x), ("y", self.y)):
            check_fit(f"the {axis} direction", direction, centre)
        if self.x.keys() != self.y.keys():
            raise InvalidValueError(
                "the directions must hold the same parameters; "
                f"{sorted(self.x.keys() ^ self.y.keys())} are in only one; add zeros for these to the other"
            )
        return self

    def rows(self, axis: int, name: str, weights: Any) -> Any:  # Rows, an internal class
        """The part of direction `axis` (0: x, 1: y) for the parameter `name`, as rows."""
        array = (self.x, self.y)[axis][name]
        return replace(array_rows(array), is_zero=not array.any())


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDirections:
    """The recipe of two random directions over the parameters `names`; any process can `make` them.

    The random numbers depend on the parameters' names, without the prefixes that torch.compile adds.
    `filter_axes` holds the filter axes that are not 0, by parameter name, see `normalization`.
    """

    names: tuple[str, ...]
    seed: int = 0
    normalization: str = "filter"
    filter_axes: Mapping[str, FilterAxis] = field(default_factory=dict)

    def make(self, centre: Weights) -> Directions:
        """The directions, float32, scaled to the weights of `centre`."""
        x, y = ({name: self._whole(axis, name, centre[name]) for name in self.names} for axis in (0, 1))
        return Directions(x=x, y=y)

    def _whole(self, axis: int, name: str, weights: Array) -> Array:
        """The part of a direction for one parameter; `rows` would draw it twice for some normalizations."""
        if self.normalization == "filter" and np.ndim(weights) <= 1:
            # Normalizing would give 0 anyway.
            return np.zeros(np.shape(weights), np.float32)
        drawn = random_direction(self.seed, axis, uncompiled(name), np.shape(weights))
        return normalize_one(name, drawn, weights, self.normalization, self.filter_axes.get(name, 0))

    def rows(self, axis: int, name: str, weights: Rows) -> Rows:
        """The part of direction `axis` for the parameter `name`, as `make` gives it, bit for bit.

        The rows are drawn when they are read, on the device of the weights.
        """
        key = uncompiled(name)

        def read(start: int, stop: int) -> Any:
            drawn = weights.draw(self.seed, axis, key, start * weights.width, stop * weights.width)
            return drawn.reshape(stop - start, *weights.shape[1:])

        drawn = replace(weights, read=read, is_zero=False)
        return normalized(name, drawn, weights, self.normalization, self.filter_axes.get(name, 0))


class Recipe(Protocol):
    """Makes the directions of a grid around a centre: all at once, or one parameter at a time."""

    def make(self, centre: Weights) -> Directions:
        """The directions around `centre`, float32, one array per varied parameter."""

    def rows(self, axis: int, name: str, weights: Rows) -> Rows:
        """The part of direction `axis` (0: x, 1: y) for the parameter `name` with these weights."""


def uncompiled(name: str) -> str:
    """The name of a parameter without the prefixes of compiled layers."""
    return name.replace(COMPILED, "")


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds real numbers; also recognizes the dtypes of ml_dtypes, such as bfloat16."""
    return dtype.kind in "fiub" or (dtype.kind == "V" and np.can_cast(dtype, np.float32, casting="safe"))


def check_fit(what: str, weights: Weights, centre: Weights, names: Iterable[str] | None = None) -> None:
    """Raise InvalidValueError unless both states have `names` (default: all of `weights`) in equal shapes."""
    names = list(weights) if names is None else list(names)
    if not all(name in weights and name in centre for name in names):
        only, gone = ([n for n in a if n not in b] for a, b in ((weights, centre), (centre, weights)))
        raise InvalidValueError(
            f"{what} and the model do not have the same parameters (only in {what}: {_some(only)}; only in "
            f"the model: {_some(gone)}); give the model that made the checkpoints"
        )
    for name in names:
        if shape_of(weights, name) != shape_of(centre, name):
            raise InvalidValueError(
                f"{what} has {name} of shape {shape_of(weights, name)}, the model of shape "
                f"{shape_of(centre, name)}; give the model that made the checkpoints"
            )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "none"


def refuse_parallel(recipe: Recipe, centre: Weights, names: Iterable[str], normalization: str) -> None:
    """Raise LandscapeError, naming the varied parameters, unless the axes x and y span a plane.

    Reads the smallest parameters first, and stops as soon as the parts read so far are not parallel.
    """
    products, moved = np.zeros((2, 2)), []
    for name in sorted(names, key=lambda name: int(np.prod(shape_of(centre, name), dtype=np.int64))):
        weights = rows_of(centre, name)
        axes = [recipe.rows(axis, name, weights) for axis in (0, 1)]
        if all(rows.is_zero for rows in axes):
            continue
        moved.append(name)
        for start, stop in weights.blocks():
            both = np.stack([rows(start, stop).reshape(-1) for rows in axes]).astype(np.float64)
            products += inner(both, both)
            (xx, xy), (_, yy) = products
            # This is false as long as one axis is zero.
            if xx * yy - xy * xy > COLLINEAR**2 * xx * yy:
                return
    after = "" if normalization == "none" else f" after normalization={normalization!r}"
    raise LandscapeError(
        f"the x direction is {products[0, 1] / products[1, 1]:.4g} times the y direction{after}, in all that "
        f"varies ({_some(moved)}), so they span no plane; use directions that are not "
        f"parallel, another normalization, or more parameters; {ONE_ROW}"
    )
