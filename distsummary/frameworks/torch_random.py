"""torch's random number generators: the default one of the CPU, and that of the current CUDA device."""

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """The states by device; that of CUDA only if CUDA is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no annotation
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    """Set what `random_state` gave; CUDA's only where there is CUDA."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
