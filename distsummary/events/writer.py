"""Writers: anything with write(batch), flush(), close() and health(); behaviour is added by wrapping."""

import contextlib
import logging
import os
from pathlib import Path
from typing import Protocol

from distsummary.errors import ClosedError
from distsummary.events import mindspore_format, tensorboard_format
from distsummary.events.encode import encode_event
from distsummary.events.files import Files
from distsummary.events.frames import frame
from distsummary.events.reader import read_last_seq, read_lineage
from distsummary.events.records import (
    DIALECTS,
    LINEAGE_PLUGINS,
    MINDSPORE,
    TENSORBOARD,
    Batch,
    Event,
    EventIds,
    Health,
    Lineage,
)
from distsummary.events.segment import (
    Segment,
    SegmentName,
    cut_torn_tails,
    discard,
    lineage_files,
    next_stamp,
    open_segments,
)
from distsummary.publish import ensure_directory, publish

logger = logging.getLogger(__name__)


class Writer(Protocol):
    """What stands between a rank's events and its files.

    `start`, `write` and `flush` may raise OSError for what may pass (a full disk, a collector that restarts):
    nothing is lost then, and the same call is to be made again. All but `health` are called from one thread.
    """

    def start(self) -> int:
        """Get ready; returns the highest seq in the files, 0 for none."""

    def write(self, batch: Batch) -> None:
        """Hand events over; on return they are acknowledged or, behind a buffer, on their way."""

    def flush(self) -> None:
        """Return when everything handed over is in the files."""

    def close(self) -> None:
        """Flush, then never again; a second call does nothing."""

    def health(self) -> Health:
        """Counters so far."""


