"""The GPU that a rank trains on, as torch sees it."""

import importlib.util
from collections.abc import Callable

import torch
from torch import nn

from distsummary.base.guard import guarded_log
from distsummary.format.own_tags import GPU_ALLOCATED, GPU_MEMORY, GPU_RESERVED, GPU_UTILIZATION

logger = guarded_log(__name__)

Levels = dict[str, float]


def gpu_sources(network: object) -> dict[str, Callable[[], Levels]]:
    """Functions that sample the rank's GPU (tag -> percent or GiB), by name; empty if the rank uses none.

    The percentage of memory is that of the whole GPU, whoever uses it; reserved is what this process has,
    allocated the part of it that tensors take. The utilization needs the package nvidia-ml-py.
    """
    device = gpu_of(network)
    if device is None:
        return {}

    def memory() -> Levels:
        free, total = torch.cuda.mem_get_info(device)
        return {
            GPU_MEMORY: 100 * (1 - free / total),
            GPU_RESERVED: torch.cuda.memory_reserved(device) / 2**30,
            GPU_ALLOCATED: torch.cuda.memory_allocated(device) / 2**30,
        }

    def utilization() -> Levels:
        return {GPU_UTILIZATION: float(torch.cuda.utilization(device))}

    if torch.version.hip is None and importlib.util.find_spec("pynvml") is None:
        logger.warning("the utilization of the GPU is not recorded; run: pip install nvidia-ml-py")
        return {"GPU's memory": memory}
    return {"GPU's memory": memory, "GPU's utilization": utilization}


def gpu_of(network: object) -> torch.device | None:
    """The GPU of a model's first parameter, else the current one if this process has begun to use GPUs."""
    first = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    if first is not None and first.is_cuda:
        return first.device
    has_begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return torch.device("cuda", torch.cuda.current_device()) if has_begun else None
