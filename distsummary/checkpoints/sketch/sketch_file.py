"""Files to which sketches are appended, so that they survive a crash; one for each rank that sketches.

A file holds the sketches S(theta), of K numbers each (see `count_sketch`), of one rank in one attempt.
Its name is like `sketch_00000_rank_00002.frames` (attempt, rank), and it consists of TFRecord frames:

    first    u32 length | JSON of the header | K float64: S0, which is S(theta) at the first step of the file
    others   int64 step | float64 scale | K int16: (S(theta) - S0) / scale, rounded

All numbers are little-endian. A scale of NaN marks parameters that are not finite; if the first step has such
parameters, S0 is 0. The error of rounding to 16 bits is negligible next to the error of the sketch. Each
frame after the first takes 63,846 bytes.
"""

import json
import logging
import mmap
import os
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsummary.base.checks import check_int, check_type
from distsummary.base.json_door import parse_json
from distsummary.base.publish import ensure_directory, rights_in
from distsummary.checkpoints.mapped import map_file
from distsummary.checkpoints.metadata import refuse_absent_run
from distsummary.checkpoints.sketch.count_sketch import BUCKETS, SKETCH
from distsummary.errors import DamagedFileError, MissingFileError, RunDirError
from distsummary.format.frames import HEADER_BYTES, frame, read_frames
from distsummary.frameworks.base import Pending

Array = NDArray[Any]

FORMAT = 1
_NAME = re.compile(r"sketch_(\d{5,})_rank_(\d{5,})\.frames")
_LENGTH = struct.Struct("<I")
_ROW = struct.Struct("<qd")
_LARGEST = 32767

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchHeader:
    """Identifies a file's sketches: they cover part `rank` (of `parts`) of the model, in one attempt.

    `parameters` is the `count_sketch.digest` of the parameters.
    """

    run_id: str
    parameters: str = ""
    attempt: int = 0
    rank: int = 0
    parts: int = 1
    seed: int = 0

    def is_of(self, other: "SketchHeader") -> bool:
        """Whether files with these two headers belong to one run and to the same parameters."""
        return (self.run_id, self.parameters, self.seed) == (other.run_id, other.parameters, other.seed)

    def file(self, ckpt_dir: Path) -> Path:
        """The path of the file with this header."""
        return ckpt_dir / f"sketch_{self.attempt:05d}_rank_{self.rank:05d}.frames"


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o666 & rights_in(Path(path).parent))


class SketchWriter:
    """Appends sketches to a rank's file, which the first `write` creates or replaces. Not thread-safe.

    Every call of `write` appends to the file at once: what earlier calls wrote survives a crash, and a failed
    call leaves nothing behind.
    """

    def __init__(self, ckpt_dir: str | os.PathLike[str], header: SketchHeader) -> None:
        self._path = header.file(Path(ckpt_dir))
        self._header = header
        self._first: Array | None = None
        self._end = 0

    def write(self, rows: Sequence[tuple[int, Pending]]) -> None:
        """Append the sketches of these steps; raises RunDirError if the file cannot be written."""
        sketches = [(step, np.asarray(pending.result(), np.float64)) for step, pending in rows]
        if not sketches:
            return
        frames, first = [], self._first
        if first is None:
            first = sketches[0][1]
            if not np.isfinite(first).all():
                # A difference from non-finite numbers has no meaning.
                first = np.zeros_like(first)
            header = json.dumps(
                {"format": FORMAT, "sketch": SKETCH, "buckets": BUCKETS, **asdict(self._header)}
            ).encode()
            frames.append(frame(_LENGTH.pack(len(header)) + header + first.astype("<f8").tobytes()))
            ensure_directory(self._path.parent)
        data = b"".join((*frames, *(_row_frame(step, sketch - first) for step, sketch in sketches)))
        try:
            mode = "wb" if self._first is None else "r+b"
            with open(self._path, mode, buffering=0, opener=_opened) as file:
                file.seek(self._end)
                rest = memoryview(data)
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    # A part of a frame must not stay: what follows it could not be read.
                    file.truncate(self._end)
                    raise
        except OSError as error:
            raise RunDirError(
                f"{self._path} cannot be written: {error.strerror or error}; "
                "free space or fix the permissions"
            ) from error
        # Only now, so that a call that failed changes nothing.
        self._first, self._end = first, self._end + len(data)


def _row_frame(step: int, displacement: Array) -> bytes:
    """The frame of one step; overwrites `displacement`."""
    scale = float(max(displacement.max(), -displacement.min())) / _LARGEST  # NaN if any value is NaN
    if not np.isfinite(scale):
        return frame(_ROW.pack(step, float("nan")) + bytes(2 * BUCKETS))
    if scale > 0:
        displacement /= scale
    np.rint(displacement, out=displacement)
    return frame(_ROW.pack(step, scale) + displacement.astype("<i2").tobytes())


