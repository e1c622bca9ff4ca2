"""Saves a model's own values while its parameters hold other values, and restores them bit for bit.

Values on the host are saved in an unnamed file in the directory for temporary files (TMPDIR). The file is
memory-mapped, so the memory that reading it takes can be released. Values on a GPU are saved in host memory.
"""

import ctypes
import mmap
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary.checkpoints.mapped import StoredState
from distsummary.errors import LandscapeError
from distsummary.landscapes.directions.recipe import Array, Directions, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState
from distsummary.landscapes.model.torch_memory import ALIGNMENT_BYTES, dense_strides, pinned

PIECE = 1 << 22  # elements that `restore` writes at once


def can_stay(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> set[str]:
    """The names of the parameters whose memory engines can write to without changing any bit of the results.

    The memory must be dense, aligned as torch's allocator aligns it, and shared with no other parameter.
    Floating-point values must have the dtype `dtype` unless that is None. Buffers are left out,
    because models write to them.
    """
    spans = []
    for name, tensor in tensors.items():
        is_right = dtype is None or tensor.dtype == dtype or not tensor.is_floating_point()
        is_dense = tensor.stride() == dense_strides(tensor)
        if isinstance(tensor, nn.Parameter) and tensor.numel() and is_right and is_dense:
            spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    found, end = set(), 0
    # In the order of addresses, a parameter is alone if no earlier one reaches into its memory and it ends
    # before the next one begins.
    spans.sort()
    for number, (start, stop, name) in enumerate(spans, 1):
        is_alone = end <= start and (number == len(spans) or stop <= spans[number][0])
        if is_alone and start % ALIGNMENT_BYTES == 0:
            found.add(name)
        end = max(end, stop)
    return found


class SavedValues:
    """The constructor saves the current values of tensors; `restore` writes them back.

    Raises LandscapeError if there is no room for the file, or if a tensor is in read-only memory.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        by_place = sorted((tensor.data for tensor in tensors), key=lambda tensor: tensor.data_ptr())
        self._tensors = {tensor.data_ptr(): tensor for tensor in by_place}
        self._starts = list(self._tensors)
        self._copies: dict[int, Tensor] = {}  # bytes on the host, by the tensor's address
        self._map: mmap.mmap | None = None
        in_file: dict[int, int] = {}  # offsets in the file, by the tensor's address
        size = 0
        for start, tensor in self._tensors.items():
            if tensor.device.type == "cpu":
                in_file[start] = size
                size += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            else:
                self._copies[start] = pinned(_flat(tensor).view(torch.uint8).cpu(), tensor.device)
        if in_file:
            self._save(in_file, size)

    def _save(self, places: Mapping[int, int], size: int) -> None:
        """Write the values to a new file, at the offsets `places`, and map the file."""
        with tempfile.TemporaryFile(prefix="distsummary-", buffering=0) as file:
            try:
                file.truncate(size)
                for start, at in places.items():
                    file.seek(at)
                    _all_of(file.write, _memory(self._tensors[start]))
            except OSError as error:
                raise LandscapeError(
                    f"memory='inference' keeps the model's own values, {size >> 20} MB, in a file in "
                    f"{tempfile.gettempdir()}, which cannot be written ({error}); make room there, set "
                    "TMPDIR to another directory, or leave out memory='inference'"
                ) from error
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
            for start, at in places.items():
                tensor = self._tensors[start]
                file.seek(at)
                # The first byte is read back into the tensor. In read-only memory this call raises an error,
                # while torch would crash when it writes there.
                try:
                    _all_of(file.readinto, memoryview(_memory(tensor)).cast("B")[:1])
                except OSError as error:
                    raise LandscapeError(
                        f"a parameter of shape {tuple(tensor.shape)} lies in read-only memory ({error}); "
                        "copy it (parameter.data = parameter.data.clone()), or leave out memory='inference'"
                    ) from error
                self._copies[start] = torch.frombuffer(
                    self._map, dtype=torch.uint8, count=tensor.nbytes, offset=at
                )

    # In inference mode any tensor can be written to.
    @torch.inference_mode()
    def restore(self) -> None:
        """Write the values back."""
        for start, tensor in self._tensors.items():
            values = self._copies[start].view(tensor.dtype)
            for first in range(0, len(values), PIECE):
                _flat(tensor)[first : first + PIECE] = values[first : first + PIECE]
                self.release()
        self._copies.clear()
        # Without this reference the disk space of the file is released.
        self._map = None

    def release(self) -> None:
        """Release the memory that reading the file took; views of the file then read the file again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def state(self, state: Weights) -> Weights:
        """The state; views of the saved values replace its arrays that share memory with the tensors."""
        if isinstance(state, StoredState):
            return state
        if isinstance(state, OwnState):
            return OwnState({name: self._as_saved(tensor) for name, tensor in state.tensors.items()})
        return {name: self._array_as_saved(np.asarray(array)) for name, array in state.items()}

    def recipe(self, recipe: Recipe) -> Recipe:
        """Explicit directions with their arrays replaced as in `state`; any other recipe unchanged."""
        if not isinstance(recipe, Directions):
            return recipe
        return Directions(x=self.state(recipe.x), y=self.state(recipe.y))

    def _as_saved(self, tensor: Tensor) -> Tensor:
        found = self._copy_of(tensor.data_ptr())
        if found is None:
            return tensor
        values = found.view(tensor.dtype)
        return values.as_strided(tensor.shape, tensor.stride(), values.storage_offset())

    def _array_as_saved(self, array: Array) -> Array:
        found = self._copy_of(array.ctypes.data)
        if found is None:
            return array
        return np.ndarray(array.shape, array.dtype, found.numpy().data, strides=array.strides)

    def _copy_of(self, place: int) -> Tensor | None:
        """The saved bytes of the tensor at the address `place`, from there on; None if no tensor is there."""
        number = bisect_right(self._starts, place) - 1
        if number < 0 or place >= (start := self._starts[number]) + self._tensors[start].nbytes:
            return None
        return self._copies[start][place - start :]


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _memory(tensor: Tensor) -> Any:
    """The bytes of a dense tensor on the host; tensor.numpy() would keep FSDP from resizing its storage."""
    return (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())


def _all_of(step: Callable[[memoryview], int | None], buffer: Any) -> None:
    """Call `step`, a file's write or readinto, until it has handled the whole buffer."""
    rest = memoryview(buffer).cast("B")
    while rest:
        rest = rest[step(rest) or 0 :]
