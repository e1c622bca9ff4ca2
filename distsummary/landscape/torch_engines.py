"""The row engine for torch models: theta + y * v once a row into a flat buffer, + x * u once a point.

While it is open, every parameter and buffer of the model looks at memory of the engine; the tensors' own
memory is never written to and is put back by `close`, so the model is bit for bit what it was.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from distsummary.errors import InvalidTypeError, LandscapeError
from distsummary.landscape.directions import Array, Directions, Weights, check_fit
from distsummary.landscape.engines import batch_rows, batch_weights, bind_loss, check_batches

ALIGNMENT_BYTES = 64  # as the allocator's own tensors: kernels choose their path by it
DROPOUT_SEED = 0


class TorchRowEngine:
    """See `Engine`. Mode "standard" evaluates in eval mode, "mindspore" in training mode (batch statistics).

    Args:
        model: a torch.nn.Module; moved to `device` if one is given, else it stays where it is.
        loss_fn, batches: see `engines.bind_loss`; the batches are kept on the model's device.
        names: the parameters that move. All others, and the buffers, keep the values of the centre.
    """

    name = "torch-row"

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Any,
        batches: Iterable[Any],
        *,
        names: Sequence[str],
        mode: str = "standard",
        device: str | None = None,
    ) -> None:
        self._batches = check_batches(batches)
        inner = unwrap(model)
        self._model = inner if device is None else inner.to(device)
        self._loss = bind_loss(self._model, loss_fn)
        self._is_training = mode == "mindspore"
        weights = batch_weights(self._batches, mode)
        tensors = _tensors(self._model)
        check_fit("the plane", dict.fromkeys(names, _NOTHING), dict.fromkeys(tensors, _NOTHING))
        self._device = next((t.device for t in tensors.values()), torch.device("cpu"))
        self._batches = [to_device(batch, self._device) for batch in self._batches]
        self._weights = [float(w) for w in weights]
        self.samples = sum(map(batch_rows, self._batches))
        self.bn_mode = "batch" if self._is_training else "eval"
        self._centre: Weights = {}
        self._is_at_centre = False
        self._row: float | None = None
        self._restore = ExitStack()
        try:
            self._take_over(tensors, names)
        except BaseException:
            self.close()
            raise

    def _take_over(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        for module in self._model.modules():
            self._restore.callback(setattr, module, "training", module.training)
        self._model.train(self._is_training)
        if self._device.type == "cpu":  # one thread: the same bits in every process, and more points a second
            self._restore.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        devices = [self._device] if self._device.type == "cuda" else []
        self._restore.enter_context(torch.random.fork_rng(devices=devices))
        moved: dict[tuple[torch.dtype, torch.device], dict[str, torch.Tensor]] = {}
        for name in names:
            moved.setdefault((tensors[name].dtype, tensors[name].device), {})[name] = tensors[name]
        moving = {id(tensor) for group in moved.values() for tensor in group.values()}
        for tensor in {id(t): t for t in tensors.values()}.values():
            self._restore.callback(setattr, tensor, "data", tensor.data)
            if id(tensor) not in moving:
                tensor.data = tensor.data.clone()
        self._groups = [_Flat(group) for group in moved.values()]
        self._tensors = tensors

    def set_plane(self, centre: Weights, directions: Directions) -> None:
        """See Engine."""
        self._centre, self._is_at_centre, self._row = centre, False, None
        for group in self._groups:
            group.set_plane(centre, directions)

    @torch.inference_mode()
    def row_losses(self, y: float, xs: Array) -> Array:
        """See Engine."""
        if not self._is_at_centre:
            self._place(self._centre)
            self._is_at_centre = True
        if self._row != y:
            for group in self._groups:
                group.set_row(float(y))
            self._row = float(y)
        losses = []
        for x in xs:
            for group in self._groups:
                group.set_point(float(x))
            losses.append(self._mean_loss())
        return np.asarray(torch.stack(losses).cpu().numpy())  # one transfer a row, none a point

    @torch.inference_mode()
    def state_loss(self, state: Weights) -> float:
        """See Engine."""
        self._is_at_centre = False
        self._place(state)
        return float(self._mean_loss())

    def _place(self, state: Weights) -> None:
        for name, tensor in self._tensors.items():
            if name in state:
                tensor.copy_(_tensor(state[name]))

    def _mean_loss(self) -> torch.Tensor:
        if self._is_training:
            self._seed_dropout()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch, weight in zip(self._batches, self._weights, strict=True):
            loss = torch.as_tensor(self._loss(batch), device=self._device)
            if loss.numel() != 1:
                raise LandscapeError(
                    f"loss_fn must return one number for a batch, got shape {tuple(loss.shape)}; "
                    "return the mean over the batch"
                )
            total += loss.detach().reshape(()).double() * weight
        return total

    def _seed_dropout(self) -> None:
        """The same noise at every point and in every worker; the user's generators come back on close."""
        torch.default_generator.manual_seed(DROPOUT_SEED)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(DROPOUT_SEED)

    def close(self) -> None:
        """See Engine."""
        self._restore.close()


