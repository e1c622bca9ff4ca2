"""Computes a torch model's loss and metrics for a batch, as an `Evaluation` requests them."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.model.data import batch_rows
from distsummary.landscapes.model.quantities import Evaluation, is_apart
from distsummary.landscapes.model.torch_memory import spread, to_device
from distsummary.landscapes.model.user_code import (
    apply_metric,
    bind_loss,
    hint,
    loss_name,
    loss_shape_error,
    metric_shape_error,
    no_number_error,
)

GRADIENTS = (
    "losses are evaluated without gradients; a loss that needs gradients must compute them within "
    "`with torch.inference_mode(False), torch.enable_grad():`"
)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Measure:
    """Computes readings (rows of numbers, see `quantities`) of the model with its current values.

    `measure(batch)` returns a scalar tensor for each number. The call does not wait for a GPU; it raises
    LandscapeError if a loss or metric is not a number.
    """

    def __init__(self, model: nn.Module, loss_fn: Any, evaluation: Evaluation, device: torch.device) -> None:
        def moved(targets: Any, outputs: Any) -> Any:
            """The targets on the outputs' device; for a model over several devices that is the last one."""
            return to_device(targets, outputs.device) if isinstance(outputs, Tensor) else targets

        self._evaluation, self._device = evaluation, device
        self._loss_name = loss_name(loss_fn)
        self._loss = bind_loss(model, loss_fn, moved if spread(model) else None)
        self._by_rows = _by_rows(loss_fn) if evaluation.stderr else None
        self._autocast = AUTOCAST.get(evaluation.precision)
        self.has_rows = False

    @torch.inference_mode()
    def probe(self, batch: Any) -> None:
        """Find out with a batch whether each row's loss is available, perhaps through reduction "none"."""
        if self._evaluation.stderr:
            found, outputs, targets = self._loss(batch)
            if self._by_rows is not None:
                try:
                    self._by_rows(outputs, targets)
                except (MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception:
                    # Any error is possible: the user's criterion may work only with its own reduction.
                    self._by_rows = None
            loss, rows = self._read(found, outputs, targets, batch_rows(batch))
            # The rows' losses are of use only if their mean is the loss. It is not if the criterion weights
            # rows or leaves some out.
            columns = torch.stack([loss.double(), *_sums(loss, rows)]).cpu().numpy()
            self.has_rows = rows is not None and not is_apart(*columns)
        # A whole reading, so that an unusable metric raises its error here.
        self(batch)

    def __call__(self, batch: Any) -> tuple[Tensor, ...]:
        """The reading of a batch, as the tensors of its columns."""
        with torch.autocast(
            self._device.type, dtype=self._autocast, enabled=self._autocast is not None, cache_enabled=False
        ):
            try:
                found, outputs, targets = self._loss(batch)
                loss, rows = self._read(found, outputs, targets, batch_rows(batch))
                columns = [loss]
                if self.has_rows:
                    columns += _sums(loss, rows)
                for name, metric in self._evaluation.metrics.items():
                    value = self._tensor(f"metric {name!r}", apply_metric(metric, outputs, targets))
                    if value.numel() != 1:
                        raise LandscapeError(metric_shape_error(name, value.shape))
                    columns.append(value.reshape(()))
                return tuple(columns)
            except RuntimeError as error:
                if any(sign in str(error).lower() for sign in ("require grad", "inference tensor")):
                    hint(error, GRADIENTS)
                raise

    def _read(self, found: Any, outputs: Any, targets: Any, count: int) -> tuple[Tensor, Tensor | None]:
        """(the batch's loss, the losses of its `count` rows or None if unknown), as real tensors."""
        losses = self._tensor(self._loss_name, found)
        if losses.dim() > 1:
            raise LandscapeError(loss_shape_error(self._loss_name, losses.shape))
        losses = losses if losses.is_floating_point() else losses.double()
        # Several losses count as those of the rows only if there is one for each row.
        if losses.dim():
            return losses.mean(), losses if len(losses) == count else None
        if self._by_rows is None:
            return losses, None
        rows = self._tensor(self._loss_name, self._by_rows(outputs, targets))
        has_rows = rows.dim() > 0 and len(rows) == count
        return losses, rows.reshape(count, -1).mean(1) if has_rows else None

    def _tensor(self, what: str, found: Any) -> Tensor:
        """What the user's function `what` returned, as a real tensor; raises LandscapeError if impossible."""
        try:
            # A tuple is a loss and its parts, not one loss for each row.
            if isinstance(found, tuple):
                raise TypeError("several values")
            dtype = None if hasattr(found, "dtype") else torch.float32
            value = found if isinstance(found, Tensor) else torch.as_tensor(found, dtype=dtype, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            # These are the errors that as_tensor raises.
            raise LandscapeError(no_number_error(what, found)) from error
        if value.is_complex():
            raise LandscapeError(no_number_error(what, found))
        return value.to(self._device).detach()


def join(columns: Sequence[Tensor]) -> Tensor:
    """The tensors of a reading joined into one tensor of shape (columns,)."""
    if len(columns) == 1 and columns[0].numel() == 1:
        return columns[0].reshape(1)
    return torch.cat([column.reshape(-1).double() for column in columns])


def _sums(loss: Tensor, rows: Tensor | None) -> list[Tensor]:
    """The means of the rows' losses and of their squares; without rows, numbers that make `is_apart` true."""
    if rows is None:
        return [loss.new_full((), number, dtype=torch.float64) for number in (torch.inf, 0.0)]
    exact = rows.double()
    return [exact.mean(), (exact * exact).mean()]


def _by_rows(loss_fn: Any) -> Callable[..., Any] | None:
    """A copy of a torch.nn criterion with reduction "none" instead of "mean"; None for other functions."""
    if not isinstance(loss_fn, nn.Module) or getattr(loss_fn, "reduction", None) != "mean":
        return None
    by_rows: Any = copy.copy(loss_fn)
    by_rows.reduction = "none"
    return by_rows  # type: ignore[no-any-return]  # of the user's class


def on_host(readings: Tensor) -> Array:
    """Readings as float64 on the host; the only function here that waits for the device."""
    return np.asarray(readings.double().cpu().numpy())
