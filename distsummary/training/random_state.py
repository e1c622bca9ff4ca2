"""The random number generators of a process: Python's, NumPy's and torch's."""

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def random_state() -> dict[str, Any]:
    """The state of each generator by its library, made of numbers, texts, arrays and tensors.

    They are the generators that are used if none is named, as by `random.random`, `numpy.random.rand` and
    dropout. torch's are left out where torch is not imported.
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.array(words, np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    if "torch" in sys.modules:
        from distsummary.frameworks import torch_random

        state["torch"] = torch_random.random_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators to what `random_state` gave."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(state["numpy"])
    if "torch" in state:
        from distsummary.frameworks import torch_random

        torch_random.set_random_state(state["torch"])
