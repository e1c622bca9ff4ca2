"""Copies what this rank saves of a model and its optimizer, and writes the copy."""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from distsummary.base.guard import guarded_log
from distsummary.checkpoints import dcp
from distsummary.checkpoints.mapped import Array
from distsummary.checkpoints.model_file import with_texts, write_model
from distsummary.checkpoints.object_state import state_entries
from distsummary.checkpoints.shard_file import (
    ShardHeader,
    ShardRank,
    first_name,
    sibling_name,
    write_shards,
)
from distsummary.checkpoints.share import SavedShare, share_of
from distsummary.checkpoints.training_state import MODULES, OPTIMIZER, STATES
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.frameworks.base import Framework, Pending, framework_of
from distsummary.rundir.topology import DATA_AXES, Topology
from distsummary.training.callbacks import CallbackParams
from distsummary.training.checkpoint_config import INFO, CheckpointConfig

logger = guarded_log(__name__)


@dataclass(kw_only=True)
class Kept:
    """A copy of what this rank saves; `header` is None for a whole model, `slices` are those of shards."""

    config: CheckpointConfig
    header: ShardHeader | None = None
    values: dict[str, "Pending | Array | str"] = field(default_factory=dict)
    slices: dict[str, Shard] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # those of torch in a .dcp, where they differ
    training: tuple[str, dict[str, Any]] | None = None  # the name and the state of this rank in the training
    mark: str = ""  # of the temporary directory of a .dcp
    failure: Exception | None = None  # why a .dcp has no shards of this rank: the other ranks wait for them

    @property
    def is_first(self) -> bool:
        """Whether this is the file, or the first file, of a checkpoint."""
        return self.header is None or self.header.rank == 0

    def write(self, directory: Path, stem: str, *, wait_s: float) -> Path:
        """Write the file of this rank; returns the path of the first rank's file, or of the .dcp.

        `wait_s`: how long the ranks wait for each other, which write into one .dcp.
        """
        state = {
            name: value if isinstance(value, np.ndarray | str) else value.result()
            for name, value in self.values.items()
        }
        if self.training is not None:
            state |= state_entries(*self.training)
        self.values.clear()
        if self.header is None:
            path = directory / f"{stem}.{self.config.format}"
            write_model(path, state, key=self.config.enc_key, mode=self.config.enc_mode)
            return path
        arrays = with_texts(state)
        slices = {
            name: self.slices.get(name) or Shard(global_shape=one.shape, offset=(0,) * one.ndim)
            for name, one in arrays.items()
        }
        header = replace(self.header, slices=slices)
        if self.config.format == "dcp":
            path = directory / (stem + dcp.SUFFIX)
            # A rank without elements writes none: torch would take its empty slice for one at that place.
            arrays = {n: a for n, a in arrays.items() if a.size or not math.prod(slices[n].global_shape)}
            dcp.write_dcp(
                path, header, arrays, self.names, mark=self.mark, wait_s=wait_s, failure=self.failure
            )
            return path
        first = directory / first_name(stem, self.header.ranks)
        write_shards(first.with_name(sibling_name(first.name, self.header.rank)), header, arrays)
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointParts:
    """What checkpoints are made of, and this rank's share of it.

    Attributes:
        split: the names of the model's sharded tensors; empty if the model is whole on every rank.
        share: None if this rank saves nothing.
        is_first: whether this is rank 0.
        optimizer: None if its state is not saved.
    """

    framework: Framework
    network: Any
    optimizer: Any
    split: frozenset[str]
    share: SavedShare | None
    is_first: bool

    @property
    def is_split(self) -> bool:
        """Whether the model is sharded."""
        return bool(self.split)

    def keep(
        self,
        params: CallbackParams,
        config: CheckpointConfig,
        training: tuple[str, dict[str, Any]],
        *,
        gathers: bool,
        run_id: str,
        mark: str,
    ) -> Kept | None:
        """Copy this rank's share; None if it saves nothing. `gathers`: collectively, whole tensors to rank 0.

        `training`: the name and the state of this rank in the training. `run_id` is the same on all ranks of
        a sharded model, and `mark` rank 0's `dcp.writers_mark`.

        Raises InvalidValueError if FSDP2 has gathered a parameter that was sharded when the training began.
        """
        gathers = gathers and self.is_split
        if self.share is None and not gathers:
            return None
        is_writer = self.is_first if gathers else self.share is not None
        kept = Kept(config=config, mark=mark)
        place = None if gathers or self.share is None else self.share.shard_rank
        # A whole model in a .dcp is written like the shards of a single rank.
        if config.format == "dcp" and place is None:
            place = ShardRank(rank=0, ranks=1)
        if place is not None:
            step = int(params["cur_step_num"])
            kept.header = ShardHeader(run_id=run_id, number=step, rank=place.rank, ranks=place.ranks)
        try:
            self._fill(kept, params, place, gathers=gathers, is_writer=is_writer)
            kept.training = training
        except Exception as error:
            # The ranks that write a .dcp wait for each other: a rank that has failed takes part and says so.
            if config.format != "dcp":
                raise
            kept.values.clear()
            kept.failure = error
        return kept if is_writer else None

    def _fill(
        self, kept: Kept, params: CallbackParams, place: ShardRank | None, *, gathers: bool, is_writer: bool
    ) -> None:
        """Copy what this rank saves; `place` is its place among those that write shards."""
        config = kept.config
        failure: Exception | None = None
        model = dict(self.framework.tensors(self.network))
        of_optimizer, rest = self._of_optimizer(model)
        for name, value in (model | of_optimizer).items():
            framework = framework_of(value)
            if not framework.is_tensor(value):
                # What is no tensor is the same on all ranks, of which the first one writes it.
                if is_writer and failure is None and (place is None or place.rank == 0):
                    kept.values[name] = np.array(value)
                continue
            shard = framework.shard(value)
            if name in model and (shard is not None) != (name in self.split):
                raise InvalidValueError(
                    f"{name} is {'whole' if shard is None else 'in shards'}, unlike when the training began; "
                    "FSDP2 gathers parameters for an evaluation: call model.reshard() after it"
                )
            if gathers:
                # Gathering is collective: ranks that write nothing, or that have failed, take part to the
                # end.
                value, shard = framework.whole(value), None
            elif self.share is not None and not self.share.holds(framework.split_axes(value)):
                continue
            if not is_writer or failure is not None:
                continue
            try:
                kept.values[name] = framework.snapshot(value)
            except Exception as error:
                if not gathers:
                    raise
                kept.values.clear()
                # Raised later: the other ranks wait for this one to gather the rest.
                failure = error
            if shard is not None:
                kept.slices[name] = shard
        if failure is not None:
            raise failure
        if not is_writer:
            return
        # In a .dcp, the optimizer's entries have the names by which torch.distributed.checkpoint loads them.
        if config.format == "dcp" and of_optimizer:
            known = {id(tensor): name for name, tensor in model.items()}
            groups = getattr(self.optimizer, "param_groups", [])
            parameters = [known.get(id(one)) for group in groups for one in group["params"]]
            torch_names = ((name, dcp.torch_name(name, parameters)) for name in of_optimizer)
            kept.names = {name: other for name, other in torch_names if name != other}
        if place is None or place.rank == 0:
            kept.values |= _information(params, config, taken=kept.values)
            kept.values |= rest | self._of_modules()

    def _of_optimizer(self, model: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array | str]]:
        """The optimizer's state as tensors and numbers by name, and the rest: all of it, or nothing."""
        if self.optimizer is None:
            return {}, {}
        rest = self.framework.optimizer_rest(self.optimizer)
        if not rest:
            return self.framework.optimizer_entries(self.optimizer), {}
        known = {id(tensor): name for name, tensor in model.items()}
        held = (one for group in self.optimizer.param_groups for one in group["params"])
        rest["names"] = [known.get(id(one)) for one in held]
        try:
            if rest["odd"] and self.is_split:
                raise InvalidTypeError("lists of shards cannot be put together again")
            more = state_entries(OPTIMIZER, rest)
        except InvalidTypeError as error:
            unsaved(f"the state of the optimizer {rest['class']} is not saved: {error}")
            return {}, {}
        return self.framework.optimizer_entries(self.optimizer), more

    def _of_modules(self) -> dict[str, "Array | str"]:
        """What the modules keep beyond parameters and buffers; what cannot be saved is named once."""
        saved: dict[str, dict[str, Any]] = {}
        for path, state in self.framework.own_states(self.network).items():
            try:
                state_entries(path, state)
            except InvalidTypeError as error:
                unsaved(f"the own state of the module {path!r} is not saved: {error}")
            else:
                saved[path] = state
        return state_entries(MODULES, saved) if saved else {}


