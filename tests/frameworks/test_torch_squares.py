"""Sums of squares of many tensors, against float64; the accelerator's way runs on the host here."""

import numpy as np
import pytest
import torch
from torch import Tensor

from distsummary.frameworks.torch_squares import (
    BLOCK,
    CHUNK,
    device_largest,
    device_sums,
    host_changes,
    host_sums,
    working_dtype,
)


def exact(tensor: Tensor) -> float:
    """The sum of squares in float64."""
    wide = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    parts = torch.view_as_real(wide.resolve_conj()) if wide.is_complex() else wide
    values = parts.double().reshape(-1)
    return float(torch.dot(values, values))


def of_many_sizes(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, *[20 * BLOCK + 7] * 9, CHUNK, CHUNK + 5]
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_norms_are_exact(dtype: torch.dtype) -> None:
    tensors = of_many_sizes(dtype)
    sums, counts = host_sums(tensors)
    expected = [exact(tensor) for tensor in tensors]
    tolerance = 1e-12 if dtype is torch.float64 else 5e-6
    assert np.sqrt(sums).tolist() == pytest.approx(np.sqrt(expected).tolist(), rel=tolerance)
    assert not counts.any()


def test_small_tensors_that_are_copied_together_stay_apart() -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    tensors = [torch.full((size,), 10.0 * size, dtype=dtypes[size % 4]) for size in range(1, 200)]
    tensors[50][1], tensors[51][0] = torch.nan, -torch.inf
    sums, counts = host_sums(tensors)
    assert np.isnan(sums[50])
    assert sums[51] == np.inf
    assert np.flatnonzero(counts).tolist() == [50, 51]
    whole = [at for at in range(len(tensors)) if at not in (50, 51)]
    assert sums[whole].tolist() == pytest.approx([exact(tensors[at]) for at in whole], rel=1e-6)


def test_small_elements_after_large_ones_are_not_lost() -> None:
    blocks = torch.full((2000, BLOCK), 3e-4)
    blocks[:, :64] = 1.0  # the worst order: the sum is large before the small elements come
    rising = torch.logspace(-12, 3, 1_000_000)  # nearly all elements are small
    sums, _ = host_sums([blocks, rising, rising.flip(0)])
    expected = [exact(blocks), exact(rising), exact(rising)]
    assert np.sqrt(sums).tolist() == pytest.approx(np.sqrt(expected).tolist(), rel=5e-6)


def test_any_layout() -> None:
    base = torch.randn(6, 8, 4, 4)
    indices = torch.tensor([[1, 1, 3]])
    tensors = [
        base.permute(3, 1, 0, 2),
        base.to(memory_format=torch.channels_last),
        base[:, ::3],
        torch.tensor(3.0),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.sparse_coo_tensor(indices, torch.randn(3, 4), (9, 4), check_invariants=True),  # row 1 twice
        torch.randn(40, 60).t(),
        torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    ]
    sums, counts = host_sums(tensors)
    assert sums.tolist() == pytest.approx([exact(tensor) for tensor in tensors], rel=1e-6)
    assert not counts.any()


def test_infinite_sums_are_distinguished_from_infinite_elements() -> None:
    tensors = [
        torch.full((3000,), 1e30),  # the squares overflow float32
        torch.full((3000,), 1e-30),  # and here they vanish
        torch.zeros(3000),
        torch.tensor([1.0, torch.inf, torch.nan] + [0.0] * 3000),
        torch.tensor([1.0, -torch.inf]).bfloat16(),
        torch.full((2,), 1e300, dtype=torch.float64),
    ]
    sums, counts = host_sums(tensors)
    assert counts.tolist() == [0, 0, 0, 2, 1, 0]
    assert sums[:3].tolist() == pytest.approx([3e63, 3e-57, 0.0], rel=1e-6)
    assert np.isnan(sums[3])
    assert sums[4:].tolist() == [np.inf, np.inf]  # the last: beyond float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_changes(dtype: torch.dtype) -> None:
    before = of_many_sizes(dtype)
    after = [(one.double() * 1.01 + 1e-3).to(dtype) for one in before]
    copies = [one.to(working_dtype(one), copy=True) for one in before]
    sums, most = host_changes(list(zip(after, copies, strict=True)))
    changes = [one.double() - other.double() for one, other in zip(after, before, strict=True)]
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    assert sums.tolist() == pytest.approx([exact(change) for change in changes], rel=tolerance)
    largest = [float(change.abs().max()) if change.numel() else 0.0 for change in changes]
    assert most.tolist() == pytest.approx(largest, rel=tolerance)


def test_changes_that_float32_cannot_square_or_that_are_not_finite() -> None:
    zero = torch.zeros(3000)
    changed = [zero + 1e30, zero + 1e-30, zero, zero.clone(), zero.clone()]
    changed[3][7], changed[4][7] = torch.nan, -torch.inf
    sums, most = host_changes([(one, zero.clone()) for one in changed])
    assert sums[:3].tolist() == pytest.approx([3e63, 3e-57, 0.0], rel=1e-6)
    assert most[:3].tolist() == pytest.approx([1e30, 1e-30, 0.0], rel=1e-6)
    assert np.isnan([sums[3], most[3]]).all()
    assert [sums[4], most[4]] == [np.inf, np.inf]


def test_the_accelerators_way() -> None:
    tensors = [torch.full((30,), 1e25), torch.randn(9).bfloat16(), torch.tensor([torch.nan, 1.0, torch.inf])]
    packed = device_sums(tensors, [2]).tolist()
    assert packed[:2] == pytest.approx([exact(tensor) for tensor in tensors[:2]], rel=1e-12)
    assert np.isnan(packed[2])
    assert packed[3] == 2
    assert device_largest(tensors[:2]).tolist() == [float(tensor.abs().max()) for tensor in tensors[:2]]
