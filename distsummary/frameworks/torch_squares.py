"""Sums of squares of many tensors: on the host in blocks, on an accelerator without waiting for it.

A sum of float32 squares loses digits as it grows, so only BLOCK elements are added in float32 at a time, and
the sums of blocks in float64. In the worst case, elements that fall in size within every block, the root of a
sum is 7e-7 off; usually it is 1e-8.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distsummary.frameworks.staging import blank

BLOCK = 1 << 10
CHUNK = 1 << 18  # elements converted at a time, in memory that the processor's cache holds
_DOUBLES = (torch.float64, torch.complex128)
_SMALLEST_MEAN = 1e-31  # of float32 squares: below it, squares lose digits or vanish

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in one dimension, in the order of memory; only copied if they have gaps.

    Of a complex tensor, the real and imaginary parts; of a sparse one, the elements that are not zero.
    """
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_contiguous():  # perhaps transposed, or channels_last
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    return tensor.reshape(-1)


def working_dtype(tensor: Tensor, precision: torch.dtype) -> torch.dtype:
    """The dtype in which the tensor's squares are added: `precision`, float32 or float64, or its own."""
    return torch.float64 if tensor.dtype in _DOUBLES else precision


def host_sums(tensors: Sequence[Tensor], precision: torch.dtype) -> tuple[Floats, Counts]:
    """The sums of squares (float64) of tensors on the host, and how many of their elements are not finite.

    With elements that are not finite, a sum is NaN or infinite. Sums that float32 cannot hold are computed
    again in float64, so that an infinite sum never stands for large numbers.

    Args:
        tensors: of floats or complex numbers, of any layout; see `flat`.
        precision: torch.float32 or torch.float64, in which the squares within a block are added.
    """
    sums, counts = np.zeros(len(tensors)), np.zeros(len(tensors), np.int64)
    sizes: list[int] = [one.numel() for one in tensors]
    doubles = _add_block_sums(sums, tensors, sizes, precision)
    if doubles:
        found = np.zeros(len(doubles))
        own = [tensors[index] for index in doubles]
        _add_block_sums(found, own, [sizes[index] for index in doubles], torch.float64)
        sums[doubles] = found
    with np.errstate(invalid="ignore"):
        unsure = ~(np.isfinite(sums) & (sums >= np.multiply(sizes, _SMALLEST_MEAN)))
    for index in np.flatnonzero(unsure).tolist():
        sums[index], counts[index] = _careful_sum(flat(tensors[index]))
    return sums, counts


def _add_block_sums(
    sums: Floats, tensors: Sequence[Tensor], sizes: Sequence[int], dtype: torch.dtype
) -> list[int]:
    """Add the sums of squares, those of each block in `dtype`; they may overflow.

    Tensors of a wider dtype are left out; returns their places.
    """
    rows: list[Tensor] = []  # the norms of whole blocks, of one tensor after the other
    owners: list[int] = []  # whose rows begin at `starts`
    starts: list[int] = []
    pieces: list[Tensor] = []  # what does not fill a block
    owners_of_pieces: list[int] = []
    begun = 0
    wider: list[int] = []
    for index, one in enumerate(tensors):  # most are plain and of this dtype; each check costs time
        size = sizes[index]
        if one.dtype is not dtype or one.layout is not torch.strided or not one.is_contiguous():
            if one.dtype in _DOUBLES and dtype != torch.float64:
                wider.append(index)
                continue
            one = flat(one)
            size = one.numel()
        rest = size % BLOCK
        if one.dtype is not dtype:
            found = _converted_rows(one, dtype)
        elif size < BLOCK:
            if size:
                pieces.append(one)
                owners_of_pieces.append(index)
            continue
        elif not rest:
            found = torch.linalg.vector_norm(one.view(-1, BLOCK), dim=1)
        else:
            line = one.view(-1)
            found = torch.linalg.vector_norm(line[:-rest].view(-1, BLOCK), dim=1)
            pieces.append(line[-rest:])
            owners_of_pieces.append(index)
        if size:
            rows.append(found)
            owners.append(index)
            starts.append(begun)
            begun += found.numel()
    if rows:
        sums[owners] += np.add.reduceat(_squared(torch.cat(rows)), starts)
    if pieces:
        norms = torch.stack(torch._foreach_norm(pieces))  # one call for all; torch's own clipping uses it too
        sums[owners_of_pieces] += _squared(norms)  # of each tensor one piece at most
    return wider


