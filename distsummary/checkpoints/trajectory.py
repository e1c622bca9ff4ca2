"""The trajectory of one training: its checkpoints in a run's ckpt_dir, and the metadata that names them."""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from distsummary.checkpoints import safetensors
from distsummary.checkpoints.landscape_spec import DEFAULT_SPEC, LandscapeSpec, check_collect_landscape
from distsummary.checkpoints.mapped import Array, MappedState, StoredState
from distsummary.checkpoints.metadata import (
    MAX_BYTES,
    MAX_INT,
    METADATA,
    CheckpointFile,
    TrainMetadata,
    parse_metadata,
    refuse_absent_run,
)
from distsummary.checkpoints.mindspore_ckpt import map_ckpt, write_ckpt
from distsummary.checkpoints.shard_file import (
    Part,
    ShardFile,
    ShardHeader,
    first_name,
    read_shards,
    sibling_name,
    verify,
    write_shards,
)
from distsummary.checkpoints.sharded import ShardedState
from distsummary.checks import check_choice, check_int, check_type
from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError
from distsummary.format.records import Shard
from distsummary.publish import ensure_directory, remove_leftovers, replacing

__all__ = [
    "DEFAULT_SPEC",
    "LandscapeSpec",
    "Trajectory",
    "TrajectoryWriter",
    "check_collect_landscape",
    "read",
]

_log = logging.getLogger(__name__)

