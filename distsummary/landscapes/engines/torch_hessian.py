"""Exact Hessian-vector products of a torch model's loss at a checkpoint, by differentiating twice.

H v = d/dtheta (g . v), with the Hessian H, the gradient g and a fixed vector v (Pearlmutter 1994). Products
of the batches are summed in float64, first within a group of batches (see `hessian.members`), then over the
groups, so that the sum has the same bits whichever worker computes a group.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions.hessian import GROUPS, members
from distsummary.landscapes.directions.recipe import Array, Weights
from distsummary.landscapes.model.data import batch_rows
from distsummary.landscapes.model.repeatable_loader import steady
from distsummary.landscapes.model.torch_loan import Loan, placed
from distsummary.landscapes.model.torch_memory import as_tensor, exceeds_device, to_device
from distsummary.landscapes.model.user_code import batch_name, bind_loss, in_batch


class TorchHessian:
    """Implements `hessian.Hessian`: at the point `centre`, with respect to the parameters `names`.

    While it is open, the model has the values of `centre` and torch uses one thread. `close` (or leaving a
    `with` block) restores both, the model bit for bit. Mode "standard" differentiates in eval mode,
    "mindspore" in training mode.

    Args:
        model, loss_fn: see `bind_loss`.
        batches: a list is kept on the device if it fits; any other iterable is read again for each group.
        centre: values by name; for names that are missing, the model keeps its own values.
        device: where to move the model; None leaves it where it is.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Any,
        batches: Iterable[Any],
        *,
        names: Sequence[str],
        centre: Weights,
        mode: str = "standard",
        device: str | None = None,
    ) -> None:
        self._is_training = mode == "mindspore"
        self._loan = Loan(model, names, device=device, training=self._is_training)
        self._restore = ExitStack()
        self._restore.callback(self._loan.give_back)
        try:
            self._moved = list(self._loan.moved.values())
            self._device = self._moved[0].device
            self._loan.place(centre)
            if torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in self._moved):
                raise LandscapeError(
                    "directions='hessian' needs gradients, which torch.inference_mode() switches off; make "
                    "the model, and call landscape, outside of it"
                )
            # A varied parameter may be frozen in the user's model.
            for tensor in self._moved:
                self._restore.callback(tensor.requires_grad_, tensor.requires_grad)
                tensor.requires_grad_(True)
            # cuDNN's kernels for recurrent nets have no second derivative, and in eval mode no first one.
            if any(isinstance(part, torch.nn.RNNBase) for part in self._loan.model.modules()):
                # The type is Any, because torch replaces this module by an object.
                cudnn: Any = torch.backends.cudnn
                self._restore.callback(setattr, cudnn, "enabled", cudnn.enabled)
                cudnn.enabled = False
            self._loss = bind_loss(self._loan.model, placed(loss_fn, self._loan.model, self._device))
            self._batches = steady(batches)
            if isinstance(batches, list) and not exceeds_device(batches, self._device):
                self._batches = [to_device(batch, self._device) for batch in batches]
            weights = [self._weight(batch) for batch in self._batches]
            if not weights:
                raise InvalidValueError("batches must hold at least one batch, got none")
            self.weight, self.groups = float(sum(weights)), min(GROUPS, len(weights))
        except BaseException:
            self.close()
            raise

    def _weight(self, batch: Any) -> int:
        return 1 if self._is_training else batch_rows(batch)

    def product(self, vector: Array) -> Array:
        """See `hessian.Hessian`."""
        total = np.zeros(len(vector))
        for number in range(self.groups):
            total += self.group_product(vector, number)
        return total

    def group_product(self, vector: Array, number: int) -> Array:
        """What the batches of the group `number` contribute to the product."""
        sizes = [tensor.numel() for tensor in self._moved]
        along = [
            part.view(tensor.shape).to(tensor.device, tensor.dtype)
            for part, tensor in zip(torch.split(as_tensor(vector).double(), sizes), self._moved, strict=True)
        ]
        total = np.zeros(len(vector))
        # Flash and memory-efficient attention have no second derivative.
        with torch.enable_grad(), sdpa_kernel([SDPBackend.MATH]):
            for turn, batch in enumerate(members(self._batches, number)):
                name = batch_name(1 + number + turn * GROUPS, "")
                parts = in_batch(name, self._batch_product, to_device(batch, self._device), along)
                # Parameters with sparse gradients have sparse products.
                flat = [part.detach().to_dense().reshape(-1).to("cpu", torch.float64) for part in parts]
                total += self._weight(batch) * torch.cat(flat).numpy()
        return total

    def _batch_product(self, batch: Any, along: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._is_training:
            # With other random numbers each time, the products would not be those of one symmetric matrix.
            self._loan.seed()
        loss, _, _ = self._loss(batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise LandscapeError(
                "directions='hessian' needs a loss function that returns, for a batch, a tensor with a "
                "single element and a gradient; return the mean over the batch, not detached"
            )
        gradient = torch.autograd.grad(loss, self._moved, create_graph=True, materialize_grads=True)
        slopes = [(g * v).sum().to(loss.device) for g, v in zip(gradient, along, strict=True)]
        slope = torch.stack(slopes).sum()
        # The Hessian of a loss that is linear in the parameters is 0.
        if not slope.requires_grad:
            return [torch.zeros_like(tensor) for tensor in self._moved]
        return torch.autograd.grad(slope, self._moved, materialize_grads=True)

    def close(self) -> None:
        """Give the model back bit for bit. A second call does nothing."""
        self._restore.close()

    def __enter__(self) -> "TorchHessian":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
