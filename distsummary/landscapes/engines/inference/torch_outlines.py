"""Outlines: parameters of a model on loan that have no values.

An outline has the shape, strides, dtype and device of its parameter; what it looks at is not its own. Code
that reads it by torch's operations is given values instead (see `filling`), and never sees that memory.
Code that reads it in another way (its `.data` in NumPy, a compiled kernel, another thread) finds NaN at the
beginning and then zeros, so that it can be found out.
"""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from distsummary.errors import LandscapeError
from distsummary.landscapes.model.torch_loan import loan_dtype
from distsummary.landscapes.model.torch_memory import ALIGNMENT_BYTES, dense_strides

REMEDY = "leave out memory='inference': engine='row' can, with a dozen times the model's memory"
MAPPED_BYTES = 1 << 20  # from here on fresh memory is the system's own
_POISON_BYTES = 1 << 12  # at the beginning of every outline
_NAN = 0xFF  # in all its bytes a number of any precision is NaN


class Outlines:
    """The outlines of tensors by their first names; `own` is what they stand for, the user's memory.

    `dtype`: what tensors of floating point become; None: what they are.
    """

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self.own = {name: tensor.data for name, tensor in tensors.items()}
        self._tensors = tensors
        largest = max((t.numel() * loan_dtype(t, dtype).itemsize for t in tensors.values()), default=0)
        devices = {tensor.device for tensor in tensors.values()}
        memory = {device: _memory(len(tensors), largest, device) for device in devices}
        self.outlines: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        for number, (name, tensor) in enumerate(tensors.items()):
            flat = memory[tensor.device].view(loan_dtype(tensor, dtype))
            start = number * ALIGNMENT_BYTES // flat.element_size()
            self.outlines[name] = flat.as_strided(tensor.shape, dense_strides(tensor), start)
            self._names[self.outlines[name].data_ptr()] = name

    def name(self, value: Any) -> str | None:
        """The name of the parameter whose outline this is; None for anything else.

        Raises LandscapeError for a piece of an outline: only what is no operation cuts one out.
        """
        if not is_plain(value) or not value.numel():
            return None
        name = self._names.get(value.data_ptr())
        if name is not None and not are_alike(value, self.outlines[name]):
            raise LandscapeError(f"the model reads {name} by other means than torch's operations; {REMEDY}")
        return name

    @contextmanager
    def lifted(self, names: Sequence[str]) -> Iterator[None]:
        """The user's values are in these parameters for a while, in the outlines' dtype."""
        try:
            for name in names:
                with torch.inference_mode(False):  # losses may differentiate
                    self._tensors[name].data = self.own[name].to(self.outlines[name].dtype)
            yield
        finally:
            for name in names:
                self._tensors[name].data = self.outlines[name]


class Values(Protocol):
    """What gives values in the place of outlines, by the first names of parameters."""

    def borrowed(self, name: str) -> Tensor | None:
        """Memory that holds the values anyway, in the outline's form; None where they must be made."""

    def whole(self, name: str) -> Tensor:
        """The values, made in the outline's form."""

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows start .. stop-1 of them, made."""


def is_plain(value: Any) -> bool:
    """Whether this is a tensor of strided memory, and not of a kind that stands for others."""
    if not isinstance(value, Tensor) or type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    return value.layout == torch.strided and not value.is_nested


def in_place_of(outline: Tensor, values: Tensor) -> Tensor:
    """The values in a tensor that requires a gradient where the outline does: kernels are chosen by it."""
    if not outline.requires_grad:
        return values
    with torch.inference_mode(False):
        return values.detach().requires_grad_()


def are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ in nothing but where they lie and what they hold."""
    kinds = ((t.shape, t.stride(), t.dtype, t.device) for t in (one, other))
    return next(kinds) == next(kinds)


@torch.inference_mode(False)
def fresh(shape: Sequence[int], form: Tensor) -> Tensor:
    """A tensor without values, for values that go again soon; strides are the form's where the shape is.

    It is no inference tensor, so that views of it can stand for views of a parameter, which is none either.
    On the host large ones get pages from the system, which go back when they do: of blocks that come and go
    the C library would keep several times what is in use.
    """
    strides = form.stride() if tuple(shape) == form.shape else torch.empty(shape, device="meta").stride()
    count = math.prod(shape)
    if form.device.type != "cpu" or count * form.element_size() < MAPPED_BYTES:
        return torch.empty_strided(tuple(shape), strides, dtype=form.dtype, device=form.device)
    private: Any = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    pages = mmap.mmap(-1, count * form.element_size(), **private)
    return torch.frombuffer(pages, dtype=form.dtype).as_strided(tuple(shape), strides)


def _memory(count: int, size: int, device: torch.device) -> Tensor:
    """Bytes for so many outlines of up to `size` bytes, each a little behind the last.

    On the host hardly any of them is ever touched, so that they take no memory.
    """
    head = count * ALIGNMENT_BYTES + _POISON_BYTES
    total = head + -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    if device.type != "cpu":
        return torch.full((total,), _NAN, dtype=torch.uint8, device=device)
    memory = np.zeros(total, np.uint8)
    memory[:head] = _NAN
    return torch.from_numpy(memory)
