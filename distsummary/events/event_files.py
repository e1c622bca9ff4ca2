"""The open event files of a directory, one for each dialect (format); opened, rotated and synced together."""

import contextlib
import errno
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from distsummary.base.failures import error_line
from distsummary.base.guard import Guard
from distsummary.base.health import Removed
from distsummary.base.publish import ensure_directory, remove_leftovers
from distsummary.events.files import Files
from distsummary.events.rank_stream import files_of_attempt
from distsummary.events.reader import read_last_seq
from distsummary.events.segment import Segment, cut_torn_tails, discard, open_segments
from distsummary.events.segments import LEAST_BYTES, SegmentName, next_stamp
from distsummary.events.spec import WriterSpec
from distsummary.format import mindspore_format, tensorboard_format
from distsummary.format.frames import Framed, frame
from distsummary.format.records import MINDSPORE, SYNCED, TENSORBOARD, EventIds

if TYPE_CHECKING:
    from distsummary.events.retention import Retention

INTERVAL_S = 1.0
GROUP_BYTES = 8 << 20
MAX_BYTES = 64 << 20
TRY_AGAIN_S = 5.0  # after new files could not be made; the writer continues in the old ones


class Appended(NamedTuple):
    """The number of bytes written, and what is not in the files.

    `refused_from`: dialect -> the seq from which on its file, of `max_file_size`, took none of these events.
    `too_large`: the seqs of events that are longer than the system lets any file grow.
    """

    nbytes: int
    refused_from: Mapping[str, int]
    too_large: Set[int] = frozenset()


