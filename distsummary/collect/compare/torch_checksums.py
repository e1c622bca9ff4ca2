"""Checksums: the bit sums of the parameters of which other ranks hold copies, as three scalars a step.

The bit sum of a tensor is the wrapping sum of its memory, taken as 64-bit integers. Nothing is sent to other
ranks, and nothing waits for a device.
"""

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distsummary.collect.plan import group_along
from distsummary.diagnosis.check_tags import PRIME, WHOLE, bits_tags, packed, weights_of
from distsummary.format.records import Array, Value
from distsummary.frameworks.base import Computed, Pending
from distsummary.frameworks.torch import FRAMEWORK, as_dtensor, local_part
from distsummary.frameworks.torch_modules import has_fsdp1, memory, unwrap
from distsummary.frameworks.torch_squares import flat
from distsummary.rundir.topology import DATA_AXES

_WORD = 8  # bytes
_LISTED_EVERY = 64  # measurements, after which it is looked whether the model has other parameters
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Ints = NDArray[np.int64]


class Checksums:
    """Measures the bit sums of a model's parameters.

    Args:
        model: a torch.nn.Module. Its buffers may differ between ranks, and are left out.
        mesh: of this rank, see `Topology`; parameters without a replica are left out.
        world_size: the number of replicas without a mesh.
    """

    def __init__(self, model: nn.Module, mesh: Mapping[str, tuple[int, int]], world_size: int) -> None:
        self._model, self._mesh, self._world_size = model, mesh, world_size
        self._measured = 0
        self._is_unchanged: Callable[[], bool] = lambda: False
        self._groups: list[_Group] = []
        self.names: list[str] = []
        self.groups: dict[str, list[int]] = {}
        self.layouts: dict[str, int] = {}
        self.device_bytes = 0  # that are read on devices

    def list_parameters(self) -> None:
        """List the model's parameters, and so `names`, `groups` and `layouts`, as `RankFacts` has them."""
        self._is_unchanged = FRAMEWORK.watch(self._model)
        named = list(unwrap(self._model).named_parameters())
        # FSDP1 frees the memory of its parameters, and keeps no copies that could be compared.
        if has_fsdp1(self._model):
            named = []
        self.names = [name for name, _ in named]
        # Tied parameters share their memory, which is summed up under the first name only.
        first = {memory(one): place for place, (_, one) in reversed(list(enumerate(named)))}
        by_split: dict[tuple[str, ...], list[int]] = {}
        for place, (_, one) in enumerate(named):
            if first[memory(one)] != place or not _has_bits(one):
                continue
            split = FRAMEWORK.split_axes(one)
            if self._replicas(split) > 1:
                by_split.setdefault(split, []).append(place)
        self.groups = {"+".join(split) or WHOLE: places for split, places in by_split.items()}
        shapes = [(name, *one.shape) for name, one in named]
        self.layouts = {
            group: zlib.crc32(repr([shapes[place] for place in places]).encode())
            for group, places in self.groups.items()
        }
        self._groups = [
            _Group(bits_tags(split), [named[place][1] for place in places])
            for split, places in by_split.items()
        ]
        self.device_bytes = sum(group.device_bytes for group in self._groups)

    def _replicas(self, split: Sequence[str]) -> int:
        """How many ranks hold what this rank holds of a parameter."""
        if not self._mesh:
            return self._world_size
        return group_along(self._mesh, DATA_AXES - set(split)).size

    def measure(self) -> list[Value]:
        """The scalars of the parameters as they are now."""
        self._measured += 1
        if self._measured % _LISTED_EVERY == 0 and not self._is_unchanged():
            self.list_parameters()
        return [
            Value("scalar", tag, number)
            for group in self._groups
            for tag, number in zip(group.tags, group.measure(), strict=True)
        ]


