"""Finds the model inside DDP and torch.compile, its tensors by name, and tensors that share memory."""

from collections.abc import Hashable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError
from distsummary.frameworks.torch_private import compiled_from, transient_buffers


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel and torch.compile; its parameter names have no wrapper prefixes."""
    if not isinstance(model, nn.Module):
        raise InvalidTypeError(f"a PyTorch model must be torch.nn.Module, got {type(model).__name__}")
    while (inner := wrapped(model)) is not None:
        model = inner
    return model


def wrapped(module: nn.Module) -> nn.Module | None:
    """The module that `module` wraps, if it is DDP, DataParallel or torch.compile's wrapper; else None."""
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return cast(nn.Module, module.module)
    return compiled_from(module)


def has_fsdp1(model: nn.Module) -> bool:
    """Whether FullyShardedDataParallel, which is FSDP of the first kind, shards a part of the model."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    # By name, since importing the class takes a second.
    return "FullyShardedDataParallel" in kinds


def entries(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, then persistent buffers; does not use state_dict(), whose hooks may run collectives."""
    module = unwrap(model)
    yield from module.named_parameters()
    transient = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules(remove_duplicate=False)
        for name in transient_buffers(part)
    }
    for name, buffer in module.named_buffers():
        if name not in transient:
            yield name, buffer


def memory(tensor: Tensor) -> Hashable:
    """A key that is equal for tensors that view the same memory in the same way.

    For a tensor without addresses (see `has_addresses`), the key is its id.
    """
    if not has_addresses(tensor):
        return id(tensor)
    return tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride()


def has_addresses(tensor: Tensor) -> bool:
    """Whether this is a plain dense tensor whose values have addresses in memory."""
    if nn.parameter.is_lazy(tensor) or type(tensor.data) is not Tensor:
        return False
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    # 0: FSDP has freed the memory of this gathered parameter.
    return tensor.data_ptr() != 0
