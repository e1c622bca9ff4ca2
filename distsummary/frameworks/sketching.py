"""Sketches of a model as it is now, whatever framework it is of and wherever its parameters lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.sketch import BUCKETS, Sketcher, contiguous, digest
from distsummary.checkpoints.sketch_file import Pending
from distsummary.frameworks.base import Framework

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedPart:
    """A parameter, or this rank's shard of it: `runs` are (element of the whole, where in the shard)."""

    name: str
    tensor: Any
    runs: tuple[tuple[int, slice], ...] = ((0, slice(None)),)


class Sketching(Protocol):
    """Takes sketches of the parameters that it was opened for."""

    def take(self) -> Pending:
        """Their sketch now; later changes do not touch it, and no device is waited for."""


@dataclass(frozen=True, slots=True)
class TakenSketch:
    """A sketch that is there already, of floats."""

    sketch: Array

    def result(self) -> Array:
        """The sketch, float64."""
        return self.sketch.astype(np.float64, copy=False)


class NumpySketching:
    """Of arrays in memory, in one pass over them."""

    def __init__(self, parts: Sequence[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)

    def take(self) -> TakenSketch:
        """See Sketching."""
        total = np.zeros(BUCKETS)
        for part in self._parts:
            add_part(self._sketcher, total, part, np.asarray(part.tensor).reshape(-1))
        return TakenSketch(total)


def add_part(sketcher: Sketcher, total: Array, part: SketchedPart, flat: Array) -> None:
    """Add a parameter, or its shard, whose values now are `flat`."""
    for start, run in part.runs:
        sketcher.add(total, part.name, flat[run], start)


def sketched_parts(
    framework: Framework, network: Any, *, is_mine: Callable[[tuple[str, ...]], bool] = lambda _: True
) -> list[SketchedPart]:
    """What this rank adds to the sketch: parameters and shards that are its own, by the axes of their split.

    Of copies on several ranks one alone may be somebody's.
    """
    parts = []
    for name, tensor in framework.named_parameters(network):
        if not is_mine(framework.split_axes(tensor)):
            continue
        shard = framework.shard(tensor)
        if shard is None:
            parts.append(SketchedPart(name=name, tensor=tensor))
        else:
            shape = framework.to_numpy(tensor).shape
            runs = tuple(contiguous(shape, shard.global_shape, shard.offset))
            parts.append(SketchedPart(name=name, tensor=tensor, runs=runs))
    return parts


def parameters_digest(framework: Framework, network: Any) -> str:
    """See `sketch.digest`."""
    return digest({name: tuple(tensor.shape) for name, tensor in framework.named_parameters(network)})


def open_sketching(framework: Framework, parts: Sequence[SketchedPart], seed: int = 0) -> Sketching:
    """The way to sketch these parts where they lie."""
    if framework.name == "torch":
        from distsummary.frameworks.torch_sketch import TorchSketching

        return TorchSketching(parts, seed)
    return NumpySketching(parts, seed)
