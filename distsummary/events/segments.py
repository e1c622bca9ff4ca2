"""The event files of a directory, called segments: their names, stamps (seconds) and order."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distsummary.format.records import MINDSPORE, TENSORBOARD

LINEAGE_SUFFIX = "_lineage"
LEAST_BYTES = 1 << 16  # of an event file that gets an index; less is read as fast
LANDSCAPE = "landscape"  # the `source` of files of landscapes that stand next to those of the training

_MINDSPORE_NAME = re.compile(r"summary\.(?P<stamp>\d{1,10})\.")
_HIDDEN_LINEAGE_NAME = re.compile(rf"lineage\.(?P<stamp>\d{{1,10}})\..*{LINEAGE_SUFFIX}$")
_SOURCE = re.compile(r"summary\.\d{1,10}\.(?P<first>.+)\.[^.]+$|tfevents\..*\.(?P<last>[^.]+)$")
_TENSORBOARD_NAME = re.compile(r"tfevents\.(?P<stamp>\d{1,10})\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """The name of a segment without its stamp; `source` is different for each writer of a run."""

    prefix: str = "events"
    suffix: str = "_MS"
    source: str = "0"
    host: str
    pid: int

    def file_name(self, dialect: str, stamp: int) -> str:
        """The name with a stamp; viewers look for `summary.<seconds>` (MindSpore's dialect) or `tfevents`."""
        if dialect == TENSORBOARD:
            return f"{self.prefix}.out.tfevents.{stamp:010d}.{self.host}.{self.pid}.{self.source}"
        return f"{self.prefix}.out.events.summary.{stamp:010d}.{self.source}.{self.host}{self.suffix}"

    def lineage_name(self, stamp: int, *, is_hidden: bool = False) -> str:
        """The name of a lineage file with a stamp; MindInsight does not see a hidden one."""
        word = "lineage" if is_hidden else "summary"
        return f"{self.prefix}.out.events.{word}.{stamp:010d}.{self.source}.{self.host}{LINEAGE_SUFFIX}"


def dialect_of(path: str | os.PathLike[str]) -> str:
    """The dialect of a file, recognised from its name: "tensorboard", "lineage" or "mindspore"."""
    name = os.path.basename(path)
    if "tfevents" in name:
        return "tensorboard"
    return "lineage" if name.endswith(LINEAGE_SUFFIX) else "mindspore"


def stamp_of(name: str) -> int | None:
    """The stamp (seconds) in an event file's name, None for any other file."""
    patterns = (_TENSORBOARD_NAME, _MINDSPORE_NAME, _HIDDEN_LINEAGE_NAME)
    match = next(filter(None, (pattern.search(name) for pattern in patterns)), None)
    return int(match["stamp"]) if match else None


def is_shortened(path: Path, file: BinaryIO | None = None) -> bool:
    """Whether bulk values were removed from an event file, so that it is another one than before; it does not
    grow any more. `file`: the same, if it is open. Raises OSError.
    """
    # Imported here, as few runs need it.
    from distsummary.format.removals import removed_from

    return removed_from(file or path, dialect_of(path)).values > 0


def source_of(name: str) -> str | None:
    """The `source` in an event file's name, None for any other file."""
    match = _SOURCE.search(name)
    return match and (match["first"] or match["last"])


def other_writer(directory: Path, source: str, sources: int) -> str | None:
    """The source, another one of the numbers below `sources`, of an event file that a directory holds."""
    names = os.listdir(directory) if sources > 1 and directory.is_dir() else []
    others = {found for name in names if (found := source_of(name)) and found != source}
    return min((other for other in others if other.isdigit() and int(other) < sources), default=None)


def segments(directory: Path, dialect: str) -> list[Path]:
    """The event files of one dialect in a directory, oldest first, without files of lineage or landscapes."""
    pattern = _TENSORBOARD_NAME if dialect == TENSORBOARD else _MINDSPORE_NAME
    found = [path for path in directory.iterdir() if pattern.search(path.name) and path.is_file()]
    if dialect == MINDSPORE:
        found = [p for p in found if dialect_of(p) == MINDSPORE and source_of(p.name) != LANDSCAPE]
    return sorted(found, key=lambda path: (stamp_of(path.name), path.name))


def lineage_files(directory: Path) -> list[Path]:
    """The lineage files of a directory, oldest first."""
    found = [
        p for p in directory.iterdir() if p.name.endswith(LINEAGE_SUFFIX) and stamp_of(p.name) is not None
    ]
    return sorted(found, key=lambda path: (stamp_of(path.name), path.name))


def landscape_files(directory: Path) -> list[Path]:
    """The files of landscapes, in MindSpore's dialect, next to those of a training; oldest first."""
    found = [
        p for p in directory.iterdir() if source_of(p.name) == LANDSCAPE and stamp_of(p.name) is not None
    ]
    found = [p for p in found if dialect_of(p) == MINDSPORE and p.is_file()]
    return sorted(found, key=lambda path: (stamp_of(path.name), path.name))


def all_event_files(directory: Path) -> list[Path]:
    """The event files of a directory: MindSpore's dialect, landscapes, lineage, then TensorBoard's."""
    mindspore = [*segments(directory, MINDSPORE), *landscape_files(directory)]
    return [*mindspore, *lineage_files(directory), *segments(directory, TENSORBOARD)]


def next_stamp(directory: Path, now: float) -> int:
    """The stamp of a new file, max(now, highest stamp + 1): viewers order files by their stamps."""
    stamps = [stamp for path in directory.iterdir() if (stamp := stamp_of(path.name)) is not None]
    return max(int(now), max(stamps, default=-1) + 1)
