"""Trajectories of models whose tensors are in shards, rank by rank on fake process groups."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import distsummary as ds
from distsummary import Topology
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.trajectory import read
from distsummary.collect.checkpoint_keeper import KeptTrajectory, keep_trajectory
from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import load
from distsummary.rundir.attempts import Registration
from distsummary.rundir.deal import Group
from tests.frameworks.test_torch import process_group

WORLD = 4


def network() -> nn.Module:
    """Rows that 4 ranks do not divide, a frozen layer, buffers, and a parameter without a dimension."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 3).requires_grad_(False))
    model.register_buffer("scale", torch.tensor(2.5))
    return model


def fsdp(model: nn.Module, rank: int) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,), mesh_dim_names=(f"fsdp{rank}",)))


def hybrid(model: nn.Module, rank: int) -> nn.Module:
    names = (f"dp_replicate{rank}", f"dp_shard{rank}")
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=names))


def fsdp_and_tp(model: nn.Module, rank: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=(f"fsdp{rank}", f"tp{rank}"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh[f"tp{rank}"], plan, src_data_rank=None)
    return fully_shard(model, mesh=mesh[f"fsdp{rank}"])


def kept(model: nn.Module, ckpt_dir: Path, rank: int) -> KeptTrajectory | None:
    return keep_trajectory(
        LandscapeSpec(intervals=((1, 2, 3),)), model, ckpt_dir, Topology(rank=rank, world_size=WORLD),
        Group(index=rank, size=WORLD), Registration(run_id="0" * 16, attempt=0), step_per_epoch=1,
    )  # fmt: skip


# how the model is cut -> which ranks write
CUTS: dict[str, tuple[Any, list[int]]] = {
    "fsdp": (fsdp, [0, 1, 2, 3]),
    "hybrid": (hybrid, [0, 1]),
    "fsdp and tp": (fsdp_and_tp, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("cut", "writing"), CUTS.values(), ids=CUTS.keys())
def test_what_the_ranks_save_is_the_state_of_the_whole_model(nasty_tmp_path, cut, writing):
    # torch remembers offsets by mesh, whose equality does not distinguish ranks: names of axes do
    plain, sizes = network(), {}
    for rank in range(WORLD):
        with process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD):
            trajectory = kept(cut(copy.deepcopy(plain), rank), nasty_tmp_path, rank)
            if trajectory is not None:
                save, sizes[rank] = trajectory.take(1)
                save()
    assert list(sizes) == writing
    expected = load("torch").state(plain)
    assert sum(sizes.values()) == sum(array.nbytes for array in expected.values()), "each element once"
    found = read(nasty_tmp_path)
    assert found.numbers == (1,)
    state = found.open(1)
    assert list(state) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
        assert state[name].dtype == array.dtype


def test_what_fsdp2_has_gathered_at_either_time_is_refused(tmp_path: Path) -> None:
    with process_group("fake", store=FakeStore(), rank=0, world_size=WORLD):
        plain, model = network(), network()
        before = kept(model, tmp_path, 0)
        fsdp(model, 0)
        after = kept(model, tmp_path, 0)
        after.take(1)
        with pytest.raises(
            InvalidValueError, match=r"0\.weight is in shards, and was whole .*model\.reshard\(\)"
        ):
            before.take(1)
        model[0].weight = nn.Parameter(plain[0].weight.detach())  # as FSDP2 shows it within a step
        with pytest.raises(
            InvalidValueError, match=r"0\.weight is whole, and was in shards .*model\.reshard\(\)"
        ):
            after.take(1)


def test_a_mesh_of_some_ranks_is_refused(tmp_path: Path) -> None:
    with process_group("fake", store=FakeStore(), rank=0, world_size=WORLD):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        model = fully_shard(network(), mesh=mesh["dp"])
        with pytest.raises(InvalidValueError, match="has 2 of 4 ranks"):
            kept(model, tmp_path, 0)


def test_a_model_without_shapes_yet_keeps_its_checkpoints(tmp_path: Path) -> None:
    model = nn.LazyLinear(4)
    asked = {"intervals": [[1, 2, 3]]}
    with ds.init(tmp_path, watch=model, record=ds.Record(collect_landscape=asked)) as run:
        for batch in run.steps([torch.rand(2, 3)] * 3):
            model(batch)
    assert read(tmp_path / "ckpt_dir").numbers == (1, 2, 3)
