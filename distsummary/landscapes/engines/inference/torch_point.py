"""A point of a plane: the values that a model's parameters have there, each made when it is asked for."""

from collections.abc import Mapping

import torch
from torch import Tensor

from distsummary.checkpoints.mapped import StoredState
from distsummary.landscapes.directions.array_rows import Rows
from distsummary.landscapes.directions.recipe import Directions, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState
from distsummary.landscapes.directions.torch_rows import rows_on, tensor_of
from distsummary.landscapes.engines.inference.torch_outlines import are_alike, fresh
from distsummary.landscapes.model.torch_memory import ALIGNMENT_BYTES


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
        self._devices = {name: tensor.device for name, tensor in moved.items()}
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
        there, steps = rows_on(out.device, state, known), self._steps(name)
        for start, stop in there.blocks(first, first + len(out)):
            total = tensor_of(there(start, stop)).to(out.device)
            if self._moves(name):
                total = total.to(torch.float64 if out.dtype == torch.float64 else torch.float32)
            for length, rows in steps:
                total = torch.add(total, tensor_of(rows(start, stop)).to(total), alpha=length)
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
            weights = rows_on(self._devices[name], self._centre, name)
            self._directions[axis, name] = self._recipe.rows(axis, name, weights)
        return self._directions[axis, name]
