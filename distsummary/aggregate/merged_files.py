"""The files of a merged run: written where no reader looks, then put in the place of the older ones."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from distsummary.errors import RunDirError
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.encode import Refusal, encode_event
from distsummary.format.frames import frame
from distsummary.format.lineage import Lineage, encode_lineage
from distsummary.format.records import DIALECTS, MINDSPORE, TENSORBOARD, Event, EventIds
from distsummary.publish import TEMPORARY, sync, temporary_name
from distsummary.reading.segments import SegmentName, lineage_files, next_stamp, segments
from distsummary.writing.files import Files
from distsummary.writing.segment import Segment

SOURCE = "merged"
_LINEAGE = "lineage"
_MERGED_NAME = re.compile(rf"summary\.\d{{1,10}}\.{SOURCE}\.|tfevents\.\d{{1,10}}\..*\.{SOURCE}$")


def is_merged(path: Path) -> bool:
    """Whether an event file was written by a merge, told by its name."""
    return _MERGED_NAME.search(path.name) is not None


def other_segments(directory: Path) -> list[Path]:
    """The event files of a directory that no merge wrote."""
    return [path for dialect in DIALECTS for path in segments(directory, dialect) if not is_merged(path)]


class MergedFiles:
    """The next merged files of a directory, in both dialects; no reader sees one before `publish`.

    A killed merge leaves a temporary directory in which nothing has the name of an event file; the next
    one removes it. Use it as a context manager, under the run's merge lock.

    Args:
        directory: the run dir.
        run_id, attempt: the identity of the events; their seq counts from 1.
        files: the operating system; a test passes a double.
    """

    def __init__(self, directory: Path, *, run_id: str, attempt: int = 0, files: Files | None = None) -> None:
        self.refused: list[Refusal] = []
        self._directory = directory
        self._files = files or Files()
        self._run_id, self._attempt, self._seq = run_id, attempt, 0
        self._segments: dict[str, Segment] = {}
        for left in _stagings(directory):
            shutil.rmtree(left)
        self._staging = temporary_name(directory)
        try:
            self._staging.mkdir()
        except OSError as error:
            raise RunDirError(
                f"{directory} cannot be written: {error.strerror}; mend its permissions"
            ) from error

    def write(self, event: Event) -> None:
        """Append an event to the files; what could not be written of it is in `refused`."""
        self._seq += 1
        payloads, refused = encode_event(event, self._ids(self._seq))
        self.refused += refused
        for dialect, payload in payloads.items():
            if payload is not None:
                self._open(dialect, event.step).append(frame(payload))

    def write_lineage(self, lineage: Lineage) -> None:
        """Write the lineage of the run; one without anything is no file."""
        payloads = encode_lineage(lineage, self._files.now(), self._ids(0))
        if payloads:
            self._segment(_LINEAGE).append(b"".join(frame(payload) for payload in payloads))

    def _ids(self, seq: int) -> EventIds:
        return EventIds(self._run_id, self._attempt, seq)

    def _segment(self, kind: str) -> Segment:
        segment = Segment(self._staging / kind, self._files)
        self._segments[kind] = segment
        return segment

    def _open(self, dialect: str, first_step: int) -> Segment:
        if dialect in self._segments:
            return self._segments[dialect]
        segment = self._segment(dialect)
        now, ids = self._files.now(), self._ids(0)
        if dialect == MINDSPORE:
            segment.append(frame(mindspore_format.encode_version(now, ids)))
        else:  # a running TensorBoard forgets what it read in the files that these replace
            head = (
                tensorboard_format.encode_version(now, ids),
                tensorboard_format.encode_session_start(first_step, now, ids),
            )
            segment.append(b"".join(frame(payload) for payload in head))
        return segment

    def publish(self) -> tuple[Path, ...]:
        """Make the new files durable and seen, then remove the older merged ones; returns the new."""
        for segment in self._segments.values():
            segment.sync()
            segment.close()
        older = [path for path in _event_files(self._directory) if is_merged(path)]
        stamp = next_stamp(self._directory, self._files.now())
        name = SegmentName(source=SOURCE, host=self._files.host(), pid=self._files.pid())
        published = []
        for kind in (MINDSPORE, TENSORBOARD, _LINEAGE):
            if kind in self._segments:
                final = name.lineage_name(stamp) if kind == _LINEAGE else name.file_name(kind, stamp)
                os.replace(self._segments[kind].path, self._directory / final)
                published.append(self._directory / final)
        sync(self._directory)
        for path in older:
            path.unlink(missing_ok=True)
        return tuple(published)

    def __enter__(self) -> "MergedFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what was not published."""
        for segment in self._segments.values():
            with contextlib.suppress(OSError):  # of a file that is removed in the next line
                segment.close()
        shutil.rmtree(self._staging, ignore_errors=True)


def _event_files(directory: Path) -> Iterator[Path]:
    for dialect in DIALECTS:
        yield from segments(directory, dialect)
    yield from lineage_files(directory)


def _stagings(directory: Path) -> list[Path]:
    """What killed merges left: directories with a temporary name and nothing but a merge's files."""
    return [
        path
        for path in directory.iterdir()
        if path.name.startswith(TEMPORARY)
        and path.is_dir()
        and not path.is_symlink()
        and {inner.name for inner in path.iterdir()} <= {*DIALECTS, _LINEAGE}
    ]
