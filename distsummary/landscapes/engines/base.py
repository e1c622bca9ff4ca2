"""Engines: a model, its loss and its data, asked for quantities in a plane; what is common to them."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from distsummary.checks import check_choice
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.recipe import Array, Recipe, Weights
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.model.data import Data
from distsummary.landscapes.model.quantities import Evaluation

MODES = ("standard", "mindspore")


class Engine(Protocol):
    """What evaluates points. While it is open the model's values are its own; `close` puts the user's back.

    The loss of a point is the mean of the batches' losses, weighted by their rows in mode "standard" and not
    weighted in mode "mindspore".
    """

    name: str
    bn_mode: str  # see Evaluation
    samples: int  # rows behind each loss, of the first data set
    quantities: tuple[str, ...]  # the first is the loss of the first data set
    is_streamed: bool  # whether the data is read once for all points of a call of `row_values`

    @property
    def hardware(self) -> str:
        """Where it computes, by name."""

    def set_plane(self, centre: Weights, recipe: Recipe) -> None:
        """Take the plane through `centre` (all values by name) along the directions that `recipe` makes."""

    def row_values(self, y: float, xs: Array) -> Array:
        """Quantities float64 (len(xs), quantities) at centre + xs[j] * directions.x + y * directions.y.

        They depend on nothing but the arguments; where points are evaluated together (chunks), on the place
        of a point in `xs` too, in the last digits.
        """

    def state_values(self, state: Weights) -> Array:
        """The quantities (quantities,) of a whole checkpoint; the plane stays."""

    def close(self) -> None:
        """Give the model back bit for bit: values, buffers and training flags. A second call does nothing."""


def open_engine(
    model: Any,
    loss_fn: Any,
    batches: Iterable[Any] | Data,
    *,
    names: Sequence[str],
    mode: str,
    device: str | None = None,
    evaluation: Evaluation | None = None,
    choice: EngineChoice | None = None,
) -> Engine:
    """The engine for the framework that owns `model`; `names` are the parameters that will move.

    `choice` None: the row engine for torch models. Numpy models have the naive engine only.
    """
    check_choice("mode", mode, MODES)
    evaluation = evaluation or Evaluation()
    if framework_of(model).name == "torch":
        from distsummary.landscapes.engines.torch_engines import open_torch_engine

        return open_torch_engine(
            model, loss_fn, batches,
            names=names, mode=mode, device=device, evaluation=evaluation, choice=choice or EngineChoice(),
        )  # fmt: skip
    from distsummary.landscapes.engines.numpy_engine import NumpyEngine

    return NumpyEngine(model, loss_fn, batches, mode=mode, evaluation=evaluation)


def is_out_of_memory(model: Any, error: BaseException) -> bool:
    """Whether an error of its engine says that memory was too small; numpy models have no smaller engine."""
    if framework_of(model).name != "torch":
        return False
    from distsummary.landscapes.model.torch_memory import is_full

    return is_full(error)
