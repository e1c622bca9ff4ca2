"""PyTorch, plain and distributed.

The distributed parts run in this one process: gloo with a world of one, and torch's fake process group, which
is any rank of any world. Its collectives do nothing, so what needed one would give wrong values here.
"""

import copy
import io
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from distsummary.errors import InvalidValueError
from distsummary.format import records
from distsummary.training.values import scalar
from tests.frameworks.suite import FrameworkSuite


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3) / 7)
        self.bias = nn.Parameter(torch.tensor([0.1, -0.2]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("cache", torch.zeros(5), persistent=False)

    def forward(self, inputs):
        return inputs @ self.weight.T + self.bias


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(2))
        self.second = self.first


class TestTorch(FrameworkSuite):
    name = "torch"

    def make_tensor(self, array):
        return torch.from_numpy(array.copy())

    def make_model(self):
        return Dense()

    def make_tied_model(self):
        return Tied()

    def make_optimizer(self, model, learning_rate):
        return torch.optim.SGD(model.parameters(), lr=learning_rate)

    def fill(self, tensor, value):
        with torch.no_grad():
            tensor.fill_(value)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
    def test_small_floats_become_float32(self, framework, dtype):
        tensor = torch.tensor([1.0, -2.5]).to(dtype)
        assert framework.array_spec(tensor) == ((2,), np.float32)
        for array in (framework.to_numpy(tensor), framework.snapshot(tensor).result()):
            assert array.dtype == np.float32
            assert array.tolist() == [1.0, -2.5]

    def test_a_snapshot_of_small_floats_reports_the_bytes_that_they_become(self, framework):
        for tensor in (torch.ones(3, dtype=torch.bfloat16), torch.eye(2, dtype=torch.bfloat16).to_sparse()):
            snapshot = framework.snapshot(tensor)
            assert snapshot.nbytes == snapshot.result().nbytes == 4 * tensor.numel()

    def test_a_bfloat16_model_goes_out_as_float32_and_comes_back_exactly(self, framework):
        torch.manual_seed(0)
        model = nn.Linear(50, 50).bfloat16()
        other = nn.Linear(50, 50).bfloat16()
        for name, array in framework.state(model).items():
            framework.write(getattr(other, name), array)
        assert torch.equal(model.weight, other.weight)
        assert framework.state(model)["weight"].dtype == np.float32

    def test_sparse_conjugate_and_gradient_tensors_are_read(self, framework):
        assert framework.to_numpy(torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]
        assert framework.to_numpy(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
        assert framework.to_numpy(torch.ones(1, requires_grad=True) * 2).tolist() == [2]

    def test_frozen_parameters_are_in_the_state_but_not_trainable(self, framework):
        model = Dense()
        model.weight.requires_grad_(False)
        assert [name for name, _ in framework.named_parameters(model)] == ["bias"]
        assert "weight" in framework.state(model)

    def test_buffers_of_inner_modules_are_distinguished_by_persistence(self, framework):
        model = nn.Sequential(Dense(), nn.BatchNorm1d(2))
        assert framework.state(model).keys() == model.state_dict().keys()

    def test_reading_leaves_the_model_as_it_was(self, framework):
        model = Dense()
        model(torch.ones(1, 3)).sum().backward()
        before = [(p.detach().clone(), p.grad.clone(), p._version) for p in model.parameters()]
        framework.state(model)
        for parameter, (value, gradient, version) in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, value)
            assert torch.equal(parameter.grad, gradient)
            assert parameter._version == version
            assert parameter.requires_grad
            assert parameter.is_leaf

    def test_the_learning_rate_may_be_a_tensor(self, framework):
        optimizer = torch.optim.Adam(Dense().parameters(), lr=torch.tensor(0.25))
        assert framework.learning_rate(optimizer) == 0.25

    def test_the_initial_learning_rate_is_that_before_a_schedule_changed_it(self, framework):
        optimizer = torch.optim.SGD(Dense().parameters(), lr=0.5)
        assert framework.initial_learning_rate(optimizer) == 0.5
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
        optimizer.step()
        schedule.step()
        assert framework.learning_rates(optimizer) == [0.05]
        assert framework.initial_learning_rate(optimizer) == 0.5
        assert framework.initial_learning_rate(object()) is None

    def test_a_compiled_model_has_the_names_of_the_model(self, framework):
        assert list(framework.state(torch.compile(Dense(), backend="eager"))) == ["weight", "bias", "count"]


@contextmanager
def process_group(backend, **options):
    dist.init_process_group(backend, **options)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def gloo():
    with process_group("gloo", store=dist.HashStore(), rank=0, world_size=1):
        yield


@pytest.fixture
def framework():
    from distsummary.frameworks.torch import FRAMEWORK

    return FRAMEWORK


def test_ddp_is_unwrapped_and_reports_its_data_parallel_axis(gloo, framework):
    model = DistributedDataParallel(Dense())
    assert list(framework.state(model)) == ["weight", "bias", "count"]
    assert [name for name, _ in framework.named_parameters(model)] == ["weight", "bias"]
    assert framework.mesh(model) == {"dp": (0, 1)}
    framework.write(model.module.bias, np.array([1, 2], np.float32))
    assert model.module.bias.tolist() == [1, 2]


def test_fsdp2_alone_in_its_world_holds_whole_tensors(gloo, framework):
    plain = Dense()
    model = fully_shard(copy.deepcopy(plain), mesh=init_device_mesh("cpu", (1,)))
    assert isinstance(model.weight, DTensor)
    assert framework.shard(model.weight) is None
    assert framework.mesh(model) == {"dim_0": (0, 1)}
    state, expected = framework.state(model), framework.state(plain)
    assert state.keys() == expected.keys()
    assert all(np.array_equal(state[name], expected[name]) for name in expected)
    framework.write(model.bias, np.array([1, 2], np.float32))
    assert model.bias.to_local().tolist() == [1, 2]


def test_fsdp2_trains_on_what_was_loaded(gloo, framework):
    model = fully_shard(Dense(), mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)))
    framework.write(model.bias, np.array([1, 2], np.float32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    outputs = model(torch.zeros(1, 3))
    assert outputs.tolist() == [[1, 2]]
    outputs.sum().backward()
    optimizer.step()
    assert framework.state(model)["bias"].tolist() == [0.5, 1.5]
    assert framework.to_numpy(model.bias.grad).tolist() == [1, 1]


@contextmanager
def rank_of_four(rank):
    """One rank of a 2 x 2 mesh, whose axes bear its number because torch caches by mesh, not by rank."""
    with process_group("fake", store=FakeStore(), rank=rank, world_size=4):
        yield init_device_mesh("cpu", (2, 2), mesh_dim_names=(f"dp{rank}", f"tp{rank}"))


LAYOUTS = {
    "rows": (Shard(0), Replicate()),
    "columns": (Replicate(), Shard(1)),
    "both": (Shard(0), Shard(1)),
    "one axis twice": (Shard(0), Shard(0)),
}


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("placements", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("shape", [(5, 3), (2, 2)])
def test_a_shard_is_the_slice_of_the_global_tensor_that_lies_here(framework, rank, placements, shape):
    whole = torch.arange(float(np.prod(shape))).reshape(shape)
    with rank_of_four(rank) as mesh:
        tensor = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        shard, local = framework.shard(tensor), framework.to_numpy(tensor)
        spec = framework.array_spec(tensor)
        snapshot = framework.snapshot(tensor).result()
    assert isinstance(shard, records.Shard)
    assert shard.global_shape == shape
    slices = tuple(slice(start, start + size) for start, size in zip(shard.offset, local.shape, strict=True))
    np.testing.assert_array_equal(local, whole.numpy()[slices])
    np.testing.assert_array_equal(snapshot, local)
    assert spec == (local.shape, local.dtype)


def test_a_torch_without_its_private_function_reports_the_same_offsets(framework, monkeypatch):
    from torch.distributed.checkpoint import planner_helpers  # holds the function that is removed below

    assert planner_helpers is not None
    monkeypatch.delattr("torch.distributed.tensor._utils.compute_local_shape_and_global_offset")
    with rank_of_four(3) as mesh:
        shards = [
            framework.shard(distribute_tensor(torch.ones(5, 3), mesh, placed, src_data_rank=None))
            for placed in LAYOUTS.values()
        ]
    assert [shard.offset for shard in shards] == [(3, 0), (0, 2), (3, 2), (4, 0)]


def test_a_torch_with_other_modules_has_them_looked_through_each_time(framework):
    class Other(nn.Module):
        def __getattr__(self, name):
            raise AttributeError(name)

    model = Other()
    assert framework.watch(model)()
    del model.__dict__["_parameters"]
    assert not framework.watch(model)()


@pytest.mark.parametrize("rank", range(4))
def test_an_fsdp2_and_tensor_parallel_model_is_read_shard_by_shard(framework, rank):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    torch.manual_seed(0)
    plain = nn.Linear(3, 8)
    dp, tp = f"dp{rank}", f"tp{rank}"
    with rank_of_four(rank) as mesh:
        model = parallelize_module(copy.deepcopy(plain), mesh[tp], ColwiseParallel(), src_data_rank=None)
        fully_shard(model, mesh=mesh[dp])
        assert framework.mesh(model) == {dp: (rank // 2, 2), tp: (rank % 2, 2)}
        assert framework.nbytes(model) == 4 * (3 * 8 + 8)  # of the whole model
        state = framework.state(model)
        for name, parameter in framework.named_parameters(model):
            shard = framework.shard(parameter)
            whole = plain.get_parameter(name).detach().numpy()
            assert shard.global_shape == whole.shape
            begin = shard.offset[0]
            np.testing.assert_array_equal(state[name], whole[begin : begin + len(state[name])])
            assert len(state[name]) == 2


def test_the_mesh_has_the_axes_of_all_parameters(framework):
    model = Dense()
    with rank_of_four(2) as mesh:
        for name, axis in (("weight", "dp2"), ("bias", "tp2")):
            split = distribute_tensor(
                getattr(model, name).detach(), mesh[axis], [Shard(0)], src_data_rank=None
            )
            setattr(model, name, nn.Parameter(split))
        assert framework.mesh(model) == {"dp2": (1, 2), "tp2": (0, 2)}


def test_a_norm_of_which_this_rank_has_a_part_is_refused_as_a_number():
    with rank_of_four(1) as mesh:
        sharded = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Replicate()], src_data_rank=None)
        norm = torch.linalg.vector_norm(sharded)
        with pytest.raises(InvalidValueError, match=r"norm is spread over ranks.* log value.full_tensor\(\)"):
            scalar("norm", norm)


def test_the_axes_that_split_a_tensor_are_reported(framework):
    with rank_of_four(1) as mesh:
        axes = [
            framework.split_axes(distribute_tensor(torch.ones(4, 4), mesh, placed, src_data_rank=None))
            for placed in LAYOUTS.values()
        ]
    assert axes == [("dp1",), ("tp1",), ("dp1", "tp1"), ("dp1", "tp1")]
    with process_group("fake", store=FakeStore(), rank=1, world_size=2):
        unnamed = distribute_tensor(
            torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)], src_data_rank=None
        )
        assert framework.split_axes(unnamed) == ("dim_0",)


def test_a_replicated_dtensor_is_whole_and_a_pending_sum_is_refused(framework):
    with process_group("fake", store=FakeStore(), rank=1, world_size=2):
        mesh = init_device_mesh("cpu", (2,))
        replicated = DTensor.from_local(torch.ones(2), mesh, [Replicate()], run_check=False)
        pending = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
        assert framework.shard(replicated) is None
        assert framework.split_axes(replicated) == ()
        with pytest.raises(InvalidValueError, match="pending sum"):
            framework.shard(pending)


def test_unequal_ddp_ranks_report_their_own_place(framework):
    with process_group("fake", store=FakeStore(), rank=2, world_size=3):
        assert framework.mesh(DistributedDataParallel(Dense())) == {"dp": (2, 3)}


def test_a_copy_of_the_state_dict_format_is_the_same(framework):
    model = Dense()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert {name: tensor.numpy().tobytes() for name, tensor in loaded.items()} == {
        name: array.tobytes() for name, array in framework.state(model).items()
    }


@pytest.mark.parametrize("read", ["to_numpy", "snapshot", "histogram"])
@pytest.mark.parametrize("size", [8, 1 << 15])
def test_memory_that_was_read_can_be_resized_as_fsdp_does(framework, read, size):
    tensor = torch.rand(size, requires_grad=True)
    getattr(framework, read)(tensor)
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_snapshot_of_a_device_tensor_keeps_the_values_of_its_moment(framework, dtype):
    tensor = torch.arange(1 << 20, device="cuda").remainder(100).to(dtype)
    snapshots = [framework.snapshot(tensor)]
    for _ in range(3):
        tensor.add_(1)
        snapshots.append(framework.snapshot(tensor.view(1 << 10, 1 << 10).T))
    del tensor
    for index, snapshot in enumerate(snapshots):
        expected = np.arange(1 << 20).reshape(1 << 10, -1) % 100 + index
        array = snapshot.result().reshape(1 << 10, 1 << 10)
        np.testing.assert_array_equal(array.T if index else array, expected)
