"""One rank's shards of a checkpoint: a safetensors file that tells which slices of the model it holds.

Its metadata has one entry of our own, JSON:

    "distsummary.shards": {"format": 1, "run_id", "attempt", "unit", "number", "rank", "ranks",
        "slices": {name: {"global_shape": [...], "offset": [...]}}, "sha256"}

`rank` counts the ranks that write, from 0 to `ranks` - 1: those that hold no mere copy of another's slices.
The slices stand in the order of the model. The digest is that of the entry with an empty one, and of the
arrays' bytes by sorted names.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from distsummary.checkpoints.mapped import Array, Layout, check_layout
from distsummary.checkpoints.metadata import MAX_INT, MAX_SHARDS
from distsummary.checkpoints.safetensors import open_safetensors, writable, write_safetensors
from distsummary.checks import check_int, check_type
from distsummary.errors import DamagedFileError, InvalidTypeError, InvalidValueError
from distsummary.format.records import Shard

FORMAT = 1
ENTRY = "distsummary.shards"
SUFFIX = ".safetensors"

_FIRST = re.compile(rf"_rank_0{{5}}_of_(\d{{5,8}}){re.escape(SUFFIX)}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Whose part of a model in shards: of rank `rank` of the `ranks` that write, in an attempt of a run."""

    rank: int
    ranks: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """Whose shards a file holds: rank `rank` of the `ranks` that write, of one attempt of a run.

    `slices` tell where in the whole arrays those of the file lie, by name; a whole one has the offsets 0.
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
        """Whether both may be files of one checkpoint."""
        return replace(self, rank=0, slices={}, sha256="") == replace(other, rank=0, slices={}, sha256="")

    def to_json(self) -> str:
        """The entry in the metadata."""
        return json.dumps({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True, slots=True)
class Source:
    """A file, and by what to know whether it is still the same: inode, bytes, time of the last change."""

    path: Path
    stamp: tuple[int, int, int]

    def check(self, status: os.stat_result) -> None:
        """Raise DamagedFileError if this is the status of another file."""
        if self.stamp != _stamp(status):
            raise DamagedFileError(f"{self.path} was replaced while it was read; open the trajectory again")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A file of shards: its header, and where its arrays lie."""

    source: Source
    header: ShardHeader
    layouts: Mapping[str, Layout]


def first_name(stem: str, ranks: int) -> str:
    """What the file of rank 0 is called."""
    return f"{stem}_rank_00000_of_{ranks:05d}{SUFFIX}"


def sibling_name(first: str, rank: int) -> str:
    """What the file of another rank is called; raises DamagedFileError unless `first` is that of rank 0."""
    if not _FIRST.search(first):
        raise DamagedFileError(f"{first!r} does not name the shards of rank 0; it is not from this training")
    return _FIRST.sub(lambda found: f"_rank_{rank:05d}_of_{found[1]}{SUFFIX}", first)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_shards(path: Path, header: ShardHeader, state: Mapping[str, Array]) -> None:
    """Replace `path` by a file of these arrays, the slices that the header tells.

    Raises InvalidTypeError or InvalidValueError before anything is written, MissingExtraError, and
    RunDirError when writing fails.
    """
    check_type("state", state, Mapping)
    arrays = {name: writable(name, value) for name, value in state.items()}
    if arrays.keys() != header.slices.keys():
        odd = sorted(arrays.keys() ^ header.slices.keys())
        raise InvalidValueError(
            f"slices must be told of all arrays of state and no others, differ: {odd[:5]}"
        )
    for name, array in arrays.items():
        _check_slice(name, header.slices[name], array.shape)
    digest = _digest(header, (arrays[name].data for name in sorted(arrays)))
    told = replace(header, sha256=digest)
    write_safetensors(path, arrays, {ENTRY: told.to_json()})


def read_shards(path: Path) -> ShardFile:
    """The header of a file; no array is read.

    Raises MissingFileError, DamagedFileError for a file that is not what `write_shards` makes,
    MissingExtraError.
    """
    stamp = _stamp(os.stat(path)) if path.is_file() else (0, 0, 0)  # what is none is refused below
    _, layouts, metadata = open_safetensors(path)
    try:
        header = _parse(metadata.get(ENTRY, ""))
        if layouts.keys() != header.slices.keys():
            raise DamagedFileError("its header does not tell the slices of its arrays")
        for name, layout in layouts.items():
            _check_slice(name, header.slices[name], layout.shape)
            shape = header.slices[name].global_shape
            spans = ((0, math.prod(shape) * layout.stored.itemsize),)
            check_layout(name, replace(layout, shape=shape, spans=spans))
    except (DamagedFileError, InvalidTypeError, InvalidValueError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} holds no shards of a checkpoint: {error}; train again") from error
    return ShardFile(source=Source(path, stamp), header=header, layouts=layouts)


def verify(shards: ShardFile) -> None:
    """Raise DamagedFileError unless the file is as it was written; reads all of it."""
    data, layouts, _ = open_safetensors(shards.source.path)
    view = memoryview(data)
    spans = (view[start:stop] for name in sorted(layouts) for start, stop in layouts[name].spans)
    if _digest(shards.header, spans) != shards.header.sha256:
        raise DamagedFileError(
            f"{shards.source.path} is not what rank {shards.header.rank} of run {shards.header.run_id} wrote "
            "(its sha256 differs); train again or choose another number"
        )


def _digest(header: ShardHeader, arrays: Iterable[Any]) -> str:
    digest = hashlib.sha256(replace(header, sha256="").to_json().encode())
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


def _parse(text: str) -> ShardHeader:
    told = json.loads(text)
    check_type("the header", told, dict)
    if told.pop("format", None) != FORMAT:
        raise DamagedFileError("it was written by another version")
    slices = told.pop("slices")
    check_type("slices", slices, dict)
    header = ShardHeader(slices={name: _shard(name, entry) for name, entry in slices.items()}, **told)
    for name in ("run_id", "unit", "sha256"):
        check_type(name, getattr(header, name), str)
    check_int("attempt", header.attempt, low=0)
    check_int("number", header.number, low=-MAX_INT, high=MAX_INT)
    check_int("ranks", header.ranks, low=1, high=MAX_SHARDS)
    check_int("rank", header.rank, low=0, high=header.ranks - 1)
    return header


def _shard(name: str, entry: dict[str, Any]) -> Shard:
    shape, offset = entry["global_shape"], entry["offset"]
    for number in (*shape, *offset):
        check_int(f"the slice of {name!r}", number, low=0)
    return Shard(global_shape=tuple(shape), offset=tuple(offset))


def _check_slice(name: str, shard: Shard, shape: tuple[int, ...]) -> None:
    axes = len(shard.global_shape)
    is_inside = len(shape) == len(shard.offset) == axes and all(
        start >= 0 and start + size <= whole
        for start, size, whole in zip(shard.offset, shape, shard.global_shape, strict=True)
    )
    if not is_inside:
        raise InvalidValueError(
            f"{name!r} of shape {shape} at {shard.offset} must lie inside of the whole, {shard.global_shape}"
        )
