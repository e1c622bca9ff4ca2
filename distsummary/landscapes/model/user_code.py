"""The user's loss and metrics: how they are called, and what is said where they give nothing to draw."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from distsummary.errors import InvalidTypeError

HINT = "hint: "  # how notes begin that an error of the user's code is given, see `hint`
IN = "in batch "  # how the note begins that says in which one, see `in_batch`
NAME_IT = "a loss function of model and batch must call its first parameter model"
OWN_LOSS = (
    "the model returns more than a criterion takes; where it computes the loss itself, give batches of its "
    "arguments and def loss(model, batch): return model(**batch).loss"
)
NO_OUTPUTS = "metrics need a loss function of model and batch to return (loss, outputs)"
CLASSES_NEED_ROWS = (
    "losses by class need a loss_fn that returns one loss for each row of the batch (reduction='none')"
)
SHOWN = 60  # characters of a wrong value

T = TypeVar("T")


def bind_loss(
    model: Any, loss_fn: Any, beside: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any], tuple[Any, Any, Any]]:
    """How a batch becomes (loss, outputs, targets), told by the first parameter of `loss_fn`.

    Called `model`: `loss_fn(model, batch)` returns the loss or (loss, outputs); the batch counts as the
    targets. Anything else is a criterion: each batch is a pair (inputs, targets), and the loss is
    `loss_fn(model(inputs), targets)`. A loss is the mean over the rows of the batch, or one number for each
    row. `beside(targets, outputs)` gives a criterion's targets where the outputs are.
    """
    check_loss(loss_fn)
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
            elif holds_loss(outputs):
                hint(error, OWN_LOSS)
            raise

    return criterion


def check_loss(loss_fn: Any) -> None:
    """Raise InvalidTypeError for what cannot be called."""
    if not callable(loss_fn):
        raise InvalidTypeError(
            f"loss_fn must be callable, got {shown(loss_fn)}; give a criterion or def loss(model, batch)"
        )


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


def batch_name(number: int, data_set: str) -> str:
    """A batch in print, counted from 1: "batch 3 of test"."""
    return f"batch {number} of {data_set}" if data_set else f"batch {number}"


def in_batch(name: str, read: Callable[..., T], *arguments: Any) -> T:
    """What `read` gives for a batch of this name; an error is given a note that names it."""
    try:
        return read(*arguments)
    except Exception as error:  # of any kind: it is the user's code
        if (note := f"in {name}") not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def first_line(error: BaseException) -> str:
    """What an error says first; nothing where it says nothing."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), "")


def shown(value: object) -> str:
    """A value in print, as far as it is short."""
    return " ".join(repr(value).split())[:SHOWN]


def no_number_error(what: str, found: object) -> str:
    """What is said of a loss or metric that is nothing to draw."""
    remedy = "its loss" if holds_loss(found) else "one for the batch, such as the mean over its rows"
    return (
        f"{what} must return real numbers, got {shown(found)} of type {type(found).__name__}; return {remedy}"
    )


def holds_loss(found: object) -> bool:
    """Whether this is what a model gives that computes its loss itself, as those of transformers do."""
    return hasattr(found, "loss") or (isinstance(found, Mapping) and "loss" in found)


def metric_shape_error(name: str, shape: Sequence[int]) -> str:
    """What is said of a metric that is several numbers, or none."""
    return (
        f"metric {name!r} must return one number for a batch, got shape {tuple(shape)}; "
        "return the mean over the rows"
    )


def loss_shape_error(shape: Sequence[int]) -> str:
    """What is said of a loss that is neither a number nor one number per row."""
    return (
        f"loss_fn must return one number for a batch, or one for each row, got shape {tuple(shape)}; "
        "return the mean over the batch"
    )
