"""Event files to events: one file, all segments of a directory, or its lineage."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from distsummary.checks import check_choice
from distsummary.errors import DamagedFileError, MissingFileError
from distsummary.events import mindspore_format, tensorboard_format, wire
from distsummary.events.frames import MAX_PAYLOAD, Frame, read_frames
from distsummary.events.records import EventIds, Lineage, Value
from distsummary.events.segment import LINEAGE_SUFFIX, lineage_files, segments

MODES = ("strict", "skip")
_DECODERS = {
    "mindspore": mindspore_format.decode_event,
    "lineage": mindspore_format.decode_lineage_event,
    "tensorboard": tensorboard_format.decode_event,
}

_logger = logging.getLogger(__name__)


class ReadEvent(NamedTuple):
    """An event of a file; `run_id` is empty and `attempt` and `seq` are 0 when another writer wrote it.

    `values` hold decoded data: float, array in its source dtype, Histogram, Image, Landscape, the bytes of a
    graph, a lineage message. `wall_time` in seconds since the epoch, `offset` in bytes.
    """

    run_id: str
    attempt: int
    seq: int
    step: int
    wall_time: float
    values: list[Value]
    file: Path
    offset: int


class Damage(NamedTuple):
    """What a reader skipped, and why."""

    file: Path
    offset: int
    reason: str


def dialect_of(path: str | os.PathLike[str]) -> str:
    """ "tensorboard", "lineage" or "mindspore", by the name of the file."""
    name = os.path.basename(path)
    if "tfevents" in name:
        return "tensorboard"
    return "lineage" if name.endswith(LINEAGE_SUFFIX) else "mindspore"


def read_file(
    path: str | os.PathLike[str],
    mode: str = "strict",
    *,
    skipped: list[Damage] | None = None,
    max_payload: int = MAX_PAYLOAD,
) -> Iterator[ReadEvent]:
    """The events of one file, in its order; records without values (versions, sessions) are left out.

    A torn last frame is no damage: the file may be growing.

    Args:
        path: the file; its name tells the dialect.
        mode: "strict" raises at damage; "skip" goes on at the next frame, or stops where the damage hides it.
        skipped: takes what was skipped; without it, it is logged.
        max_payload: larger events (bytes) are damage.

    Raises:
        DamagedFileError: with the file and the offset. MissingFileError: there is no such file.
    """
    check_choice("mode", mode, MODES)
    return _read_file(Path(path), mode, skipped, max_payload)


def _read_file(path: Path, mode: str, skipped: list[Damage] | None, max_payload: int) -> Iterator[ReadEvent]:
    decode = _DECODERS[dialect_of(path)]
    try:
        for frame in read_frames(path, max_payload=max_payload):
            try:
                decoded = decode(_sound(frame))
            except DamagedFileError as error:
                _skip_or_raise(Damage(path, frame.offset, str(error)), mode, skipped)
                continue
            if decoded is not None:
                ids, event = decoded
                yield ReadEvent(*ids, *event, path, frame.offset)
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no event file {path}; it was removed or never written") from error


def _sound(frame: Frame) -> bytes:
    if frame.damage is not None:
        raise DamagedFileError(frame.damage)
    return frame.payload


def _skip_or_raise(damage: Damage, mode: str, skipped: list[Damage] | None) -> None:
    text = f"{damage.file} is damaged at byte {damage.offset}: {damage.reason}"
    if mode == "strict":
        raise DamagedFileError(f"{text}; read it with mode='skip' to leave that out")
    if skipped is None:
        _logger.warning("%s; left out", text)
    else:
        skipped.append(damage)


def read_directory(
    path: str | os.PathLike[str],
    dialect: str = "mindspore",
    mode: str = "strict",
    *,
    skipped: list[Damage] | None = None,
) -> Iterator[ReadEvent]:
    """The events of all segments of one dialect, in the order of their stamps.

    An event that was written twice comes once, by (run id, attempt, seq); those of other writers, which have
    no seq, all come. Errors and `skipped` as in `read_file`.
    """
    check_choice("dialect", dialect, ("mindspore", "tensorboard"))
    check_choice("mode", mode, MODES)
    return _read_directory(_directory(path), dialect, mode, skipped)


def _read_directory(
    directory: Path, dialect: str, mode: str, skipped: list[Damage] | None
) -> Iterator[ReadEvent]:
    seen: set[tuple[str, int, int]] = set()
    for segment in segments(directory, dialect):
        for event in read_file(segment, mode, skipped=skipped):
            identity = (event.run_id, event.attempt, event.seq)
            if identity in seen:
                continue
            if event.seq:
                seen.add(identity)
            yield event


def read_last_seq(directory: str | os.PathLike[str], dialect: str, run_id: str, attempt: int) -> int:
    """The highest seq of an attempt in the files of one dialect, 0 for none; damage is passed over."""
    for segment in reversed(segments(_directory(directory), dialect)):
        last = 0
        for frame in read_frames(segment):
            if frame.damage is None:
                ids = _identity(frame.payload)
                if ids[:2] != (run_id, attempt):
                    break  # the version record says whose segment it is: another attempt's costs one frame
                last = max(last, ids.seq)
        if last:  # segments are in the order of the seqs
            return last
    return 0


def _identity(payload: bytes) -> EventIds:
    try:
        return wire.read_identity(payload)
    except ValueError:
        return EventIds("", 0, 0)


def read_lineage(path: str | os.PathLike[str], mode: str = "skip") -> Lineage:
    """The lineage in a file, or in all lineage files of a directory; an empty one if there is none.

    As in MindInsight: the last event of each kind counts and custom information is merged; a later file with
    the lineage of a training or a dataset graph begins anew. Errors as in `read_file`.
    """
    files = [Path(path)] if not os.path.isdir(path) else lineage_files(Path(path))
    lineage = Lineage()
    for file in files:
        values = [value for event in read_file(file, mode) for value in event.values]
        if any(value.plugin in ("train_lineage", "dataset_graph") for value in values):
            lineage = Lineage()
        for value in values:
            lineage = mindspore_format.updated_lineage(lineage, value)
    return lineage


def _directory(path: str | os.PathLike[str]) -> Path:
    if not os.path.isdir(path):
        raise MissingFileError(
            f"there is no directory {os.fspath(path)}; name the directory of a rank or run"
        )
    return Path(path)
