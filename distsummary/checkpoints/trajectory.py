"""Reads the trajectory of one training: the checkpoints in a directory, each with its step or epoch."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from distsummary.base.guard import guarded_log
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.mapped import Array, MappedState, StoredState
from distsummary.checkpoints.metadata import CheckpointFile, file_digest, read_metadata
from distsummary.checkpoints.mindspore_ckpt import map_ckpt
from distsummary.checkpoints.safetensors import map_safetensors
from distsummary.checkpoints.shard_file import ShardFile, ShardHeader, read_shards, sibling_name, verify
from distsummary.checkpoints.sharded import ShardedState
from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError

_log = guarded_log(__name__)

_MAP: dict[str, Callable[[Path, bytes | None], MappedState]] = {
    ".ckpt": map_ckpt,
    ".safetensors": map_safetensors,
}
SUFFIXES = tuple(_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The checkpoints of one training, each with its number: a step or an epoch.

    If MindSpore wrote the trajectory, `run_id` is empty and there is no sha256 to verify. `incomplete`
    holds the numbers that count as not saved because some of their shards are missing.
    """

    ckpt_dir: Path
    spec: LandscapeSpec
    step_per_epoch: int
    run_id: str
    files: Mapping[int, CheckpointFile]
    incomplete: frozenset[int] = field(default_factory=frozenset)

    @property
    def unit(self) -> str:
        """The unit of the numbers: "step" or "epoch"."""
        return self.spec.unit

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that were saved, ascending."""
        return tuple(sorted(self.files.keys() - self.incomplete))

    @property
    def intervals(self) -> tuple[tuple[int, ...], ...]:
        """The planned groups of numbers, whether or not the training reached them."""
        return self.spec.intervals

    @property
    def missing(self) -> tuple[int, ...]:
        """The planned numbers that were not saved."""
        return tuple(number for number in self.spec.numbers if number not in self.numbers)

    def path(self, number: int, rank: int = 0) -> Path:
        """The path of a checkpoint, or of `rank`'s shards of it, in `ckpt_dir` (which may have been moved).

        Raises InvalidValueError for a number that was not saved, MissingFileError for a file that does not
        exist, DamagedFileError for a name that leads out of `ckpt_dir`.
        """
        if number not in self.files:
            known = ", ".join(map(str, self.numbers)) or "none"
            raise InvalidValueError(
                f"{self.unit} {number} is not in the trajectory {self.ckpt_dir}; saved are: {known}"
            )
        recorded = self.files[number].path
        # The recorded path may come from another operating system.
        name = re.split(r"[/\\]", recorded)[-1]
        size = len(name.encode(errors="replace"))
        if name in ("", ".", "..") or not name.isprintable() or size > 255:
            raise DamagedFileError(f"the metadata names {recorded[:80]!r}, which is no checkpoint file")
        path = self.ckpt_dir / (sibling_name(name, rank) if self.files[number].shards > 1 else name)
        if not path.resolve().is_relative_to(self.ckpt_dir.resolve()):
            raise DamagedFileError(f"{path} leads out of {self.ckpt_dir}; such links are not followed")
        if not path.exists():
            what = f"shard of rank {rank}" if self.files[number].shards > 1 else "checkpoint"
            raise MissingFileError(
                f"the {what} of {self.unit} {number}, {path}, does not exist; put it back, train again or "
                f"choose another {self.unit}"
            )
        return path

    def shards(self, number: int) -> list[ShardFile]:
        """The shard files of a checkpoint in rank order; an empty list for a single file. Reads no array.

        Raises the errors of `path`; also MissingFileError for a file of another run, attempt or world size,
        and DamagedFileError for a file without shards.
        """
        ranks = self.files[number].shards if number in self.files else 1
        found = [read_shards(self.path(number, rank)) for rank in range(ranks if ranks > 1 else 0)]
        mine = (file.header for file in found if file.header.run_id == self.run_id)
        # All files must be of the newest attempt of this run that has left any.
        attempt = max((header.attempt for header in mine), default=0)
        expected = ShardHeader(
            run_id=self.run_id, attempt=attempt, unit=self.unit, number=number, rank=0, ranks=ranks
        )
        for rank, file in enumerate(found):
            if file.header.rank != rank or not file.header.is_beside(expected):
                raise MissingFileError(
                    f"the shard of rank {rank} of {self.unit} {number} was not saved: {file.version.path} is "
                    "from another run, attempt or world size than the files of the other ranks; train again "
                    f"or choose another {self.unit}"
                )
        return found

    def open(self, number: int) -> StoredState:
        """Open one checkpoint, whose arrays are read on access, so that it may be larger than memory.

        Raises the errors of `path` and `shards`; also DamagedFileError if a file is not the one that this
        training wrote.
        """
        shards = self.shards(number)
        if shards:
            for file in shards:
                verify(file)
            return ShardedState(shards)
        path = self.path(number)
        if path.suffix not in _MAP:
            raise DamagedFileError(f"{path} must end with one of {SUFFIXES}")
        recorded = self.files[number].sha256
        if path.is_file() and recorded and recorded != file_digest(path):
            raise DamagedFileError(
                f"{path} is not the file that run {self.run_id} wrote: its sha256 differs; train again"
            )
        return map_checkpoint(path)

    def load(self, number: int) -> dict[str, Array]:
        """Copy one checkpoint into memory, as a dict of arrays; raises the errors of `open`."""
        return self.open(number).own()


def map_checkpoint(path: Path, data: bytes | None = None) -> MappedState:
    """Map a checkpoint file with the reader that its suffix selects; raises that reader's errors.

    `data`: the decrypted bytes of an encrypted file.
    """
    if path.suffix not in _MAP:
        raise InvalidValueError(f"a checkpoint must end with one of {SUFFIXES}, got {path}")
    return _MAP[path.suffix](path, data)


def read(ckpt_dir: str | os.PathLike[str]) -> Trajectory:
    """The trajectory that train_metadata.json in `ckpt_dir` describes.

    Checkpoints with missing shards are left out, with a warning in the log; shards may be missing because
    each rank saves its own without waiting for the others. Raises MissingFileError if there is no metadata,
    DamagedFileError if it cannot be used.
    """
    directory = Path(ckpt_dir)
    metadata = read_metadata(directory)
    found = Trajectory(
        ckpt_dir=directory,
        spec=metadata.spec,
        step_per_epoch=metadata.step_per_epoch,
        run_id=metadata.run_id,
        files=metadata.files,
    )
    incomplete = set()
    for number in found.files:
        try:
            found.shards(number)
        except MissingFileError as error:
            _log.warning("%s %d is left out: %s", found.unit, number, error)
            incomplete.add(number)
        except DamagedFileError:
            # This checkpoint was saved; opening it will raise the error.
            pass
    return replace(found, incomplete=frozenset(incomplete))
