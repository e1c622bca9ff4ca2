"""Where torch keeps a model, which is whose use is sampled."""

import pytest
import torch
from torch import nn

from distsummary.collect.values.torch_gpu import gpu_of, gpu_sources

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("network", [None, nn.Linear(2, 1), nn.Flatten(), object()])
def test_a_rank_without_a_gpu_samples_none(network):
    if network is not None and torch.cuda.is_initialized():
        pytest.skip("another test has used the GPU")
    assert gpu_of(network) is None
    assert gpu_sources(network) == {}


@needs_gpu
def test_memory_and_utilization_of_the_gpu_of_a_model():
    network = nn.Linear(1 << 14, 1 << 12, device="cuda")
    sample = {tag: value for read in gpu_sources(network).values() for tag, value in read().items()}
    assert 0 < sample["zz_system/gpu/memory_percent"] <= 100
    assert 0 < sample["zz_system/gpu/reserved_gib"] < 1024
    assert 0 <= sample["zz_system/gpu/utilization_percent"] <= 100