def _squared(norms: Tensor) -> Floats:
    values = norms.double().numpy()
    squares: Floats = values * values
    return squares


def _converted_rows(line: Tensor, dtype: torch.dtype) -> Tensor:
    """The norms of the blocks of a tensor of another dtype."""
    size = line.numel()
    scratch = _scratch(min(size, CHUNK), dtype)
    rows = []
    for start in range(0, size, CHUNK):
        taken = min(CHUNK, size - start)
        scratch[:taken].copy_(line[start : start + taken])
        rows.append(_rows(scratch, taken))
    return rows[0] if len(rows) == 1 else torch.cat(rows) if rows else scratch


def _scratch(size: int, dtype: torch.dtype) -> Tensor:
    """Room for so many elements, in whole blocks."""
    numbers = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    return torch.from_numpy(blank((-(-size // BLOCK) * BLOCK,), numbers))


def _rows(scratch: Tensor, taken: int) -> Tensor:
    """The norms of the blocks of the first elements; the last block is filled up with zeros."""
    filled = -(-taken // BLOCK) * BLOCK
    if taken < filled:
        scratch[taken:filled] = 0
    norms: Tensor = torch.linalg.vector_norm(scratch[:filled].view(-1, BLOCK), dim=1)
    return norms


def _careful_sum(one: Tensor) -> tuple[float, int]:
    """The sum of squares, added in float64, and the number of elements that are not finite."""
    if not one.numel():
        return 0.0, 0
    if not any(map(bool, torch.aminmax(one.float() if one.itemsize < 2 else one))):
        return 0.0, 0  # all zero, as the gradients of what the batch did not use; NaN is not False
    total, count = 0.0, 0
    for start in range(0, one.numel(), CHUNK):
        values = one[start : start + CHUNK].double().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(np.dot(values, values))
        count += len(values) - int(np.count_nonzero(np.isfinite(values)))
    return total, count


def host_changes(pairs: Sequence[tuple[Tensor, Tensor]], precision: torch.dtype) -> tuple[Floats, Floats]:
    """Sums of squares, and largest absolute values, of what tensors on the host are more than their copies.

    A difference that is not finite makes both infinite or NaN. The differences take the place of the copies.

    Args:
        pairs: tensors, as `flat` returned them, each with a copy in its `working_dtype`.
        precision: torch.float32 or torch.float64.
    """
    changes = [torch.sub(one, copy, out=copy) for one, copy in pairs]
    sums, _ = host_sums(changes, precision)
    extremes = [torch.aminmax(change) if change.numel() else (0.0, 0.0) for change in changes]
    most = np.array([(float(low), float(high)) for low, high in extremes])
    return sums, np.abs(most).max(axis=1)  # NaN if one of them is


def device_sums(flats: Sequence[Tensor], counted: Sequence[int]) -> Tensor:
    """Sums of squares on the tensors' device, then the numbers of elements of `counted` that are not finite.

    The device adds in float64, where it has it: what it computes is waiting for memory. Does not wait.

    Args:
        flats: tensors of at least one element, on one device. counted: places in `flats`.
    """
    dtype = torch.float32 if flats[0].device.type == "mps" else torch.float64
    sums = torch.stack(torch._foreach_norm(list(flats), 2, dtype=dtype)).square()
    counts = [flats[index].isfinite().logical_not().sum().to(dtype) for index in counted]
    return torch.cat((sums, torch.stack(counts))) if counts else sums


def device_largest(flats: Sequence[Tensor]) -> Tensor:
    """The largest absolute values on the tensors' device; does not wait for it."""
    return torch.stack(torch._foreach_norm(list(flats), float("inf"))).to(torch.float32)
