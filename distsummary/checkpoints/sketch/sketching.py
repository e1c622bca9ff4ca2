"""Takes sketches of a model's parameters: NumPy arrays in this module, torch tensors in `torch_sketch`."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher
from distsummary.checkpoints.sketch.parts import SketchedPart
from distsummary.frameworks.base import Framework, Pending
from distsummary.frameworks.numpy import HostCopy


class Sketching(Protocol):
    """Takes sketches of the parameters that it was created for."""

    def take(self) -> Pending:
        """Start a sketch of the current values without waiting for a device; later changes have no effect.

        `result()` gives floats of shape (BUCKETS,).
        """


class NumpySketching:
    """Sketches arrays in memory, in one pass over each."""

    def __init__(self, parts: Iterable[SketchedPart], seed: int = 0) -> None:
        self._parts = parts
        self._sketcher = Sketcher(seed)

    def take(self) -> HostCopy:
        """See Sketching."""
        total = np.zeros(BUCKETS)
        for part in self._parts:
            flat = np.asarray(part.tensor).reshape(-1)
            for start, run in part.runs:
                self._sketcher.add(total, part.name, flat[run], start)
        return HostCopy(total)


def open_sketching(framework: Framework, parts: Iterable[SketchedPart], seed: int = 0) -> Sketching:
    """The Sketching for tensors of this framework; every `take` iterates over `parts` again."""
    if framework.name == "torch":
        from distsummary.checkpoints.sketch.torch_sketch import TorchSketching  # it imports torch

        return TorchSketching(parts, seed)
    return NumpySketching(parts, seed)