@dataclass(frozen=True, slots=True)
class _Row:
    """The sketch of one step in one file: `first` + `scale` * (the int16 numbers at `offset` of `data`)."""

    first: Array
    data: mmap.mmap
    offset: int
    scale: float

    def read(self, start: int, stop: int) -> Array:
        numbers = np.frombuffer(self.data, "<i2", count=stop - start, offset=self.offset + 2 * start)
        return np.asarray(self.first[start:stop] + self.scale * numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketches:
    """The sketches of one training, at each step that has one, in mapped files.

    `steps` ascend. `diverged` holds the steps whose parameters were not finite; they have no sketch. `header`
    is the header of one part of the last attempt.
    """

    steps: tuple[int, ...]
    diverged: tuple[int, ...]
    header: SketchHeader
    _rows: Mapping[int, Sequence[_Row]]

    def read(self, step: int, start: int = 0, stop: int = BUCKETS) -> Array:
        """Buckets start .. stop-1 of S(theta) at a step, float64."""
        first, *others = self._rows[step]
        total = first.read(start, stop)
        for other in others:
            total += other.read(start, stop)
        return total


def has_sketches(ckpt_dir: str | os.PathLike[str]) -> bool:
    """Whether a directory exists and has sketch files."""
    return bool(_sketch_paths(Path(ckpt_dir)))


def _sketch_paths(directory: Path) -> list[Path]:
    entries = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in entries if _NAME.fullmatch(path.name))


def read_sketches(ckpt_dir: str | os.PathLike[str]) -> Sketches:
    """The sketches that the attempts and ranks of a run have left in `ckpt_dir`.

    A later attempt replaces the sketches of earlier attempts from its first step on. Damaged or torn frames
    are skipped. Raises MissingFileError if there are no sketch files, DamagedFileError if none can be used.
    """
    directory = Path(ckpt_dir)
    paths = _sketch_paths(directory)
    if not paths:
        refuse_absent_run(directory)
        raise MissingFileError(
            f"{directory} holds no sketches; train with collect_landscape={{'sketch': True}} to keep some"
        )
    files = [file for path in paths if (file := _read_file(path)) is not None]
    if not files:
        raise DamagedFileError(f"no sketch file in {directory} can be read; train again")
    # Modification times choose only the run: copying changes them, so they cannot order the run's attempts.
    run_id = max(files, key=lambda file: file.modified).header.run_id
    newest = max((f.header for f in files if f.header.run_id == run_id), key=lambda header: header.attempt)
    rows: dict[int, list[_Row]] = {}
    for attempt in sorted({file.header.attempt for file in files}):
        parts = [f for f in files if f.header.attempt == attempt and f.header.is_of(newest)]
        ranks = {file.header.rank for file in parts}
        if parts and len(ranks) < parts[0].header.parts:
            _log.warning(
                "attempt %d has sketches of %d of %d parts of the model; they are left out",
                attempt, len(ranks), parts[0].header.parts,
            )  # fmt: skip
        elif parts and (steps := sorted(set.intersection(*(set(part.rows) for part in parts)))):
            # This attempt repeats the steps from its first sketch on.
            rows = {step: row for step, row in rows.items() if step < steps[0]}
            rows |= {step: [part.rows[step] for part in parts] for step in steps}
    if not rows:
        raise DamagedFileError(f"{directory} has no step with sketches of all parts; train again")
    finite = {step: row for step, row in sorted(rows.items()) if all(np.isfinite(r.scale) for r in row)}
    return Sketches(
        steps=tuple(finite),
        diverged=tuple(sorted(rows.keys() - finite.keys())),
        header=newest,
        _rows=finite,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SketchFile:
    header: SketchHeader
    rows: Mapping[int, _Row]
    modified: float


def _read_file(path: Path) -> _SketchFile | None:
    """Read one file; returns None, with a warning in the log, if its first frame cannot be read."""
    frames = read_frames(path, resync=True)
    try:
        head = next(frames, None)
        if head is None or head.damage is not None:
            raise DamagedFileError("its first frame is damaged or missing")
        (length,) = _LENGTH.unpack_from(head.payload)
        text = head.payload[_LENGTH.size : _LENGTH.size + length]
        fields = parse_json(text, dict[str, str | int], name="its header")
        known = (fields.pop("format"), fields.pop("sketch"), fields.pop("buckets"))
        if known != (FORMAT, SKETCH, BUCKETS):
            raise DamagedFileError(f"it was written by another version: {known}")
        header = SketchHeader(**fields)
        for name, low in (("attempt", 0), ("rank", 0), ("parts", 1), ("seed", -(1 << 63))):
            check_int(name, getattr(header, name), low=low, high=(1 << 63) - 1)
        for name in ("run_id", "parameters"):
            check_type(name, getattr(header, name), str)
        first = np.frombuffer(head.payload, "<f8", count=BUCKETS, offset=_LENGTH.size + length)
        data = map_file(path)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        _log.warning("%s holds no sketches: %s", path, error)
        return None
    rows: dict[int, _Row] = {}
    last = -1
    for found in frames:
        if found.damage is not None or len(found.payload) != _ROW.size + 2 * BUCKETS:
            _log.warning("%s: no sketch at byte %d: %s", path, found.offset, found.damage or "wrong size")
            continue
        step, scale = _ROW.unpack_from(found.payload)
        # The training has repeated the steps from this one on.
        if step <= last:
            rows = {other: row for other, row in rows.items() if other < step}
        rows[step] = _Row(first, data, found.offset + HEADER_BYTES + _ROW.size, scale)
        last = step
    return _SketchFile(header=header, rows=rows, modified=path.stat().st_mtime)
