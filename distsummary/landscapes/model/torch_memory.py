"""Memory for tensors of a landscape: flat vectors of parameters, copies to devices, and memory limits."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.frameworks.torch_modules import unwrap
from distsummary.landscapes.directions.recipe import Array, RandomDirections, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import named_tensors
from distsummary.landscapes.directions.torch_rows import draws, rows_on, whole
from distsummary.landscapes.model.batches import mapped
from distsummary.landscapes.model.data import batch_bytes

ALIGNMENT_BYTES = 64  # torch's allocator aligns to this; libraries choose kernels by alignment
DEVICE_SHARE = 0.5  # the share of a GPU's memory for batches; the model and activations need the rest
# If an error's message contains one of these, memory ran out, whatever the type of the error.
FULL = "can't allocate memory", "CUDA error: out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"


class Flat:
    """Parameters of one dtype and device in one vector, so that one addition computes all at a grid point.

    Sums are computed in float32 (float64 for float64 tensors); for half precision the sum is rounded once.
    Each parameter is a view of the vector. The view's strides have the same order as those of the tensor
    passed in, but no holes or overlaps. The tensors passed in may be on the device "meta".
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        first = next(iter(tensors.values()))
        step = max(1, ALIGNMENT_BYTES // first.element_size())
        self._views: dict[str, tuple[int, torch.Size, tuple[int, ...]]] = {}
        end = 0
        for name, tensor in tensors.items():
            self._views[name] = (end, tensor.shape, dense_strides(tensor))
            end += -(-tensor.numel() // step) * step
        kind = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._base, self._x, self._y, self._row = torch.zeros((4, end), dtype=kind, device=device)
        self._point = torch.zeros(end, dtype=first.dtype, device=device)
        self._sum = self._point if first.dtype == kind else torch.zeros_like(self._row)
        self._at = 0.0

    def points(self) -> Iterator[tuple[str, Tensor]]:
        """(name, view) of each tensor; the views hold the values at the current point."""
        return ((name, self._view(self._point, name)) for name in self._views)

    @property
    def nbytes(self) -> int:
        """The size of the values at a point, in bytes."""
        return self._point.nbytes

    def _view(self, flat: Tensor, name: str) -> Tensor:
        start, shape, strides = self._views[name]
        return flat.as_strided(shape, strides, flat.storage_offset() + start)

    def set_plane(
        self, centre: Mapping[str, Tensor], x: Mapping[str, Tensor], y: Mapping[str, Tensor]
    ) -> None:
        """Set the plane: copy the values of its centre and of its two directions."""
        for flat, values in ((self._base, centre), (self._x, x), (self._y, y)):
            for name in self._views:
                self._view(flat, name).copy_(values[name])

    def set_row(self, y: float) -> None:
        """Compute the base of a grid row: centre + y * second direction."""
        torch.add(self._base, self._y, alpha=y, out=self._row)

    def load(self, xs: Sequence[float]) -> None:
        """Set the next point in the row: its x is `xs[0]`."""
        self._at = xs[0]

    def move(self) -> None:
        """Compute the values at the next point: base of the row + x * first direction."""
        torch.add(self._row, self._x, alpha=self._at, out=self._sum)
        if self._sum is not self._point:
            self._point.copy_(self._sum)


def as_channels_last(batch: Any) -> Any:
    """The batch with its pictures (n, c, h, w) in the memory layout that convolutions prefer.

    The copies have exactly the strides of that layout. Torch's own conversion would leave pictures with one
    channel as they are, because their strides count as valid in both layouts.
    """

    def changed(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.dim() != 4:
            return part
        return torch.empty_like(part, memory_format=torch.channels_last).copy_(part)

    return mapped(batch, changed)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides without holes or overlaps, in the same order as the tensor's; kernels depend on that order."""
    return tuple(torch.empty_like(tensor, device="meta").stride())


def plane_tensors(
    centre: Weights, recipe: Recipe, moved: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(centre, x, y), each a dict of tensors by name, on the host; random x and y of a GPU stay on it."""
    here = {name: as_tensor(centre[name]) for name in moved}
    if isinstance(recipe, RandomDirections) and any(draws(tensor.device) for tensor in moved.values()):
        x, y = (
            {
                name: whole(recipe.rows(axis, name, rows_on(tensor.device, centre, name)), tensor.device)
                for name, tensor in moved.items()
            }
            for axis in (0, 1)
        )
    else:
        made = recipe.make(centre)
        x, y = ({name: as_tensor(axis[name]) for name in moved} for axis in (made.x, made.y))
    return here, x, y


def as_tensor(array: Array) -> Tensor:
    """A tensor with a copy of the array, because arrays in Ray's object store are read-only."""
    return torch.tensor(np.asarray(array), device="cpu")


def to_device(batch: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> Any:
    """The batch with its tensors (also in lists, tuples, mappings and dataclasses) on the device.

    An object with a method `to` is copied, and its method moves the copy. Other objects stay as they are.
    `dtype` is the new dtype of floating-point tensors, except for tensors inside objects.
    """

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device)
        # A copy is moved, because some methods `to` change the object.
        return copy.copy(part).to(device) if _moves_itself(part) else part

    there = mapped(batch, moved, is_leaf=_moves_itself)
    return there if dtype is None else in_dtype(there, dtype)


def _moves_itself(part: Any) -> bool:
    """Whether the object's class has a method `to`, as batches of PyG, DGL and transformers do."""
    return callable(getattr(type(part), "to", None)) and not isinstance(part, type)


def in_dtype(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating-point tensors in another dtype, except those inside objects."""

    def changed(part: Any) -> Any:
        return part.to(dtype) if isinstance(part, Tensor) and part.is_floating_point() else part

    return mapped(batch, changed)


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """The tensor in pinned memory, from which a GPU can copy asynchronously; unchanged for other devices."""
    return host.pin_memory() if device.type == "cuda" else host


def gpus_of(tensors: Iterable[Tensor]) -> list[torch.device]:
    """The GPUs that tensors lie on, in order."""
    return sorted({t.device for t in tensors if t.device.type == "cuda"}, key=str)


def spread(model: nn.Module) -> list[int]:
    """The indices of the GPUs that a model lies on if there are several; otherwise an empty list."""
    gpus = gpus_of(named_tensors(unwrap(model)).values())
    return sorted(gpu.index for gpu in gpus) if len(gpus) > 1 else []


def is_full(error: BaseException) -> bool:
    """Whether an error of torch or Python means that memory ran out."""
    is_one = isinstance(error, torch.cuda.OutOfMemoryError | MemoryError)
    return is_one or any(sign in str(error) for sign in FULL)


def exceeds_device(batches: Iterable[Any], device: torch.device) -> bool:
    """Whether batches take more than DEVICE_SHARE of a GPU's memory; False for the CPU."""
    room = device_bytes(device)
    return room is not None and sum(map(batch_bytes, batches)) > DEVICE_SHARE * room


def device_bytes(device: torch.device) -> int | None:
    """The memory of a GPU that this process may use, in bytes; None for the CPU."""
    if device.type != "cuda":
        return None
    # Torch 2.6 does not have this function.
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)
    return int(torch.cuda.get_device_properties(device).total_memory * share(device))


def worker_device(model: nn.Module, gpus: float) -> str | None:
    """The device for the model of a worker with `gpus` GPUs; None if the model stays on its several GPUs.

    A worker with a share of a GPU is limited to that share of the GPU's memory, because a training or other
    workers need the rest.
    """
    if spread(model):
        return None
    if not gpus or not torch.cuda.is_available():
        return "cpu"
    if gpus < 1:
        torch.cuda.set_per_process_memory_fraction(gpus)
    return "cuda"
