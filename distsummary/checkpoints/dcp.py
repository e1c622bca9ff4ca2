"""Checkpoints that torch.distributed.checkpoint reads: a directory with each rank's shards, without a pickle.

`<stem>.dcp` holds a file of `shard_file.py` for each rank that writes. Its arrays have the names that torch's
state dicts give them, and its metadata has two more entries, in JSON:

    "DCP_SHARDING_INFO": {name: {"saved_offsets": [...]}}    read by torch's HuggingFaceStorageReader
    "distsummary.names": {name in the file: name that `load_checkpoint` returns}, where they differ

The ranks write into one temporary directory, which rank 0 renames once the files of all ranks are there. They
do not communicate, since a collective operation in a background thread would disturb those of the training.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distsummary.base.checked_json import parse_json
from distsummary.base.publish import rights_in, sync, temporary_name
from distsummary.checkpoints.mapped import Array
from distsummary.checkpoints.safetensors import open_safetensors
from distsummary.checkpoints.shard_file import ShardHeader, first_name, sibling_name, write_shards
from distsummary.checkpoints.sharded import ShardedState, open_shards
from distsummary.errors import MissingFileError, RunDirError, reason

SUFFIX = ".dcp"
STEM = "model"  # of the files in the directory
OFFSETS, NAMES = "DCP_SHARDING_INFO", "distsummary.names"
WAIT_S = 300.0  # how long the ranks wait for each other's files; torch's own collectives wait 600 s or longer

_OPTIMIZER = re.compile(r"optimizer/(state|group)/(\d+)/(.+)")
_FIRST = re.compile(rf"{STEM}_rank_0{{5}}_of_\d{{5,8}}\.safetensors")


def torch_name(name: str, parameters: Sequence[str | None]) -> str:
    """The name that torch's state dicts give to an entry of ours; `parameters` are those of the optimizer.

    That of `optimizer/state/0/exp_avg` is `optimizer.state.fc.weight.exp_avg`.
    """
    match = _OPTIMIZER.fullmatch(name)
    if match is None:
        return name
    kind, index, key = match[1], int(match[2]), match[3]
    if kind == "group":
        return f"optimizer.param_groups.{index}.{key}"
    known = parameters[index] if index < len(parameters) else None
    return f"optimizer.state.{index if known is None else known}.{key}"


def writers_mark() -> str:
    """Begins the names of temporary directories; all ranks use rank 0's, which removes them."""
    return temporary_name(Path()).name.rpartition("-")[0]


def write_dcp(
    path: Path, header: ShardHeader, arrays: Mapping[str, Array], names: Mapping[str, str], *,
    mark: str, wait_s: float = WAIT_S, failure: Exception | None = None,
) -> None:  # fmt: skip
    """Write this rank's shards, wait until all ranks have written theirs, and (on rank 0) rename to `path`.

    Args:
        header, arrays: see `write_shards`. names: how torch names the arrays, where that differs.
        mark: rank 0's `writers_mark`.
        wait_s: how long to wait for the other ranks.
        failure: why this rank has no shards to write; it is raised once the other ranks know.

    Raises the errors of `write_shards`, and RunDirError if another rank failed or did not come.
    """
    # All ranks have to find the same temporary directory without communicating.
    token = hashlib.blake2b(f"{header.run_id}/{path.name}".encode(), digest_size=16).hexdigest()
    temporary = path.with_name(f"{mark}-{token}")
    slices = {names.get(name, name): header.slices[name] for name in arrays}
    stored = {names.get(name, name): array for name, array in arrays.items()}
    offsets = {name: {"saved_offsets": list(shard.offset)} for name, shard in slices.items()}
    ours = {names[name]: name for name in arrays if name in names}
    try:
        temporary.mkdir(rights_in(temporary.parent), exist_ok=True)
        inode = temporary.stat().st_ino
        if failure is not None:
            raise failure
        file = temporary / sibling_name(first_name(STEM, header.ranks), header.rank)
        write_shards(
            file,
            replace(header, slices=slices),
            stored,
            {OFFSETS: json.dumps(offsets), NAMES: json.dumps(ours)},
        )
    except Exception as error:
        failure = error
        # A mark in place of the shards: the other ranks must not wait for them in vain.
        with suppress(OSError):
            (temporary / f"failed_{header.rank:05d}").touch()
    # Rank 0 alone finds out whether the checkpoint is whole, and gives it its name.
    if header.rank:
        if failure is not None:
            raise failure
        _await_commit(path, temporary, inode, wait_s)
        return
    try:
        failed = _await_ranks(temporary, path, header.ranks, wait_s)
        if failure is not None:
            raise failure
        if failed:
            numbers = ", ".join(map(str, failed[:5]))
            raise RunDirError(f"{path} is not made: rank {numbers} could not write its shards; see its log")
        _publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_dcp(path: Path) -> ShardedState:
    """The arrays of a directory under the names of other checkpoints; an array is read when it is accessed.

    Raises MissingFileError or DamagedFileError if it is not whole; no pickle is read.
    """
    first = first_file(path)
    if first is None:
        pickled = ", but only one that torch pickled: read it by torch.distributed.checkpoint.load"
        raise MissingFileError(
            f"{path} holds no checkpoint in safetensors{pickled if (path / '.metadata').exists() else ''}"
        )
    files = open_shards(first, ranks_of(first))
    state = ShardedState(files)
    names: dict[str, str] = {}
    for file in files:
        _, _, metadata = open_safetensors(file.version.path)
        where = f"{file.version.path}, its names,"
        names |= parse_json(metadata.get(NAMES, "{}"), dict[str, str], name=where, remedy="train again")
    return state.selected({names.get(name, name): name for name in state})


