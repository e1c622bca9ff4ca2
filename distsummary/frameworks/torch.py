"""PyTorch as a framework: plain, DDP, FSDP2 and tensor-parallel modules. Runs no collective operations."""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks import torch_checkpoint
from distsummary.frameworks.base import ArraySpec, Computed, Framework, Pending
from distsummary.frameworks.numpy import HostCopy
from distsummary.frameworks.staging import blank
from distsummary.frameworks.torch_histogram import count, count_fixed, unpacked, unpacked_fixed
from distsummary.frameworks.torch_modules import (
    entries,
    load_own_states,
    memory,
    own_states,
    unwrap,
    wrapped,
)
from distsummary.frameworks.torch_private import offset_of, own_dicts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

Array = NDArray[Any]

_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_NUMBERS = frozenset((*_NUMPY_FLOATS, torch.bfloat16, torch.int64, torch.int32, torch.bool))
_UNCOUNTED_ON = ("cpu", "mps")  # devices whose tensors the writer thread counts; MPS has no float64


class TorchCopy:
    """A copy of a tensor, which the device may not have finished; `result` waits only for this copy."""

    __slots__ = ("_copy", "_done")

    def __init__(self, copy: Tensor, done: "torch.cuda.Event | None" = None) -> None:
        self._copy = copy
        self._done = done

    @property
    def nbytes(self) -> int:
        """The bytes of the array that `result` returns."""
        return self._copy.numel() * _array_dtype(self._copy.dtype).itemsize

    def is_done(self) -> bool:
        """Whether `result` does not wait for the device."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]

    def result(self) -> Array:
        """The array on the host, bfloat16 as float32."""
        if self._done is None:
            return _array(self._copy.cpu())
        self._done.synchronize()
        # Cloned, so that the next copy can use the pinned memory.
        return _array(self._copy.clone())


class TorchFramework(Framework):
    """Implements `base.Framework`, where the methods are specified, for PyTorch.

    For an FSDP2 or tensor parallel model, `state` sees only this rank's local parts; call it between steps,
    when FSDP2 holds its parameters sharded.
    """

    name = "torch"

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a torch.Tensor (a DTensor is one)."""
        return isinstance(value, Tensor)

    def array_spec(self, tensor: Tensor) -> ArraySpec:
        """The shape of the local part, and the dtype that it gets on the host."""
        if tensor.is_nested:
            raise InvalidTypeError("a nested tensor cannot become an array; use tensor.to_padded_tensor(0)")
        kind = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        if tensor.is_quantized:
            raise InvalidTypeError(f"a quantized tensor ({kind}) has no numbers; use tensor.dequantize()")
        if tensor.is_meta:
            raise InvalidValueError(
                f"a tensor on the device meta ({kind}) has no values; materialize it first"
            )
        return ArraySpec(tuple(local_part(tensor).shape), _array_dtype(tensor.dtype))

    def to_numpy(self, tensor: Tensor) -> Array:
        """A host copy (of a DTensor's local part); bfloat16 and smaller floats become float32."""
        local = _local(tensor)
        return _copied(local).result() if local.device.type == "cpu" else _array(local.cpu())

    def number(self, tensor: Tensor) -> float | None:
        """`item()`, which takes a twentieth of the time of `snapshot`."""
        if type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_cpu or tensor.numel() != 1:
            return None
        is_usual = tensor.dtype in _NUMBERS and tensor.layout == torch.strided
        return float(tensor.item()) if is_usual else None

    def snapshot(self, tensor: Tensor) -> HostCopy | TorchCopy:
        """A copy, not affected by later in-place changes on this stream; does not wait for the device."""
        return _copied(_local(tensor))

    def histogram(self, tensor: Tensor) -> Pending:
        """The histogram, counted on the accelerator; for a host or MPS tensor, a copy for the writer thread.

        A part of a sharded tensor is counted in fixed buckets; the writer thread does so too.

        Counting a host tensor here would delay the training 20 to 200 times as long as copying it does, and
        torch takes twice as long as NumPy to count.
        """
        local = _local(tensor)
        if local.device.type in _UNCOUNTED_ON:
            return _copied(local)
        return counted_fixed(local) if self.split_axes(tensor) else counted(local)

    def shard(self, tensor: Tensor) -> Shard | None:
        """The slice of a DTensor on this rank; None if no mesh axis of more than one rank splits it.

        Raises InvalidValueError for a DTensor that is a pending sum (a partial placement), or whose mesh does
        not contain this rank.
        """
        dtensor = as_dtensor(tensor)
        if dtensor is None or not self.split_axes(tensor):
            return None
        mesh, placements, global_shape = dtensor.device_mesh, dtensor.placements, tuple(dtensor.shape)
        sizes = zip(placements, mesh.shape, strict=True)
        if any(placement.is_partial() for placement, size in sizes if size > 1):
            raise InvalidValueError(
                f"the tensor is a pending sum over its mesh ({placements}); redistribute it first"
            )
        offset = offset_of(dtensor)
        if len(offset) != len(global_shape):
            raise InvalidValueError("the tensor has no part on this rank, which is not in its mesh; skip it")
        return Shard(global_shape=global_shape, offset=tuple(int(start) for start in offset))

    def split_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """The axes of a DTensor's mesh with more than one rank, except those that replicate the tensor."""
        dtensor = as_dtensor(tensor)
        if dtensor is None:
            return ()
        mesh = dtensor.device_mesh
        axes = zip(_axis_names(mesh), mesh.shape, dtensor.placements, strict=True)
        return tuple(name for name, size, placed in axes if size > 1 and not placed.is_replicate())

    def named_parameters(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        """The parameters that require a gradient, named as in the unwrapped model; a tied one is listed once.

        Parameters that view the same memory in the same way count as tied.
        """
        trained = [(name, value) for name, value in unwrap(model).named_parameters() if value.requires_grad]
        # Reversed, so that the first name of tied parameters is the one that stays.
        first = {memory(value): name for name, value in reversed(trained)}
        return [(name, value) for name, value in trained if first[memory(value)] == name]

    def frozen_parameters(self, model: nn.Module) -> list[str]:
        """The names of the parameters that require no gradient, named as in the unwrapped model."""
        return [name for name, value in unwrap(model).named_parameters() if not value.requires_grad]

    def whole_nbytes(self, tensor: Tensor) -> int:
        """The bytes of a DTensor are the global ones; a lazy parameter has none yet."""
        return 0 if nn.parameter.is_lazy(tensor) else tensor.numel() * tensor.element_size()

    def nbytes(self, model: nn.Module) -> int:
        """The bytes of all parameters, each as by `whole_nbytes`."""
        return sum(map(self.whole_nbytes, unwrap(model).parameters()))

    def tensors(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        """All parameters and persistent buffers; tied ones are listed once, under their first name."""
        return entries(model)

    def watch(self, model: nn.Module) -> Callable[[], bool]:
        """Return a quick check that the model still has the same tensors, shapes and trained parameters.

        It compares the modules' dicts, since listing the parameters is slow. It may return False for an
        unchanged model; the caller then lists the model's tensors again.
        """
        dicts = own_dicts(model)
        if not dicts:
            return lambda: False
        held = [(of, list(of), list(of.values())) for of in dicts]
        known = [(p, p.shape, p.requires_grad) for p in model.parameters()]

        def is_unchanged() -> bool:
            return all(
                list(of) == names and all(map(operator.is_, of.values(), values))
                for of, names, values in held
            ) and all(p.shape == shape and p.requires_grad == trained for p, shape, trained in known)

        return is_unchanged

    def mesh(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """The axes of the parameters' device meshes (unnamed axes are dim_0, dim_1 ...), and "dp" for DDP."""
        axes: dict[str, tuple[int, int]] = {}
        outer: nn.Module | None = model
        # DDP may be inside of torch.compile.
        while outer is not None:
            if isinstance(outer, nn.parallel.DistributedDataParallel):
                group = outer.process_group
                axes["dp"] = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
            outer = wrapped(outer)
        for parameter in unwrap(model).parameters():
            dtensor = as_dtensor(parameter)
            coordinate = None if dtensor is None else dtensor.device_mesh.get_coordinate()
            # Without a coordinate, this rank is not in the mesh.
            if dtensor is not None and coordinate is not None:
                mesh = dtensor.device_mesh
                sizes = zip(_axis_names(mesh), zip(coordinate, mesh.shape, strict=True), strict=True)
                axes = dict(sizes) | axes
        return axes

    def learning_rate(self, optimizer: Any) -> float | HostCopy | TorchCopy | None:
        """`param_groups[0]["lr"]`; a `snapshot` of it if it is a tensor on a device."""
        groups = getattr(optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if isinstance(rate, Tensor) and rate.device.type != "cpu":
            return self.snapshot(rate)
        return None if rate is None else float(rate)

    def learning_rates(self, optimizer: Any) -> list[float]:
        """The `lr` of each of `param_groups`; a rate on a device is waited for."""
        groups = getattr(optimizer, "param_groups", None) or []
        return [float(group["lr"]) for group in groups if "lr" in group]

    def initial_learning_rate(self, optimizer: Any) -> float | None:
        """`initial_lr` of the first of `param_groups`, which a scheduler sets; without one, its `lr`."""
        groups = getattr(optimizer, "param_groups", None) or [{}]
        rate = groups[0].get("initial_lr", groups[0].get("lr"))
        return None if rate is None else float(rate)

    def set_learning_rates(self, optimizer: Any, rates: Sequence[float]) -> None:
        """Set the `lr` of each of `param_groups`; a tensor, as of a captured optimizer, is filled."""
        groups = [group for group in optimizer.param_groups if "lr" in group]
        for group, rate in zip(groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    own_states = staticmethod(own_states)
    load_own_states = staticmethod(load_own_states)
    optimizer_entries = staticmethod(torch_checkpoint.optimizer_entries)
    optimizer_rest = staticmethod(torch_checkpoint.optimizer_rest)
    load_optimizer = staticmethod(torch_checkpoint.load_optimizer)
    whole = staticmethod(torch_checkpoint.whole)
    agreed = staticmethod(torch_checkpoint.agreed)

    def write(self, tensor: Tensor, array: Array) -> None:
        """Copies into the local part, also of a parameter that requires a gradient, or of an expanded buffer.

        Raises InvalidValueError if values differ along an expanded axis.
        """
        shard = self.shard(tensor)
        if shard is not None:
            local = zip(shard.offset, local_part(tensor).shape, strict=True)
            array = array[tuple(slice(start, start + size) for start, size in local)]
        place, given = _local(tensor), torch_checkpoint.as_tensor(array)
        for axis, stride in enumerate(place.stride()):
            # All elements along an expanded axis are one in memory.
            if stride == 0 and place.shape[axis] > 1:
                first = given.narrow(axis, 0, 1)
                if not torch.equal(given, first.expand_as(given)):
                    raise InvalidValueError(
                        f"a tensor of shape {tuple(place.shape)} is expanded along axis {axis}, along which "
                        "the saved values differ; make it of memory of its own: tensor.clone()"
                    )
                place, given = place.narrow(axis, 0, 1), first
        place.copy_(given)


def counted(tensor: Tensor) -> Computed:
    """The histogram of a dense tensor, counted on its device."""
    return Computed(_copied(count(tensor)), partial(unpacked, tensor.numel(), tensor.dtype))


def counted_fixed(tensor: Tensor) -> Computed:
    """The histogram of a dense tensor in fixed buckets, counted on its device."""
    return Computed(_copied(count_fixed(tensor)), partial(unpacked_fixed, tensor.numel()))


def _copied(local: Tensor) -> HostCopy | TorchCopy:
    """A copy of a dense tensor as it is now."""
    if local.device.type == "cuda":
        # Copied on the current stream: after the kernels that made the tensor, before kernels that change it.
        pinned = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=True)
        pinned.copy_(local, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        done.record(torch.cuda.current_stream(local.device))
        return TorchCopy(pinned, done)
    if local.device.type == "cpu" and not _becomes_float32(local):
        # local.numpy() would make it impossible to resize the memory, as FSDP does with gathered parameters.
        copy = blank(tuple(local.shape), _array_dtype(local.dtype))
        torch.from_numpy(copy).copy_(local)
        return HostCopy(copy)
    return TorchCopy(local.clone())


def as_dtensor(tensor: Tensor) -> "DTensor | None":
    """The tensor itself if it is a DTensor, else None."""
    if type(tensor) in (Tensor, nn.Parameter):
        # The usual case: returns before importing DTensor, which takes about one second.
        return None
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def local_part(tensor: Tensor) -> Tensor:
    """The part of the tensor that this rank holds, detached; it shares the tensor's memory."""
    detached = tensor.detach()
    dtensor = as_dtensor(detached)
    return detached if dtensor is None else dtensor.to_local()


def _local(tensor: Tensor) -> Tensor:
    """The local part as a dense tensor; it shares the memory of `tensor` if that is dense."""
    part = local_part(tensor)
    return part if part.layout == torch.strided else part.to_dense()


def _array(host: Tensor) -> Array:
    """A host tensor as an array in C order; not copied if it is contiguous and NumPy has its dtype."""
    tensor = host.resolve_conj().resolve_neg()
    if _becomes_float32(tensor):
        tensor = tensor.float()
    array: Array = tensor.contiguous().numpy()
    return array


def _becomes_float32(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS


@cache
def _array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype on the host; raises InvalidTypeError for dtypes that cannot be converted (bits, int4)."""
    try:
        return _array(torch.empty(1, dtype=dtype, device="cpu")).dtype
    except (TypeError, RuntimeError) as error:
        raise InvalidTypeError(f"{dtype} has no array ({error}); convert it to float32 or int8") from error


def _axis_names(mesh: "DeviceMesh") -> tuple[str, ...]:
    return mesh.mesh_dim_names or tuple(f"dim_{axis}" for axis in range(mesh.ndim))


FRAMEWORK = TorchFramework()
