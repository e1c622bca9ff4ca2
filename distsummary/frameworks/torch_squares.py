"""Sums of squares of many tensors: on the host in blocks, on an accelerator without waiting for it.

A sum of float32 squares loses digits as it grows, so only BLOCK elements are added in float32 at a time, and
the sums of blocks in float64. In the worst case, elements that fall in size within every block, the root of a
sum is 7e-7 off; usually it is 1e-8.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distsummary.frameworks.staging import blank
from distsummary.frameworks.torch_private import flattened, norms_of

BLOCK = 1 << 10
CHUNK = 1 << 18  # elements converted at a time, in memory that the processor's cache holds
_LARGE = 1 << 15  # elements from which on a tensor is not copied
_GROUP = 1 << 7  # blocks that are copied together, so that they stay in the cache of the core
_PLAIN = (Tensor, torch.nn.Parameter)
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
    # Perhaps transposed, or channels_last: with the axes in the order of memory there is nothing to copy.
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    return tensor.reshape(-1)


def working_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which the tensor's squares within a block are added: float32, or float64 for its own."""
    return torch.float64 if tensor.dtype in _DOUBLES else torch.float32


def host_sums(tensors: Sequence[Tensor]) -> tuple[Floats, Counts]:
    """The sums of squares (float64) of tensors on the host, and how many of their elements are not finite.

    With elements that are not finite, a sum is NaN or infinite. Sums that float32 cannot hold are computed
    again in float64, so that an infinite sum never stands for large numbers.

    Args:
        tensors: of floats or complex numbers, of any layout; see `flat`.
    """
    lines = list(tensors)
    converted: dict[int, float] = {}  # the sums of what is copied in chunks, by place
    # Most tensors are plain float32, and stay as they are; each check costs time.
    for index, one in enumerate(tensors):
        if (
            type(one) in _PLAIN
            and one.dtype is torch.float32
            and one.layout is torch.strided
            and one.is_contiguous()
        ):
            continue
        line = flat(one)
        is_small_half = line.itemsize == 2 and line.numel() < _LARGE
        # Others are converted in chunks: subclasses, float64 (to itself), floats of 8 bits, large ones of 16.
        if type(line) not in _PLAIN or not (line.dtype is torch.float32 or is_small_half):
            rows = [_row_norms(blocks) for blocks in _converted(line, working_dtype(line))]
            converted[index] = float(torch.cat(rows).double().square().sum()) if rows else 0.0
            line = _zeros(0)
        lines[index] = line
    sums, least = _block_sums(lines)
    counts = np.zeros(len(lines), np.int64)
    for index, found in converted.items():
        sums[index], least[index] = found, tensors[index].numel() * _SMALLEST_MEAN
    # NaN fails both comparisons, so it is computed again like sums that overflowed or may have lost digits.
    sure = (sums >= least) & (sums < np.inf)
    if not sure.all():
        for index in np.flatnonzero(~sure).tolist():
            sums[index], counts[index] = _careful_sum(flat(tensors[index]))
    return sums, counts


def _block_sums(lines: Sequence[Tensor]) -> tuple[Floats, Floats]:
    """The sums of squares of contiguous tensors, those of each block added in float32; they may overflow.

    Also returns the least sum of each from which on float32 has lost no digits.

    A call of torch takes as long as the squares of some ten thousand elements. Small tensors, and what large
    ones have after their last whole block, are therefore copied together, with zeros to fill up the blocks.
    """
    plan = _plan(tuple(map(Tensor.numel, lines)))
    pieces = [lines[index] for index in plan.small]
    pieces += [lines[index].view(-1)[-rest:] for index, rest in plan.rests]
    rows = []
    for begin, end, zeros in plan.groups:
        group = zeros * 2
        group[::2], group[1::2] = pieces[begin:end], zeros
        together = flattened(group)
        rows.append(torch.linalg.vector_norm(together.view(-1, BLOCK), dim=1, dtype=torch.float32))
    for index, blocks in plan.large:
        whole = lines[index].as_strided((blocks, BLOCK), (BLOCK, 1))
        rows.append(torch.linalg.vector_norm(whole, dim=1))
    if not rows:
        return np.zeros(len(lines)), np.zeros(len(lines))
    norms = torch.cat(rows).numpy()
    found = np.add.reduceat(np.multiply(norms, norms, dtype=np.float64), plan.starts)
    sums = np.bincount(plan.owners, found, len(lines)).astype(np.float64, copy=False)
    return sums, plan.least.copy()


