"""Counts a tensor's values on its device, in MindSpore's bins or in fixed buckets; copies only the counts."""

from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from distsummary.errors import InvalidTypeError
from distsummary.format.histogram import MOST, fixed_edges, fixed_histogram
from distsummary.format.records import Histogram
from distsummary.frameworks.base import Array

MAX_BINS = 90
_CHUNK = 1 << 24  # elements counted at a time: bounds the memory of their bin numbers, 8 bytes each


def unpacked(size: int, dtype: torch.dtype, packed: Array) -> Histogram:
    """The histogram of a tensor of so many elements, of what `count` returned for it.

    What `count_histogram` returns for the same values, except for the last bits of the sum.
    """
    nan, pos_inf, neg_inf, bins = packed[MAX_BINS : MAX_BINS + 4].tolist()
    floats = packed[MAX_BINS + 4 :].view(np.float64)
    is_empty = size == nan + pos_inf + neg_inf
    low, high, total = (None, None, None) if is_empty else floats[:3].tolist()
    bins = 0 if is_empty else bins
    edges = floats[3 : 3 + bins + 1]
    counts = packed[:bins].copy()
    width = np.diff(edges)
    if _is_small(dtype) and (edges == (small := edges.astype(np.float32))).all():
        width = np.diff(small).astype(np.float64)
    # Where float64 has too few digits for the bins, some have no width: what the last of these hold is of the
    # bin before.
    if (width <= 0).any():
        starts = np.flatnonzero(width > 0)
        counts = np.add.reduceat(counts, [0, *starts[1:]])
        edges, width = np.append(edges[starts], edges[-1]), width[starts]
    return Histogram(
        left=edges[: len(counts)].copy(),
        width=width,
        counts=counts,
        count=size,
        nan_count=nan,
        pos_inf_count=pos_inf,
        neg_inf_count=neg_inf,
        min=low,
        max=high,
        sum=total,
    )


def unpacked_fixed(size: int, packed: Array) -> Histogram:
    """The histogram in fixed buckets of a tensor of so many elements, of what `count_fixed` returned for it.

    What `count_histogram(..., fixed=True)` returns, except for the last bits of the sum.
    """
    counts, (nan, pos_inf, neg_inf) = packed[:-6], packed[-6:-3].tolist()
    is_empty = size == nan + pos_inf + neg_inf
    low, high, total = (None, None, None) if is_empty else packed[-3:].view(np.float64).tolist()
    return fixed_histogram(
        counts,
        count=size,
        min=low,
        max=high,
        sum=total,
        nan_count=nan,
        pos_inf_count=pos_inf,
        neg_inf_count=neg_inf,
    )


def count(tensor: Tensor) -> Tensor:
    """Count a dense tensor on its device; returns int64 numbers there, packed for `unpacked`.

    Follows `format.histogram.count_histogram` without `Compatibility.histograms`. torch.histc would count in
    float32 and be inexact at the edges; torch.bincount would wait for the device.

    Raises InvalidTypeError for complex tensors.
    """
    (nan, pos_inf, neg_inf), (low, high, total) = _measured(tensor)
    # Only the device knows the number of bins, so all shapes are those of the most bins.
    bins = _bin_count(tensor.numel() - nan - pos_inf - neg_inf)
    edges = _edges(low, high, bins)
    if _is_small(tensor.dtype):
        # As `format.histogram.distinct_edges`.
        small = edges.float().double()
        has_widths = (
            (small.diff() > 0) | (torch.arange(MAX_BINS, dtype=torch.int64, device=edges.device) >= bins)
        ).all()
        edges = torch.where(has_widths, small, edges)
    counts = torch.zeros(MAX_BINS + 1, dtype=torch.int64, device=tensor.device)  # [-1]: outside all bins
    for chunk in _chunks(tensor):
        chunk = chunk.double()
        place = torch.searchsorted(edges, chunk, right=True) - 1
        inside = (chunk >= edges[0]) & (chunk <= high)
        # The last bin includes `high`.
        place = torch.where(inside, torch.minimum(place, bins - 1), MAX_BINS)
        counts.scatter_add_(0, place, torch.ones_like(place))
    numbers = torch.stack((nan, pos_inf, neg_inf, bins))
    floats = torch.cat((torch.stack((low, high, total)), edges))
    return torch.cat((counts[:MAX_BINS], numbers, floats.view(torch.int64)))


