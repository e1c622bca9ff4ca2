"""The inference engine: hardly more memory than a plain forward, and the row engine's losses bit for bit.

The model keeps no values while it is on loan, and nothing is copied: its parameters are outlines, and each
operation gets theta + y * v + x * u of what it reads, made just then (see `torch_filling`). Directions are
drawn again from their seeds, block by block, each time. So a model that can be evaluated can be mapped; the
price is the time to draw them, at every point and for every batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import LandscapeError
from distsummary.landscape.directions.recipe import Array, Directions, Recipe, Weights
from distsummary.landscape.directions.rows import Rows, rows_of
from distsummary.landscape.directions.torch_parameters import OwnState
from distsummary.landscape.engines.torch_engines import REPEATED, Loaded, TorchEngine, on_host
from distsummary.landscape.engines.torch_filling import Filling
from distsummary.landscape.engines.torch_memory import ALIGNMENT_BYTES, as_tensor, copies
from distsummary.landscape.engines.torch_outlines import REMEDY, Outlines, are_alike, fresh


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
        """Raise LandscapeError where the loss depends on what outlines look at."""

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


class Point:
    """The values of a model at a point of a plane, or in a state: see Values.

    Sums are made as `Flat` makes them: in float32, in float64 for float64; half precision is rounded once.

    Args:
        tensors: the model's by all their names; what they look at says what form values have.
        moved: those that move, by the names that the recipe knows.
        own: the user's values by first names.
    """

    def __init__(self, tensors: Mapping[str, Tensor], moved: Mapping[str, Tensor], own: OwnState) -> None:
        self._forms, self._own = tensors, own
        self._names: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            self._names.setdefault(id(tensor), []).append(name)
        self._known = {id(tensor): name for name, tensor in moved.items()}
        self._state: Weights = {}
        self._centre: Weights = {}
        self._recipe: Recipe = Directions(x={}, y={})
        self._directions: dict[tuple[int, str], Rows] = {}
        self._at: tuple[float, float] | None = None  # None: in a state, which is in no plane
        self.lends = False  # whether the user's memory may be given away; nobody must hold on to it

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """Take the plane through `centre`."""
        self._centre, self._recipe = centre, recipe
        self._directions.clear()

    def place(self, state: Weights) -> None:
        """Go to a state; what it does not hold has the user's values."""
        self._state, self._at = state, None

    def move(self, x: float, y: float) -> None:
        """Go to a point of the plane; what does not move stays."""
        self._at = (x, y)

    def borrowed(self, name: str) -> Tensor | None:
        """See Values."""
        state, known = self._source(name)
        if not self.lends or not isinstance(state, OwnState) or self._steps(name):
            return None
        there = state.tensors[known]
        fits = are_alike(there, self._forms[name]) and there.data_ptr() % ALIGNMENT_BYTES == 0
        return there if fits else None

    def whole(self, name: str) -> Tensor:
        """See Values."""
        form = self._forms[name]
        out = fresh(form.shape, form)
        self._write(name, out if out.dim() else out[None], 0)
        return out

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """See Values."""
        form = self._forms[name]
        out = fresh((stop - start, *form.shape[1:]), form)
        self._write(name, out, start)
        return out

    def _write(self, name: str, out: Tensor, first: int) -> None:
        """Fill `out` with the rows from `first` on, block by block."""
        state, known = self._source(name)
        there, steps = rows_of(state, known), self._steps(name)
        for start, stop in there.blocks(first, first + len(out)):
            total = _as_tensor(there(start, stop)).to(out.device)
            if self._moves(name):
                total = total.to(torch.float64 if out.dtype == torch.float64 else torch.float32)
            for length, rows in steps:
                total = torch.add(total, _as_tensor(rows(start, stop)).to(total), alpha=length)
            out[start - first : stop - first] = total
        if isinstance(state, StoredState):
            state.release(known)

    def _source(self, name: str) -> tuple[Weights, str]:
        """Where the values are that it starts from, and under which name."""
        if self._moves(name):
            return self._centre, self._known[id(self._forms[name])]
        stored = [other for other in self._names[id(self._forms[name])] if other in self._state]
        return (self._state, stored[-1]) if stored else (self._own, name)

    def _moves(self, name: str) -> bool:
        return self._at is not None and id(self._forms[name]) in self._known

    def _steps(self, name: str) -> list[tuple[float, Rows]]:
        """How far it goes along which directions, in this order."""
        if self._at is None or not self._moves(name):
            return []
        lengths = ((self._at[1], 1), (self._at[0], 0))
        known = self._known[id(self._forms[name])]
        steps = [(length, self._direction(axis, known)) for length, axis in lengths if length]
        return [(length, rows) for length, rows in steps if not rows.is_zero]

    def _direction(self, axis: int, name: str) -> Rows:
        if (axis, name) not in self._directions:
            self._directions[axis, name] = self._recipe.rows(axis, name, rows_of(self._centre, name))
        return self._directions[axis, name]


def _as_tensor(array: Array) -> Tensor:
    """On the host, in the array's memory if it may be written to, which nobody does."""
    return torch.from_numpy(array) if array.flags.writeable else as_tensor(array)


def _is_same(one: Array, other: Array) -> bool:
    return np.allclose(one, other, rtol=REPEATED, atol=0, equal_nan=True)
