"""The parameters of a model, or shards of them, that this rank adds to the sketch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distsummary.checkpoints.sketch.count_sketch import digest
from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import Framework


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedPart:
    """A parameter or this rank's shard of it; `runs` lists its contiguous pieces (see `contiguous`)."""

    name: str
    tensor: Any
    runs: tuple[tuple[int, slice], ...] = ((0, slice(None)),)


class ModelParts:
    """The trained parameters (or this rank's shards of them) for which `is_mine` returns True.

    `is_mine` is called with the mesh axes that split the parameter. Each iteration gives the tensors that the
    model holds at that time, for the names that were trainable when this object was made. A parameter that
    FSDP2 has gathered since then is still given as its shard. `digest` is the `count_sketch.digest` of all
    trained parameters, including those of other ranks.

    Iterating raises InvalidValueError once the names or shapes of the trained parameters have changed.
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
        self.digest = digest(self._shapes)
        self._parts = {
            name: SketchedPart(name=name, tensor=tensor, runs=_runs(framework, tensor))
            for name, tensor in trained.items()
            if is_mine(framework.split_axes(tensor))
        }
        self._is_unchanged = framework.watch(network)

    def __iter__(self) -> Iterator[SketchedPart]:
        if self._is_unchanged():
            return iter(self._parts.values())
        now = dict(self._framework.named_parameters(self._network))
        # Parameters that were frozen since are still sketched, unlike those that were removed.
        if self._shapes.keys() - now.keys():
            others = dict(self._framework.tensors(self._network))
            now |= {name: others[name] for name in self._shapes if name in others}
        shapes = {name: tuple(tensor.shape) for name, tensor in now.items()}
        changed = {name for name, _ in shapes.items() ^ self._shapes.items()}
        if changed:
            raise InvalidValueError(
                f"the trained parameters have changed since the training began: {min(changed)} was added, "
                "removed, unfrozen or reshaped; start another attempt to keep sketches of the new parameters"
            )
        for name, part in self._parts.items():
            tensor, axes = now[name], self._framework.split_axes
            # A parameter that FSDP2 has gathered is whole for the moment: its shard stays.
            if tensor is not part.tensor and bool(axes(tensor)) == bool(axes(part.tensor)):
                self._parts[name] = replace(part, tensor=tensor, runs=_runs(self._framework, tensor))
        # The old check would keep the old tensors alive.
        self._is_unchanged = self._framework.watch(self._network)
        return iter(self._parts.values())


def _runs(framework: Framework, tensor: Any) -> tuple[tuple[int, slice], ...]:
    shard = framework.shard(tensor)
    if shard is None:
        return ((0, slice(None)),)
    return tuple(contiguous(framework.array_spec(tensor).shape, shard.global_shape, shard.offset))


def contiguous(
    shape: Sequence[int], global_shape: Sequence[int], offset: Sequence[int]
) -> Iterator[tuple[int, slice]]:
    """Cut a slice of a tensor into runs that are contiguous in the slice and in the whole tensor.

    Yields (index of the run's first element in the flat whole tensor, the run's range in the flat slice).
    """
    inner = len(shape)
    # The shard has all of the axes from `inner` on.
    while inner > 0 and shape[inner - 1] == global_shape[inner - 1]:
        inner -= 1
    # A run also extends along the last axis that is cut.
    inner = max(inner - 1, 0)
    length = int(np.prod(shape[inner:], dtype=np.int64))
    strides = [int(np.prod(global_shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    for number, index in enumerate(np.ndindex(*shape[:inner])):
        place = [o + i for o, i in zip(offset, [*index, *[0] * (len(shape) - inner)], strict=True)]
        first = sum(p * s for p, s in zip(place, strides, strict=True))
        yield first, slice(number * length, (number + 1) * length)
