"""The open segments of a directory, one for each dialect: opened, rotated, mended, made durable together."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.frames import Framed, frame
from distsummary.format.records import MINDSPORE, TENSORBOARD, EventIds
from distsummary.publish import ensure_directory, remove_leftovers
from distsummary.reading.reader import read_last_seq
from distsummary.reading.segments import SegmentName, next_stamp
from distsummary.writing.files import Files
from distsummary.writing.group_sync import GroupSync
from distsummary.writing.segment import Segment, cut_torn_tails, discard, open_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large and how old the files of a directory grow; None for without limit.

    `max_file_size` (bytes) is MindSpore's: a file whose next event does not fit takes nothing more.
    `rotate_bytes` and `rotate_s` (seconds) begin new files instead, before a batch that would exceed them.
    """

    max_file_size: int | None = None
    rotate_bytes: int | None = None
    rotate_s: float | None = None

    def is_due(self, length: int, age_s: float, incoming: int) -> bool:
        """Whether new files are to begin before `incoming` bytes."""
        is_large = self.rotate_bytes is not None and length + incoming > self.rotate_bytes
        return is_large or (self.rotate_s is not None and age_s >= self.rotate_s)


class Appended(NamedTuple):
    """Bytes written, and how many events `max_file_size` left no room for."""

    nbytes: int = 0
    refused: int = 0


