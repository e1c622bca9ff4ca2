"""A criterion where a model computes: on its device, in its precision; the user's own stays as it is."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from distsummary.landscapes.model.torch_memory import in_dtype, spread, to_device


def placed(
    function: Any, model: nn.Module, device: torch.device | str, dtype: torch.dtype | None = None
) -> Any:
    """A loss function or metric with its tensors, such as the weights of classes, on the device.

    A copy where there are any to move. Those of modules and of arguments of partials are known; what belongs
    to the model stays its own. `dtype`: what tensors of floating point become. Where a model lies on several
    devices so do its criteria: they are left where they are.
    """
    at = None if spread(model) else device
    if isinstance(function, partial):
        inner = placed(function.func, model, device, dtype)
        return partial(inner, *_moved(function.args, at, dtype), **_moved(function.keywords, at, dtype))
    if not isinstance(function, nn.Module):
        return function
    shared = {id(part): part for part in (*model.modules(), *model.parameters(), *model.buffers())}
    own = [t for t in (*function.parameters(), *function.buffers()) if id(t) not in shared]
    if all(_moved(tensor, at, dtype) is tensor for tensor in own):
        return function
    other = copy.deepcopy(function, dict(shared))  # the model in it is no copy
    for part in other.modules():
        if id(part) not in shared:
            part._apply(partial(_moved, device=at, dtype=dtype), recurse=False)  # type: ignore[no-untyped-call]  # torch's
    return other


def _moved(held: Any, device: torch.device | str | None, dtype: torch.dtype | None) -> Any:
    """Tensors of any batch, see `to_device`; with no device they stay where they are."""
    if device is not None:
        return to_device(held, device, dtype)
    return held if dtype is None else in_dtype(held, dtype)
