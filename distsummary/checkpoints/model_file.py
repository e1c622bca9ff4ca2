"""The checkpoint files of a training: a model, its optimizer's state, and texts, in one file or in shards."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from distsummary.base.publish import TEMPORARY, replacing
from distsummary.checkpoints import dcp, encryption
from distsummary.checkpoints.mapped import Array, StoredState, map_file
from distsummary.checkpoints.mindspore_ckpt import ckpt_bytes, write_ckpt
from distsummary.checkpoints.safetensors import safetensors_bytes, write_safetensors
from distsummary.checkpoints.shard_file import SUFFIX, read_shards, sibling_name
from distsummary.checkpoints.sharded import ShardedState, open_shards
from distsummary.checkpoints.trajectory import map_checkpoint
from distsummary.errors import DamagedFileError, DistSummaryError, InvalidValueError, MissingFileError

State: TypeAlias = Mapping[str, "Array | str"]

FORMATS = ("safetensors", "ckpt", "dcp")
SUFFIXES = (".safetensors", ".ckpt")  # of files; a dcp is a directory
BREAKPOINT = "_breakpoint"

TRAINING = "training/"  # begins the names of what `training_state` describes
TEXT = "text/"  # before the name of a text, which safetensors holds as the bytes of its UTF-8

_RANK = re.compile(r"_rank_(\d{5,8})_of_(\d{5,8})$")


def with_texts(state: State) -> dict[str, Array]:
    """The state as safetensors holds it: each text becomes an array of bytes."""
    arrays: dict[str, Array] = {}
    for name, value in state.items():
        if isinstance(value, str):
            arrays[TEXT + name] = np.frombuffer(value.encode(), np.uint8)
        else:
            arrays[name] = value
    return arrays


def write_model(path: Path, state: State, *, key: bytes | None = None, mode: str = encryption.GCM) -> None:
    """Replace `path`, whose suffix says the format, by a file of this state.

    Raises InvalidTypeError or InvalidValueError before anything is written, MissingExtraError, or RunDirError
    if writing fails.
    """
    if path.suffix == ".ckpt":
        arrays = {name: np.array(value) if isinstance(value, str) else value for name, value in state.items()}
        if key is None:
            write_ckpt(path, arrays)
            return
        data = ckpt_bytes(arrays)
    else:
        arrays = with_texts(state)
        if key is None:
            write_safetensors(path, arrays)
            return
        data = safetensors_bytes(arrays)
    with replacing(path) as temporary, open(temporary, "xb") as file:
        file.writelines(encryption.encrypt(data, key, mode))


def read_model(path: Path, *, key: bytes | None = None, mode: str = encryption.GCM) -> StoredState:
    """Open a checkpoint: a file, any of its shards, a .dcp, or the newest complete checkpoint in a directory.

    An array is read when it is accessed. Raises MissingFileError, DamagedFileError, InvalidValueError,
    MissingExtraError.
    """
    path = newest(path)
    if path.suffix == dcp.SUFFIX:
        if key is not None:
            raise InvalidValueError(f"{path} is not encrypted; leave dec_key= out")
        return dcp.read_dcp(path)
    if path.suffix not in SUFFIXES:
        if not path.suffix and not path.exists():
            raise MissingFileError(f"{path} does not exist; give a checkpoint, or the directory with them")
        raise InvalidValueError(f"a checkpoint must end with one of {(*SUFFIXES, dcp.SUFFIX)}, got {path}")
    # The file of any rank stands for all shards of the checkpoint.
    if match := _RANK.search(path.stem):
        first = path.with_name(f"{path.stem[: match.start()]}_rank_00000_of_{match[2]}{SUFFIX}")
        return ShardedState(open_shards(first, int(match[2])))
    data = map_file(path)
    if not encryption.is_encrypted(data):
        if key is not None:
            raise InvalidValueError(f"{path} is not encrypted; leave dec_key= out")
        return map_checkpoint(path)
    if key is None:
        raise InvalidValueError(f"{path} is encrypted; pass dec_key=")
    try:
        plain = encryption.decrypt(data, key, mode)
    except (InvalidValueError, DamagedFileError) as error:
        raise type(error)(f"{path} cannot be used: {error}") from error
    return map_checkpoint(path, plain)


def newest(path: Path) -> Path:
    """The newest complete checkpoint in a directory; any other path is returned as it is.

    Raises MissingFileError if there is none.
    """
    if not path.is_dir() or path.suffix == dcp.SUFFIX:
        return path
    found = [one for one in saved_in(path) if one.is_complete()]
    if not found:
        raise MissingFileError(
            f"{path} holds no complete checkpoint ({', '.join(SUFFIXES)} or {dcp.SUFFIX}); check the path or "
            "train again"
        )
    return found[-1].path


def stem_of(path: Path) -> str:
    """The name of a checkpoint without its suffix and the number of the rank."""
    return _RANK.sub("", path.stem)


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """A checkpoint in a directory. Ordered by time; for file systems with a coarse one also by `numbers`.

    `numbers` are those in its name, epoch and step. `path` is the file, rank 0's shards, or a .dcp; `ranks`
    is 0 for a single file or a .dcp.
    """

    modified_s: float
    numbers: tuple[int, ...]
    path: Path
    ranks: int = 0

    def remove(self) -> None:
        """Remove the file, or what all ranks wrote."""
        if self.path.suffix == dcp.SUFFIX:
            dcp.remove_dcp(self.path)
            return
        for file in self._files(self.path, self.ranks) if self.ranks else [self.path]:
            file.unlink(missing_ok=True)

    def is_complete(self) -> bool:
        """Whether the shards of all ranks are there, from one save; a single file always is."""
        first, ranks = self.path, self.ranks
        try:
            if first.suffix == dcp.SUFFIX:
                in_directory = dcp.first_file(first)
                if in_directory is None:
                    return False
                first, ranks = in_directory, dcp.ranks_of(in_directory)
            elif not ranks:
                return True
            headers = [read_shards(file).header for file in self._files(first, ranks)]
        except (DistSummaryError, OSError):
            return False
        return all(header.is_beside(headers[0]) for header in headers)

    def _files(self, first: Path, ranks: int) -> list[Path]:
        return [first.with_name(sibling_name(first.name, rank)) for rank in range(ranks)]


def saved_in(directory: Path, prefix: str | None = None) -> list[Saved]:
    """The checkpoints in a directory, oldest first; of one prefix those that count for what is kept.

    With `prefix`, only `<prefix>-<epoch>_<step>` are listed, not those of an exception.
    """
    found: list[Saved] = []
    for path in directory.iterdir():
        is_kind = path.is_dir() if path.suffix == dcp.SUFFIX else path.suffix in SUFFIXES and path.is_file()
        if not is_kind or path.name.startswith(TEMPORARY):
            continue
        match = _RANK.search(path.stem)
        stem = path.stem[: match.start()] if match else path.stem
        if prefix is not None and not re.fullmatch(rf"{re.escape(prefix)}-\d+_\d+", stem):
            continue
        # Rank 0's file stands for those of the other ranks.
        if match and int(match[1]):
            continue
        try:
            modified_s = path.stat().st_mtime
        except FileNotFoundError:
            # It was removed meanwhile.
            continue
        found.append(Saved(modified_s, numbers_in(stem), path, int(match[2]) if match else 0))
    return sorted(found)


def numbers_in(stem: str) -> tuple[int, ...]:
    """The numbers in a name, which of one prefix are in the order of the steps."""
    return tuple(int(digits) for digits in re.findall(r"\d+", stem))


def superseded(saved: Iterable[Saved], *, keep_max: int | None, keep_minutes: int | None) -> list[Saved]:
    """Which of these complete checkpoints, oldest first, are not kept; the last one always is.

    With `keep_minutes`, of those of the last so many minutes before the newest the oldest is kept.
    """
    listed = list(saved)
    if keep_max:
        return listed[:-keep_max]
    if not keep_minutes or not listed:
        return []
    *earlier, newest = listed
    recent = [one for one in earlier if newest.modified_s - one.modified_s < 60 * keep_minutes]
    return recent[1:]


def free_prefix(directory: Path, prefix: str) -> str:
    """The prefix, or `<prefix>_1`, `<prefix>_2` ... if an earlier training used it in this directory."""
    used = -1
    for name in os.listdir(directory) if directory.is_dir() else ():
        match = re.match(rf"{re.escape(prefix)}(?:_(\d+))?-\d+_\d+", name)
        if match and name.endswith((*SUFFIXES, dcp.SUFFIX)):
            used = max(used, int(match[1] or 0))
    return prefix if used < 0 else f"{prefix}_{used + 1}"
