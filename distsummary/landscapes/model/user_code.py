"""Calls the user's loss and metrics, and explains their errors and unusable results."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from distsummary.errors import InvalidTypeError

HINT = "hint: "  # the prefix of notes that `hint` adds to an error of the user's code
IN = "in batch "  # the prefix of the note that `in_batch` adds
AS_BATCH_LOSS = "pass a function of (model, batch) as batch_loss=, not as loss_fn="
AS_LOSS_FN = "batch_loss is called with (model, batch); pass a criterion of (output, target) as loss_fn="
OWN_LOSS = (
    "the model's output is not the tensor that a criterion takes; if the model computes the loss, pass "
    "batches that are dicts of its arguments, and batch_loss=lambda model, batch: model(**batch).loss"
)
NO_OUTPUTS = "metrics need a batch_loss that returns (loss, outputs)"
SHOWN = 60  # characters of a wrong value that a message shows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """A loss that is called with (model, batch); a loss not in this class is a criterion(output, target)."""

    function: Callable[[Any, Any], Any]


def loss_name(loss: Any) -> str:
    """The argument by which the user passed a loss, for messages."""
    return "batch_loss" if isinstance(loss, BatchLoss) else "loss_fn"


def check_loss(model: Any, loss_fn: Any, batch_loss: Any) -> Any:
    """The loss for the engines, a criterion or a `BatchLoss`; raises InvalidTypeError unless one is given."""
    both = "loss_fn=, a criterion of (output, target), and batch_loss=, a function of (model, batch)"
    if loss_fn is not None and batch_loss is not None:
        raise InvalidTypeError(f"{both}, exclude each other; leave one of them out")
    if loss_fn is None and batch_loss is None:
        raise InvalidTypeError(f"one of {both}, is required, got neither")
    name, function = ("loss_fn", loss_fn) if batch_loss is None else ("batch_loss", batch_loss)
    if not callable(function):
        signature = "(output, target)" if batch_loss is None else "(model, batch)"
        raise InvalidTypeError(
            f"{name} must be callable with {signature}, got {shown(function)}; pass a function"
        )
    if batch_loss is not None:
        return BatchLoss(batch_loss)
    if _parameters(loss_fn)[:1] == ["model"]:
        raise InvalidTypeError(
            "loss_fn is called with (output, target), but the first parameter of "
            f"{getattr(loss_fn, '__name__', type(loss_fn).__name__)} is called model; "
            f"{AS_BATCH_LOSS}"
        )
    if not callable(model):
        raise InvalidTypeError(
            f"loss_fn needs a model that can be called with the inputs, got a {type(model).__name__}; "
            f"{AS_BATCH_LOSS}"
        )
    return loss_fn


def bind_loss(
    model: Any, loss: Any, moved: Callable[[Any, Any], Any] | None = None
) -> Callable[[Any], tuple[Any, Any, Any]]:
    """The function that turns a batch into (loss, outputs, targets).

    With a `BatchLoss` the user's function gets (model, batch) and returns the loss or (loss, outputs); the
    batch itself is returned as the targets. Any other `loss` is a criterion: each batch is a pair
    (inputs, targets), and the loss is `loss(model(inputs), targets)`. The returned loss is the mean over the
    rows of the batch, or one number for each row. `moved(targets, outputs)` returns a criterion's targets
    on the device of the outputs.
    """
    if isinstance(loss, BatchLoss):
        function = loss.function

        def of_batch(batch: Any) -> tuple[Any, Any, Any]:
            try:
                found = function(model, batch)
            except (TypeError, AttributeError) as error:
                # A first parameter called model shows that the function is meant for (model, batch).
                if _parameters(function)[:1] != ["model"]:
                    hint(error, AS_LOSS_FN)
                raise
            return (*found, batch) if isinstance(found, tuple) and len(found) == 2 else (found, None, batch)

        return of_batch

    def of_pair(batch: Any) -> tuple[Any, Any, Any]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidTypeError(
                f"loss_fn needs batches that are pairs (inputs, targets), got a {type(batch).__name__}; "
                "for other batches pass a function of (model, batch) as batch_loss="
            )
        outputs, targets = model(batch[0]), batch[1]
        if moved is not None:
            targets = moved(targets, outputs)
        try:
            return loss(outputs, targets), outputs, targets
        except (TypeError, AttributeError) as error:
            # Perhaps the loss expects other arguments, or the model computes the loss itself.
            if inspect.isfunction(loss) and len(_parameters(loss)) == 2:
                hint(error, AS_BATCH_LOSS)
            elif holds_loss(outputs):
                hint(error, OWN_LOSS)
            raise

    return of_pair


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except Exception:
        # A builtin function may have none, and an object of the user's may raise anything.
        return []


def apply_metric(metric: Callable[..., Any], outputs: Any, targets: Any) -> Any:
    """The result of a metric; if it gets no outputs and raises, the error gets a hint."""
    try:
        return metric(outputs, targets)
    except Exception as error:
        # Any error is possible, since it is the user's code.
        if outputs is None:
            hint(error, NO_OUTPUTS)
        raise


def hint(error: BaseException, text: str) -> None:
    """Add a note on the likely cause to an error of the user's code; messages about the error show it."""
    error.add_note(HINT + text)


def batch_name(number: int, data_set: str) -> str:
    """The name of a batch in messages, counted from 1: "batch 3 of test"."""
    return f"batch {number} of {data_set}" if data_set else f"batch {number}"


def in_batch(name: str, read: Callable[..., T], *arguments: Any) -> T:
    """Call `read(*arguments)`; an error gets a note with the name of the batch."""
    try:
        return read(*arguments)
    except Exception as error:
        # Any error is possible, since it is the user's code.
        if (note := f"in {name}") not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def first_line(error: BaseException) -> str:
    """The first line of an error's message; empty if it has none."""
    return next((line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()), "")


def shown(value: object) -> str:
    """The repr of a value for messages, shortened."""
    return " ".join(repr(value).split())[:SHOWN]


def no_number_error(what: str, found: object) -> str:
    """The message for a loss or metric that is not a number."""
    remedy = "the loss it holds" if holds_loss(found) else "one for the batch, such as the mean over its rows"
    return (
        f"{what} must return real numbers, got {shown(found)} of type {type(found).__name__}; return {remedy}"
    )


def holds_loss(found: object) -> bool:
    """Whether `found` is the output of a model that computes its own loss, as models of transformers do."""
    return hasattr(found, "loss") or (isinstance(found, Mapping) and "loss" in found)


def metric_shape_error(name: str, shape: Sequence[int]) -> str:
    """The message for a metric that returns several numbers or none."""
    return (
        f"metric {name!r} must return one number for a batch, got shape {tuple(shape)}; "
        "return the mean over the rows"
    )


def loss_shape_error(what: str, shape: Sequence[int]) -> str:
    """The message for a loss that is neither a number nor one number per row."""
    return (
        f"{what} must return one number for a batch, or one for each row, got shape {tuple(shape)}; "
        "return the mean over the batch"
    )
