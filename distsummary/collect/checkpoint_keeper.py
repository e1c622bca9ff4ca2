"""CheckpointKeeper: saves what one rank keeps of the trajectory of its training, in the background.

Of each checkpoint a rank saves the model, its shards or nothing. It decides that from the mesh alone, without
communicating, and holds its copies in its own memory until they are written. So a model sharded over W ranks
is copied once in total: a W-th of it on each rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distsummary.base.failures import Failures
from distsummary.base.guard import guarded_log
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.mindspore_ckpt import holds as holds_ckpt
from distsummary.checkpoints.share import SavedShare, share_of
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.collect.background import Background
from distsummary.collect.run_lineage import class_name
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import Array, Framework, framework_of
from distsummary.rundir.attempts import Registration
from distsummary.rundir.deal import Group
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.training.step_context import ENDED_LATE

logger = guarded_log(__name__)

# A checkpoint cannot be recorded later, so the training waits up to this long for a slow disk; but it waits
# only once for a disk that does not respond.
CHECKPOINT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTrajectory:
    """Copies this rank's share of the network when a checkpoint is due; `writer` then saves it."""

    writer: TrajectoryWriter
    unit: str
    framework: Framework
    network: Any
    share: SavedShare
    left_out: frozenset[str]  # buffers that the file cannot hold

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
            if name in self.left_out:
                continue
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
    trained = {name for name, _ in framework.named_parameters(network)}.union(
        framework.frozen_parameters(network)
    )
    left_out: dict[str, str] = {}
    for name, tensor in framework.tensors(network):
        # Only parameters move along the path: a landscape takes the buffers of the model that it is given.
        if name not in trained and not holds_ckpt(dtype := _dtype_of(framework, tensor)):
            left_out[name] = str(dtype)
    if left_out:
        logger.warning(
            "the checkpoints of the trajectory leave out buffers whose dtypes a .ckpt cannot hold: %s",
            ", ".join(f"{name} ({dtype})" for name, dtype in left_out.items()),
        )
    return KeptTrajectory(
        writer=writer,
        unit=spec.unit,
        framework=framework,
        network=network,
        share=share,
        left_out=frozenset(left_out),
    )


def _dtype_of(framework: Framework, tensor: Any) -> Any:
    """The dtype of a tensor's array; of a tensor that has none, such as a quantized one, its own."""
    try:
        return framework.array_spec(tensor).dtype
    except (InvalidTypeError, InvalidValueError):
        return tensor.dtype


class CheckpointKeeper:
    """Keeps checkpoints of a network, once `begin` was called.

    Rank 0 keeps replicated parameters; each rank keeps its shards.

    Args:
        run_dir, topology, registration: the run, this rank and its attempt.
        files: the thread that writes.
        failures: counts what cannot be kept.
        report_unsaved: called with the step and the reason when a checkpoint that is due is not saved; from
            any thread.
    """

    def __init__(
        self,
        run_dir: RunDir,
        topology: Topology,
        registration: Registration,
        *,
        files: Background,
        failures: Failures,
        report_unsaved: Callable[[int, str], None],
    ) -> None:
        self._run_dir, self._topology, self._registration = run_dir, topology, registration
        self._files, self._failures, self._report_unsaved = files, failures, report_unsaved
        self._trajectory: KeptTrajectory | None = None

    @property
    def is_active(self) -> bool:
        """Whether anything is kept."""
        return self._trajectory is not None

    def begin(self, spec: LandscapeSpec, network: object, group: Group, step_per_epoch: int) -> None:
        """From now on, keep what `spec` names of the network; `group`: see `keep_trajectory`."""
        if self._topology.role != "train":
            return
        if spec.intervals:
            self._trajectory = self._failures.call(
                "no trajectory is kept",
                keep_trajectory,
                spec,
                network,
                self._run_dir.ckpt_dir,
                self._topology,
                group,
                self._registration,
                step_per_epoch=step_per_epoch,
            )

    def save(self, unit: str, number: int, *, step: int, is_late: bool) -> None:
        """Save this step or epoch if it is planned for the trajectory.

        `step`: the step of a report that something is not saved. If `is_late`, the model may have changed
        since the step or epoch ended: nothing is saved, and a checkpoint that is due is counted as dropped.
        """
        kept = self._trajectory
        if kept is None or not kept.due(unit, number):
            return
        if is_late:
            self._failures.count(ENDED_LATE, dropped={"checkpoint": 1})
            self._report_unsaved(step, ENDED_LATE)
            return
        name = f"checkpoint of {unit} {number} of the trajectory"
        try:
            # Copy now: the next step changes the values.
            save, nbytes = kept.take(number)
        except Exception as error:
            self._report_unsaved(step, f"{name}: {error}")
            raise
        unsaved = partial(self._report_unsaved, step)
        self._files.submit(name, save, nbytes=nbytes, wait_s=CHECKPOINT_WAIT_S, on_failure=unsaved)