class EventFiles:
    """Appends the frames (encoded events) of one attempt to its files, each event at most once per dialect.

    Torn (incomplete) frames in the files of dead writers are cut off. With the delivery "synced", a thread
    makes appended data durable within about a second; data that a failed sync may have lost are written again
    to new files.

    Args:
        spec: where and how to write.
        files: the file operations to use; tests pass a test double.
        fail: called with the description of each failure of the background thread.
        lose: called with the reason when events are gone that were in a file.

    Attributes:
        paths: the newest file of each dialect; before the first file exists, the path that it will have
            unless another writer takes the time stamp in its name.
        last_seq: for each dialect, the highest seq that its files are known to hold.
        name: the parts that all file names share. ids: the run id and attempt of the events.

    What an earlier writer of the same attempt acknowledged, such as a killed collector, is made durable too:
    at once with the delivery "synced", otherwise by `close`.

    It has many attributes because a failure in the middle of any of its steps (open, write, sync, rotate) has
    to be continued later: each notes one thing that is left to do.

    Raises:
        RunDirError: the directory cannot be made or written.
    """

    def __init__(
        self, spec: WriterSpec, files: Files, fail: Callable[[str], None], lose: Callable[[str], None]
    ) -> None:
        self._spec, self._files, self._fail, self._lose = spec, files, fail, lose
        self._directory, self._rotates = Path(spec.directory), spec.limits.rotates
        self._retention: Retention | None = None
        self._bulk: Set[int] = frozenset()  # the seqs of events with bulk values that are being appended
        self.ids = EventIds(run_id=spec.run_id, attempt=spec.attempt, seq=0)
        self.name = SegmentName(
            prefix=spec.prefix,
            suffix=spec.suffix,
            source=spec.writer_name,
            host=files.host(),
            pid=files.pid(),
        )
        self._segments: dict[str, Segment] = {}
        self._full: set[str] = set()
        self._doubtful: list[Segment] = []  # closed segments with a failed sync
        self._needs_repair = False
        self._too_large = set[int]()  # since the last `append` that returned
        self._tried_at = 0.0  # when new files could not be made
        self._not_durable: OSError | None = None
        self._syncing = threading.Lock()  # held while segments are synced or replaced
        self._group = GroupSync(self._sync_group) if spec.delivery == SYNCED else None
        ensure_directory(self._directory)
        remove_leftovers(self._directory)
        # Remove what killed writers left incomplete, before the files are read for their last seqs.
        cut_torn_tails(self._directory, files)
        self.last_seq = {dialect: self._last_seq_in_files(dialect) for dialect in self._spec.formats}
        self._inherited = [
            path
            for dialect in self._spec.formats
            if self.last_seq[dialect]
            for path in files_of_attempt(self._directory, dialect, spec.run_id, spec.attempt)
        ]
        if self._group is not None:
            self._sync_inherited()
        self._named_at: float | None = files.now()  # for the first files' names; then None
        stamp = next_stamp(self._directory, self._named_at)
        self.paths = {
            dialect: self._directory / self.name.file_name(dialect, stamp) for dialect in self._spec.formats
        }
        if spec.limits.keep_bytes is not None:
            self.keep(spec.limits.keep_bytes)

    def keep(self, keep_bytes: int) -> None:
        """From now on, keep so many bytes of bulk values."""
        # Imported here, as few runs need it.
        from distsummary.events.retention import Retention

        self._retention, self._rotates = Retention(self._spec, keep_bytes, self._files, self._fail), True

    @property
    def removed(self) -> Removed:
        """What was removed from the files to keep no more than that."""
        return Removed() if self._retention is None else self._retention.removed

    def _last_seq_in_files(self, dialect: str) -> int:
        return read_last_seq(self._directory, dialect, self.ids.run_id, self._spec.attempt)

    def append(
        self, framed: Mapping[str, Sequence[Framed]], first_step: int, bulk: Set[int] = frozenset()
    ) -> Appended:
        """Append to each file, in one write, the frames that it does not have; a failed write is undone.

        Args:
            framed: for each dialect its frames, in the order of seq.
            first_step: from this step on, TensorBoard shows this attempt instead of earlier ones.
            bulk: the seqs of events with bulk values that may be removed later.
        """
        nbytes, refused_from = 0, {}
        now = self._files.now()
        # Before the write, so that no file exceeds its limits. All dialects get new files if one is due.
        for dialect, segment in self._segments.items() if self._rotates else ():
            incoming = sum([frames.nbytes for frames in framed[dialect]])
            is_due = self._spec.limits.is_due(segment.length, now - segment.opened, incoming)
            is_due |= self._retention is not None and self._retention.is_due([*self.paths.values()])
            if is_due and not segment.is_empty and abs(now - self._tried_at) > TRY_AGAIN_S:
                self._rotate(first_step, now)
                break
        self._bulk = bulk
        if self._retention is not None and bulk:
            incoming = sum(self._bulk_bytes(frames) for frames in framed.values())
            open_now = [one.path for one in (*self._segments.values(), *self._doubtful)]
            self._retention.make_room(incoming, open_now)
        for dialect in self._spec.formats:
            new = self._missing(dialect, framed[dialect])
            if not new:
                continue
            fitting: Sequence[Framed] = []
            if dialect not in self._full:
                self._open(first_step)
                # Opening may have found more events in the files, which must not be written twice.
                new = self._missing(dialect, new)
                segment = self._segments[dialect]
                fitting = new if self._spec.limits.max_file_size is None else self._fitting(segment, new)
                if fitting:
                    self._extend(dialect, fitting, first_step)
                    nbytes += sum([frames.nbytes for frames in fitting])
            # A file of `max_file_size` takes nothing after the first event that does not fit.
            if fitting is not new:
                first = fitting[-1].last_seq + 1 if fitting else new[0].first_seq
                if first <= new[-1].last_seq:
                    self._full.add(dialect)
                    refused_from[dialect] = first
            # Also the events that a full file did not take: they are reported once, and not tried again.
            if new:
                self.last_seq[dialect] = new[-1].last_seq
        if self._group is not None and nbytes:
            self._group.wrote(nbytes)
        too_large, self._too_large = self._too_large, set()
        return Appended(nbytes, refused_from, too_large)

    def _missing(self, dialect: str, framed: Sequence[Framed]) -> Sequence[Framed]:
        """The frames that the files of a dialect do not hold yet."""
        last = self.last_seq[dialect]
        if not framed or framed[0].first_seq > last:
            return framed
        return [new for frames in framed if (new := frames.after(last)).count]

    def _fitting(self, segment: Segment, framed: Sequence[Framed]) -> list[Framed]:
        """The leading frames that fit into the segment within `max_file_size`."""
        assert self._spec.limits.max_file_size is not None
        room = self._spec.limits.max_file_size - segment.length
        fitting = []
        for frames in framed:
            count = min(frames.count, max(0, room) * frames.count // frames.nbytes)
            if count:
                fitting.append(frames.slice(0, count))
            if count < frames.count:
                break
            room -= frames.nbytes
        return fitting

    def _extend(self, dialect: str, frames: Sequence[Framed], first_step: int) -> None:
        """Append frames to the segment of a dialect, or to new ones if no file may grow that far."""
        segment = self._segments[dialect]
        try:
            segment.extend(frames)
        except OSError as error:
            if error.errno != errno.EFBIG or segment.is_dead:
                raise
            # The system lets no file grow that far (EFBIG): write to a new file. What does not fit into an
            # empty file is halved, down to the single event that no file can hold.
            parts = halves(frames) if segment.is_empty else [frames]
            if not parts:
                self._too_large.add(frames[0].first_seq)
            for part in parts:
                if not self._segments[dialect].is_empty:
                    self._retire(self._begin(first_step))
                self._extend(dialect, part, first_step)
        else:
            if self._retention is not None and (nbytes := self._bulk_bytes(frames)):
                self._retention.wrote(segment.path, nbytes)
        self.last_seq[dialect] = frames[-1].last_seq

    def _bulk_bytes(self, framed: Sequence[Framed]) -> int:
        return sum([frames.nbytes for frames in framed if frames.first_seq in self._bulk])

    def _rotate(self, first_step: int, now: float) -> None:
        """Begin new files of all dialects, which share a stamp; if none can be made, keep to the old ones."""
        if any([segment.is_dead for segment in self._segments.values()]):
            # `_open` replaces dead files.
            return
        try:
            self._retire(self._begin(first_step))
        except OSError as error:
            self._tried_at = now
            self._fail(f"the files are not rotated now: {error_line(error)}")

    def _open(self, first_step: int) -> None:
        """Make sure that each dialect has a live segment."""
        if any([segment.is_dead for segment in self._segments.values()]):
            self._retire()
        if not self._segments:
            self._segments = self._begin(first_step)

    def _begin(self, first_step: int) -> dict[str, Segment]:
        """Open a segment for each dialect, with the first frames of a file."""
        if self._needs_repair:
            # A file was abandoned: cut off its torn frame and find its last seq. `_rescue` comes first, since
            # it rewrites files without the remains of failed appends.
            self._rescue()
            cut_torn_tails(self._directory, self._files)
            for dialect in self._spec.formats:
                self.last_seq[dialect] = max(self.last_seq[dialect], self._last_seq_in_files(dialect))
            self._needs_repair = False
        opened = open_segments(
            self._directory,
            self._spec.formats,
            self.name,
            self._files,
            named_at=self._named_at,
            keeps_unsynced=self._group is not None,
        )
        now = self._files.now()
        begun = now if self._spec.begun is None else self._spec.begun
        try:
            for dialect, segment in opened.items():
                if dialect == MINDSPORE:
                    head = frame(mindspore_format.encode_version(begun, self.ids))
                else:
                    head = frame(tensorboard_format.encode_version(begun, self.ids))
                    # The first file of a later attempt hides in TensorBoard what earlier ones wrote.
                    if self._spec.attempt > 0 and self.last_seq[TENSORBOARD] == 0:
                        head += frame(tensorboard_format.encode_session_start(first_step, now, self.ids))
                segment.append(head)
        except OSError:
            self._needs_repair = True
            # A segment without its first frames would not show whose events it holds.
            discard(opened)
            raise
        self._named_at = None
        self.paths = {dialect: segment.path for dialect, segment in opened.items()}
        return opened

    # --- durability

    def _sync_group(self) -> None:
        """Runs in the background thread; a failure marks the file dead, and `append` then replaces it."""
        for error in self._try_syncs():
            self._fail(f"not durable yet: {error}")

    def _sync_inherited(self) -> None:
        """Make the files of earlier writers of this attempt durable; a failure is raised by `close`."""
        while self._inherited:
            path = self._inherited.pop()
            try:
                descriptor = self._files.open_dead(path)
                # None: the file is locked, since its writer still lives.
                if descriptor is not None:
                    try:
                        self._files.sync(descriptor)
                    finally:
                        self._files.close(descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                # A later sync would succeed although data may be lost, so the error is kept.
                self._not_durable = error
                self._fail(f"what an earlier writer of {self._directory} wrote may not be durable: {error}")

    def _try_syncs(self) -> list[OSError]:
        with self._syncing:
            return [error for segment in self._segments.values() if (error := _try_sync(segment))]

    def _retire(self, following: Mapping[str, Segment] | None = None) -> None:
        """Make the files durable, close and index them; one with a failed sync is left to `_rescue`."""
        # Under the lock, so that the background thread does not sync segments that are being replaced.
        with self._syncing:
            segments, self._segments = self._segments, dict(following or {})
        for segment in segments.values():
            self._needs_repair |= segment.is_dead
            with contextlib.suppress(OSError):
                if reason := segment.lost():
                    self._lose(reason)
            error = _try_sync(segment)
            # With the delivery "synced" the segment has what is not durable in memory, and `_rescue` writes
            # it again. Otherwise the error can only be reported, by `close`.
            if error is not None and self._group is not None:
                self._doubtful.append(segment)
            elif error is not None:
                self._not_durable = error
            with contextlib.suppress(OSError):
                segment.close()
        # One index is enough: readers take MindSpore's file if there is one.
        indexed = segments.get(MINDSPORE) or segments.get(TENSORBOARD)
        if indexed is not None and indexed.length >= LEAST_BYTES:
            from distsummary.events.index import index_closed

            index_closed(indexed.path)

    def _rescue(self) -> None:
        while self._doubtful:
            self._doubtful[0].rescue()
            del self._doubtful[0]

    def sync(self) -> None:
        """With the delivery "synced", make all appended data durable; may be repeated after an OSError."""
        if self._group is None:
            return
        if self._try_syncs():
            self._retire()
        self._rescue()

    def close(self) -> None:
        """Make the files durable and close them; raises OSError if something may not be durable."""
        if self._group is not None:
            self._group.close()
        self._sync_inherited()
        try:
            self.sync()
        finally:
            self._retire()
        self._rescue()
        if self._not_durable is not None:
            raise self._not_durable


def halves(framed: Sequence[Framed]) -> list[Sequence[Framed]]:
    """The frames in two parts, each with half of the events; empty if there is only one event."""
    half = sum(frames.count for frames in framed) // 2
    if not half:
        return []
    first: list[Framed] = []
    for place, frames in enumerate(framed):
        if frames.count > half:
            cut = [frames.slice(0, half)] if half else []
            return [first + cut, [frames.slice(half, frames.count), *framed[place + 1 :]]]
        first.append(frames)
        half -= frames.count
    raise AssertionError("half of the events are not among all of them")


def _try_sync(segment: Segment) -> OSError | None:
    try:
        segment.sync()
    except OSError as error:
        return error
    return None


class GroupSync:
    """Calls `sync` in a thread, 1 s after the first unsynced write or as soon as 8 MiB are unsynced.

    `wrote` blocks while 64 MiB or more are unsynced. `sync` handles its own failures.
    The thread starts with the first write.
    """

    def __init__(self, sync: Callable[[], None], *, interval_s: float = INTERVAL_S) -> None:
        self._sync, self._interval_s = Guard().wrap("making values durable", sync), interval_s
        self._pending = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def wrote(self, nbytes: int) -> None:
        """Count bytes that are not durable yet; wait while there are too many of them."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distsummary-sync", daemon=True)
                self._thread.start()
            is_first = not self._pending
            self._pending += nbytes
            if is_first or self._pending >= GROUP_BYTES:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._pending < MAX_BYTES or self._is_closed)

    def close(self) -> None:
        """End the thread, without another sync; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            # Sleep until a sync is due.
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_closed)
                self._changed.wait_for(
                    lambda: self._pending >= GROUP_BYTES or self._is_closed, timeout=self._interval_s
                )
                # Reset before the sync: what is written during it counts for the next one.
                self._pending = 0
                self._changed.notify_all()
                if self._is_closed:
                    return
            self._sync()
