"""Rows of weights and directions on a torch model's device: read, drawn and scaled there, not on the host."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distsummary.landscapes.directions.array_rows import Rows, rows_of
from distsummary.landscapes.directions.normalization import squares, times
from distsummary.landscapes.directions.normals import Array
from distsummary.landscapes.directions.torch_normals import PIECE, device_normals
from distsummary.landscapes.directions.torch_parameters import OwnState


def rows_on(device: torch.device, state: Mapping[str, Array], name: str) -> Rows:
    """The rows of one array of a state: tensors if the device is a GPU, otherwise NumPy arrays.

    Random rows are drawn on the GPU: a CPU core draws some 100 million normals a second, and a point of a
    large model needs billions.
    """
    there = rows_of(state, name)
    if not draws(device):
        return there
    own = state.tensors[name] if isinstance(state, OwnState) else None

    def read(start: int, stop: int) -> Tensor:
        if own is None:
            return tensor_of(there(start, stop)).to(device)
        return own[start:stop] if own.dim() else own[None]

    return Rows(there.shape, read, draw=partial(device_normals, device=device), block=PIECE)


def draws(device: torch.device) -> bool:
    """Whether random numbers for a device are drawn on the device itself."""
    return device.type == "cuda"


def whole(rows: Rows, device: torch.device) -> Tensor:
    """All rows as one float32 tensor on the device, in the shape of the whole array."""
    out = torch.zeros((len(rows), *rows.shape[1:]), dtype=torch.float32, device=device)
    for start, stop in [] if rows.is_zero else rows.blocks():
        out[start:stop] = tensor_of(rows(start, stop))
    return out.reshape(rows.shape)


def tensor_of(rows: Any) -> Tensor:
    """The rows as a tensor that must not be written to: it may share the memory of the source array."""
    if isinstance(rows, Tensor):
        return rows
    return torch.from_numpy(rows) if rows.flags.writeable else torch.tensor(rows, device="cpu")


@squares.register
def _(array: Tensor, kept: list[int]) -> Array:
    squared = array.double().square()
    summed = [axis for axis in range(array.dim()) if axis not in kept]
    return np.asarray((squared.sum(summed) if summed else squared).cpu())


@times.register
def _(array: Tensor, scale: Array) -> Tensor:
    return array.double().mul(torch.from_numpy(np.asarray(scale)).to(array.device)).float()
