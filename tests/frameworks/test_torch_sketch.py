"""Sketches of torch parameters: the numbers of the numpy reference, on the host and by device kernels."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from distsummary.checkpoints.sketch import BUCKETS, CHUNK, Sketcher, signs
from distsummary.frameworks import torch_sketch
from distsummary.frameworks.base import load
from distsummary.frameworks.sketching import (
    SketchedPart,
    open_sketching,
    parameters_digest,
    sketched_parts,
)
from distsummary.frameworks.torch_sketch import GROUP, on_device
from tests.frameworks.test_torch import process_group


def network() -> nn.Module:
    """Small layers, a frozen one, and one of more than a chunk."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 7), nn.Linear(7, 7).requires_grad_(False), nn.Linear(7, 300), nn.Linear(300, 1800)
    )


def reference(model: nn.Module) -> Any:
    return Sketcher().sketch(
        {name: p.detach().float().numpy() for name, p in model.named_parameters() if p.requires_grad}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_sketch_is_that_of_the_reference_on_host_and_device(dtype: torch.dtype) -> None:
    model, framework = network().to(dtype), load("torch")
    parts = sketched_parts(framework, model)
    assert [part.name for part in parts] == [
        "0.weight",
        "0.bias",
        *(f"{n}.{k}" for n in "23" for k in ("weight", "bias")),
    ]
    expected = reference(model)
    np.testing.assert_allclose(open_sketching(framework, parts).take().result(), expected, atol=1e-5)
    found = on_device(Sketcher(), torch.from_numpy(signs(0)), parts)
    assert (found.dtype, found.shape) == (torch.float64, (BUCKETS,))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert torch.equal(found, on_device(Sketcher(), torch.from_numpy(signs(0)), parts))


def test_more_chunks_than_go_at_a_time_and_a_start_inside_of_one_are_added_on_a_device() -> None:
    flat = torch.randn((GROUP + 2) * CHUNK + 77)
    part = SketchedPart(name="w", tensor=flat, runs=((0, slice(0, 1000)), (1000, slice(1000, None))))
    found = on_device(Sketcher(), torch.from_numpy(signs(0)), [part]).numpy()
    np.testing.assert_allclose(found, Sketcher().sketch({"w": flat.numpy()}), atol=1e-4)


def test_a_sketch_is_of_the_moment_it_is_taken_and_touches_nothing() -> None:
    model, framework = network(), load("torch")
    before = copy.deepcopy(model.state_dict())
    sketching = open_sketching(framework, sketched_parts(framework, nn.DataParallel(model)))
    expected, taken = reference(model), sketching.take()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    with torch.no_grad():
        model[0].weight += 1
        model[2].weight.data = model[2].weight.data * 2  # not in place
    np.testing.assert_allclose(taken.result(), expected, atol=1e-6)
    np.testing.assert_allclose(sketching.take().result(), reference(model), atol=1e-5)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, BUCKETS + 5),
        torch.ones(3, BUCKETS + 5, dtype=torch.bfloat16),
        torch.ones(2, 8, 40, 60).to(memory_format=torch.channels_last),
        torch.ones(3, 1000)[:, ::2],
        torch.ones(0),
        torch.ones(()),
    ],
    ids=["whole", "bfloat16", "channels_last", "strided", "empty", "a number"],
)
def test_a_sketch_follows_parameters_however_they_lie(tensor: torch.Tensor) -> None:
    torch.manual_seed(0)
    sketching = open_sketching(load("torch"), [SketchedPart(name="w", tensor=tensor)])
    for _ in range(2):
        for _ in range(2):
            tensor.mul_(torch.rand(tensor.shape))
            expected = Sketcher().sketch({"w": tensor.float().numpy()})
            np.testing.assert_allclose(sketching.take().result(), expected, atol=1e-5)
        tensor.data = tensor.data.clone() * 2  # as many values in other memory


def test_a_sketch_follows_a_parameter_that_is_turned_in_its_memory() -> None:
    torch.manual_seed(0)
    tensor = torch.rand(30, 20)
    sketching = open_sketching(load("torch"), [SketchedPart(name="w", tensor=tensor)])
    for _ in range(3):
        expected = Sketcher().sketch({"w": tensor.numpy()})
        np.testing.assert_allclose(sketching.take().result(), expected, atol=1e-6)
        tensor.data = tensor.data.t()


def test_many_additions_lose_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    flat = torch.rand(40 * BUCKETS)
    exact = Sketcher().sketch({"w": flat.double().numpy()})
    sketching = open_sketching(load("torch"), [SketchedPart(name="w", tensor=flat)])
    errors = []
    for summed in (100, 2):
        monkeypatch.setattr(torch_sketch, "SUMMED", summed)
        errors.append(np.abs(sketching.take().result() - exact).max())
    assert errors[1] < errors[0] < 1e-5


def test_small_steps_of_parameters_in_float64_are_kept() -> None:
    torch.manual_seed(0)
    whole, beside = torch.randn(3 * BUCKETS, dtype=torch.float64), torch.ones(5)
    sketching = open_sketching(
        load("torch"), [SketchedPart(name="b", tensor=beside), SketchedPart(name="w", tensor=whole)]
    )
    first, before = sketching.take().result(), whole.numpy().copy()
    whole += 1e-9 * torch.randn_like(whole)
    step = Sketcher().sketch({"w": whole.numpy() - before})
    np.testing.assert_allclose(sketching.take().result() - first, step, atol=1e-13)


def sharded(plain: nn.Module, rank: int, rows: dict[int, slice]) -> nn.Module:
    """The model as a rank of an FSDP mesh holds it: some rows of each weight, biases whole."""
    # torch remembers offsets by mesh, whose equality does not tell ranks apart: names do
    mesh = init_device_mesh("cpu", (len(rows),), mesh_dim_names=(f"dp{rank}",))
    model = copy.deepcopy(plain)
    for layer in model:
        whole = layer.weight.detach()
        local = whole[rows[rank]].clone()
        dtensor = DTensor.from_local(local, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
        layer.weight = nn.Parameter(dtensor)
    return model


def test_the_shards_of_ranks_add_up_to_the_whole() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8))
    rows = {0: slice(0, 3), 1: slice(3, 6), 2: slice(6, 8)}
    total, framework = np.zeros(BUCKETS), load("torch")
    for rank in rows:
        with process_group("fake", store=FakeStore(), rank=rank, world_size=3):
            model = sharded(plain, rank, rows)
            parts = sketched_parts(framework, model, is_mine=any if rank else lambda axes: True)
            assert len(parts) == (2 if rank else 4)
            total += open_sketching(framework, parts).take().result()
            assert parameters_digest(framework, model) == parameters_digest(framework, plain)
    np.testing.assert_allclose(total, reference(plain), atol=1e-6)


def test_the_digest_is_of_trainable_names_and_shapes() -> None:
    framework = load("torch")
    one = parameters_digest(framework, network())
    assert one == parameters_digest(framework, nn.DataParallel(network()))
    assert one != parameters_digest(framework, network().requires_grad_(True))
