"""Engines: a model, its loss and its data, asked for losses in a plane; here the one for numpy models."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from distsummary.checks import check_choice
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions import Array, Directions, Weights

MODES = ("standard", "mindspore")


class Engine(Protocol):
    """What evaluates points. While it is open the model's values are its own; `close` puts the user's back.

    The loss of a point is the mean of the batches' losses, weighted by their rows in mode "standard" and not
    weighted in mode "mindspore".
    """

    name: str
    bn_mode: str  # "eval": running statistics; "batch": training mode, as MindSpore does
    samples: int  # rows behind each loss

    def set_plane(self, centre: Weights, directions: Directions) -> None:
        """Take the plane through `centre` (all values by name) along the directions."""

    def row_losses(self, y: float, xs: Array) -> Array:
        """Losses float64 (len(xs),) at centre + xs[j] * directions.x + y * directions.y."""

    def state_loss(self, state: Weights) -> float:
        """The loss of a whole checkpoint; the plane stays."""

    def close(self) -> None:
        """Give the model back bit for bit: values, buffers and training flags. A second call does nothing."""


def open_engine(
    model: Any,
    loss_fn: Any,
    batches: Iterable[Any],
    *,
    names: Sequence[str],
    mode: str,
    device: str | None = None,
) -> Engine:
    """The engine for the framework that owns `model`; `names` are the parameters that will move."""
    check_choice("mode", mode, MODES)
    if framework_of(model).name == "torch":
        from distsummary.landscape.torch_engines import TorchRowEngine

        return TorchRowEngine(model, loss_fn, batches, names=names, mode=mode, device=device)
    return NumpyEngine(model, loss_fn, batches, mode=mode)


class NumpyEngine:
    """The plain loop: every parameter written anew at every point, in place, with the dtype it has.

    `model.parameters` and `model.buffers` are dicts of arrays by name, see `frameworks.numpy`. It is the
    reference the other engines are compared with.
    """

    name = "numpy-naive"

    def __init__(self, model: Any, loss_fn: Any, batches: Iterable[Any], *, mode: str = "standard") -> None:
        self._arrays: Mapping[str, Array] = {**model.parameters, **getattr(model, "buffers", {})}
        self._batches = check_batches(batches)
        self._loss = bind_loss(model, loss_fn)
        self._weights = batch_weights(self._batches, mode)
        self._originals: dict[str, Array] | None = {n: np.copy(a) for n, a in self._arrays.items()}
        self._centre: Weights = {}
        self._directions = Directions(x={}, y={})
        self.samples = sum(map(batch_rows, self._batches))
        self.bn_mode = "eval" if mode == "standard" else "batch"

    def set_plane(self, centre: Weights, directions: Directions) -> None:
        """See Engine."""
        self._centre, self._directions = centre, directions

    def row_losses(self, y: float, xs: Array) -> Array:
        """See Engine."""
        return np.array([self._at(float(x), float(y)) for x in xs], np.float64)

    def _at(self, x: float, y: float) -> float:
        self._place(self._centre)
        for name, along_x in self._directions.x.items():
            target = self._arrays[name]
            kind = target.dtype.type
            target[...] = self._centre[name] + kind(x) * along_x + kind(y) * self._directions.y[name]
        return self._mean_loss()

    def state_loss(self, state: Weights) -> float:
        """See Engine."""
        self._place(state)
        return self._mean_loss()

    def _place(self, state: Weights) -> None:
        for name, target in self._arrays.items():
            if name in state:
                target[...] = state[name]

    def _mean_loss(self) -> float:
        losses = np.array([float(self._loss(batch)) for batch in self._batches], np.float64)
        return float(losses @ self._weights)

    def close(self) -> None:
        """See Engine."""
        for name, original in (self._originals or {}).items():
            self._arrays[name][...] = original
        self._originals = None


def bind_loss(model: Any, loss_fn: Any) -> Callable[[Any], Any]:
    """How a batch becomes a loss, told by the first parameter of `loss_fn`.

    Called `model`: `loss_fn(model, batch)`. Anything else is a criterion: each batch is a pair
    (inputs, targets), and the loss is `loss_fn(model(inputs), targets)`. The result is the mean over the rows
    of the batch.
    """
    if not callable(loss_fn):
        raise InvalidTypeError(
            f"loss_fn must be callable, got {loss_fn!r}; give a criterion or def loss(model, batch)"
        )
    if _first_parameter(loss_fn) == "model" or not callable(model):
        return lambda batch: loss_fn(model, batch)

    def criterion(batch: Any) -> Any:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidTypeError(
                f"a criterion needs batches (inputs, targets), got a {type(batch).__name__}; "
                "for others give a function whose first parameter is called model: def loss(model, batch)"
            )
        return loss_fn(model(batch[0]), batch[1])

    return criterion


def _first_parameter(function: Any) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # a builtin without a signature
        return ""


def check_batches(batches: Iterable[Any]) -> list[Any]:
    """The batches as a list; raises InvalidValueError for none."""
    if not isinstance(batches, Iterable):
        raise InvalidTypeError(
            f"batches must be iterable, got {batches!r}; give a list of batches or a loader"
        )
    found = list(batches)
    if not found:
        raise InvalidValueError("batches must hold at least one batch, got none")
    return found


def batch_rows(batch: Any) -> int:
    """Rows of a batch: the first axis of its first array; 1 if it has none."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, tuple | list) and batch:
        return batch_rows(batch[0])
    shape: Sequence[int] = getattr(batch, "shape", ())
    return int(shape[0]) if len(shape) else 1


def batch_weights(batches: Sequence[Any], mode: str) -> Array:
    """What each batch's loss counts in a point's, float64, adding up to 1."""
    rows = np.array([batch_rows(batch) if mode == "standard" else 1 for batch in batches], np.float64)
    if rows.sum() <= 0:
        raise LandscapeError("the batches hold no rows; give batches with data")
    return np.asarray(rows / rows.sum())