@cache
def unsaved(reason: str) -> None:
    """Say once what a checkpoint leaves out."""
    logger.warning("%s", reason)


def source_of(params: CallbackParams, config: CheckpointConfig, topology: Topology) -> CheckpointParts:
    """What this rank saves of the training; raises InvalidValueError if that is unknown."""
    network = config.saved_network if config.saved_network is not None else params.get("network")
    if network is None:
        raise InvalidValueError(
            "ModelCheckpoint needs a network; pass watch= to ds.init, network= to Run, or saved_network= to "
            "CheckpointConfig"
        )
    framework = framework_of(network)
    split = frozenset(name for name, tensor in framework.tensors(network) if framework.split_axes(tensor))
    # The replicas of a shard are the ranks along the axes of data; without a mesh, all ranks.
    sizes = (extent for axis, (_, extent) in topology.mesh.items() if axis in DATA_AXES)
    copies = math.prod(sizes) if topology.mesh else topology.world_size
    return CheckpointParts(
        framework=framework,
        network=network,
        optimizer=params.get("optimizer") if config.saved_network is None else None,
        split=split,
        share=share_of(network, topology, copies, attempt=0),
        is_first=topology.rank == 0,
    )


def _information(
    params: CallbackParams, config: CheckpointConfig, *, taken: Container[str]
) -> dict[str, Array | str]:
    """The epoch, the step and what append_info gives; raises InvalidValueError for a name that is taken."""
    given = config.append_dict or {}
    counted = dict(zip(INFO, (params.get("cur_epoch_num", 1), params["cur_step_num"]), strict=True))
    found: dict[str, Array | str] = {}
    for name, value in (given | counted).items():
        if name in taken:
            raise InvalidValueError(
                f"append_info must not have the name {name!r} of a parameter; choose another"
            )
        if name in counted:
            # A number that append_info gives for the epoch or the step is added to that of the training.
            before = given.get(name, 0)
            found[name] = np.array(int(value) + (int(before) if isinstance(before, int) else 0), np.int64)
        elif isinstance(value, str):
            found[name] = value
        elif hasattr(value, "state_dict"):
            found |= state_entries(STATES + name, value.state_dict())
        else:
            framework = framework_of(value)
            found[name] = framework.to_numpy(value) if framework.is_tensor(value) else np.array(value)
    return found
