"""One rank's shards of a checkpoint: a safetensors file with the slices of the model that the rank holds.

Its metadata has one entry of our own, in JSON:

    "distsummary.shards": {"format": 1, "run_id", "attempt", "unit", "number", "rank", "ranks",
        "slices": {name: {"global_shape": [...], "offset": [...]}}, "sha256"}

`number` is the checkpoint's step or epoch (see `unit`). `ranks` counts only the ranks that write a file, and
`rank` numbers them from 0; a rank that only holds copies of other ranks' slices writes no file. `slices`
lists the parameters in the order of the model. The sha256 covers this entry (with an empty sha256) and the
bytes of the arrays, sorted by name.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from distsummary.base.checked_json import check_kind, parse_json
from distsummary.base.checks import check_int, check_type
from distsummary.checkpoints.mapped import Array, StoredArray, check_stored
from distsummary.checkpoints.metadata import MAX_INT, MAX_SHARDS
from distsummary.checkpoints.safetensors import open_safetensors, writable, write_safetensors
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard
from distsummary.rundir.run_records import Whole

FORMAT = 1
ENTRY = "distsummary.shards"
SUFFIX = ".safetensors"

_FIRST = re.compile(rf"_rank_0{{5}}_of_(\d{{5,8}}){re.escape(SUFFIX)}$")


class _Slice(TypedDict):
    global_shape: list[Whole]
    offset: list[Whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRank:
    """The number of this rank among the `ranks` ranks that write shards of a model, in one attempt."""

    rank: int
    ranks: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """Which shards a file holds: those of rank `rank` (of `ranks` ranks that write files), in one attempt.

    `slices` says where each of the file's arrays lies in the whole array; a whole array has offset 0.
    """

    run_id: str
    attempt: int = 0
    unit: str = "step"
    number: int = 0
    rank: int
    ranks: int
    slices: Mapping[str, Shard] = field(default_factory=dict)
    sha256: str = ""

    def is_beside(self, other: "ShardHeader") -> bool:
        """Whether files with these two headers can belong to one checkpoint."""
        return replace(self, rank=0, slices={}, sha256="") == replace(other, rank=0, slices={}, sha256="")

    def to_json(self) -> str:
        """The header as it is stored in the file's metadata."""
        return json.dumps({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file as it was when it was first opened; `stamp` is its inode, size and modification time."""

    path: Path
    stamp: tuple[int, int, int]

    def read_into(self, begin: int, out: Array) -> None:
        """Fill `out` in C order from byte `begin` on.

        Raises DamagedFileError if the file has been replaced since it was first opened, or ends early.
        """
        # Bytes can be read only into contiguous memory.
        buffer = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        rest = memoryview(buffer.reshape(-1).view(np.uint8).data)
        with open(self.path, "rb", buffering=0) as file:
            if self.stamp != _stamp(os.fstat(file.fileno())):
                raise DamagedFileError(
                    f"{self.path} was replaced while it was read; load the trajectory again"
                )
            file.seek(begin)
            while rest:
                # The operating system reads at most 2 GiB at a time.
                count = file.readinto(rest)
                if not count:
                    raise DamagedFileError(f"{self.path} ends early; train again or use another checkpoint")
                rest = rest[count:]
        if buffer is not out:
            out[...] = buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A file of shards: its header and its arrays."""

    version: FileVersion
    header: ShardHeader
    arrays: Mapping[str, StoredArray]


def first_name(stem: str, ranks: int) -> str:
    """The name of rank 0's file."""
    return f"{stem}_rank_00000_of_{ranks:05d}{SUFFIX}"


def sibling_name(first: str, rank: int) -> str:
    """The name of `rank`'s file; raises DamagedFileError unless `first` is the name of rank 0's file."""
    if not _FIRST.search(first):
        raise DamagedFileError(
            f"the name of the file with rank 0's shards must end with _rank_00000_of_<ranks>{SUFFIX}, got "
            f"{first!r}; train again"
        )
    return _FIRST.sub(lambda found: f"_rank_{rank:05d}_of_{found[1]}{SUFFIX}", first)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_shards(
    path: Path, header: ShardHeader, state: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Replace `path` by a file of these arrays; `header.slices` are their places in the whole arrays.

    `metadata`: more entries of the file's metadata, which the sha256 does not cover.

    Raises InvalidTypeError or InvalidValueError before anything is written, RunDirError
    if writing fails.
    """
    check_type("state", state, Mapping)
    arrays = {name: writable(name, value) for name, value in state.items()}
    if arrays.keys() != header.slices.keys():
        odd = sorted(arrays.keys() ^ header.slices.keys())
        raise InvalidValueError(
            f"slices must have exactly the names of the arrays in state; these differ: {odd[:5]}"
        )
    for name, array in arrays.items():
        _check_slice(name, header.slices[name], array.shape)
    digest = _digest(header, (arrays[name].data for name in sorted(arrays)))
    write_safetensors(path, arrays, {**(metadata or {}), ENTRY: replace(header, sha256=digest).to_json()})


def read_shards(path: Path) -> ShardFile:
    """Open a file: reads the header and locates the arrays without reading them.

    Raises MissingFileError, DamagedFileError for a file not made by `write_shards`.
    """
    # The stamp comes first, so that a file replaced from now on is noticed. What is no file is refused below.
    stamp = _stamp(os.stat(path)) if path.is_file() else (0, 0, 0)
    _, arrays, metadata = open_safetensors(path)
    try:
        fields = parse_json(metadata.get(ENTRY, ""), dict[str, Any], name="its header")
        if fields.pop("format", None) != FORMAT:
            raise DamagedFileError("it was written by another version")
        entries, slices = check_kind(fields.pop("slices"), dict[str, _Slice], name="its header"), {}
        for name, entry in entries.items():
            shape, offset = entry["global_shape"], entry["offset"]
            slices[name] = Shard(global_shape=tuple(shape), offset=tuple(offset))
        header = ShardHeader(slices=slices, **fields)
        for name in ("run_id", "unit", "sha256"):
            check_type(name, getattr(header, name), str)
        check_int("attempt", header.attempt, low=0)
        check_int("number", header.number, low=-MAX_INT, high=MAX_INT)
        check_int("ranks", header.ranks, low=1, high=MAX_SHARDS)
        check_int("rank", header.rank, low=0, high=header.ranks - 1)
        if arrays.keys() != slices.keys():
            raise DamagedFileError("its arrays and the slices in its header have different names")
        for name, array in arrays.items():
            _check_slice(name, slices[name], array.shape)
            # The whole array, too, must be one that NumPy can hold.
            shape = slices[name].global_shape
            spans = ((0, math.prod(shape) * array.stored.itemsize),)
            check_stored(name, replace(array, shape=shape, spans=spans))
    except (DamagedFileError, InvalidTypeError, InvalidValueError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} holds no shards of a checkpoint: {error}; train again") from error
    return ShardFile(version=FileVersion(path, stamp), header=header, arrays=arrays)


def verify(shards: ShardFile) -> None:
    """Raise DamagedFileError unless the file matches its sha256; reads the whole file."""
    data, arrays, _ = open_safetensors(shards.version.path)
    view = memoryview(data)
    spans = (view[start:stop] for name in sorted(arrays) for start, stop in arrays[name].spans)
    if _digest(shards.header, spans) != shards.header.sha256:
        raise DamagedFileError(
            f"{shards.version.path} is not what rank {shards.header.rank} of run {shards.header.run_id} "
            f"wrote (its sha256 differs); train again, or choose another {shards.header.unit}"
        )


def _digest(header: ShardHeader, arrays: Iterable[Any]) -> str:
    digest = hashlib.sha256(replace(header, sha256="").to_json().encode())
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


def _check_slice(name: str, shard: Shard, shape: tuple[int, ...]) -> None:
    axes = len(shard.global_shape)
    is_inside = len(shape) == len(shard.offset) == axes and all(
        start >= 0 and start + size <= whole
        for start, size, whole in zip(shard.offset, shape, shard.global_shape, strict=True)
    )
    if not is_inside:
        raise InvalidValueError(
            f"{name!r} of shape {shape} at {shard.offset} must lie inside the whole array, whose shape is "
            f"{shard.global_shape}"
        )