class _Group:
    """Parameters that the same axes of the mesh split."""

    def __init__(self, tags: tuple[str, ...], parameters: list[Tensor]) -> None:
        self.tags, self._parameters = tags, parameters
        self._weights = weights_of(len(parameters))
        self._sums = np.zeros(len(parameters), np.int64)
        self._words: list[tuple[int, Ints, Array] | None] = [None] * len(parameters)  # of those on the host
        self._there = [place for place, one in enumerate(parameters) if one.device.type != "cpu"]
        self._here = [place for place, one in enumerate(parameters) if one.device.type == "cpu"]
        self._device_weights: Tensor | None = None
        self.device_bytes = sum(
            local_part(parameters[place]).numel() * parameters[place].element_size() for place in self._there
        )

    def measure(self) -> Sequence[float | Pending]:
        """The three numbers; those of parameters on a device are on their way."""
        sums = self._sums
        for place in self._here:
            sums[place] = self._sum_here(place)
        if not self._there:
            return [float(number) for number in packed(sums, self._weights)]
        arriving = FRAMEWORK.snapshot(self._measured_there())
        own = packed(sums, self._weights) if self._here else (0, 0, 0)
        return [Computed(arriving, partial(_element, *one)) for one in enumerate(own)]

    def _sum_here(self, place: int) -> np.int64:
        """The bit sum of a parameter on the host."""
        one = self._parameters[place]
        known = self._words[place]
        # The view of a parameter's memory is kept as long as the parameter stays at its address.
        if known is None or known[0] != one.data_ptr():
            # A view of NumPy would keep FSDP2 from resizing the memory of its parameters.
            if type(one) not in (Tensor, nn.Parameter):
                return np.int64(device_sum(local_part(one)).item())
            octets = octets_of(one)
            cut = octets.size - octets.size % _WORD
            known = one.data_ptr(), octets[:cut].view(np.int64), octets[cut:]
            # Only a view may be kept: a copy would not follow the parameter.
            if octets.size and octets.ctypes.data == one.data_ptr():
                self._words[place] = known
        _, words, rest = known
        total: np.int64 = np.add.reduce(words)
        return total if not rest.size else total + np.int64(int.from_bytes(rest.tobytes(), sys.byteorder))

    def _measured_there(self) -> Tensor:
        """The three numbers of the parameters on devices, on the first of these."""
        device = self._parameters[self._there[0]].device
        if self._device_weights is None:
            self._device_weights = torch.from_numpy(self._weights[:, self._there]).to(device)
        sums = [device_sum(local_part(self._parameters[place])) for place in self._there]
        # Remainders first: then the products with the weights, which are below PRIME, too, fit into 64 bits.
        packed_sums = torch.stack([one.to(device, non_blocking=True) for one in sums]).remainder(PRIME)
        return (packed_sums * self._device_weights).remainder(PRIME).sum(1).remainder(PRIME)


def _element(place: int, more: int, numbers: Any) -> float:
    """One of the numbers that have arrived from a device, with what the host adds to it."""
    return float((int(numbers[place]) + more) % PRIME)


def octets_of(tensor: Tensor) -> Array:
    """The memory of a tensor on the host as bytes, uint8 (n,); copied only if it has gaps."""
    line = flat(local_part(tensor))
    octets: Array = line.view(torch.uint8).numpy() if line.numel() else np.empty(0, np.uint8)
    return octets


def device_sum(tensor: Tensor) -> Tensor:
    """The bit sum of a tensor, an int64 tensor on its device; does not wait for it.

    Where the memory begins between two words, the elements are added in place of the words.
    """
    line = flat(tensor)
    size = line.element_size()
    # Elements of 16 bytes, complex128, are summed up as two words each.
    if size not in _INTEGERS:
        line, size = line.view(torch.int64), _WORD
    per_word = _WORD // size
    cut = line.numel() - line.numel() % per_word
    is_aligned = line.storage_offset() * size % _WORD == 0
    whole = line[:cut].view(torch.int64) if is_aligned else line[:cut].view(_INTEGERS[size])
    total = whole.sum(dtype=torch.int64)
    if cut < line.numel():
        total = total + line[cut:].view(_INTEGERS[size]).sum(dtype=torch.int64)
    return total


def _has_bits(parameter: Tensor) -> bool:
    """Whether a parameter has memory of its own here that can be read as bytes."""
    if nn.parameter.is_lazy(parameter):
        return False
    local = local_part(parameter)
    is_plain = type(local) in (Tensor, nn.Parameter) or as_dtensor(parameter) is not None
    return is_plain and local.layout == torch.strided and not local.is_meta and not local.is_quantized


def torch_settings() -> dict[str, str | None]:
    """torch's seeds, versions and switches, for `RankFacts.settings`."""
    cuda: Any = torch.cuda
    found: dict[str, str | None] = {
        "seed torch": str(torch.initial_seed()),
        "version CUDA": str(torch.version.cuda),
        "torch default dtype": str(torch.get_default_dtype()),
        "torch deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "torch float32 matmul precision": torch.get_float32_matmul_precision(),
    }
    if cuda.is_initialized():
        found["seed CUDA"] = str(cuda.initial_seed())
        cudnn: Any = torch.backends.cudnn
        found["version cuDNN"] = str(cudnn.version())
        found["GPU"] = cuda.get_device_name()
        found["torch TF32"] = f"{torch.backends.cuda.matmul.allow_tf32}, {torch.backends.cudnn.allow_tf32}"
    return found
