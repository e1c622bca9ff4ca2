"""Which rank saves what of a model in shards: decided by each alone, and every slice saved once."""

from itertools import product

import numpy as np
import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.share import is_first, shard_rank_of
from distsummary.collect.checkpoint_keeper import keep_trajectory
from distsummary.errors import InvalidValueError
from distsummary.rundir.attempts import Registration
from distsummary.rundir.deal import Group
from distsummary.rundir.topology import Topology
from tests.unit.collect.doubles import Model

# The axes of a mesh, the outermost first, and which of them split the tensors of a model.
MESHES = {
    "fsdp": ({"dim_0": 3}, [("dim_0",), ()]),
    "hybrid": ({"dp_replicate": 2, "dp_shard": 3}, [("dp_shard",), ()]),
    "fsdp and tp": ({"fsdp": 2, "tp": 2}, [("fsdp", "tp"), ("fsdp",), ()]),
    "each by another axis": ({"a": 2, "b": 2}, [("a",), ("b",)]),
    "copies inside": ({"shard": 2, "copies": 3}, [("shard",), ()]),
}


def ranks_of(sizes):
    """Each rank's mesh: axis to (coordinate, size)."""
    for coordinates in product(*map(range, sizes.values())):
        yield {axis: (at, sizes[axis]) for axis, at in zip(sizes, coordinates, strict=True)}


@pytest.mark.parametrize(("sizes", "tensors"), MESHES.values(), ids=MESHES.keys())
def test_every_slice_is_saved_by_one_rank_and_the_ranks_that_save_count_from_0(sizes, tensors):
    split = {axis for axes in tensors for axis in axes}
    meshes = list(ranks_of(sizes))
    parts = {
        rank: shard_rank_of(mesh, split, Topology(rank=rank, world_size=len(meshes)), attempt=2)
        for rank, mesh in enumerate(meshes)
    }
    written = [part for part in parts.values() if part is not None]
    assert [part.rank for part in written] == list(range(len(written)))
    assert {(part.ranks, part.attempt) for part in written} == {(len(written), 2)}
    for axes in tensors:
        slices = [
            tuple(mesh[axis][0] for axis in axes)
            for rank, mesh in enumerate(meshes)
            if parts[rank] and is_first(mesh, axes)
        ]
        assert sorted(slices) == list(product(*(range(sizes[axis]) for axis in axes)))


def test_a_part_has_the_number_of_its_rank_where_every_rank_writes():
    mesh = {"fsdp": (0, 2)}  # of a mesh that counts the ranks backwards
    assert shard_rank_of(mesh, ["fsdp"], Topology(rank=1, world_size=2), attempt=0).rank == 1


def test_a_mesh_of_some_ranks_alone_is_refused():
    with pytest.raises(InvalidValueError, match=r"has 2 of 4 ranks, so copies and shards .*; use one mesh"):
        shard_rank_of({"fsdp": (0, 2)}, ["fsdp"], Topology(world_size=4), attempt=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_whole_model_is_copied_by_rank_0_alone(tmp_path, rank):
    spec = LandscapeSpec(intervals=((1, 2, 3),))
    kept = keep_trajectory(
        spec, Model(), tmp_path, Topology(rank=rank, world_size=2), Group(index=rank, size=2),
        Registration(run_id="r", attempt=0), step_per_epoch=1,
    )  # fmt: skip
    if rank:
        assert kept is None
        return
    assert [kept.due("step", 1), kept.due("epoch", 1), kept.due("step", 4)] == [True, False, False]
    save, nbytes = kept.take(1)
    assert nbytes == sum(np.arange(7)) * 8
    kept.network.parameters["layer1.weight"] += 1
    save()
    from distsummary.checkpoints.trajectory import read

    assert read(tmp_path).load(1)["layer1.weight"].tolist() == [1.0]
    assert not kept.due("step", 1)
