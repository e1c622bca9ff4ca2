"""Finds the model inside DDP and torch.compile, its tensors by name, and tensors that share memory."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.torch_private import (
    compiled_from,
    load_into_module,
    state_of_module,
    transient_buffers,
)


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


def own_states(model: nn.Module) -> dict[str, dict[str, Any]]:
    """What modules add to their state_dict beyond parameters and buffers, by their paths: extra state, say.

    Only modules are asked whose class, or object, replaces a method of torch for that; FSDP of the first kind
    is not, since it runs collectives.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, module in () if has_fsdp1(model) else unwrap(model).named_modules():
        if not any(
            _is_own(module, name) for name in ("state_dict", "_save_to_state_dict", "get_extra_state")
        ):
            continue
        state = dict(module.state_dict()) if _is_own(module, "state_dict") else state_of_module(module)
        children = {name for name, _ in module.named_children()}
        known = {name for named in (module.named_parameters, module.named_buffers) for name, _ in named()}
        more = {k: v for k, v in state.items() if k not in known and k.partition(".")[0] not in children}
        if more:
            found[path] = more
    return found


def load_own_states(model: nn.Module, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Give modules what `own_states` took; raises InvalidValueError for what they do not take."""
    modules = dict(unwrap(model).named_modules())
    for path, state in states.items():
        if (module := modules.get(path)) is None:
            raise InvalidValueError(f"the model has no module {path!r}, whose own state the checkpoint holds")
        # Its parameters and buffers, which were loaded before, are given again as they are.
        named = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        given: dict[str, Any] = {name: one.detach() for name, one in named} | dict(state)
        if errors := load_into_module(module, given):
            raise InvalidValueError(f"the module {path!r} does not take its state: {'; '.join(errors)}")


def _is_own(module: nn.Module, method: str) -> bool:
    """Whether a module has a method of its own in place of torch's."""
    return getattr(getattr(module, method, None), "__func__", None) is not getattr(nn.Module, method, None)


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
