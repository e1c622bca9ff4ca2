"""PyTorch as a framework: modules, plain, in DDP, FSDP2 or tensor parallel. Nothing here is a collective."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import ArraySpec
from distsummary.frameworks.numpy import HostCopy
from distsummary.frameworks.staging import blank
from distsummary.frameworks.state import refuse_misfit
from distsummary.frameworks.torch_histogram import CountedHistogram, count

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

Array = NDArray[Any]

_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_UNCOUNTED_ON = ("cpu", "mps")  # MPS has no float64


class TorchCopy:
    """A copy of a tensor, complete once its device has done it; only `result` waits, for this copy alone."""

    __slots__ = ("_copy", "_done")

    def __init__(self, copy: Tensor, done: "torch.cuda.Event | None" = None) -> None:
        self._copy = copy
        self._done = done

    @property
    def nbytes(self) -> int:
        """Bytes of the array that `result` gives."""
        return self._copy.numel() * _array_dtype(self._copy.dtype).itemsize

    def result(self) -> Array:
        """The array on the host, bfloat16 as float32."""
        if self._done is None:
            return _array(self._copy.cpu())
        self._done.synchronize()
        return _array(self._copy.clone())  # so that the pinned memory is free for the next copy


class TorchFramework:
    """See `base.Framework` for what the methods promise.

    Of an FSDP2 or tensor parallel model, `state` and `load_state` see this rank's local parts only; call them
    between steps, when FSDP2 holds its parameters sharded.
    """

    name = "torch"

    def is_tensor(self, value: object) -> bool:
        """Whether `value` is a torch.Tensor (a DTensor is one)."""
        return isinstance(value, Tensor)

    def array_spec(self, tensor: Tensor) -> ArraySpec:
        """The shape of the local part, and its dtype on the host."""
        if tensor.is_nested or tensor.is_quantized:
            raise InvalidTypeError(
                "a nested or quantized tensor is no array; use to_padded_tensor() or dequantize()"
            )
        if tensor.is_meta:
            raise InvalidValueError("a tensor on the device meta has no values; materialize it first")
        return ArraySpec(tuple(_part(tensor).shape), _array_dtype(tensor.dtype))

    def to_numpy(self, tensor: Tensor) -> Array:
        """A host copy (of a DTensor's local part); bfloat16 and smaller floats become float32."""
        local = _local(tensor)
        return _copied(local).result() if local.device.type == "cpu" else _array(local.cpu())

    def snapshot(self, tensor: Tensor) -> HostCopy | TorchCopy:
        """A copy that later in-place changes on this stream do not touch; the device is not waited for."""
        return _copied(_local(tensor))

    def histogram(self, tensor: Tensor) -> HostCopy | TorchCopy | CountedHistogram:
        """Counts made on an accelerator; of a tensor on the host a copy, for the writer thread to count.

        Counting here on the host would hold the training up 20 to 200 times as long as the copy, and takes
        twice as long as NumPy's way.
        """
        local = _local(tensor)
        return _copied(local) if local.device.type in _UNCOUNTED_ON else counted(local)

    def shard(self, tensor: Tensor) -> Shard | None:
        """The slice of a DTensor that lies here, None if no mesh axis of more than one rank splits it.

        Raises InvalidValueError for a DTensor that is a pending sum, or whose mesh this rank is not in.
        """
        dtensor = _as_dtensor(tensor)
        split = [] if dtensor is None else _split_placements(dtensor)
        if dtensor is None or not split:
            return None
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(placement.is_partial() for placement in split):
            raise InvalidValueError(
                f"the tensor is a pending sum over its mesh ({dtensor.placements}); redistribute it first"
            )
        global_shape = tuple(dtensor.shape)
        _, offset = compute_local_shape_and_global_offset(
            global_shape, dtensor.device_mesh, dtensor.placements
        )
        if len(offset) != len(global_shape):
            raise InvalidValueError("the tensor has no part on this rank, which is not in its mesh; skip it")
        return Shard(global_shape=global_shape, offset=tuple(int(start) for start in offset))

    def split_axes(self, tensor: Tensor) -> tuple[str, ...]:
        """The axes of a DTensor's mesh, of more than one rank, along which it is no replica."""
        dtensor = _as_dtensor(tensor)
        if dtensor is None:
            return ()
        mesh, placements = dtensor.device_mesh, dtensor.placements
        axes = zip(_axis_names(mesh), mesh.shape, placements, strict=True)
        return tuple(name for name, size, placed in axes if size > 1 and not placed.is_replicate())

    def named_parameters(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        """The parameters that require a gradient, by their names in the unwrapped model, tied ones once.

        Those that look at one memory alike are tied, too.
        """
        module, _ = _unwrap(model)
        trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        first = {memory(value): name for name, value in reversed(trained)}
        return [(name, value) for name, value in trained if first[memory(value)] == name]

    def tensors(self, model: nn.Module) -> Iterable[tuple[str, Tensor]]:
        """All parameters and persistent buffers, tied ones once under their first name."""
        return entries(model)

    def state(self, model: nn.Module) -> dict[str, Array]:
        """Host copies of `tensors`."""
        return {name: self.to_numpy(tensor) for name, tensor in entries(model)}

    def load_state(self, model: nn.Module, state: Mapping[str, Array]) -> None:
        """Write into the model's own tensors; nothing is changed when the state does not fit."""
        targets = {name: _local(tensor) for name, tensor in entries(model)}
        refuse_misfit({name: (tuple(t.shape), _array_dtype(t.dtype)) for name, t in targets.items()}, state)
        with torch.no_grad():
            for name, target in targets.items():
                value = np.asarray(state[name])
                native = value.astype(value.dtype.newbyteorder("="), copy=False)
                target.copy_(torch.from_numpy(np.require(native, requirements=["C", "W"])))

    def mesh(self, model: nn.Module) -> dict[str, tuple[int, int]]:
        """The axes of the parameters' device meshes (unnamed ones are dim_0, dim_1 ...); "dp" for DDP."""
        module, data_parallel = _unwrap(model)
        axes: dict[str, tuple[int, int]] = {}
        if data_parallel is not None:
            group = data_parallel.process_group
            axes["dp"] = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        for parameter in module.parameters():
            dtensor = _as_dtensor(parameter)
            if dtensor is not None:
                axes = _mesh_axes(dtensor) | axes
        return axes

    def learning_rate(self, optimizer: Any) -> float | HostCopy | TorchCopy | None:
        """`param_groups[0]["lr"]`, a copy under way if that is a tensor of a device."""
        groups = getattr(optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if isinstance(rate, Tensor) and rate.device.type != "cpu":
            return self.snapshot(rate)
        return None if rate is None else float(rate)


def counted(tensor: Tensor) -> CountedHistogram:
    """The histogram of a dense tensor, counted on its device, with `result() -> Histogram`."""
    return CountedHistogram(_copied(count(tensor)), tensor)


def _copied(local: Tensor) -> HostCopy | TorchCopy:
    """A copy of a dense tensor as it is now."""
    if local.device.type == "cuda":
        # Ordered on the current stream: after what made the tensor, before what will change it.
        pinned = torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
        pinned.copy_(local, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        done.record(torch.cuda.current_stream(local.device))
        return TorchCopy(pinned, done)
    if local.device.type == "cpu" and not _becomes_float32(local):
        # not by local.numpy(): after it nobody can resize the memory, as FSDP does with gathered parameters
        copy = blank(tuple(local.shape), _array_dtype(local.dtype))
        torch.from_numpy(copy).copy_(local)
        return HostCopy(copy)
    return TorchCopy(local.clone())


def _as_dtensor(tensor: Tensor) -> "DTensor | None":
    if type(tensor) in (Tensor, nn.Parameter):
        return None  # most are, and importing DTensor takes a second
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def _part(tensor: Tensor) -> Tensor:
    """The part of the tensor that this rank holds, detached, sharing its memory."""
    detached = tensor.detach()
    dtensor = _as_dtensor(detached)
    return detached if dtensor is None else dtensor.to_local()


def _local(tensor: Tensor) -> Tensor:
    """The same, dense: sharing its memory where it can."""
    part = _part(tensor)
    return part if part.layout == torch.strided else part.to_dense()


def _array(host: Tensor) -> Array:
    """A host tensor of our own as an array in C order, without another copy where there is a NumPy dtype."""
    tensor = host.resolve_conj().resolve_neg()
    if _becomes_float32(tensor):
        tensor = tensor.float()
    array: Array = tensor.contiguous().numpy()
    return array


def _becomes_float32(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS


@cache
def _array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype on the host; raises InvalidTypeError for numbers that nothing can be made of (bits, int4)."""
    try:
        return _array(torch.empty(1, dtype=dtype)).dtype
    except (TypeError, RuntimeError) as error:
        raise InvalidTypeError(f"{dtype} has no array ({error}); convert it to float32 or int8") from error


def _unwrap(model: nn.Module) -> tuple[nn.Module, nn.parallel.DistributedDataParallel | None]:
    """The module inside DDP, DataParallel and torch.compile, and the DDP wrapper if there is one."""
    if not isinstance(model, nn.Module):
        raise InvalidTypeError(f"a PyTorch model must be torch.nn.Module, got {type(model).__name__}")
    data_parallel = None
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            data_parallel = model
        inner = wrapped(model)
        if inner is None:
            return model, data_parallel
        model = inner


def wrapped(module: nn.Module) -> nn.Module | None:
    """What DDP, DataParallel or torch.compile has wrapped in this module; None for any other."""
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return cast(nn.Module, module.module)
    return compiled_from(module)


def compiled_from(module: nn.Module) -> nn.Module | None:
    """What torch.compile has made this module of; None for any other, also one that calls its own so."""
    inner = dict(module.named_children()).get("_orig_mod")
    return inner if inner is not None and isinstance(module, torch._dynamo.OptimizedModule) else None


def entries(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then persistent buffers; not by state_dict(), whose hooks may be collectives."""
    module, _ = _unwrap(model)
    yield from module.named_parameters()
    transient = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }
    for name, buffer in module.named_buffers():
        if name not in transient:
            yield name, buffer


def memory(tensor: Tensor) -> Hashable:
    """What is equal for tensors that look at one memory alike; the object itself where it has none."""
    if not has_addresses(tensor):
        return id(tensor)
    return tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride()


def has_addresses(tensor: Tensor) -> bool:
    """Whether a tensor is a plain one with values that lie somewhere."""
    if nn.parameter.is_lazy(tensor) or type(tensor.data) is not Tensor:
        return False
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    return tensor.data_ptr() != 0  # FSDP frees the memory of what it has gathered


def _split_placements(dtensor: "DTensor") -> "list[Placement]":
    sizes = dtensor.device_mesh.shape
    return [p for p, size in zip(dtensor.placements, sizes, strict=True) if size > 1 and not p.is_replicate()]


def _mesh_axes(dtensor: "DTensor") -> dict[str, tuple[int, int]]:
    mesh = dtensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return {}  # this rank is not in the mesh
    return {name: (coordinate[axis], mesh.size(axis)) for axis, name in enumerate(_axis_names(mesh))}


def _axis_names(mesh: "DeviceMesh") -> tuple[str, ...]:
    return mesh.mesh_dim_names or tuple(f"dim_{axis}" for axis in range(mesh.ndim))


FRAMEWORK = TorchFramework()