_SUFFIXES = {"mindspore": ".ckpt", "safetensors": ".safetensors"}
_WRITE: dict[str, Callable[[Path, Mapping[str, Array]], None]] = {
    "mindspore": write_ckpt,
    "safetensors": safetensors.write_safetensors,
}
_MAP: dict[str, Callable[[Path], MappedState]] = {
    ".ckpt": map_ckpt,
    ".safetensors": safetensors.map_safetensors,
}
SUFFIXES = tuple(_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The checkpoints of one training, by step or epoch number, for reading.

    `run_id` is empty for a trajectory that MindSpore wrote; such files have no sha256 to be verified by.
    `incomplete` are numbers that count as not saved, because shards of theirs are missing.
    """

    ckpt_dir: Path
    spec: LandscapeSpec
    step_per_epoch: int
    run_id: str
    files: Mapping[int, CheckpointFile]
    incomplete: frozenset[int] = field(default_factory=frozenset)

    @property
    def unit(self) -> str:
        """What the numbers count: "step" or "epoch"."""
        return self.spec.unit

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that were saved, ascending."""
        return tuple(sorted(self.files.keys() - self.incomplete))

    @property
    def intervals(self) -> tuple[tuple[int, ...], ...]:
        """The planned groups of numbers, also those that the training never reached."""
        return self.spec.intervals

    @property
    def missing(self) -> tuple[int, ...]:
        """The planned numbers that were not saved."""
        return tuple(number for number in self.spec.numbers if number not in self.numbers)

    def path(self, number: int, rank: int = 0) -> Path:
        """Where a checkpoint lies, always in `ckpt_dir`, whatever directory the metadata names.

        `rank` is for a model in shards. Raises InvalidValueError for a number that was not saved,
        MissingFileError for a file that is gone, DamagedFileError for a name that leads elsewhere.
        """
        if number not in self.files:
            known = ", ".join(map(str, self.numbers)) or "none"
            raise InvalidValueError(
                f"{self.unit} {number} is not in the trajectory {self.ckpt_dir}; saved are: {known}"
            )
        name = _base_name(self.files[number].path)
        path = self.ckpt_dir / (sibling_name(name, rank) if self.files[number].shards > 1 else name)
        if not path.resolve().is_relative_to(self.ckpt_dir.resolve()):
            raise DamagedFileError(f"{path} leads out of {self.ckpt_dir}; such links are not followed")
        if not path.exists():
            what = f"shard of rank {rank}" if self.files[number].shards > 1 else "checkpoint"
            raise MissingFileError(
                f"the {what} of {self.unit} {number}, {path}, does not exist; put it back, train again or "
                "choose another number"
            )
        return path

    def shards(self, number: int) -> list[ShardFile]:
        """The files of a checkpoint in shards, by rank; empty for a whole one. No array is read.

        Raises as `path`, MissingFileError too for a file of another run, attempt or number of ranks, and
        DamagedFileError for one that is none of shards.
        """
        ranks = self.files[number].shards if number in self.files else 1
        found = [read_shards(self.path(number, rank)) for rank in range(ranks if ranks > 1 else 0)]
        mine = (file.header for file in found if file.header.run_id == self.run_id)
        attempt = max((header.attempt for header in mine), default=0)
        told = ShardHeader(
            run_id=self.run_id, attempt=attempt, unit=self.unit, number=number, rank=0, ranks=ranks
        )
        for rank, file in enumerate(found):
            if file.header.rank != rank or not file.header.is_beside(told):
                raise MissingFileError(
                    f"the shard of rank {rank} of {self.unit} {number} was not saved: {file.source.path} is "
                    f"from another run, attempt or world than its siblings; train again or choose another "
                    "number"
                )
        return found

    def open(self, number: int) -> StoredState:
        """One checkpoint in place, array by array: for trajectories that are larger than the memory.

        Raises as `path` and `shards`, and DamagedFileError when a file is not the one that this training
        wrote.
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
        if path.is_file() and recorded and recorded != _digest(path):
            raise DamagedFileError(
                f"{path} is not the file that run {self.run_id} wrote (its sha256 differs); train again"
            )
        return map_checkpoint(path)

    def load(self, number: int) -> dict[str, Array]:
        """One checkpoint as arrays by name, copied; raises as `open`."""
        return self.open(number).own()


def map_checkpoint(path: Path) -> MappedState:
    """Any checkpoint file in place, by its suffix (one of `SUFFIXES`); raises as its format's reader."""
    if path.suffix not in _MAP:
        raise InvalidValueError(f"a checkpoint must end with one of {SUFFIXES}, got {path}")
    return _MAP[path.suffix](path)


def read(ckpt_dir: str | os.PathLike[str]) -> Trajectory:
    """The trajectory that train_metadata.json in `ckpt_dir` names.

    Numbers of which shards are missing are left out, with a line in the log: each rank saves its own without
    asking the others. Raises MissingFileError when there is no metadata, DamagedFileError when it is not what
    it should be.
    """
    directory = Path(ckpt_dir)
    metadata = _read_metadata(directory)
    found = Trajectory(
        ckpt_dir=directory,
        spec=metadata.spec,
        step_per_epoch=metadata.step_per_epoch,
        run_id=metadata.run_id,
        files=metadata.files,
    )
    return replace(found, incomplete=frozenset(filter(partial(_is_incomplete, found), found.files)))


def _is_incomplete(trajectory: Trajectory, number: int) -> bool:
    try:
        trajectory.shards(number)
    except MissingFileError as error:
        _log.warning("%s %d is left out: %s", trajectory.unit, number, error)
        return True
    except DamagedFileError:
        return False  # it was saved; opening it tells
    return False


class TrajectoryWriter:
    """Saves the checkpoints of one training, each followed by the metadata that names it.

    In a directory that was used before, the metadata names this run's files alone: another run's are
    disowned before the first of them is replaced. A resumed run keeps its own earlier numbers, and repeats
    those from the first one on that was due, saved or not. `save` is not for several threads.

    Args:
        ckpt_dir: `RunDir.ckpt_dir`; made when the first checkpoint is saved.
        spec: which numbers, and what landscapes will want to know.
        model_name: the class of the model, in file names.
        run_id: of this run.
        step_per_epoch: 0 if unknown.
        format: "mindspore" (.ckpt, which MindSpore's SummaryLandscape can use) or "safetensors".
        part: which part of a model in shards this rank saves, as safetensors; rank 0's writes the metadata.
            No rank waits for another: a checkpoint exists once all have saved their parts.
    """

    def __init__(
        self,
        ckpt_dir: str | os.PathLike[str],
        spec: LandscapeSpec,
        *,
        model_name: str,
        run_id: str,
        step_per_epoch: int = 0,
        format: str = "mindspore",
        part: Part | None = None,
    ) -> None:
        check_type("ckpt_dir", ckpt_dir, (str, os.PathLike))
        check_type("spec", spec, LandscapeSpec)
        check_type("model_name", model_name, str)
        check_type("run_id", run_id, str)
        check_int("step_per_epoch", step_per_epoch, low=0, high=MAX_INT)
        check_choice("format", format, _SUFFIXES)
        check_type("part", part, Part, optional=True)
        if not run_id:
            raise InvalidValueError("run_id must not be empty: it tells this run's files from another's")
        if format == "safetensors" or part is not None:
            safetensors.library()
        self.ckpt_dir = Path(os.path.realpath(ckpt_dir))
        self._model = re.sub(r"[^\w.-]", "_", model_name)[:100] or "model"
        self._format, self._part = format, part
        self._has_metadata = part is None or part.rank == 0
        self._due = frozenset(spec.numbers)
        self._saved: set[int] = set()
        self._first: int | None = None
        self._metadata = TrainMetadata(spec=spec, step_per_epoch=step_per_epoch, run_id=run_id)

    def due(self, number: int) -> bool:
        """Whether this step or epoch, which the training has reached, is planned and not yet saved."""
        if number not in self._due:
            return False
        self._first = number if self._first is None else self._first
        return number not in self._saved

    def save(
        self, number: int, state: Mapping[str, Array], slices: Mapping[str, Shard] | None = None
    ) -> Path:
        """Write one checkpoint, then the metadata; returns the file's path.

        `slices` tell where the arrays of a `part` lie in the whole ones. Raises InvalidTypeError or
        InvalidValueError for bad arguments, RunDirError when writing fails.
        """
        check_int("number", number, low=-MAX_INT, high=MAX_INT)
        if number not in self._due:
            raise InvalidValueError(
                f"{self._metadata.spec.unit} {number} is in no interval; planned are "
                f"{self._metadata.spec.numbers}"
            )
        ensure_directory(self.ckpt_dir)
        if not self._saved:
            remove_leftovers(self.ckpt_dir)
            if self._has_metadata:
                self._take_over(number if self._first is None else self._first)
        stem = f"{self._model}_{number}_{self._metadata.spec.unit}"
        entry = (
            self._write_whole(stem, state)
            if self._part is None
            else self._write_part(stem, self._part, number, state, slices or {})
        )
        if self._has_metadata:
            self._publish({**self._metadata.files, number: entry})
        self._saved.add(number)
        return Path(entry.path)

    def _write_whole(self, stem: str, state: Mapping[str, Array]) -> CheckpointFile:
        path = self.ckpt_dir / f"{stem}{_SUFFIXES[self._format]}"
        _WRITE[self._format](path, state)
        return CheckpointFile(path=str(path), sha256=_digest(path))

    def _write_part(
        self, stem: str, part: Part, number: int, state: Mapping[str, Array], slices: Mapping[str, Shard]
    ) -> CheckpointFile:
        header = ShardHeader(
            run_id=self._metadata.run_id,
            attempt=part.attempt,
            unit=self._metadata.spec.unit,
            number=number,
            rank=part.rank,
            ranks=part.ranks,
            slices=dict(slices),
        )
        path = self.ckpt_dir / sibling_name(first_name(stem, part.ranks), part.rank)
        write_shards(path, header, state)
        return CheckpointFile(path=str(path), shards=part.ranks)

    def _take_over(self, first: int) -> None:
        """Disown what stands in the directory, but for this run's own files before `first`."""
        try:
            old = _read_metadata(self.ckpt_dir)
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


def _read_metadata(directory: Path) -> TrainMetadata:
    path = directory / METADATA
    if not path.is_file():
        refuse_absent_run(directory)
        raise MissingFileError(
            f"{path} does not exist; train with collect_landscape={{'intervals': [[...]]}} to have one, at "
            "least up to its first number, or give a landscape checkpoints that were saved otherwise by "
            "their numbers: around={100: file, ...}"
        )
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return parse_metadata(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is not the metadata of a trajectory: {error}") from error


def _base_name(recorded: str) -> str:
    """The last part of a path of any system; raises DamagedFileError if it cannot name a file."""
    name = re.split(r"[/\\]", recorded)[-1]
    size = len(name.encode(errors="replace"))
    if name in ("", ".", "..") or not name.isprintable() or size > 255:
        raise DamagedFileError(f"the metadata names {recorded[:80]!r}, which is no checkpoint file")
    return name


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
