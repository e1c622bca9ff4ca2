"""What this rank keeps of the model for the trajectory: all of it, its shards, or nothing that another has.

No rank asks another. Each decides by the mesh alone, and holds its own copies until they are written: those
count in its own budget, so that a model on W ranks is held once, a W-th of it on each.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from distsummary.checkpoints.shard_file import Part
from distsummary.checkpoints.trajectory import LandscapeSpec, TrajectoryWriter
from distsummary.collect.lineage import class_name
from distsummary.collect.plan import Group
from distsummary.coordination import Registration
from distsummary.errors import InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import Array, Framework, framework_of
from distsummary.topology import Topology

Mesh: TypeAlias = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrajectory:
    """The checkpoints that are due, copied from the network and handed to the writer."""

    writer: TrajectoryWriter
    unit: str
    framework: Framework
    network: Any
    share: "Share"

    def due(self, unit: str, number: int) -> bool:
        """Whether this step or epoch is planned and not yet saved."""
        return unit == self.unit and self.writer.due(number)

    def take(self, number: int) -> tuple[Callable[[], object], int]:
        """Copy what this rank saves as it is now: what writes it, and the bytes that are held until then.

        Raises InvalidValueError where FSDP2 has gathered what was in shards when the training began, or the
        other way round: gathered values may be rounded, or older than the shards. (To reshard here would let
        ranks differ in what they gather next, where one of them keeps no trajectory.)
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
        save = partial(self.writer.save, number, state, slices if self.share.part else None)
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
    """The trajectory as far as this rank keeps it, None if that is nothing.

    `group` are the ranks that hold the same whole tensors as this one. Raises InvalidValueError where copies
    cannot be told from parts of the model, so that nothing is kept.
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
        part=share.part,
    )
    framework = framework_of(network)
    return KeptTrajectory(writer=writer, unit=spec.unit, framework=framework, network=network, share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What this rank keeps of a model.

    Attributes:
        part: its place among the ranks that keep a part; None where it keeps the whole model alone.
        mesh: of a model in shards, empty for one that is whole here.
        split: the names of what is in shards.
    """

    part: Part | None
    mesh: Mesh
    split: frozenset[str]

    def holds(self, split_axes: Collection[str]) -> bool:
        """Whether this rank keeps a tensor that these axes split, or its slice of it."""
        return is_first(self.mesh, split_axes)


def share_of(network: Any, topology: Topology, group: Group, *, attempt: int) -> Share | None:
    """What this rank keeps of the network, None if that is nothing.

    `group` are the ranks that hold the same whole tensors as this one. Raises InvalidValueError where copies
    cannot be told from parts of the model.
    """
    framework = framework_of(network)
    split = {
        name: axes for name, tensor in framework.tensors(network) if (axes := framework.split_axes(tensor))
    }
    if not split:
        return Share(part=None, mesh={}, split=frozenset()) if has_whole(topology, group) else None
    mesh = framework.mesh(network)
    part = part_of(mesh, set(chain(*split.values())), topology, attempt=attempt)
    return None if part is None else Share(part=part, mesh=mesh, split=frozenset(split))


def has_whole(topology: Topology, group: Group) -> bool:
    """Whether this rank is the one that saves a model of which no tensor is split.

    Raises InvalidValueError if others may hold something else under the same names.
    """
    if topology.rank == 0 and group.size != topology.world_size:
        raise InvalidValueError(
            f"the mesh is {dict(topology.mesh)}, so rank 0 may hold a part of the model only; "
            "use tensors that tell their shards (DTensor)"
        )
    return topology.rank == 0


def is_first(mesh: Mesh, split: Collection[str]) -> bool:
    """Whether no rank of smaller coordinates holds the same slice of a tensor that these axes split."""
    return all(coordinate == 0 for axis, (coordinate, _) in mesh.items() if axis not in split)


def part_of(mesh: Mesh, split: Collection[str], topology: Topology, *, attempt: int) -> Part | None:
    """Which part of a model this rank writes whose tensors these axes split; None for a rank of copies.

    Where every rank writes, `Part.rank` is the rank itself; else its place among those that do, which is the
    rank too where copies are the outer axis of the mesh, as in hybrid sharding. Raises InvalidValueError for
    a mesh that is not of all ranks.
    """
    world_size = math.prod(size for _, size in mesh.values())
    if world_size != topology.world_size:
        raise InvalidValueError(
            f"the mesh of the model, {dict(mesh)}, has {world_size} of {topology.world_size} ranks, so that "
            "copies cannot be told from shards; use one mesh for all ranks"
        )
    if not is_first(mesh, split):
        return None
    place, ranks = 0, 1
    for axis, (coordinate, size) in mesh.items():
        if axis in split:
            place, ranks = place * size + coordinate, ranks * size
    return Part(rank=topology.rank if ranks == world_size else place, ranks=ranks, attempt=attempt)
