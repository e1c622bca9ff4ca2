"""The engine for numpy models and Cells: the naive loop, which writes all values again at every point."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.recipe import Array, Directions, Recipe, Weights
from distsummary.landscapes.engines.engine import Task, processor
from distsummary.landscapes.model.data import batch_facts, batch_rows, data_sets
from distsummary.landscapes.model.quantities import BatchFacts, Tally, quantity_names
from distsummary.landscapes.model.user_code import (
    apply_metric,
    batch_name,
    bind_loss,
    in_batch,
    loss_name,
    loss_shape_error,
    metric_shape_error,
    no_number_error,
)

NO_NUMBERS = "cOSUMm"  # refused dtype kinds: complex, objects (such as None), strings, times


class NaiveEngine:
    """See `Engine`. Writes each point to the model's own arrays or Parameters, computing in their dtypes.

    `model.parameters` and `model.buffers` are dicts of arrays by name, see `frameworks.numpy`; or the model
    is a Cell of MindSpore, which is in training mode with mode "mindspore", otherwise not.

    Its attributes are what an `Engine` reports of itself, and the arrays of the borrowed model.
    """

    is_streamed = False  # each point reads streamed data again

    def __init__(self, task: Task) -> None:
        model, mode = task.model, task.mode
        self._framework = framework = framework_of(model)
        self.name = f"{framework.name}-naive"
        self._tensors: Mapping[str, Any] = dict(framework.tensors(model))
        self._kinds = {name: framework.array_spec(one).dtype.type for name, one in self._tensors.items()}
        self._evaluation, self._mode = task.evaluation, mode
        self._data = data_sets(task.batches, streamed=self._evaluation.streamed)
        self._loss_name, self._loss = loss_name(task.loss_fn), bind_loss(model, task.loss_fn)
        name = next(iter(self._data))
        self.samples = sum(facts.rows for _, facts, _ in self._batches(name))
        self.quantities = quantity_names(self._evaluation, list(self._data))
        self._originals: Mapping[str, Array] | None = framework.state(model)
        self._modes: list[tuple[Any, bool]] = []  # of a Cell and those in it, outer ones first
        if framework.name == "mindspore":
            self._modes = [(cell, cell.training) for _, cell in model.cells_and_names()]
            model.set_train(mode == "mindspore")
        self._centre: Weights = {}
        self._directions = Directions(x={}, y={})
        self.bn_mode = "eval" if mode == "standard" else "batch"
        self.hardware = f"{processor()}, {framework.name} {sys.modules[framework.name].__version__}"
        # The losses of a model that is random cannot be compared between points.
        first = next(self._batches(name), None)
        if first is None:
            self.close()
            raise InvalidValueError("batches must hold at least one batch, got none")
        try:
            once, again = (in_batch(first[2], self._reading, first[0]) for _ in range(2))
        except BaseException:
            self.close()
            raise
        if not np.array_equal(once, again, equal_nan=True):
            self.close()
            raise LandscapeError(
                "the model gives different losses for the same parameters and batch; "
                "switch off its randomness"
            )

    def _batches(self, name: str) -> Iterator[tuple[Any, BatchFacts, str]]:
        """The batches of a data set, each with its facts (such as its weight) and its name for messages."""
        for number, batch in enumerate(self._data[name], 1):
            called = batch_name(number, name)
            yield batch, batch_facts(batch, self._mode, called), called

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """See Engine."""
        self._centre, self._directions = centre, recipe.make(centre)

    def row_values(self, y: float, xs: Array) -> Array:
        """See Engine."""
        found = []
        for x in xs:
            self._place(self._centre)
            for name, along_x in self._directions.x.items():
                # Numbers of the parameter's own type: a float64 number would widen the sum.
                kind = self._kinds[name]
                moved = self._centre[name] + kind(x) * along_x + kind(y) * self._directions.y[name]
                self._framework.write(self._tensors[name], moved)
            found.append(self._values())
        return np.stack(found)

    def state_values(self, state: Weights) -> Array:
        """See Engine."""
        self._place(state)
        return self._values()

    def _place(self, state: Weights) -> None:
        for name, target in self._tensors.items():
            if name in state:
                self._framework.write(target, np.asarray(state[name]))

    def _values(self) -> Array:
        """The quantities for the current values of the parameters."""
        found = []
        for name in self._data:
            tally = Tally(self._evaluation, 1, has_rows=self._evaluation.stderr)
            for batch, facts, called in self._batches(name):
                tally.add(in_batch(called, self._reading, batch)[None], facts)
            found.append(tally.values()[0])
        return np.concatenate(found)

    def _reading(self, batch: Any) -> Array:
        """The reading of a batch: its loss, metrics and other columns of `Tally`, (columns,)."""
        loss, outputs, targets = self._loss(batch)
        losses = _numbers(self._loss_name, loss)
        if losses.ndim > 1:
            raise LandscapeError(loss_shape_error(self._loss_name, losses.shape))
        found = [losses.mean()]
        if self._evaluation.stderr:
            # Without the losses of rows, these columns make `is_apart` true, so that batches give the
            # standard error.
            has_rows = losses.shape == (batch_rows(batch),)
            found += [losses.mean(), (losses**2).mean()] if has_rows else [np.inf, 0.0]
        for name, metric in self._evaluation.metrics.items():
            value = _numbers(f"metric {name!r}", apply_metric(metric, outputs, targets))
            if value.size != 1:
                raise LandscapeError(metric_shape_error(name, value.shape))
            found.append(float(value.reshape(())))
        return np.array(found)

    def close(self) -> None:
        """See Engine."""
        if self._originals is not None:
            self._place(self._originals)
        for cell, is_training in self._modes:
            cell.set_train(is_training)
        self._originals, self._modes = None, []


def _numbers(what: str, found: Any) -> Array:
    """The values that the user's function returned, as float64."""
    try:
        values = np.asarray(found)
        # This is neither a number nor an array of numbers.
        if isinstance(found, tuple) or values.dtype.kind in NO_NUMBERS:
            raise TypeError(f"of dtype {values.dtype}")
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise LandscapeError(no_number_error(what, found)) from error