class EventFiles:
    """Appends frames of one attempt to files of its own; each event at most once to each dialect.

    Args:
        directory: made if absent; torn frames in the files of dead writers are cut.
        dialects: one file of each. name: of the files. limits: of their growth.
        is_synced: make what was appended durable from a thread, within about a second; what a failed sync
            may have lost is written again to new files.
        fail: told of failures that nobody waits for. files: the operating system.

    `paths` has the newest file of each dialect; before the first, what it will be unless another writer takes
    its stamp.

    Raises:
        RunDirError: the directory cannot be made or written.
    """

    def __init__(
        self,
        directory: Path,
        dialects: tuple[str, ...],
        *,
        name: SegmentName,
        run_id: str,
        attempt: int,
        limits: Limits,
        is_synced: bool,
        fail: Callable[[str], None],
        files: Files,
    ) -> None:
        self._directory, self._dialects, self._name = directory, dialects, name
        self._run_id, self._attempt = run_id, attempt
        self._limits, self._files, self._fail = limits, files, fail
        self._segments: dict[str, Segment] = {}
        self._full: set[str] = set()
        self._doubtful: list[Segment] = []  # closed, and a sync of them failed
        self._must_mend = False
        self._not_durable: OSError | None = None
        self._syncing = threading.Lock()  # held while segments are synced or exchanged
        self._group = GroupSync(self._sync_group) if is_synced else None
        ensure_directory(directory)
        remove_leftovers(directory)
        cut_torn_tails(directory, files)
        self.last_seq = {d: read_last_seq(directory, d, run_id, attempt) for d in dialects}
        self._named_at: float | None = files.now()  # None once the files are there that are named after it
        stamp = next_stamp(directory, self._named_at)
        self.paths = {dialect: directory / name.file_name(dialect, stamp) for dialect in dialects}

    def append(self, framed: Mapping[str, Sequence[Framed]], first_step: int) -> Appended:
        """Append to each file what it lacks, in one write each; after an OSError it ends in whole frames.

        Args:
            framed: by dialect, in the order of seq.
            first_step: where TensorBoard is told that a session starts.
        """
        nbytes = refused = 0
        self._rotate(framed)
        for dialect in self._dialects:
            new = self._lacking(dialect, framed[dialect])
            if not new:
                continue
            if dialect in self._full:
                refused += _count(new)
            else:
                segment = self._open(first_step)[dialect]
                new = self._lacking(dialect, new)  # opening may have found more in the files
                fitting = new if self._limits.max_file_size is None else self._fitting(segment, new)
                if fitting:
                    segment.extend(fitting)
                nbytes += _size(fitting)
                if _count(fitting) < _count(new):
                    self._full.add(dialect)
                    refused += _count(new) - _count(fitting)
            if new:
                self.last_seq[dialect] = new[-1].last_seq
        if self._group is not None and nbytes:
            self._group.wrote(nbytes)
        return Appended(nbytes, refused)

    def _lacking(self, dialect: str, framed: Sequence[Framed]) -> list[Framed]:
        last = self.last_seq[dialect]
        if not framed or framed[0].first_seq > last:
            return list(framed)
        return [new for frames in framed if (new := frames.behind(last)).count]

    def _fitting(self, segment: Segment, framed: Sequence[Framed]) -> list[Framed]:
        """The frames before the first that the budget has no room for."""
        assert self._limits.max_file_size is not None
        room = self._limits.max_file_size - segment.length
        fitting = []
        for frames in framed:
            count = min(frames.count, max(0, room) * frames.count // frames.nbytes)
            if count:
                fitting.append(frames.slice(0, count))
            if count < frames.count:
                break
            room -= frames.nbytes
        return fitting

    def _rotate(self, framed: Mapping[str, Sequence[Framed]]) -> None:
        """Close the files when they are due; the next append opens others."""
        now = self._files.now()
        if any(
            self._limits.is_due(segment.length, now - segment.opened, _size(framed[dialect]))
            for dialect, segment in self._segments.items()
            if not segment.is_empty
        ):
            self._retire()

    def _open(self, first_step: int) -> dict[str, Segment]:
        if any(segment.is_dead for segment in self._segments.values()):
            self._retire()
        if not self._segments:
            ensure_directory(self._directory)
            self._mend()
            self._begin(first_step)
        return self._segments

    def _mend(self) -> None:
        """After a file was given up: its torn frame goes, its whole frames count."""
        if not self._must_mend:
            return
        self._rescue()  # first: it leaves out what the append that failed may have written
        cut_torn_tails(self._directory, self._files)
        for dialect in self._dialects:
            last = read_last_seq(self._directory, dialect, self._run_id, self._attempt)
            self.last_seq[dialect] = max(self.last_seq[dialect], last)
        self._must_mend = False

    def _begin(self, first_step: int) -> None:
        opened = open_segments(
            self._directory,
            self._dialects,
            self._name,
            self._files,
            named_at=self._named_at,
            keeps_unsynced=self._group is not None,
        )
        try:
            for dialect, segment in opened.items():
                segment.append(self._head(dialect, first_step))
        except OSError:
            self._must_mend = True
            discard(opened)  # a segment without its head would not tell whose it is
            raise
        self._segments, self._named_at = opened, None
        self.paths = {dialect: segment.path for dialect, segment in opened.items()}

    def _head(self, dialect: str, first_step: int) -> bytes:
        """The first frames of a segment: its version and, for TensorBoard, where a later attempt starts."""
        now = self._files.now()
        ids = EventIds(run_id=self._run_id, attempt=self._attempt, seq=0)
        if dialect == MINDSPORE:
            return frame(mindspore_format.encode_version(now, ids))
        head = frame(tensorboard_format.encode_version(now, ids))
        if self._attempt > 0 and self.last_seq[TENSORBOARD] == 0:
            head += frame(tensorboard_format.encode_session_start(first_step, now, ids))
        return head

    # --- durability

    def _sync_group(self) -> None:
        """Make everything durable, from the thread; a failure marks the file dead, the next call mends it."""
        for error in self._try_syncs():
            self._fail(f"not durable yet: {error}")

    def _try_syncs(self) -> list[OSError]:
        with self._syncing:
            return [error for segment in self._segments.values() if (error := _try_sync(segment))]

    def _retire(self) -> None:
        """Make the files durable and close them; one that a sync failed for is left to `_rescue`."""
        with self._syncing:
            segments, self._segments = self._segments, {}
        for segment in segments.values():
            self._must_mend |= segment.is_dead
            error = _try_sync(segment)
            if error is not None and self._group is not None:
                self._doubtful.append(segment)
            elif error is not None:
                self._not_durable = error  # said again by close()
            with contextlib.suppress(OSError):
                segment.close()

    def _rescue(self) -> None:
        while self._doubtful:
            self._doubtful[0].rescue()
            del self._doubtful[0]

    def sync(self) -> None:
        """Return when everything appended is durable; raises OSError, and may be called again."""
        if self._group is None:
            return
        if self._try_syncs():
            self._retire()
        self._rescue()

    def close(self) -> None:
        """Make the files durable and close them; raises OSError when something may not be durable."""
        if self._group is not None:
            self._group.close()
        try:
            self.sync()
        finally:
            self._retire()
        self._rescue()
        if self._not_durable is not None:
            raise self._not_durable


def _try_sync(segment: Segment) -> OSError | None:
    try:
        segment.sync()
    except OSError as error:
        return error
    return None


def _count(framed: Sequence[Framed]) -> int:
    return sum(frames.count for frames in framed)


def _size(framed: Sequence[Framed]) -> int:
    return sum(frames.nbytes for frames in framed)