def first_file(path: Path) -> Path | None:
    """Rank 0's file in a directory; None if it holds no checkpoint of `write_dcp`."""
    return next((one for one in sorted(path.iterdir()) if _FIRST.fullmatch(one.name)), None)


def ranks_of(first: Path) -> int:
    """How many ranks wrote files, by the name of rank 0's."""
    return int(first.stem.rpartition("_")[2])


def remove_dcp(path: Path) -> None:
    """Remove a directory; if that is interrupted, no part of a checkpoint is left under its name."""
    doomed = temporary_name(path.parent)
    with suppress(FileNotFoundError):
        path.rename(doomed)
        shutil.rmtree(doomed)


def _publish(temporary: Path, path: Path) -> None:
    try:
        sync(temporary)
        # A function that names checkpoints may have given this name before.
        if path.exists():
            remove_dcp(path)
        temporary.rename(path)
        sync(path.parent)
    except OSError as error:
        raise RunDirError(f"{path} cannot be made: {reason(error)}") from error


def _await_ranks(temporary: Path, path: Path, ranks: int, wait_s: float) -> list[int]:
    """Wait until each rank has either written its file or failed; returns those that failed."""
    expected = {sibling_name(first_name(STEM, ranks), rank): f"failed_{rank:05d}" for rank in range(ranks)}
    for _ in _polls(wait_s):
        found = set(os.listdir(temporary)) if temporary.is_dir() else set()
        missing = [name for name, mark in expected.items() if name not in found and mark not in found]
        if not missing:
            break
    else:
        raise RunDirError(
            f"{path} is not made: after {wait_s:g} s, {len(missing)} of {ranks} ranks have not written their "
            f"shards, such as {missing[0]}; the directory must be one that all ranks see"
        )
    return [rank for rank, mark in enumerate(expected.values()) if mark in found]


def _await_commit(path: Path, temporary: Path, inode: int, wait_s: float) -> None:
    for _ in _polls(wait_s):
        # Rank 0 has either renamed the directory or removed it.
        if not temporary.is_dir():
            # An older checkpoint may have the name, and another inode.
            with suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    return
            raise RunDirError(f"{path} is not made: another rank could not write its shards; see its log")
    raise RunDirError(f"{path} is not made: rank 0 did not finish it in {wait_s:g} s; see its log")


def _polls(wait_s: float) -> Iterator[None]:
    """Yield again and again, with growing pauses, for about so many seconds."""
    begun_s, pause_s = time.monotonic(), 0.002
    while True:
        yield
        if time.monotonic() - begun_s > wait_s:
            return
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.2)
