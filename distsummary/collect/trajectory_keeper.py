"""Decides what this rank saves of each checkpoint (the model, its shards or nothing), and copies it.

Each rank decides from the mesh alone, without communicating, and holds its copies in its own memory until
they are written. So a model sharded over W ranks is copied once in total: a W-th of it on each rank.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from distsummary.attempts import Registration
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.shard_file import ShardRank
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.collect.lineage import class_name
from distsummary.collect.plan import Group
from distsummary.errors import InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import Array, Framework, framework_of
from distsummary.topology import Topology

Mesh: TypeAlias = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrajectory:
    """Copies this rank's share of the network when a checkpoint is due; `writer` then saves it."""

    writer: TrajectoryWriter
    unit: str
    framework: Framework
    network: Any
    share: "Share"

    def due(self, unit: str, number: int) -> bool:
        """Whether this step or epoch is planned and not yet saved."""
        return unit == self.unit and self.writer.due(number)

    def take(self, number: int) -> tuple[Callable[[], object], int]:
        """Copy what this rank saves; returns the function that writes it, and the bytes held until then.

        Raises InvalidValueError if FSDP2 has gathered a parameter that was sharded when the training began,
        or the other way round, because gathered values may be rounded or older than the shards. (This
        method cannot reshard by itself: all ranks must do so, but only those that keep a trajectory call it.)
        """
        state: dict[str, Array] = {}
        slices: dict[str, Shard] = {}
        for name, tensor in self.framework.tensors(self.network):
            shard = self.framework.shard(tensor)
            if (shard is not None) != (name in self.share.split):
                was, is_now = ("in shards", "whole") if shard is None else ("whole", "in shards")
                raise InvalidValueError(
                    f"{name} is {is_now}, and was {was} when the training began; FSDP2 gathers parameters "
                    "for an evaluation: call model.reshard() after it"
                )
            if self.share.holds(self.framework.split_axes(tensor)):
                state[name] = array = self.framework.to_numpy(tensor)
                slices[name] = shard or Shard(global_shape=array.shape, offset=(0,) * array.ndim)
        save = partial(self.writer.save, number, state, slices if self.share.shard_rank else None)
        return save, sum(array.nbytes for array in state.values())


def keep_trajectory(
    spec: LandscapeSpec,
    network: Any,
    ckpt_dir: Path,
    topology: Topology,
    group: Group,
    registration: Registration,
    *,
    step_per_epoch: int,
) -> KeptTrajectory | None:
    """The KeptTrajectory of this rank; None if the rank saves nothing.

    `group`: the ranks that hold the same whole tensors as this one. Raises what `share_of` raises.
    """
    share = share_of(network, topology, group, attempt=registration.attempt)
    if share is None:
        return None
    writer = TrajectoryWriter(
        ckpt_dir,
        spec,
        model_name=class_name(network) or "model",
        run_id=registration.run_id,
        step_per_epoch=step_per_epoch,
        shard_rank=share.shard_rank,
    )
    framework = framework_of(network)
    return KeptTrajectory(writer=writer, unit=spec.unit, framework=framework, network=network, share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The tensors and shards of a model that this rank saves.

    Attributes:
        shard_rank: this rank's place among those that save shards; None if it saves the whole model.
        mesh: the mesh of a sharded model; empty for a model that is whole on this rank.
        split: the names of the sharded tensors.
    """

    shard_rank: ShardRank | None
    mesh: Mesh
    split: frozenset[str]

    def holds(self, split_axes: Collection[str]) -> bool:
        """Whether this rank saves its slice of a tensor split along these axes, or an unsplit tensor."""
        return is_first(self.mesh, split_axes)


def share_of(network: Any, topology: Topology, group: Group, *, attempt: int) -> Share | None:
    """The share of the network that this rank saves; None if it saves nothing.

    `group`: the ranks that hold the same whole tensors as this one. Raises InvalidValueError if it
    is unknown which ranks hold copies of the model and which hold parts.
    """
    framework = framework_of(network)
    split = {
        name: axes for name, tensor in framework.tensors(network) if (axes := framework.split_axes(tensor))
    }
    if not split:
        if topology.rank == 0 and group.size != topology.world_size:
            raise InvalidValueError(
                f"the mesh is {dict(topology.mesh)}, so rank 0 may hold only a part of the model; "
                "use tensors that know their shards (DTensor)"
            )
        return Share(shard_rank=None, mesh={}, split=frozenset()) if topology.rank == 0 else None
    mesh = framework.mesh(network)
    place = shard_rank_of(mesh, set(chain(*split.values())), topology, attempt=attempt)
    return None if place is None else Share(shard_rank=place, mesh=mesh, split=frozenset(split))


def is_first(mesh: Mesh, split: Collection[str]) -> bool:
    """Whether this rank is the first of those that hold its slice of a tensor split along these axes."""
    return all(coordinate == 0 for axis, (coordinate, _) in mesh.items() if axis not in split)


def shard_rank_of(
    mesh: Mesh, split: Collection[str], topology: Topology, *, attempt: int
) -> ShardRank | None:
    """This rank's place among those that write a model split along these axes; None if it only holds copies.

    If every rank writes, the place is the rank's number. Otherwise it is the index among the ranks that
    write, which is the rank's number if copies lie along the outer mesh axis, as in hybrid sharding. Raises
    InvalidValueError for a mesh that does not contain all ranks.
    """
    world_size = math.prod(size for _, size in mesh.values())
    if world_size != topology.world_size:
        raise InvalidValueError(
            f"the mesh of the model, {dict(mesh)}, has {world_size} of {topology.world_size} ranks, so "
            "copies and shards cannot be distinguished; use one mesh for all ranks"
        )
    if not is_first(mesh, split):
        return None
    place, ranks = 0, 1
    for axis, (coordinate, size) in mesh.items():
        if axis in split:
            place, ranks = place * size + coordinate, ranks * size
    return ShardRank(rank=topology.rank if ranks == world_size else place, ranks=ranks, attempt=attempt)