class RankWriter:
    """The one live writer of a directory: each event at most once in each file, whole frames only.

    A restarted writer of the same attempt opens new segments and goes on behind the last seq of each dialect,
    so that a batch sent again goes to each file that lacks it and to no other.

    Args:
        directory: made if absent.
        run_id: 16 hex digits. attempt: counts from 0. rank: the rank whose events these are.
        dialects: which kinds of files to write.
        max_file_size: budget in bytes of each file, None for none. A file whose next frame does not fit takes
            nothing more (MindSpore's meaning); what it refuses is counted.
        files: the operating system; a test passes a double.

    Raises:
        RunDirError: the directory cannot be made or written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        run_id: str,
        attempt: int = 0,
        rank: int = 0,
        dialects: tuple[str, ...] = DIALECTS,
        prefix: str = "events",
        suffix: str = "_MS",
        source: str | None = None,
        max_file_size: int | None = None,
        mindspore_compat: bool = False,
        files: Files | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.run_id, self.attempt, self.dialects = run_id, attempt, dialects
        self._files = files or Files()
        self._name = SegmentName(
            prefix=prefix,
            suffix=suffix,
            source=str(rank) if source is None else source,
            host=self._files.host(),
            pid=self._files.pid(),
        )
        self._max_file_size = max_file_size
        self._mindspore_compat = mindspore_compat
        self._segments: dict[str, Segment] = {}
        self._full: set[str] = set()
        self._is_closed = self._must_mend = False
        self._not_durable: OSError | None = None
        ensure_directory(self.directory)
        cut_torn_tails(self.directory, self._files)
        self._last_seq = {d: read_last_seq(self.directory, d, run_id, attempt) for d in dialects}
        self._health = Health(last_seq=max(self._last_seq.values(), default=0))

    @property
    def last_seq(self) -> int:
        """The highest seq in the files, 0 for none."""
        return self._health.last_seq

    def start(self) -> int:
        """Ready since it was made."""
        return self.last_seq

    def write(self, batch: Batch) -> None:
        """Append the batch, one write for each file; raises OSError, the files then end in whole frames."""
        if self._is_closed:
            raise ClosedError(f"the writer of {self.directory} is closed; open a new one")
        chunks: dict[str, list[tuple[int, bytes]]] = {dialect: [] for dialect in self.dialects}
        lineage: Lineage | None = None
        for seq, event in enumerate(batch.events, batch.first_seq):
            if event.values and event.values[0].plugin in LINEAGE_PLUGINS:
                lineage = mindspore_format.updated_lineage(
                    lineage or read_lineage(self.directory), event.values[0]
                )
            else:
                self._encode(seq, event, chunks)
        first_step = batch.events[0].step if batch.events else 0
        for dialect in self.dialects:
            self._append(dialect, chunks[dialect], first_step)
        if lineage is not None:
            self._publish_lineage(lineage)
        self._health.last_seq = max(self._health.last_seq, batch.last_seq)

    def _encode(self, seq: int, event: Event, chunks: dict[str, list[tuple[int, bytes]]]) -> None:
        missing = tuple(dialect for dialect in self.dialects if seq > self._last_seq[dialect])
        if not missing:
            return
        ids = EventIds(run_id=self.run_id, attempt=self.attempt, seq=seq)
        payloads, refused = encode_event(event, ids, missing, mindspore_compat=self._mindspore_compat)
        for plugin, tag, reason in refused:
            self._health.drop(plugin)
            self._health.fail(reason)
            logger.warning("the %s %r was not recorded: %s", plugin, tag, reason)
        for dialect, payload in payloads.items():
            if payload is not None:
                chunks[dialect].append((seq, frame(payload)))
        self._health.events += 1

    def _append(self, dialect: str, chunk: list[tuple[int, bytes]], first_step: int) -> None:
        if not chunk or dialect in self._full:
            return
        segment = self._open(dialect, first_step)
        chunk = [(seq, data) for seq, data in chunk if seq > self._last_seq[dialect]]
        if not chunk:
            return
        data = b"".join(frame for _, frame in chunk)
        if not segment.fits(data):
            data = self._within_budget(dialect, segment, chunk)
        if data:
            segment.append(data)
        self._health.bytes += len(data)
        self._last_seq[dialect] = chunk[-1][0]

    def _within_budget(self, dialect: str, segment: Segment, chunk: list[tuple[int, bytes]]) -> bytes:
        """The frames before the first that does not fit; behind it the file takes nothing more."""
        kept = b""
        for number, (_, data) in enumerate(chunk):
            if not segment.fits(kept + data):
                self._full.add(dialect)
                self._health.fail(
                    f"max_file_size of {self._max_file_size} bytes reached by the {dialect} file"
                )
                logger.warning(
                    "%s reached max_file_size=%s; %d event(s) refused now and all later ones",
                    segment.path, self._max_file_size, len(chunk) - number,
                )  # fmt: skip
                break
            kept += data
        return kept

    def _open(self, dialect: str, first_step: int) -> Segment:
        segment = self._segments.get(dialect)
        if segment is not None and not segment.is_dead:
            return segment
        self._must_mend |= bool(self._segments)
        try:
            self._close_segments(sync=True)
        except OSError as error:  # said again by close()
            self._not_durable = error
        ensure_directory(self.directory)
        if self._must_mend:  # a segment was given up: its torn frame goes, its whole frames count
            cut_torn_tails(self.directory, self._files)
            for d in self.dialects:
                last = read_last_seq(self.directory, d, self.run_id, self.attempt)
                self._last_seq[d] = max(self._last_seq[d], last)
            self._must_mend = False
        opened = open_segments(self.directory, self.dialects, self._name, self._files, self._max_file_size)
        try:
            for name, new in opened.items():
                new.append(self._head(name, first_step))
        except OSError:
            self._must_mend = True
            discard(opened)  # a segment without its head would not tell whose it is
            raise
        self._segments = opened
        return self._segments[dialect]

    def _head(self, dialect: str, first_step: int) -> bytes:
        """The first frames of a segment: its version and, for TensorBoard, where a later attempt starts."""
        now = self._files.now()
        ids = EventIds(run_id=self.run_id, attempt=self.attempt, seq=0)
        if dialect == MINDSPORE:
            return frame(mindspore_format.encode_version(now, ids))
        head = frame(tensorboard_format.encode_version(now, ids))
        if self.attempt > 0 and self._last_seq[TENSORBOARD] == 0:
            head += frame(tensorboard_format.encode_session_start(first_step, now, ids))
        return head

    def _publish_lineage(self, lineage: Lineage) -> None:
        older = lineage_files(self.directory)
        stamp = next_stamp(self.directory, self._files.now())
        ids = EventIds(run_id=self.run_id, attempt=self.attempt, seq=0)
        payloads = mindspore_format.encode_lineage(lineage, self._files.now(), ids)
        publish(self.directory / self._name.lineage_name(stamp), b"".join(frame(p) for p in payloads))
        for path in older:  # the new file is durable: the older states may go
            path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Nothing waits here: a returned `write` is in the files."""

    def close(self) -> None:
        """Make the files durable and close them."""
        self._is_closed = True
        self._close_segments(sync=True)
        if self._not_durable is not None:
            raise self._not_durable

    def _close_segments(self, *, sync: bool = False) -> None:
        segments, self._segments = self._segments, {}
        with contextlib.ExitStack() as stack:  # closes every file even if one fails, then raises the failure
            for segment in segments.values():
                stack.callback(segment.close)
                if sync:
                    stack.callback(segment.sync)

    def health(self) -> Health:
        """Counters so far."""
        return self._health
