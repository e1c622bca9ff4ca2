"""Hessian-vector products of a torch model's loss at a checkpoint, exact by differentiating twice.

H v = d/dtheta (g . v) with g the gradient (Pearlmutter 1994), batch by batch; sums are float64, first over
the batches of a group, then over the groups, so that they are the same bits whoever makes which group.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.directions.hessian import GROUPS, members
from distsummary.landscapes.directions.recipe import Array, Weights, check_fit
from distsummary.landscapes.directions.torch_parameters import tie, unwrap
from distsummary.landscapes.model.data import batch_rows
from distsummary.landscapes.model.repeatable_loader import steady
from distsummary.landscapes.model.torch_backends import backends
from distsummary.landscapes.model.torch_loan import placed, preserved, run_as_written, seed
from distsummary.landscapes.model.torch_memory import as_tensor, exceeds_device, gpus_of, to_device
from distsummary.landscapes.model.user_code import batch_name, bind_loss, in_batch


class TorchHessian:
    """A `hessian.Hessian` at `centre` over the parameters `names`.

    While it is open the model has the values of `centre` and torch one thread; `close` (or leaving the
    context) puts back what was, the model bit for bit. Mode "standard" differentiates in eval mode,
    "mindspore" in training mode.

    Args:
        model, loss_fn: see `user_code.bind_loss`.
        batches: lists are kept on the device where they fit, others are read again for each group.
        centre: values by name; what it does not name keeps the model's.
        device: to move the model to; None: it stays where it is.
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
        inner = unwrap(model)
        self._model = inner if device is None else inner.to(device)
        self._restore = ExitStack()
        try:
            self._open(loss_fn, batches, names, centre, mode)
        except BaseException:
            self.close()
            raise

    def _open(
        self, loss_fn: Any, batches: Iterable[Any], names: Sequence[str], centre: Weights, mode: str
    ) -> None:
        self._restore.enter_context(preserved(self._model))
        run_as_written(self._model)
        tie(self._model)
        self._is_training = mode == "mindspore"
        found = dict(self._model.named_parameters(remove_duplicate=False))
        shapes = {name: np.broadcast_to(np.float32(0), tuple(p.shape)) for name, p in found.items()}
        check_fit("the plane", {name: centre[name] for name in names}, shapes)
        self._moved = [found[name] for name in names]
        place = self._moved[0].device
        self._loss = bind_loss(self._model, placed(loss_fn, self._model, place))
        self._batches = steady(batches)
        if isinstance(batches, list) and not exceeds_device(batches, place):
            self._batches = [to_device(batch, place) for batch in batches]
        weights = [self._weight(batch) for batch in self._batches]
        if not weights:
            raise InvalidValueError("batches must hold at least one batch, got none")
        self.weight, self.groups = float(sum(weights)), min(GROUPS, len(weights))
        self._take_over(centre, place)

    def _weight(self, batch: Any) -> int:
        return 1 if self._is_training else batch_rows(batch)

    def _take_over(self, centre: Weights, device: torch.device) -> None:
        self._restore.enter_context(preserved(self._model))
        if device.type == "cpu":
            self._restore.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        for module in self._model.modules():
            self._restore.callback(setattr, module, "training", module.training)
        self._model.train(self._is_training)
        named = [
            *self._model.named_parameters(remove_duplicate=False),
            *self._model.named_buffers(remove_duplicate=False),
        ]
        self._gpus = gpus_of(tensor for _, tensor in named)
        self._restore.enter_context(torch.random.fork_rng(devices=self._gpus))
        if self._gpus:
            self._restore.enter_context(_exact_on_gpus(self._model))
        seen: set[int] = set()
        for name, tensor in named:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            self._restore.callback(setattr, tensor, "data", tensor.data)
            tensor.data = tensor.data.clone()
            if name in centre:
                tensor.data.copy_(as_tensor(centre[name]))
        for tensor in self._moved:
            self._restore.callback(tensor.requires_grad_, tensor.requires_grad)
            tensor.requires_grad_(True)

    def product(self, vector: Array) -> Array:
        """See `hessian.Hessian`."""
        total = np.zeros(len(vector))
        for number in range(self.groups):
            total += self.group_product(vector, number)
        return total

    def group_product(self, vector: Array, number: int) -> Array:
        """The part of the product that one group of batches makes."""
        along = self._split(vector)
        total = np.zeros(len(vector))
        # Flash and memory-efficient attention have no second derivative.
        with torch.enable_grad(), sdpa_kernel([SDPBackend.MATH]):
            for turn, batch in enumerate(members(self._batches, number)):
                name = batch_name(1 + number + turn * GROUPS, "")
                parts = in_batch(name, self._one, to_device(batch, self._moved[0].device), along)
                total += self._weight(batch) * torch.cat([_flat(part) for part in parts]).numpy()
        return total

    def _split(self, vector: Array) -> list[torch.Tensor]:
        flat = as_tensor(vector).double()
        parts = torch.split(flat, [tensor.numel() for tensor in self._moved])
        return [
            part.view(tensor.shape).to(tensor.device, tensor.dtype)
            for part, tensor in zip(parts, self._moved, strict=True)
        ]

    def _one(self, batch: Any, along: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self._is_training:
            seed(self._gpus)
        loss, _, _ = self._loss(batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise LandscapeError(
                "directions='hessian' needs a loss function that returns one tensor with a gradient for "
                "a batch; return the mean over the batch, not detached"
            )
        gradient = torch.autograd.grad(loss, self._moved, create_graph=True, materialize_grads=True)
        slopes = [(g * v).sum().to(loss.device) for g, v in zip(gradient, along, strict=True)]
        slope = torch.stack(slopes).sum()
        if not slope.requires_grad:  # the loss is linear in the parameters
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


def _flat(part: torch.Tensor) -> torch.Tensor:
    """A part of a product, dense: sparse gradients make sparse ones."""
    return part.detach().to_dense().reshape(-1).to("cpu", torch.float64)


@contextmanager
def _exact_on_gpus(model: torch.nn.Module) -> Iterator[None]:
    """No TF32, which convolutions have unless told otherwise; recurrent nets without cuDNN.

    Its kernels for them have no second derivative, and in eval mode not even a first.
    """
    cudnn: Any = torch.backends.cudnn  # a module made of classes
    with backends(tf32=False):
        before = cudnn.enabled
        cudnn.enabled = before and not any(isinstance(part, torch.nn.RNNBase) for part in model.modules())
        try:
            yield
        finally:
            cudnn.enabled = before