def count_fixed(tensor: Tensor) -> Tensor:
    """Count a dense tensor in fixed buckets; returns int64 numbers there, packed for `unpacked_fixed`.

    Follows `count_histogram(..., fixed=True)`. Raises InvalidTypeError for complex tensors.
    """
    invalid, floats = _measured(tensor)
    edges = _fixed_edges(tensor.device)
    last = len(edges) - 2
    counts = torch.zeros(last + 2, dtype=torch.int64, device=tensor.device)  # [-1]: what is not finite
    for chunk in _chunks(tensor):
        place = torch.searchsorted(edges, chunk.double(), right=True) - 1
        place = torch.where(chunk.isfinite(), place.clamp(max=last), last + 1)
        counts.scatter_add_(0, place, torch.ones_like(place))
    return torch.cat((counts[:-1], torch.stack(invalid), torch.stack(floats).view(torch.int64)))


@cache
def _fixed_edges(device: torch.device) -> Tensor:
    """The edges on a device; copied there once, which may wait for the device."""
    return torch.from_numpy(fixed_edges().copy()).to(device)


_Three: TypeAlias = tuple[Tensor, Tensor, Tensor]


def _measured(tensor: Tensor) -> tuple[_Three, _Three]:
    """NaN, +inf, -inf (int64); smallest and largest finite number, and their sum (float64); on the device."""
    if tensor.is_complex():
        raise InvalidTypeError(f"a histogram counts real numbers, got {tensor.dtype}; take abs() or real")
    device = tensor.device
    nan = pos_inf = neg_inf = torch.zeros((), dtype=torch.int64, device=device)
    low = torch.full((), torch.inf, dtype=torch.float64, device=device)
    high, total = -low, torch.zeros((), dtype=torch.float64, device=device)
    for chunk in _chunks(tensor):
        finite = chunk.isfinite()
        nan = nan + chunk.isnan().sum()
        pos_inf = pos_inf + chunk.isposinf().sum()
        neg_inf = neg_inf + chunk.isneginf().sum()
        low = torch.minimum(low, chunk.where(finite, torch.inf).min().double())
        high = torch.maximum(high, chunk.where(finite, -torch.inf).max().double())
        total = total + chunk.where(finite, 0).sum(dtype=torch.float64)
    return (nan, pos_inf, neg_inf), (low, high, total)


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    """1-D pieces: float32 for floats of at most 32 bits, else float64."""
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        yield flat[start : start + _CHUNK].to(torch.float32 if _is_small(tensor.dtype) else torch.float64)


def _is_small(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype != torch.float64


def _bin_count(finite: Tensor) -> Tensor:
    """`format.histogram.bin_count`, computed on the device that holds the number `finite`."""
    bins = torch.where(finite <= 880, finite // 10 + 1, MAX_BINS)
    bins = torch.where(finite <= 10, 3, bins)
    return torch.where(finite <= 5, torch.where(finite == 0, 1, 2), bins)


def _edges(low: Tensor, high: Tensor, bins: Tensor) -> Tensor:
    """`format.histogram.distinct_edges` (NumPy's linspace), float64 (MAX_BINS + 1,); Inf after the last edge.

    Where float64 has too few digits for the bins, some are equal.
    """
    is_flat = ~(low < high)
    spacing = low.abs() - torch.nextafter(low.abs(), torch.zeros_like(low))
    half = (bins * spacing).clamp(min=0.5)
    low = torch.where(is_flat, (low - half).clamp(min=-MOST), low)
    high = torch.where(is_flat, (high + half).clamp(max=MOST), high)
    # If the span exceeds float64, the edges are computed at half their size.
    halves = torch.where((high - low).isfinite(), 1.0, 2.0)
    low, high = low / halves, high / halves
    points = torch.arange(MAX_BINS + 1, dtype=torch.float64, device=low.device)
    step = (high - low) / bins
    # The step of a denormal span may be 0, where the quotient of points and bins is not.
    climbed = torch.where(step == 0, points / bins * (high - low), points * step)
    edges = torch.where(points == bins, high, climbed + low) * halves
    return torch.where(points > bins, torch.inf, edges)
