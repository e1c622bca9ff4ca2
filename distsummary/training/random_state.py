"""The random number generators of a process: Python's, NumPy's and torch's."""

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def random_state() -> dict[str, Any]:
    """The state of each generator by its library, made of numbers, texts, arrays and tensors.

    They are the generators that are used if none is named, as by `random.random`, `numpy.random.rand` and
    dropout: torch's of the CPU and of the current CUDA device, as far as torch and CUDA are in use.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            state["torch"]["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators to what `random_state` gave."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    if "torch" in state:
        # The states are tensors of torch, so that it is loaded already.
        torch = sys.modules["torch"]
        torch.set_rng_state(state["torch"]["cpu"])
        if "cuda" in state["torch"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["torch"]["cuda"])
