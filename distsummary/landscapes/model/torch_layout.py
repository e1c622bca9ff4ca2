"""Pictures in channels-last memory: the layout, and whether a model reads the same numbers there."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array
from distsummary.landscapes.engines.engine_choice import LOOSE
from distsummary.landscapes.model.batches import mapped
from distsummary.landscapes.model.quantities import REDUCED

PROOF = 1e-4  # relative difference from the model's own code that another way to compute may show


def as_channels_last(batch: Any) -> Any:
    """The batch with its pictures (n, c, h, w) in the layout that convolutions prefer.

    With strides that say so: those of a picture of one channel may mean either layout.
    """
    return mapped(batch, _channels_last)


def _channels_last(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() != 4:
        return leaf
    return torch.empty_like(leaf, memory_format=torch.channels_last).copy_(leaf)


def is_near(found: Array, expected: Array, precision: str) -> bool:
    """Whether a reading is another one's but for rounding."""
    size = abs(expected[0]) if np.isfinite(expected[0]) else 0.0  # the loss: a metric may be near 0
    rtol = LOOSE if precision in REDUCED else PROOF
    return np.allclose(found, expected, rtol=rtol, atol=rtol * size, equal_nan=True)


def refuse_places(found: Array, expected: Array, precision: str) -> None:
    """Raise LandscapeError where a batch has another reading in channels-last memory than as it is.

    Code that counts places in memory, such as as_strided, raises nothing there and reads other numbers.
    """
    if not is_near(found, expected, precision):
        raise LandscapeError(
            f"the model gives {found.tolist()} for pictures in channels-last memory and {expected.tolist()} "
            "for the same pictures as they are: it finds numbers by their places in memory, or loses digits "
            "there; leave channels_last out of engine="
        )