class _Flat:
    """Moved parameters of one dtype and device as one vector, so that a move is one operation.

    Sums are made in float32, in float64 for float64 parameters; half precision is rounded once, at the point.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        first = next(iter(tensors.values()))
        if not first.is_floating_point():
            raise InvalidTypeError(
                f"only floating point parameters can move, {next(iter(tensors))} is {first.dtype}"
            )
        self._views: dict[str, tuple[slice, torch.Size]] = {}
        step, end = max(1, ALIGNMENT_BYTES // first.element_size()), 0
        for name, tensor in tensors.items():
            self._views[name] = (slice(end, end + tensor.numel()), tensor.shape)
            end += -(-tensor.numel() // step) * step
        kind = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._base, self._x, self._y, self._row = torch.zeros((4, end), dtype=kind, device=first.device)
        self._point = torch.zeros(end, dtype=first.dtype, device=first.device)
        self._sum = self._point if first.dtype == kind else torch.zeros_like(self._row)
        for name, tensor in tensors.items():
            tensor.data = self._view(self._point, name)

    def _view(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        part, shape = self._views[name]
        return flat[part].view(shape)

    def set_plane(self, centre: Weights, directions: Directions) -> None:
        for flat, weights in ((self._base, centre), (self._x, directions.x), (self._y, directions.y)):
            for name in self._views:
                self._view(flat, name).copy_(_tensor(weights[name]))

    def set_row(self, y: float) -> None:
        torch.add(self._base, self._y, alpha=y, out=self._row)

    def set_point(self, x: float) -> None:
        torch.add(self._row, self._x, alpha=x, out=self._sum)
        if self._sum is not self._point:
            self._point.copy_(self._sum)


_NOTHING = np.empty(0)


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name they have."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found |= dict(model.named_buffers(remove_duplicate=False))
    for name, tensor in found.items():
        if type(tensor.data) is not torch.Tensor:
            raise InvalidTypeError(
                f"{name} is a {type(tensor.data).__name__}; gather a sharded model on one device first"
            )
    return found


def _tensor(array: Array) -> torch.Tensor:
    return torch.tensor(np.asarray(array))  # copies: arrays out of Ray's store are read-only


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside DDP, DataParallel and torch.compile: names and values without their wrapping."""
    while True:
        is_parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel)
        inner = getattr(model, "module" if is_parallel else "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def to_device(batch: Any, device: torch.device | str) -> Any:
    """The batch with its tensors (also in tuples, lists and dicts) on the device; others as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(item, device) for item in batch)
    if isinstance(batch, dict):
        return {key: to_device(item, device) for key, item in batch.items()}
    return batch


def portable(model: torch.nn.Module, batches: Sequence[Any]) -> tuple[torch.nn.Module, list[Any]]:
    """Model and batches that any process can unpickle: copies on the host if they are elsewhere."""
    model = unwrap(model)
    if any(tensor.device.type != "cpu" for tensor in _tensors(model).values()):
        model = copy.deepcopy(model).cpu()
    return model, [to_device(batch, "cpu") for batch in batches]


def worker_device(has_gpu: bool) -> str:
    """Where a worker that was given a GPU, or none, computes."""
    return "cuda" if has_gpu and torch.cuda.is_available() else "cpu"
