"""Directions: the two axes of a loss grid, as data or as a recipe that any worker repeats bit for bit.

Random normals (`philox-bm-v1`) are a function of (seed, axis, parameter name, index) alone:

    key      = blake2b-128( int64 seed | uint8 axis | name in UTF-8 )       little endian
    words    = numpy's Philox(key, counter=[0, 0, block, 0]).random_raw()    block = index // 2^16
    u, w     = words 2j and 2j+1 of the block as (w >> 11) / 2^53, u shifted to (0, 1]
    normals  = sqrt(-2 ln u) * (cos, sin)(2 pi w)                            elements 2j and 2j+1, in float64

so they do not depend on workers, sharding, device or numpy's own stream of normals.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsummary.checks import check_choice, check_int
from distsummary.errors import InvalidValueError

Array: TypeAlias = NDArray[Any]
Weights: TypeAlias = Mapping[str, Array]  # parameters by canonical name

RNG = "philox-bm-v1"
BLOCK = 1 << 16
NORMALIZATIONS = ("none", "filter", "layer", "mindspore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The axes of a grid: `x` and `y` hold one array per moved parameter, of its shape, float32."""

    x: Weights
    y: Weights

    def make(self, centre: Weights) -> "Directions":
        """Themselves, once they fit `centre`; raises InvalidValueError naming what does not."""
        for axis, direction in (("x", self.x), ("y", self.y)):
            check_fit(f"the {axis} direction", direction, centre)
        if self.x.keys() != self.y.keys():
            raise InvalidValueError(
                "the directions must move the same parameters; "
                f"{sorted(self.x.keys() ^ self.y.keys())} are in one of them only"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDirections:
    """The recipe of two random directions over the parameters `names`: `make` computes them anywhere."""

    names: tuple[str, ...]
    seed: int = 0
    normalization: str = "filter"

    def __post_init__(self) -> None:
        check_int("seed", self.seed, low=-(2**63), high=2**63 - 1)
        check_choice("normalization", self.normalization, NORMALIZATIONS)

    def make(self, centre: Weights) -> Directions:
        """The directions around `centre`, float32."""
        axes = (self._axis(axis, centre) for axis in (0, 1))
        return Directions(x=next(axes), y=next(axes))

    def _axis(self, axis: int, centre: Weights) -> Weights:
        drawn = {name: random_direction(self.seed, axis, name, centre[name].shape) for name in self.names}
        return normalize(drawn, centre, self.normalization)


class Recipe(Protocol):
    """Whatever makes the directions of a grid around a centre."""

    def make(self, centre: Weights) -> Directions:
        """The directions, float32, one array per moved parameter."""


def random_direction(seed: int, axis: int, name: str, shape: tuple[int, ...]) -> Array:
    """Standard normals for one whole parameter, float32."""
    return random_normals(seed, axis, name, 0, int(np.prod(shape, dtype=np.int64))).reshape(shape)


def random_normals(seed: int, axis: int, name: str, start: int, stop: int) -> Array:
    """The normals with index start .. stop-1 of a parameter's direction, float32 (stop - start,)."""
    out = np.empty(stop - start, np.float32)
    at = start
    while at < stop:
        block, first = divmod(at, BLOCK)
        count = min(BLOCK - first, stop - at)
        out[at - start : at - start + count] = _block_normals(seed, axis, name, block, first + count)[first:]
        at += count
    return out


def _block_normals(seed: int, axis: int, name: str, block: int, count: int) -> Array:
    digest = hashlib.blake2b(struct.pack("<qB", seed, axis) + name.encode(), digest_size=16).digest()
    bits = np.random.Philox(counter=[0, 0, block, 0], key=np.frombuffer(digest, "<u8").astype(np.uint64))
    words = bits.random_raw(count + count % 2) >> np.uint64(11)
    u = (words[0::2].astype(np.float64) + 1.0) * 2.0**-53  # never 0: its logarithm is taken
    angle = words[1::2].astype(np.float64) * (2.0**-53 * 2.0 * np.pi)
    radius = np.sqrt(-2.0 * np.log(u))
    pairs = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return np.asarray(pairs.reshape(-1)[:count])


def normalize(direction: Weights, centre: Weights, how: str) -> dict[str, Array]:
    """Scale a direction to the weights it will move, float32.

    "filter" (Li et al. 2018): each slice along axis 0 gets the norm of the weights' slice, tensors with less
    than two dimensions become 0. "layer": each tensor gets the norm of the weights' tensor. "mindspore": the
    same, and 0 for parameters that MindSpore does not move (see `mindspore_moves`). A direction of norm 0
    stays 0.
    """
    check_choice("normalization", how, NORMALIZATIONS)
    return {name: _normalize_one(name, array, centre[name], how) for name, array in direction.items()}


def _normalize_one(name: str, array: Array, weights: Array, how: str) -> Array:
    d, w = np.asarray(array, np.float64), np.asarray(weights, np.float64)
    if how == "none":
        return d.astype(np.float32)
    if (how == "filter" and d.ndim <= 1) or (how == "mindspore" and not mindspore_moves(name)):
        return np.zeros(d.shape, np.float32)
    if how == "filter":
        rows = (d.shape[0],) + (1,) * (d.ndim - 1)
        norms = np.linalg.norm(d.reshape(d.shape[0], -1), axis=1) + 1e-10
        scale: Any = (np.linalg.norm(w.reshape(w.shape[0], -1), axis=1) / norms).reshape(rows)
    else:
        norm = float(np.linalg.norm(d))
        scale = float(np.linalg.norm(w)) / norm if norm > 0 else 0.0
    return np.asarray(d * scale, np.float32)


def mindspore_moves(name: str) -> bool:
    """Whether MindSpore's landscape moves a parameter: by its name."""
    return ("weight" in name or "bias" in name) and "moment" not in name


def check_fit(what: str, weights: Weights, centre: Weights, names: Iterable[str] | None = None) -> None:
    """Raise InvalidValueError unless `weights` (those called `names`) have names and shapes of `centre`."""
    names = list(weights) if names is None else list(names)
    unknown = sorted(n for n in names if n not in centre or n not in weights)
    if unknown:
        raise InvalidValueError(
            f"{what} and the model do not have the same parameters: {', '.join(unknown[:5])} "
            f"({len(unknown)} in all) are in one only; give the model that made the checkpoints"
        )
    for name in names:
        if np.shape(weights[name]) != np.shape(centre[name]):
            raise InvalidValueError(
                f"{what} has {name} of shape {np.shape(weights[name])}, the model {np.shape(centre[name])}; "
                "give the model that made the checkpoints"
            )
