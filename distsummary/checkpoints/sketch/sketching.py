"""Sketches of a model as it is now, whatever framework it is of and wherever its parameters lie."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher, contiguous, digest
from distsummary.checkpoints.sketch.sketch_file import Pending
from distsummary.errors import InvalidValueError
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

    def __init__(self, parts: Iterable[SketchedPart], seed: int = 0) -> None:
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


class ModelParts:
    """What this rank adds to the sketch: parameters and shards that are its own, by the axes of their split.

    Of copies on several ranks one alone may be somebody's. Each iteration gives the tensors that the model
    has then: it may have been given others, under the names that were trained in the beginning. Those that
    FSDP2 has gathered stay the shards that they were gathered from.

    Raises InvalidValueError when iterated over after the names or shapes of what is trained have changed.
    """

    def __init__(
        self,
        framework: Framework,
        network: Any,
        *,
        is_mine: Callable[[tuple[str, ...]], bool] = lambda _: True,
    ) -> None:
        self._framework, self._network = framework, network
        trained = dict(framework.named_parameters(network))
        self._shapes = {name: tuple(tensor.shape) for name, tensor in trained.items()}
        self._parts = {
            name: SketchedPart(name=name, tensor=tensor, runs=_runs(framework, tensor))
            for name, tensor in trained.items()
            if is_mine(framework.split_axes(tensor))
        }
        self._is_same = _watch(framework, network)

    def __iter__(self) -> Iterator[SketchedPart]:
        if not self._is_same():
            self._renew()
        return iter(self._parts.values())

    def _renew(self) -> None:
        now = self._tensors_now()
        for name, part in self._parts.items():
            tensor = now[name]
            if tensor is not part.tensor and self._is_split(tensor) == self._is_split(part.tensor):
                self._parts[name] = replace(part, tensor=tensor, runs=_runs(self._framework, tensor))
        self._is_same = _watch(self._framework, self._network)  # the one before keeps the tensors before

    def _tensors_now(self) -> dict[str, Any]:
        now = dict(self._framework.named_parameters(self._network))
        if self._shapes.keys() - now.keys():  # frozen since, or gone
            others = dict(self._framework.tensors(self._network))
            now |= {name: others[name] for name in self._shapes if name in others}
        shapes = {name: tuple(tensor.shape) for name, tensor in now.items()}
        changed = {name for name, _ in shapes.items() ^ self._shapes.items()}
        if changed:
            raise InvalidValueError(
                f"what is trained has changed since the training began: {min(changed)} was added, removed, "
                "unfrozen or reshaped; begin another attempt to have sketches from here on"
            )
        return now

    def _is_split(self, tensor: Any) -> bool:
        return bool(self._framework.split_axes(tensor))


def _watch(framework: Framework, network: Any) -> Callable[[], bool]:
    """What tells that nothing has changed; False where it would have to be looked up all the same."""
    if framework.name != "torch":
        return lambda: False
    from distsummary.checkpoints.sketch.torch_sketch import watch

    return watch(network)


def _runs(framework: Framework, tensor: Any) -> tuple[tuple[int, slice], ...]:
    shard = framework.shard(tensor)
    if shard is None:
        return ((0, slice(None)),)
    return tuple(contiguous(framework.to_numpy(tensor).shape, shard.global_shape, shard.offset))


def parameters_digest(framework: Framework, network: Any) -> str:
    """See `sketch.digest`."""
    return digest({name: tuple(tensor.shape) for name, tensor in framework.named_parameters(network)})


def open_sketching(framework: Framework, parts: Iterable[SketchedPart], seed: int = 0) -> Sketching:
    """The way to sketch these parts where they lie; they are asked for at each sketch."""
    if framework.name == "torch":
        from distsummary.checkpoints.sketch.torch_sketch import TorchSketching

        return TorchSketching(parts, seed)
    return NumpySketching(parts, seed)
