"""Engines: a model, its loss and its data, asked for quantities in a plane; what is common to them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from distsummary.checks import check_choice
from distsummary.errors import InvalidTypeError
from distsummary.frameworks.base import framework_of
from distsummary.landscape.directions.recipe import Array, Recipe, Weights
from distsummary.landscape.engines.data import Data
from distsummary.landscape.engines.planner import EngineChoice
from distsummary.landscape.engines.quantities import Evaluation

MODES = ("standard", "mindspore")
HINT = "hint: "  # how notes begin that an error of the user's code is given, see `hint`
NAME_IT = "a loss function of model and batch must call its first parameter model"
NO_OUTPUTS = "metrics need a loss function of model and batch to return (loss, outputs)"


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
        from distsummary.landscape.engines.torch_engines import open_torch_engine

        return open_torch_engine(
            model, loss_fn, batches,
            names=names, mode=mode, device=device, evaluation=evaluation, choice=choice or EngineChoice(),
        )  # fmt: skip
    from distsummary.landscape.engines.numpy_engine import NumpyEngine

    return NumpyEngine(model, loss_fn, batches, mode=mode, evaluation=evaluation)


def is_out_of_memory(model: Any, error: BaseException) -> bool:
    """Whether an error of its engine says that memory was too small; numpy models have no smaller engine."""
    if framework_of(model).name != "torch":
        return False
    from distsummary.landscape.engines.torch_memory import is_full

    return is_full(error)


def bind_loss(
    model: Any, loss_fn: Any, beside: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any], tuple[Any, Any, Any]]:
    """How a batch becomes (loss, outputs, targets), told by the first parameter of `loss_fn`.

    Called `model`: `loss_fn(model, batch)` returns the loss or (loss, outputs); the batch counts as the
    targets. Anything else is a criterion: each batch is a pair (inputs, targets), and the loss is
    `loss_fn(model(inputs), targets)`. A loss is the mean over the rows of the batch, or one number for each
    row. `beside(targets, outputs)` gives a criterion's targets where the outputs are.
    """
    if not callable(loss_fn):
        raise InvalidTypeError(
            f"loss_fn must be callable, got {loss_fn!r}; give a criterion or def loss(model, batch)"
        )
    parameters = _parameters(loss_fn)
    if parameters[:1] == ["model"] or not callable(model):

        def whole(batch: Any) -> tuple[Any, Any, Any]:
            found = loss_fn(model, batch)
            return (*found, batch) if isinstance(found, tuple) and len(found) == 2 else (found, None, batch)

        return whole

    def criterion(batch: Any) -> tuple[Any, Any, Any]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidTypeError(
                f"a criterion needs batches (inputs, targets), got a {type(batch).__name__}; "
                "for others give a function whose first parameter is called model: def loss(model, batch)"
            )
        outputs, targets = model(batch[0]), batch[1]
        if beside is not None:
            targets = beside(targets, outputs)
        try:
            return loss_fn(outputs, targets), outputs, targets
        except (TypeError, AttributeError) as error:  # outputs are neither called nor asked for modules
            if inspect.isfunction(loss_fn) and len(parameters) == 2:
                hint(error, NAME_IT)
            raise

    return criterion


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return []


def apply_metric(metric: Callable[..., Any], outputs: Any, targets: Any) -> Any:
    """What a metric gives; an error of one that gets no outputs is given a hint."""
    try:
        return metric(outputs, targets)
    except Exception as error:  # of any kind: it is the user's code
        if outputs is None:
            hint(error, NO_OUTPUTS)
        raise


def hint(error: BaseException, text: str) -> None:
    """Note what may have led to an error of the user's code; what is told of the error shows it."""
    error.add_note(HINT + text)
