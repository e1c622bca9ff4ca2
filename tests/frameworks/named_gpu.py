"""GPUs in name only: tensors say that they are on one, their values are on the host.

What a machine without a GPU can find out about code for one: operations that mix devices raise, and so does
what waits for the device where nothing may wait. It cannot test speed, streams, captured graphs or libraries.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distsummary.landscapes.directions import torch_parameters

aten = torch.ops.aten
GPU = torch.device("cuda:0")
MIXED = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.to.device,
    aten.index.Tensor,
}  # what may take tensors of two devices
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default}
MEMORY_BYTES = 1 << 30
GENERATORS = torch.Generator(), torch.Generator()  # of the GPUs; those of the host draw what is drawn there


class OnGpu(Tensor):
    """A tensor whose values `host` are on the host."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor, device: torch.device = GPU) -> "OnGpu":
        with torch.inference_mode(False):  # whose bookkeeping is the host's
            made: OnGpu = Tensor._make_wrapper_subclass(
                cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(),
                dtype=host.dtype, device=device,
            )  # fmt: skip
        made.host = host
        return made

    @property
    def data(self) -> Tensor:
        return OnGpu(self.host, self.device)

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, OnGpu), "set_data: incompatible tensor type"
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.host = other.host

    # torch's own methods of these names ask for the real device first.

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        return aten.copy_(self, source, non_blocking)

    def double(self) -> Tensor:
        return self if self.dtype == torch.float64 else aten._to_copy(self, dtype=torch.float64)

    def __invert__(self) -> Tensor:
        return aten.bitwise_not(self)

    def item(self) -> Any:
        return aten._local_scalar_dense(self)

    def __getitem__(self, index: Any) -> Tensor:
        found: Tensor = self
        for axis, part in reversed(list(enumerate(index if isinstance(index, tuple) else (index,)))):
            found = _part(found, axis, part)
        return found

    def __setitem__(self, index: Any, values: Tensor) -> None:
        self[index].copy_(values)

    def __float__(self) -> float:
        return float(self.item())

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def _part(tensor: Tensor, axis: int, index: int | slice | None) -> Tensor:
    if index is None:
        return aten.unsqueeze(tensor, axis)
    if isinstance(index, int):
        return aten.select(tensor, axis, index)
    return aten.slice(tensor, axis, index.start, index.stop, index.step or 1)


class NamedGpu(TorchDispatchMode):
    """Makes tensors that are asked for on the GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Evaluate an operation on the host; its results are where its inputs are, or where asked for."""
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    ours = {id(t.host): t for t in tensors if isinstance(t, OnGpu)}
    places = {t.device for t in tensors if isinstance(t, OnGpu) or t.dim()}
    if func not in MIXED and len(places) > 1:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {places}")
    place = _place(func, args, kwargs, [t.device for t in ours.values()])
    given = args, {name: value for name, value in kwargs.items() if name != "pin_memory"}
    given = pytree.tree_map_only(torch.device, lambda asked: torch.device("cpu"), given)
    args, kwargs = pytree.tree_map_only(OnGpu, lambda t: t.host, given)
    found = func(*args, **kwargs)
    if place.type != "cuda":
        return found

    def there(host: Tensor) -> OnGpu:
        if id(host) not in ours:
            return OnGpu(host, place)
        known = ours[id(host)]
        return known if known.device == place else OnGpu(host.clone(), place)

    return pytree.tree_map_only(Tensor, there, found)


def _place(func: Any, args: Any, kwargs: Any, gpus: list[torch.device]) -> torch.device:
    """Where an operation leaves its results."""
    if func is aten.copy_.default:
        return args[0].device
    asked = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    place = (*asked, *gpus, torch.device("cpu"))[0]
    return GPU if place == torch.device("cuda") else place


def to_gpu(model: nn.Module, device: torch.device = GPU) -> nn.Module:
    """The model with its parameters and buffers there, as `model.to` would leave it."""
    there: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = there.setdefault(id(tensor), _moved(tensor, device))
    return model


def _moved(tensor: Tensor, device: torch.device) -> Any:
    moved = OnGpu(tensor.detach(), device)
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved


class Hurried(TorchDispatchMode):
    """Refuses what waits for the device: values that decide, copies of which the host waits for the end."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        made = func(*args, **(kwargs or {}))
        is_copy = func in (aten.copy_.default, aten._to_copy.default, aten.to.device)
        sides = {isinstance(t, OnGpu) for t in (*leaves, *pytree.tree_leaves(made)) if isinstance(t, Tensor)}
        if func in WAITING or (is_copy and len(sides) > 1 and not any(leaf is True for leaf in leaves)):
            raise RuntimeError(f"{func} waits for the device")
        return made


def _plain_type(value: Any) -> type:
    return Tensor if isinstance(value, OnGpu) else type(value)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU in name only."""
    properties = SimpleNamespace(total_memory=MEMORY_BYTES)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    shares: dict[Any, float] = {}
    of_cuda = {
        "get_device_name": lambda device: "a GPU in name only",
        "get_device_properties": lambda device: properties,
        "get_per_process_memory_fraction": lambda device: shares.get(None, 1.0),
        "set_per_process_memory_fraction": lambda share: shares.update({None: share}),
        "default_generators": GENERATORS,
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "get_rng_state": lambda device: None,
        "set_rng_state": lambda state, device: None,
        "Stream": lambda device=None: stream,
        "device": lambda device: nullcontext(),
        "current_stream": lambda device=None: stream,
        "stream": lambda stream: nullcontext(),
        "Event": lambda: SimpleNamespace(record=lambda stream: None, synchronize=lambda: None),
    }
    for owner, name, value in (
        *((torch.cuda, name, value) for name, value in of_cuda.items()),
        (Tensor, "pin_memory", Tensor.clone),
        (torch_parameters, "type", _plain_type),
    ):
        monkeypatch.setattr(owner, name, value, raising=False)  # torch 2.6 has not all of them
    with NamedGpu():
        yield
