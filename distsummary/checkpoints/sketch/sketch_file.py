"""The sketches of a training, step by step, in files that a crash cannot spoil and shards can share.

A file is one part (rank) of one attempt, `sketch_00000_rank_00002.frames` in the ckpt_dir, of TFRecord
frames:

    first    u32 length | JSON of the header | K float64: S(theta) at the first step of the file
    others   int64 step | float64 scale | K int16: (S(theta) - the first) / scale, rounded

all little endian; a scale of NaN stands for parameters that are not finite. Relative to the first step a
number of 16 bits loses nothing against the error of the sketch. A frame takes 63,846 bytes.
"""

import json
import logging
import mmap
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from distsummary.checkpoints.mapped import map_file
from distsummary.checkpoints.metadata import refuse_absent_run
from distsummary.checkpoints.sketch.count_sketch import BUCKETS, SKETCH
from distsummary.checks import check_int
from distsummary.errors import DamagedFileError, InvalidValueError, MissingFileError, RunDirError
from distsummary.format.frames import HEADER_BYTES, frame, read_frames
from distsummary.publish import ensure_directory

Array = NDArray[Any]

FORMAT = 1
_NAME = re.compile(r"sketch_(\d{5,})_rank_(\d{5,})\.frames")
_LENGTH = struct.Struct("<I")
_ROW = struct.Struct("<qd")
_LARGEST = 32767

_log = logging.getLogger(__name__)


