"""The inference engine: hardly more memory than a plain forward, and the row engine's losses bit for bit.

The parameters have no values while the model is on loan, and none is copied: they are outlines, and each
operation gets theta + y * v + x * u of what it reads, made just then (see `inference.filling`). Directions
are drawn again from their seeds, block by block, each time. So a model that can be evaluated can be mapped;
the price is the time to draw them, at every point and for every batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState
from distsummary.landscapes.engines.inference.torch_filling import Filling
from distsummary.landscapes.engines.inference.torch_outlines import REMEDY, Outlines
from distsummary.landscapes.engines.inference.torch_point import Point
from distsummary.landscapes.engines.torch_engines import REPEATED, Loaded, TorchEngine
from distsummary.landscapes.model.torch_loan import copies
from distsummary.landscapes.model.torch_measure import on_host


class TorchInferenceEngine(TorchEngine):
    """See `Engine`. Raises LandscapeError for a model that has ways of its own with its parameters."""

    def _memory(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> Iterable[Tensor]:
        parameters = {name: t for name, t in tensors.items() if isinstance(t, nn.Parameter)}
        self._outlines = Outlines(parameters, dtype)
        buffers = {name: t for name, t in tensors.items() if name not in parameters}
        memory = self._outlines.outlines | dict(zip(buffers, copies(buffers, dtype), strict=True))
        return (memory[name] for name in tensors)

    def _layout(self) -> None:
        self._point = Point(self._loan.tensors, self._loan.moved, OwnState(self._outlines.own))
        self._filling = Filling(self._outlines, self._point)
        self._buffers = {n: t for n, t in self._loan.tensors.items() if not isinstance(t, nn.Parameter)}
        self._moved_buffers = {n: t for n, t in self._loan.moved.items() if n in self._buffers}

    def _probe(self, batch: Any) -> None:
        with self._filling:
            super()._probe(batch)
        self._refuse_hidden_reads(batch)
        self._point.lends = True

    @torch.inference_mode()
    def _refuse_hidden_reads(self, batch: Any) -> None:
        """Raise LandscapeError where the loss depends on what outlines look at.

        The model is evaluated with its values in place, which in another precision are copies for once.
        """

        def reading(lifted: Sequence[str]) -> Array:
            with self._outlines.lifted(lifted):
                return on_host(self._reading(batch))

        names = list(self._outlines.own)
        expected = reading(names)
        with self._filling:
            found = reading([])
            if not _is_same(found, expected):
                rest = {name: [other for other in names if other != name] for name in names}
                read = [name for name in names if not _is_same(reading(rest[name]), expected)]
                raise LandscapeError(
                    f"the model reads {', '.join(read) or 'its parameters'} by other means than operations "
                    f"of torch in its own thread (.data in NumPy, a compiled or foreign kernel); {REMEDY}"
                )

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        super().set_plane(centre, recipe)
        self._point.set_plane(centre, recipe)

    def _place(self, state: Weights) -> None:
        self._loan.place({name: state[name] for name in self._buffers if name in state})
        self._point.place(state)

    def _readings(self, y: float, xs: Array, batches: Sequence[Loaded]) -> Tensor:
        found = []
        for x in xs:
            self._point.move(float(x), float(y))
            for name, buffer in self._moved_buffers.items():
                buffer.copy_(self._point.whole(name))
            found.append(self._here(batches))
        return torch.stack(found, dim=1)

    def _here(self, batches: Sequence[Loaded]) -> Tensor:
        with self._filling:
            return super()._here(batches)


def _is_same(one: Array, other: Array) -> bool:
    return np.allclose(one, other, rtol=REPEATED, atol=0, equal_nan=True)
