"""Saves the checkpoints of one training; after each, rewrites the metadata file that lists them."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from distsummary.base.guard import guarded_log
from distsummary.base.publish import ensure_directory, remove_leftovers, replacing
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.mapped import Array
from distsummary.checkpoints.metadata import (
    METADATA,
    CheckpointFile,
    TrainMetadata,
    file_digest,
    read_metadata,
)
from distsummary.checkpoints.mindspore_ckpt import write_ckpt
from distsummary.checkpoints.shard_file import (
    ShardHeader,
    ShardRank,
    first_name,
    sibling_name,
    write_shards,
)
from distsummary.errors import DamagedFileError, MissingFileError
from distsummary.format.records import Shard

_log = guarded_log(__name__)


class TrajectoryWriter:
    """Saves whole checkpoints (.ckpt) or one rank's shards, and keeps the metadata file up to date.

    If the directory was used before, the metadata names only files of this run: entries of other runs are
    removed before any of their files is replaced. A resumed run keeps its own checkpoints from before the
    first step or epoch that is due after the restart, and saves all others again. `save` is not thread-safe.

    Args:
        ckpt_dir: `RunDir.ckpt_dir`; created when the first checkpoint is saved.
        spec: the steps or epochs to save, and the settings of the landscapes to be computed later.
        model_name: the class of the model, for the names of the files.
        run_id: the id of this run.
        step_per_epoch: 0 if unknown.
        shard_rank: None to save whole models. Otherwise this rank saves its shards of the model, always as
            safetensors, and rank 0 also writes the metadata. Ranks do not wait for each other: a checkpoint
            is complete once every rank has saved its shards.
    """

    def __init__(
        self,
        ckpt_dir: str | os.PathLike[str],
        spec: LandscapeSpec,
        *,
        model_name: str,
        run_id: str,
        step_per_epoch: int = 0,
        shard_rank: ShardRank | None = None,
    ) -> None:
        self.ckpt_dir = Path(os.path.realpath(ckpt_dir))
        self._model = re.sub(r"[^\w.-]", "_", model_name)[:100] or "model"
        self._shard_rank = shard_rank
        self._has_metadata = shard_rank is None or shard_rank.rank == 0
        self._due = frozenset(spec.numbers)
        self._saved: set[int] = set()
        self._first: int | None = None
        self._metadata = TrainMetadata(spec=spec, step_per_epoch=step_per_epoch, run_id=run_id)

    def due(self, number: int) -> bool:
        """Whether to save a step or epoch that the training has reached: it is planned and not saved yet."""
        if number not in self._due:
            return False
        self._first = number if self._first is None else self._first
        return number not in self._saved

    def save(
        self, number: int, state: Mapping[str, Array], slices: Mapping[str, Shard] | None = None
    ) -> Path:
        """Write one checkpoint, then the metadata; returns the file's path.

        `slices` says where each shard lies in the whole array. Raises InvalidTypeError or InvalidValueError
        for a state that the file cannot hold, RunDirError if writing fails.
        """
        spec, shard_rank = self._metadata.spec, self._shard_rank
        ensure_directory(self.ckpt_dir)
        # No file is replaced while the metadata lists it as one of another run.
        if not self._saved:
            remove_leftovers(self.ckpt_dir)
            if self._has_metadata:
                self._disown_others(number if self._first is None else self._first)
        stem = f"{self._model}_{number}_{spec.unit}"
        if shard_rank is None:
            path = self.ckpt_dir / f"{stem}.ckpt"
            write_ckpt(path, state)
            entry = CheckpointFile(path=str(path), sha256=file_digest(path))
        else:
            path = self.ckpt_dir / sibling_name(first_name(stem, shard_rank.ranks), shard_rank.rank)
            header = ShardHeader(
                run_id=self._metadata.run_id,
                attempt=shard_rank.attempt,
                unit=spec.unit,
                number=number,
                rank=shard_rank.rank,
                ranks=shard_rank.ranks,
                slices=dict(slices or {}),
            )
            write_shards(path, header, state)
            entry = CheckpointFile(path=str(path), shards=shard_rank.ranks)
        # The metadata comes last: it lists only files that are there.
        if self._has_metadata:
            self._publish({**self._metadata.files, number: entry})
        self._saved.add(number)
        return path

    def _disown_others(self, first: int) -> None:
        """Remove all entries from the metadata except those of this run's own files before `first`."""
        try:
            old = read_metadata(self.ckpt_dir)
        except MissingFileError:
            return
        except DamagedFileError as error:
            _log.warning("replacing metadata that cannot be read: %s", error)
            self._publish({})
            return
        mine = old.run_id == self._metadata.run_id and old.spec.unit == self._metadata.spec.unit
        self._publish({n: f for n, f in old.files.items() if mine and n < first and n in self._due})

    def _publish(self, files: Mapping[int, CheckpointFile]) -> None:
        metadata = replace(self._metadata, files=dict(sorted(files.items())))
        with replacing(self.ckpt_dir / METADATA) as temporary:
            temporary.write_bytes(metadata.to_bytes())
        self._metadata = metadata