class Pending(Protocol):
    """A sketch that may still be under way on a device."""

    def result(self) -> Array:
        """float64 (BUCKETS,); waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchHeader:
    """Whose sketches a file holds: part `rank` of `parts` that add up, of one attempt of a run.

    `parameters` is the `sketch.digest` of what is sketched.
    """

    run_id: str
    parameters: str = ""
    attempt: int = 0
    rank: int = 0
    parts: int = 1
    seed: int = 0

    def is_of(self, other: "SketchHeader") -> bool:
        """Whether both are of one run, and of the same parameters."""
        return (self.run_id, self.parameters, self.seed) == (other.run_id, other.parameters, other.seed)

    def file(self, ckpt_dir: Path) -> Path:
        """Where it is kept."""
        return ckpt_dir / f"sketch_{self.attempt:05d}_rank_{self.rank:05d}.frames"


class SketchWriter:
    """Appends sketches to the file of one part; made, or made anew, at the first. Not for several threads.

    Every call of `write` is one write to the file: what was written before survives a crash, and a write that
    fails leaves no trace.
    """

    def __init__(self, ckpt_dir: str | os.PathLike[str], header: SketchHeader) -> None:
        self._path = header.file(Path(ckpt_dir))
        self._header = header
        self._first: Array | None = None
        self._end = 0

    def write(self, rows: Sequence[tuple[int, Pending]]) -> None:
        """Append the sketches of these steps; raises RunDirError when the system refuses."""
        sketches = [(step, pending.result()) for step, pending in rows]
        if not sketches:
            return
        is_new = self._first is None
        first = _finite(sketches[0][1]) if self._first is None else self._first
        frames = [_header_frame(self._header, first)] if is_new else []
        frames += [_row_frame(step, sketch - first) for step, sketch in sketches]
        if is_new:
            ensure_directory(self._path.parent)
        try:
            with open(self._path, "wb" if is_new else "r+b", buffering=0) as file:
                self._append(file, b"".join(frames))
        except OSError as error:
            raise RunDirError(
                f"{self._path} cannot be written: {error.strerror or error}; "
                "free space or mend the permissions"
            ) from error
        self._first = first

    def _append(self, file: BinaryIO, data: bytes) -> None:
        file.seek(self._end)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(self._end)
            raise
        self._end += len(data)


def _finite(sketch: Array) -> Array:
    """What displacements are counted from; parameters that are not finite cannot be."""
    return sketch if np.isfinite(sketch).all() else np.zeros_like(sketch)


def _header_frame(header: SketchHeader, first: Array) -> bytes:
    told = json.dumps({"format": FORMAT, "sketch": SKETCH, "buckets": BUCKETS, **asdict(header)}).encode()
    return frame(_LENGTH.pack(len(told)) + told + first.astype("<f8").tobytes())


def _row_frame(step: int, displacement: Array) -> bytes:
    """The frame of a displacement, which is used up."""
    scale = float(max(displacement.max(), -displacement.min())) / _LARGEST  # NaN where one value is
    if not np.isfinite(scale):
        return frame(_ROW.pack(step, float("nan")) + bytes(2 * BUCKETS))
    if scale > 0:
        displacement /= scale
    np.rint(displacement, out=displacement)
    return frame(_ROW.pack(step, scale) + displacement.astype("<i2").tobytes())


@dataclass(frozen=True, slots=True)
class _Stored:
    """One row of one part where it lies: first + scale * numbers."""

    first: Array
    data: mmap.mmap
    offset: int
    scale: float

    def read(self, start: int, stop: int) -> Array:
        numbers = np.frombuffer(self.data, "<i2", count=stop - start, offset=self.offset + 2 * start)
        return np.asarray(self.first[start:stop] + self.scale * numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketches:
    """The sketches of a training by step, in mapped files.

    `steps` ascend; `diverged` are those whose parameters were not finite, which have no sketch. `header` is
    that of one part of the last attempt.
    """

    steps: tuple[int, ...]
    diverged: tuple[int, ...]
    header: SketchHeader
    _rows: Mapping[int, Sequence[_Stored]]

    def read(self, step: int, start: int = 0, stop: int = BUCKETS) -> Array:
        """Buckets start .. stop-1 of S(theta) at a step, float64."""
        first, *others = self._rows[step]
        total = first.read(start, stop)
        for other in others:
            total += other.read(start, stop)
        return total


def has_sketches(ckpt_dir: str | os.PathLike[str]) -> bool:
    """Whether a training left sketches there."""
    directory = Path(ckpt_dir)
    return directory.is_dir() and any(_NAME.fullmatch(path.name) for path in directory.iterdir())


def read_sketches(ckpt_dir: str | os.PathLike[str]) -> Sketches:
    """The sketches that a run's attempts and ranks left in `ckpt_dir`.

    A later attempt takes the place of earlier ones from its first step on. Damaged and torn frames are left
    out. Raises MissingFileError when there are none, DamagedFileError when no file can be used.
    """
    directory = Path(ckpt_dir)
    files = sorted(path for path in _entries(directory) if _NAME.fullmatch(path.name))
    if not files:
        refuse_absent_run(directory)
        raise MissingFileError(
            f"{directory} holds no sketches; train with collect_landscape={{'sketch': True}} to have some"
        )
    parts = [part for path in files if (part := _read_part(path)) is not None]
    if not parts:
        raise DamagedFileError(f"no sketch file in {directory} can be read; train again")
    newest = _newest(parts)
    rows: dict[int, list[_Stored]] = {}
    for attempt in sorted({part.header.attempt for part in parts}):
        mine = [p for p in parts if p.header.attempt == attempt and p.header.is_of(newest)]
        added = _add_up(mine)
        first = min(added, default=None)
        rows = {step: row for step, row in rows.items() if first is None or step < first} | added
    if not rows:
        raise DamagedFileError(f"{directory} holds no step that all parts of the model have; train again")
    finite = {step: row for step, row in sorted(rows.items()) if all(np.isfinite(s.scale) for s in row)}
    return Sketches(
        steps=tuple(finite),
        diverged=tuple(sorted(rows.keys() - finite.keys())),
        header=newest,
        _rows=finite,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    header: SketchHeader
    rows: Mapping[int, _Stored]
    modified: float


def _newest(parts: Sequence[_Part]) -> SketchHeader:
    """That of the last attempt: a copy of a run has times of its own, so they tell runs apart alone."""
    run_id = max(parts, key=lambda part: part.modified).header.run_id
    headers = (part.header for part in parts if part.header.run_id == run_id)
    return max(headers, key=lambda header: header.attempt)


def _entries(directory: Path) -> Iterable[Path]:
    return directory.iterdir() if directory.is_dir() else ()


def _add_up(parts: Sequence[_Part]) -> dict[int, list[_Stored]]:
    """The steps that all parts of one attempt have; none if a part is missing."""
    if not parts:
        return {}
    header = parts[0].header
    ranks = {part.header.rank for part in parts}
    if len(ranks) < header.parts:
        _log.warning(
            "attempt %d has sketches of %d of %d parts of the model; they are left out",
            header.attempt, len(ranks), header.parts,
        )  # fmt: skip
        return {}
    steps = set.intersection(*(set(part.rows) for part in parts))
    return {step: [part.rows[step] for part in parts] for step in sorted(steps)}


def _read_part(path: Path) -> _Part | None:
    """One file; None, and a line in the log, where its beginning cannot be read."""
    frames = read_frames(path, resync=True)
    try:
        head = next(frames, None)
        if head is None or head.damage is not None:
            raise DamagedFileError("its first frame is damaged or not there")
        header, first = _read_header(head.payload)
        data = map_file(path)
    except (DamagedFileError, InvalidValueError, ValueError, TypeError, KeyError) as error:
        _log.warning("%s holds no sketches: %s", path, error)
        return None
    rows: dict[int, _Stored] = {}
    last = -1
    for found in frames:
        if found.damage is not None or len(found.payload) != _ROW.size + 2 * BUCKETS:
            _log.warning("%s: left out at byte %d: %s", path, found.offset, found.damage or "another size")
            continue
        step, scale = _ROW.unpack_from(found.payload)
        if step <= last:  # steps that were taken again
            rows = {other: row for other, row in rows.items() if other < step}
        rows[step] = _Stored(first, data, found.offset + HEADER_BYTES + _ROW.size, scale)
        last = step
    return _Part(header=header, rows=rows, modified=path.stat().st_mtime)


def _read_header(payload: bytes) -> tuple[SketchHeader, Array]:
    (length,) = _LENGTH.unpack_from(payload)
    told = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
    known = (told.pop("format"), told.pop("sketch"), told.pop("buckets"))
    if known != (FORMAT, SKETCH, BUCKETS):
        raise DamagedFileError(f"it was written by another version: {known}")
    header = SketchHeader(**told)
    for name in ("attempt", "rank"):
        check_int(name, getattr(header, name), low=0)
    check_int("parts", header.parts, low=1)
    first = np.frombuffer(payload, "<f8", count=BUCKETS, offset=_LENGTH.size + length)
    return header, first