class _Plan(NamedTuple):
    """How the squares of tensors of given sizes are added.

    `small`: the places of the tensors that are copied whole. `rests`: of large ones, place and the number of
    elements after the last whole block. `groups`: which of these are copied together, the first and the one
    after the last of `small` and `rests`, with the zeros that follow each. `large`: place and whole blocks.
    `owners`, `starts`: for each of `small`, `rests` and `large`, its place, and the first of its blocks.
    `least`: for each tensor the least sum that is sure to have all digits.
    """

    small: list[int]
    rests: list[tuple[int, int]]
    groups: list[tuple[int, int, list[Tensor]]]
    large: list[tuple[int, int]]
    owners: NDArray[np.int64]
    starts: NDArray[np.int64]
    least: Floats


# Asked for gradients, weights and updates at each turn; the sizes seldom change.
@lru_cache(maxsize=16)
def _plan(sizes: tuple[int, ...]) -> _Plan:
    small = [index for index, size in enumerate(sizes) if 0 < size < _LARGE]
    wide = [index for index, size in enumerate(sizes) if size >= _LARGE]
    rests = [(index, sizes[index] % BLOCK) for index in wide if sizes[index] % BLOCK]
    large = [(index, sizes[index] // BLOCK) for index in wide]
    copied = [sizes[index] for index in small] + [rest for _, rest in rests]
    lengths = [-(-size // BLOCK) for size in copied]
    groups: list[tuple[int, int, list[Tensor]]] = []
    begin = 0
    while begin < len(copied):
        end = begin + 1
        while end < len(copied) and sum(lengths[begin : end + 1]) <= _GROUP:
            end += 1
        groups.append((begin, end, [_zeros(-size % BLOCK) for size in copied[begin:end]]))
        begin = end
    owners = np.array([*small, *(index for index, _ in rests), *wide], np.int64)
    ends = np.cumsum([*lengths, *(blocks for _, blocks in large)], dtype=np.int64)
    return _Plan(
        small,
        rests,
        groups,
        large,
        owners,
        np.concatenate(([0], ends[:-1])),
        np.multiply(sizes, _SMALLEST_MEAN),
    )


@cache
def _zeros(size: int) -> Tensor:
    """So many zeros, fewer than BLOCK; next to wider elements, they get their dtype."""
    return torch.zeros(size, dtype=torch.float32, device="cpu")


def _converted(line: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """The elements in another dtype, in blocks, which zeros fill up; a CHUNK takes the place of the last."""
    size = line.numel()
    numbers = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    scratch = torch.from_numpy(blank((-(-min(size, CHUNK) // BLOCK) * BLOCK,), numbers))
    for start in range(0, size, CHUNK):
        taken = min(CHUNK, size - start)
        filled = -(-taken // BLOCK) * BLOCK
        scratch[:taken].copy_(line[start : start + taken])
        scratch[taken:filled] = 0
        yield scratch[:filled].view(-1, BLOCK)


def _row_norms(blocks: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1)
    return norms


def _careful_sum(one: Tensor) -> tuple[float, int]:
    """The sum of squares, added in float64, and the number of elements that are not finite."""
    if not one.numel():
        return 0.0, 0
    # All zero, as the gradients of what the batch did not use; a NaN is True.
    if not any(map(bool, torch.aminmax(one.float() if one.itemsize < 2 else one))):
        return 0.0, 0
    total, count = 0.0, 0
    for blocks in _converted(one, torch.float64):
        count += blocks.numel() - int(np.count_nonzero(np.isfinite(blocks.numpy())))
        # np.dot would wake NumPy's own threads.
        total += float(_row_norms(blocks).square().sum())
    return total, count


def host_changes(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Floats, Floats]:
    """Sums of squares, and largest absolute values, of what tensors on the host are more than their copies.

    A difference that is not finite makes both infinite or NaN. The differences take the place of the copies.

    Args:
        pairs: tensors, as `flat` returned them, each with a copy in its `working_dtype`.
    """
    changes = [torch.sub(one, copy, out=copy) for one, copy in pairs]
    sums, _ = host_sums(changes)
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
    sums = torch.stack(norms_of(flats, 2, dtype)).square()
    counts = [flats[index].isfinite().logical_not().sum().to(dtype) for index in counted]
    return torch.cat((sums, torch.stack(counts))) if counts else sums


def device_largest(flats: Sequence[Tensor]) -> Tensor:
    """The largest absolute values on the tensors' device; does not wait for it."""
    return torch.stack(norms_of(flats, float("inf"))).to(torch.float32)
