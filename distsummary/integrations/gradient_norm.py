"""The norm of the gradients that an optimizer is about to use, of loops that do not compute it themselves."""

import math

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from distsummary.frameworks.torch import local_part
from distsummary.frameworks.torch_private import norms_of


def gradient_norm(optimizer: Optimizer) -> Tensor | float | None:
    """The 2-norm of all gradients of an optimizer, unscaled; None if there are none.

    On the host it is a number. On a device it is a tensor of shape (), which is not waited for. Of sharded
    gradients (DTensor) it is that of this rank's part.
    """
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if not gradients:
        return None
    norm = _norm(gradients)
    # GradScaler has a fused optimizer unscale the gradients itself.
    scale = getattr(optimizer, "grad_scale", None)
    return norm if scale is None else norm / scale


def _norm(gradients: list[Tensor]) -> Tensor | float:
    """What `get_total_norm` returns, which takes twice as long for plain tensors of one device and dtype."""
    kinds = {(type(each), each.layout, each.device, each.dtype) for each in gradients}
    kind, layout, device, _ = next(iter(kinds))
    if len(kinds) > 1 or kind is not Tensor or layout is not torch.strided:
        # Of a sparse gradient, the elements of this rank that may be other than zero.
        parts = [local_part(each) for each in gradients]
        return get_total_norm([part.coalesce().values() if part.is_sparse else part for part in parts])
    norms = norms_of(gradients)
    # There is nothing to wait for, and floats are cheaper than tensors.
    if device.type == "cpu":
        return math.sqrt(sum(norm * norm for norm in map(Tensor.item, norms)))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
