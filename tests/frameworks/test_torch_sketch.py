"""Sketches of torch parameters: the numbers of the numpy reference, on the host and by device kernels."""

import copy
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from distsummary.checkpoints.sketch import torch_sketch
from distsummary.checkpoints.sketch.count_sketch import BUCKETS, CHUNK, Sketcher, signs
from distsummary.checkpoints.sketch.keeper import open_sketching
from distsummary.checkpoints.sketch.parts import ModelParts, SketchedPart
from distsummary.checkpoints.sketch.torch_sketch import SUMMED, on_device
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.frameworks.base import load
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
    parts = ModelParts(framework, model)
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


def test_more_chunks_than_go_at_a_time_and_a_start_inside_of_one_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_sketch, "GROUP", 2)
    flat = torch.randn(4 * CHUNK + 77)  # of which 3 are whole in one run
    part = SketchedPart(name="w", tensor=flat, runs=((0, slice(0, 1000)), (1000, slice(1000, None))))
    expected = Sketcher().sketch({"w": flat.numpy()})
    found = on_device(Sketcher(), torch.from_numpy(signs(0)), [part]).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(open_sketching(load("torch"), [part]).take().result(), expected, atol=1e-4)


def test_a_sketch_is_of_the_moment_it_is_taken_and_touches_nothing() -> None:
    model, framework = network(), load("torch")
    before = copy.deepcopy(model.state_dict())
    sketching = open_sketching(framework, ModelParts(framework, nn.DataParallel(model)))
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


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.t(),
        lambda w: w.flip(0),
        lambda w: torch.empty(0, dtype=torch.float64).set_(w.untyped_storage(), 0, (6, 6)),
    ],
    ids=["transposed in place", "other memory", "another dtype"],
)
def test_what_was_made_ready_for_one_view_of_the_memory_is_not_used_for_another(change: Any) -> None:
    torch.manual_seed(0)
    tensor, double = torch.rand(12, 6)[:6], torch.ones(2, dtype=torch.float64)
    parts = [SketchedPart(name="w", tensor=tensor), SketchedPart(name="d", tensor=double)]
    sketching = open_sketching(load("torch"), parts)
    sketching.take()
    tensor.data = change(tensor.data)
    expected = Sketcher().sketch({"w": tensor.numpy(), "d": double.numpy()})
    np.testing.assert_allclose(sketching.take().result(), expected, atol=1e-6)


def test_what_is_ready_is_made_again_for_sums_of_more_bits() -> None:
    one, other = torch.rand(6), torch.rand(6)
    parts = [SketchedPart(name="one", tensor=one), SketchedPart(name="other", tensor=other)]
    sketching = open_sketching(load("torch"), parts)
    for dtype in (torch.float32, torch.float64, torch.float32):
        other.data = other.data.to(dtype)
        expected = Sketcher().sketch({"one": one.numpy(), "other": other.numpy()})
        np.testing.assert_allclose(sketching.take().result(), expected, atol=1e-6)


def test_what_is_ready_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, framework = network(), load("torch")
    sketching = open_sketching(framework, ModelParts(framework, model))
    expected = sketching.take().result()
    monkeypatch.setattr(Sketcher, "pieces", None)
    np.testing.assert_array_equal(sketching.take().result(), expected)


def replace_one(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(torch.rand(7, 5))


def replace_a_layer(model: nn.Module) -> None:
    model[0] = nn.Linear(5, 7)


def assign_a_state(model: nn.Module) -> None:
    state = {name: 2 * tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def empty_and_load(model: nn.Module) -> None:
    state = copy.deepcopy(model.state_dict())
    model.to("meta").to_empty(device="cpu").load_state_dict(state)


def swap(model: nn.Module) -> None:
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.rand(7, 5)))


def freeze(model: nn.Module) -> None:
    model[0].requires_grad_(False)


@pytest.mark.parametrize(
    "change", [replace_one, replace_a_layer, assign_a_state, empty_and_load, swap, freeze]
)
def test_a_sketch_is_of_the_tensors_that_the_model_has_then(change: Any) -> None:
    model, framework = network(), load("torch")
    sketching = open_sketching(framework, ModelParts(framework, model))
    sketching.take()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    change(model)
    with torch.no_grad():
        model[0].weight.add_(1)
    expected = Sketcher().sketch({name: model.get_parameter(name).detach().numpy() for name in names})
    np.testing.assert_allclose(sketching.take().result(), expected, atol=1e-5)


