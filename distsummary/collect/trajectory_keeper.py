"""Decides what this rank saves of each checkpoint (the model, its shards or nothing), and copies it.

Each rank decides from the mesh alone, without communicating, and holds its copies in its own memory until
they are written. So a model sharded over W ranks is copied once in total: a W-th of it on each rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.share import SavedShare, share_of
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.collect.run_lineage import class_name
from distsummary.errors import InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import Array, Framework, framework_of
from distsummary.rundir.attempts import Registration
from distsummary.rundir.deal import Group
from distsummary.rundir.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrajectory:
    """Copies this rank's share of the network when a checkpoint is due; `writer` then saves it."""

    writer: TrajectoryWriter
    unit: str
    framework: Framework
    network: Any
    share: SavedShare

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
    share = share_of(network, topology, group.size, attempt=registration.attempt)
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
