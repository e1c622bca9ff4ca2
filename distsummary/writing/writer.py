"""Writers: anything with write(batch), flush(), close() and health(); behaviour is added by wrapping."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from distsummary.errors import ClosedError
from distsummary.format.frames import frame
from distsummary.format.framing import Encoded, EventEncoder
from distsummary.format.lineage import encode_lineage, updated_lineage
from distsummary.format.records import (
    BULK_PLUGINS,
    DIALECTS,
    SYNCED,
    WRITTEN,
    Batch,
    Event,
    EventIds,
    Health,
    Scalars,
    Value,
)
from distsummary.format.scalar_rows import events_of
from distsummary.publish import publish
from distsummary.reading.reader import read_lineage
from distsummary.reading.segments import SegmentName, lineage_files, next_stamp
from distsummary.writing.event_files import Appended, EventFiles, Limits
from distsummary.writing.files import Files

logger = logging.getLogger(__name__)

MAX_RESERVE = 256 << 20  # bytes of the disk, or a fiftieth of it, that bulk values leave free
NO_LIMITS = Limits()


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
    so that a batch sent again goes to each file that lacks it and to no other. While the disk is nearly full,
    bulk values are dropped and counted: what is left is for scalars, lineage, and the training itself.

    Args:
        directory: made if absent.
        run_id: 16 hex digits. attempt: counts from 0. rank: the rank whose events these are.
        dialects: which kinds of files to write.
        limits: of the growth of the files.
        delivery: "written": a returned `write` survives the death of any process; "synced": it is durable
            about a second later, and a returned `flush` is.
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
        limits: Limits = NO_LIMITS,
        delivery: str = WRITTEN,
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
        self._limits = limits
        self._encoder = EventEncoder(run_id, attempt, dialects, mindspore_compat=mindspore_compat)
        self._is_closed = False
        self._health = Health()
        self._event_files = EventFiles(
            self.directory,
            dialects,
            name=self._name,
            run_id=run_id,
            attempt=attempt,
            limits=limits,
            is_synced=delivery == SYNCED,
            fail=self._fail,
            files=self._files,
        )
        self._health.last_seq = max(self._event_files.last_seq.values(), default=0)

    @property
    def last_seq(self) -> int:
        """The highest seq in the files, 0 for none."""
        return self._health.last_seq

    def path(self, dialect: str) -> Path:
        """The newest file of a dialect, for any thread; before the first, see `EventFiles.paths`."""
        return self._event_files.paths[dialect]

    def start(self) -> int:
        """Ready since it was made."""
        return self.last_seq

    def write(self, batch: Batch) -> None:
        """Append the batch, one write for each file; raises OSError, the files then end in whole frames."""
        if self._is_closed:
            raise ClosedError(f"the writer of {self.directory} is closed; open a new one")
        spared = self._bulk_to_spare(batch)
        events = [_without_bulk(event) for event in batch.events] if spared else batch.events
        encoded = self._encoder.encode(batch.first_seq, events)
        appended = self._event_files.append(encoded.framed, _first_step(batch))
        if encoded.lineage:
            self._publish_lineage(encoded.lineage)
        self._account(batch, encoded, appended, spared)

    def _bulk_to_spare(self, batch: Batch) -> list[Value]:
        """The bulk values of the batch if the disk has no room for them, else none."""
        bulk = [
            value
            for event in batch.events
            if isinstance(event, Event)
            for value in event.values
            if value.plugin in BULK_PLUGINS
        ]
        if not bulk:
            return []
        try:
            free, size = self._files.free_space(self.directory)
        except OSError:
            return []  # the write itself will tell what is wrong
        incoming = sum(int(getattr(value.data, "nbytes", 0)) for value in bulk)
        return bulk if free - incoming < min(MAX_RESERVE, size // 50) else []

    def _account(self, batch: Batch, encoded: Encoded, appended: Appended, spared: list[Value]) -> None:
        """Count what was written, once however often the batch was sent."""
        self._health.bytes += appended.nbytes
        if batch.last_seq <= self._health.last_seq:
            return
        self._health.events += batch.last_seq - max(self._health.last_seq, batch.first_seq - 1)
        self._health.last_seq = batch.last_seq
        for plugin, tag, reason in encoded.refused:
            self._health.drop(plugin)
            self._health.fail(reason)
            logger.warning("the %s %r was not recorded: %s", plugin, tag, reason)
        for value in spared:
            self._health.drop(value.plugin)
        if spared:
            self._fail(f"the disk of {self.directory} is nearly full: bulk values are dropped; make room")
        if appended.refused:
            limit = self._limits.max_file_size
            self._fail(f"max_file_size of {limit} bytes is reached: events are refused", appended.refused)

    def _fail(self, reason: str, times: int = 1) -> None:
        if reason not in self._health.errors:
            logger.warning("%s (said once; counted in health())", reason)
        self._health.fail(reason, times)

    def _publish_lineage(self, values: Sequence[Value]) -> None:
        lineage = read_lineage(self.directory)
        for value in values:
            lineage = updated_lineage(lineage, value)
        older = lineage_files(self.directory)
        stamp = next_stamp(self.directory, self._files.now())
        ids = EventIds(run_id=self.run_id, attempt=self.attempt, seq=0)
        payloads = encode_lineage(lineage, self._files.now(), ids)
        publish(self.directory / self._name.lineage_name(stamp), b"".join(frame(p) for p in payloads))
        for path in older:  # the new file is durable: the older states may go
            path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Return when everything is delivered: nothing waits here, but "synced" makes it durable."""
        self._event_files.sync()

    def close(self) -> None:
        """Make the files durable and close them; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._event_files.close()

    def health(self) -> Health:
        """Counters so far."""
        return self._health


def _without_bulk(event: Event | Scalars) -> Event | Scalars:
    if isinstance(event, Scalars):
        return event
    return event._replace(values=[value for value in event.values if value.plugin not in BULK_PLUGINS])


def _first_step(batch: Batch) -> int:
    for event in batch.events[:1]:
        return event.step if isinstance(event, Event) else next(events_of(event)).step
    return 0