def replace_by_one_to_copy(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(torch.rand(5, 7).t())


@pytest.mark.parametrize("replace", [replace_one, replace_by_one_to_copy])
def test_a_tensor_that_was_replaced_is_not_kept(replace: Any) -> None:
    model, framework, memory = network(), load("torch"), np.ones((7, 5), np.float32)
    model[0].weight = nn.Parameter(torch.from_numpy(memory))
    sketching = open_sketching(framework, ModelParts(framework, model))
    sketching.take()
    before = weakref.ref(memory)
    del memory
    replace(model)
    sketching.take()
    assert before() is None


def unfreeze(model: nn.Module) -> None:
    model[1].requires_grad_(True)


def add(model: nn.Module) -> None:
    model[0].register_parameter("adapter", nn.Parameter(torch.ones(2)))


def remove(model: nn.Module) -> None:
    del model[0]


def prune(model: nn.Module) -> None:
    model[0].weight.data = model[0].weight.data[:3]


@pytest.mark.parametrize(
    ("change", "named"),
    [(unfreeze, "1.bias"), (add, "0.adapter"), (remove, "0.weight"), (prune, "0.weight")],
)
def test_a_change_of_what_is_trained_is_refused_by_a_name(change: Any, named: str) -> None:
    model, framework = network(), load("torch")
    sketching = open_sketching(framework, ModelParts(framework, model))
    sketching.take()
    change(model)
    with pytest.raises(InvalidValueError, match=rf"{named} was added, .*; start another attempt"):
        sketching.take()


def test_parameters_without_values_have_no_sketch() -> None:
    model, framework = network(), load("torch")
    sketching = open_sketching(framework, ModelParts(framework, model))
    model.to("meta")
    with pytest.raises(InvalidValueError, match=r"0\.weight is on the device meta"):
        sketching.take()


def test_complex_parameters_are_refused_and_not_halved() -> None:
    sketching = open_sketching(load("torch"), [SketchedPart(name="w", tensor=torch.ones(3) * 1j)])
    with pytest.raises(InvalidTypeError, match="a sketch needs real numbers"):
        sketching.take()


def test_sparse_parameters_are_refused_by_name() -> None:
    sketching = open_sketching(load("torch"), [SketchedPart(name="w", tensor=torch.eye(3).to_sparse())])
    with pytest.raises(InvalidTypeError, match=r"w is sparse \(torch.sparse_coo\); keep it dense"):
        sketching.take()


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


def test_ones_are_not_lost_next_to_millions() -> None:
    """A bucket has one of each: of 32 bits, their sum would be rounded."""
    million, one = torch.full((BUCKETS,), 2.0**24), torch.ones(BUCKETS)
    between = [SketchedPart(name=str(n), tensor=torch.zeros(1)) for n in range(SUMMED)]
    parts = [SketchedPart(name="m", tensor=million), *between, SketchedPart(name="one", tensor=one)]
    exact = Sketcher().sketch({"m": million.numpy(), "one": one.numpy()})
    np.testing.assert_array_equal(open_sketching(load("torch"), parts).take().result(), exact)
    chunks = torch.cat((million, torch.zeros(CHUNK - BUCKETS), one, torch.zeros(CHUNK - BUCKETS)))
    found = on_device(Sketcher(), torch.from_numpy(signs(0)), [SketchedPart(name="w", tensor=chunks)])
    np.testing.assert_array_equal(found.numpy(), Sketcher().sketch({"w": chunks.numpy()}))


def test_small_steps_of_parameters_in_float64_are_kept() -> None:
    torch.manual_seed(0)
    whole, bias = torch.randn(3 * BUCKETS, dtype=torch.float64), torch.ones(5)
    sketching = open_sketching(
        load("torch"), [SketchedPart(name="b", tensor=bias), SketchedPart(name="w", tensor=whole)]
    )
    first, before = sketching.take().result(), whole.numpy().copy()
    whole += 1e-9 * torch.randn_like(whole)
    step = Sketcher().sketch({"w": whole.numpy() - before})
    np.testing.assert_allclose(sketching.take().result() - first, step, atol=1e-13)


def sharded(plain: nn.Module, rank: int, rows: dict[int, slice]) -> nn.Module:
    """The model as a rank of an FSDP mesh holds it: some rows of each weight, biases whole."""
    # torch remembers offsets by mesh, whose equality does not distinguish ranks: names do
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
            parts = ModelParts(framework, model, is_mine=any if rank else lambda axes: True)
            assert len(list(parts)) == (2 if rank else 4)
            total += open_sketching(framework, parts).take().result()
            assert ModelParts(framework, model).digest == ModelParts(framework, plain).digest
    np.testing.assert_allclose(total, reference(plain), atol=1e-6)


def test_gathered_parameters_are_sketched_as_the_shards_they_were_gathered_from() -> None:
    plain, framework = nn.Sequential(nn.Linear(6, 8)), load("torch")
    rows = {0: slice(0, 4), 1: slice(4, 8)}
    with process_group("fake", store=FakeStore(), rank=0, world_size=2):
        model = sharded(plain, 0, rows)
        shard = model[0].weight
        sketching = open_sketching(framework, ModelParts(framework, model))
        expected = sketching.take().result()
        model[0].weight = nn.Parameter(plain[0].weight.detach() + 1)
        np.testing.assert_array_equal(sketching.take().result(), expected)
        model[0].weight = nn.Parameter(2 * shard.detach())
        assert not np.allclose(sketching.take().result(), expected)


def test_parameters_that_look_at_one_memory_are_sketched_once() -> None:
    one, framework = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}), load("torch")
    one["b"].weight = one["a"].weight
    other = copy.deepcopy(one)
    other["b"].weight = nn.Parameter(other["a"].weight.data)
    sketches = [
        open_sketching(framework, ModelParts(framework, model)).take().result() for model in (one, other)
    ]
    np.testing.assert_array_equal(*sketches)
    assert ModelParts(framework, one).digest == ModelParts(framework, other).digest
    for layer in (one["a"], one["b"]):
        layer.bias.untyped_storage().resize_(0)  # as FSDP frees what it has gathered: they are at no address
    assert {"a.bias", "b.bias"} < dict(framework.named_parameters(one)).keys()


def test_the_digest_is_of_trainable_names_and_shapes() -> None:
    framework = load("torch")
    one = ModelParts(framework, network()).digest
    assert one == ModelParts(framework, nn.DataParallel(network())).digest
    assert one != ModelParts(framework, network().requires_grad_(True)).digest
