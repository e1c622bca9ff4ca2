"""Histograms counted by torch are those counted by NumPy; on a CUDA device too where there is one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distsummary.errors import InvalidTypeError
from distsummary.format.histogram import count_histogram, fixed_edges
from distsummary.format.records import Histogram
from distsummary.frameworks import torch_histogram
from distsummary.frameworks.torch import FRAMEWORK, counted, counted_fixed
from tests.unit.format.test_histogram import NARROW

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64"]  # fmt: skip
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12))
)


def check(array: np.ndarray, tensor: torch.Tensor) -> None:
    """Everything equal; the sum as far as its order of adding allows."""
    assert_same(counted(tensor).result(), count_histogram(array))
    assert_same(counted_fixed(tensor).result(), count_histogram(array, fixed=True))


def assert_same(found: Histogram, expected: Histogram) -> None:
    for name in ("left", "width", "counts"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max"):
        assert getattr(found, name) == getattr(expected, name), name
    scale = max(abs(expected.min or 0), abs(expected.max or 0)) * expected.count
    if expected.sum is None or scale < 1e300:  # beyond, one order of adding overflows and another does not
        assert found.sum == (expected.sum and pytest.approx(expected.sum, abs=1e-12 * scale))


@pytest.mark.parametrize("device", DEVICES)
@given(ARRAYS)
def test_any_array_is_counted_as_numpy_counts_it(device: str, array: np.ndarray):
    check(array, torch.from_numpy(array.copy()).to(device))


@pytest.mark.parametrize("device", DEVICES)
@given(st.integers(0, 2**32 - 1))
def test_values_at_the_edges_fall_into_the_same_bins(device: str, seed: int):
    array = np.random.default_rng(seed).uniform(-1, 1, 1000).astype(np.float32)
    edges = count_histogram(array).left[1:].astype(np.float32)  # within min and max, which stay
    near = np.concatenate([edges, np.nextafter(edges, np.float32(-2)), np.nextafter(edges, np.float32(2))])
    array = np.concatenate([array, near])
    check(array, torch.from_numpy(array).to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 5, 6, 10, 11, 880, 881, 100_000])
def test_many_values_in_several_chunks(monkeypatch: pytest.MonkeyPatch, device: str, size: int):
    monkeypatch.setattr(torch_histogram, "_CHUNK", 30_000)
    array = np.random.default_rng(size).standard_normal(size, np.float32)
    check(array, torch.from_numpy(array).to(device))
    for place, special in enumerate([np.nan, np.inf, -np.inf, np.nan, np.inf, 0.0]):
        array[place * 17 % size] = special
    check(array, torch.from_numpy(array).to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_is_counted_as_float32(device: str):
    tensor = torch.linspace(-1e38, 1e38, 3000).bfloat16()
    check(tensor.float().numpy(), tensor.to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_that_is_not_in_order_and_has_a_gradient_is_counted(device: str):
    tensor = torch.arange(60.0).reshape(5, 12).requires_grad_()
    for part in (tensor.to(device).t(), tensor.to(device)[::2, 1:-1:3], tensor.to(device).flip(0)):
        check(part.detach().cpu().numpy(), part)


def test_complex_numbers_are_refused():
    with pytest.raises(InvalidTypeError, match="complex64"):
        counted(torch.zeros(3, dtype=torch.complex64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_counting_does_not_wait_for_the_device():
    values = torch.randn(10_000, device="cuda")
    counted_fixed(values)  # copies the edges to the device, once
    torch.cuda.set_sync_debug_mode("error")
    try:
        counts = [FRAMEWORK.histogram(values), counted_fixed(values)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [int(counted.result().counts.sum()) for counted in counts] == [10_000, 10_000]


def test_the_fixed_buckets_are_those_of_torch(tmp_path):
    from torch.utils.tensorboard import SummaryWriter  # importing it takes a second

    with SummaryWriter(str(tmp_path)) as writer:
        assert fixed_edges()[1:-1].tolist() == writer.default_bins  # ours are open on both sides


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NARROW)
def test_narrow_values_are_counted_as_numpy_counts_them(device: str, name: str):
    check(NARROW[name], torch.from_numpy(NARROW[name].copy()).to(device))
