"""Which tensors and shards of a model this rank saves: decided from the mesh alone, without communicating."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from distsummary.checkpoints.shard_file import ShardRank
from distsummary.errors import InvalidValueError
from distsummary.frameworks.base import framework_of
from distsummary.rundir.topology import Topology

Mesh: TypeAlias = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedShare:
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


def share_of(network: Any, topology: Topology, copies: int, *, attempt: int) -> SavedShare | None:
    """The share of the network that this rank saves; None if it saves nothing.

    `copies`: the number of ranks that hold the same whole tensors as this one. Raises InvalidValueError if it
    is unknown which ranks hold copies of the model and which hold parts.
    """
    framework = framework_of(network)
    split = {
        name: axes for name, tensor in framework.tensors(network) if (axes := framework.split_axes(tensor))
    }
    if not split:
        # Tensors that look whole may be parts that do not say so.
        if topology.rank == 0 and copies != topology.world_size:
            raise InvalidValueError(
                f"the mesh is {dict(topology.mesh)}, so rank 0 may hold only a part of the model; "
                "use tensors that know their shards (DTensor)"
            )
        return SavedShare(shard_rank=None, mesh={}, split=frozenset()) if topology.rank == 0 else None
    mesh = framework.mesh(network)
    place = shard_rank_of(mesh, set(chain(*split.values())), topology, attempt=attempt)
    return None if place is None else SavedShare(shard_rank=place, mesh=mesh, split=frozenset(split))


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
    # The index of this rank along the split axes, in the order of the mesh.
    place, ranks = 0, 1
    for axis, (coordinate, size) in mesh.items():
        if axis in split:
            place, ranks = place * size + coordinate, ranks * size
    return ShardRank(rank=topology.rank if ranks == world_size else place, ranks=ranks, attempt=attempt)
