"""The interfaces of writers, and RankWriter, which writes the event files of one rank."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from distsummary.base.failures import Failures, error_line
from distsummary.base.guard import guarded_log
from distsummary.base.health import Health
from distsummary.base.publish import publish
from distsummary.errors import ClosedError, RunDirError, reason
from distsummary.events.event_files import EventFiles
from distsummary.events.files import Files
from distsummary.events.reader import read_lineage
from distsummary.events.segments import lineage_files, next_stamp
from distsummary.events.spec import WriterSpec
from distsummary.format.encode import EventEncoder
from distsummary.format.frames import frame
from distsummary.format.lineage import encode_lineage, updated_lineage
from distsummary.format.records import (
    BULK_PLUGINS,
    LINEAGE_PLUGINS,
    NORMS,
    Batch,
    Event,
    Scalars,
    Value,
    nbytes_of,
)
from distsummary.format.scalar_rows import events_of

logger = guarded_log(__name__)

MAX_RESERVE = 256 << 20  # bytes that bulk values (images ...) leave free; 1/50 of the disk if that is less


class Writer(Protocol):
    """Receives the batches of a rank and writes them, directly or indirectly, to the rank's files.

    `start`, `write` and `flush` may raise OSError for temporary failures (a full disk, a restarting
    collector): then nothing is lost, and the caller must repeat the call. All methods but `health` are called
    from one thread.
    """

    def start(self) -> int:
        """Get ready; returns the highest seq (sequence number of an event) in the files, 0 without events."""

    def write(self, batch: Batch) -> None:
        """Write a batch; on return its events are acknowledged."""

    def flush(self) -> None:
        """Return when everything acknowledged is as safe as the spec's `delivery` asks."""

    def close(self) -> None:
        """Flush and end; a second call does nothing."""

    def health(self) -> Health:
        """Counters so far."""

    def hurry(self, *, is_closing: bool = False) -> None:
        """A caller waits for a `flush` (or the `close`) to come: do not wait long for a helper process.

        Any thread may call it, also a signal handler.
        """

    def progress(self) -> int:
        """A number that rises whenever something was written; any thread may call it."""


class EventWriter(Protocol):
    """Takes events from the training thread: an AsyncWriter, or a test double."""

    def write(self, event: Event) -> None:
        """Accept an event; it is written in the background."""

    def write_row(self, tags: tuple[str, ...], row: bytes) -> None:
        """Accept an event of scalars only, packed by `scalar_rows.row_struct`."""

    def write_rows(self, tags: tuple[str, ...], rows: bytes) -> None:
        """Accept several such events, packed one after the other."""

    def flush(self) -> bool:
        """Wait until every event accepted since the last call is in the files; False: some are not."""

    def close(self) -> None:
        """Flush and end."""

    def end_within(self, seconds: float, reason: str) -> None:
        """Let `close` take so many seconds at most; see `AsyncWriter.end_within`."""

    def health(self) -> Health:
        """Counters so far."""


class RankWriter:
    """The only live writer of a directory. It writes each event at most once per file, in whole frames.

    A restarted writer of the same attempt opens new segments and continues after the last seq of each
    dialect, so that a batch that is sent again goes only to the files without it. While the disk is nearly
    full, bulk values are dropped and counted, to leave room for scalars, lineage and the training itself.

    Args:
        spec: where and how to write; `spec.delivery` says what is guaranteed when `write` has returned.
        files: the file operations to use; None means the real ones. Tests pass a test double.

    Raises:
        RunDirError: the directory cannot be made or written.
    """

    def __init__(self, spec: WriterSpec, files: Files | None = None) -> None:
        self.spec = spec
        self.directory = Path(spec.directory)
        self._files = files or Files()
        self._encoder = EventEncoder(
            spec.run_id, spec.attempt, spec.formats, compatibility=spec.compatibility
        )
        self._is_closed = False
        self._left_out: tuple[int, Sequence[Value]] = 0, ()  # a batch's first seq, and what a file is missing
        self._health = Health()
        self._failures = Failures(self._health, logger)
        self._lineage: list[Value] = []  # not published yet
        self._event_files = EventFiles(spec, self._files, self._failures.count, self._lose)
        self._health.last_seq = max(self._event_files.last_seq.values(), default=0)
        self._health.removed = self._event_files.removed

    def keep(self, keep_bytes: int) -> None:
        """From now on, bound the bulk values in the files, see `retention.Retention`."""
        self._event_files.keep(keep_bytes)

    @property
    def last_seq(self) -> int:
        """The highest seq in the files, 0 if there is none."""
        return self._health.last_seq

    def path(self, dialect: str) -> Path:
        """The newest file of a dialect (see `EventFiles.paths`); may be called from any thread."""
        return self._event_files.paths[dialect]

    def start(self) -> int:
        """Return the highest seq in the files; the constructor has already prepared the writer."""
        return self.last_seq

    def write(self, batch: Batch) -> None:
        """Append the batch with one write to each file; after an OSError the files end in whole frames."""
        if self._is_closed:
            raise ClosedError(f"the writer of {self.directory} is closed; open a new one")
        events = [*map(_with_norm_totals, batch.events)] if self.spec.shows_norms else batch.events
        spared: Sequence[Value] = self._bulk_to_spare(batch)
        if spared:
            events = [
                event
                if isinstance(event, Scalars)
                else event._replace(values=[v for v in event.values if v.plugin not in BULK_PLUGINS])
                for event in events
            ]
        encoded = self._encoder.encode(batch.first_seq, events)
        before = dict(self._event_files.last_seq)
        try:
            appended = self._event_files.append(encoded.framed, batch.first_step, encoded.bulk)
        except OSError:
            if spared and self._event_files.last_seq != before:
                # One file took the batch without them; when the batch comes again, that has to be known.
                self._left_out = batch.first_seq, spared
            raise
        # The batch has come again, now with room for its bulk values; one file is without them.
        if not spared and self._left_out[0] == batch.first_seq:
            refused = Counter((one.plugin, one.tag) for one in encoded.refused)
            left_out = Counter((value.plugin, value.tag) for value in self._left_out[1]) - refused
            spared = [Value(plugin, tag, None) for plugin, tag in left_out.elements()]
        # Only of a batch that was accepted: another one comes again with its lineage.
        self._lineage += encoded.lineage
        self._publish_lineage()

        health = self._health
        health.removed = self._event_files.removed
        health.bytes += appended.nbytes
        last_seq = batch.last_seq
        if last_seq <= health.last_seq:
            # The batch was sent again, and has been counted, except for what no earlier call could append.
            if appended.nbytes:
                self._count_spared(spared)
            return
        counted, health.last_seq = health.last_seq, last_seq
        # Values that are counted as spared or refused must not be counted again as lost with their events.
        if appended.refused_from or appended.too_large:
            others = Counter([value.plugin for value in spared] + [one.plugin for one in encoded.refused])
            if appended.refused_from:
                last_seq = self._count_refused(batch, appended.refused_from, counted, others)
            reason = "an event is longer than a file may grow; raise the limit of the file size (ulimit -f)"
            self._count_lost(batch, {seq for seq in appended.too_large if seq > counted}, reason, others)
        health.events += last_seq - max(counted, batch.first_seq - 1)
        for plugin, tag, reason in encoded.refused:
            health.drop(plugin, reason=f"the {plugin} {tag!r} was not recorded: {reason}")
            health.fail(reason)
            logger.warning("the %s %r was not recorded: %s", plugin, tag, reason)
        self._count_spared(spared)

    def _count_spared(self, spared: Sequence[Value]) -> None:
        """Count the bulk values that were left out for want of room, from one file at least."""
        if spared:
            reason = f"the disk of {self.directory} is nearly full: bulk values are dropped; free some space"
            self._failures.count(reason, dropped=Counter(value.plugin for value in spared))

    def _count_refused(
        self, batch: Batch, refused_from: Mapping[str, int], counted: int, others: Counter[str]
    ) -> int:
        """Count as dropped the values missing in a full file; returns the last seq that some file took.

        Events up to the seq `counted` have been counted before. Lineage has a file of its own, without limit.
        `others`: how many values of each plugin are counted for other reasons, so that none counts twice.
        """
        first = max(min(refused_from.values()), counted + 1)
        reason = (
            f"max_file_size of {self.spec.limits.max_file_size} bytes is reached: a file does not "
            "have what was recorded since; raise it, or use rotate_bytes instead, which begins new files"
        )
        self._count_lost(batch, range(first, batch.last_seq + 1), reason, others)
        took_all = len(refused_from) < len(self.spec.formats)
        return batch.last_seq if took_all else max(refused_from.values()) - 1

    def _count_lost(self, batch: Batch, seqs: Container[int], reason: str, others: Counter[str]) -> None:
        """Count the values of some events as dropped; `others` as in `_count_refused`."""
        seq, events, dropped = batch.first_seq - 1, 0, Counter[str]()
        for item in batch.events:
            for event in events_of(item) if isinstance(item, Scalars) else [item]:
                seq += 1
                plugins = [v.plugin for v in event.values if v.plugin not in LINEAGE_PLUGINS]
                if seq in seqs and plugins:
                    dropped.update(plugins)
                    events += 1
        if events:
            self._failures.count(reason, events, dropped=dropped & (batch.plugins() - others))

    def _bulk_to_spare(self, batch: Batch) -> list[Value]:
        """Returns the batch's bulk values if the disk has no room for them, otherwise an empty list."""
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
            # The write itself will show the reason.
            return []
        incoming = sum(nbytes_of(value.data) for value in bulk)
        return bulk if free - incoming < min(MAX_RESERVE, size // 50) else []

    def _publish_lineage(self) -> None:
        """Replace the lineage file of the directory with a new one that also contains what waits.

        What cannot be published waits for the next call, and nothing else does. The lineage of an earlier
        attempt goes: of several files, MindInsight shows the newest.
        """
        try:
            if self._lineage:
                self._replace_lineage()
                self._lineage.clear()
        except OSError as error:
            self._failures.count(error_line(error))
        self._health.waiting = dict(Counter(value.plugin for value in self._lineage))

    def _replace_lineage(self) -> None:
        lineage = read_lineage(self.directory, attempt=self.spec.attempt)
        for value in self._lineage:
            lineage = updated_lineage(lineage, value)
        older, now = lineage_files(self.directory), self._files.now()
        stamp = next_stamp(self.directory, now)
        name = self._event_files.name.lineage_name(stamp, is_hidden=self.spec.hides_lineage)
        path = self.directory / name
        payloads = encode_lineage(lineage, now, self._event_files.ids)
        try:
            publish(path, b"".join(frame(payload) for payload in payloads))
        except RunDirError as error:
            # Each reason is logged once, so it must not contain `path`, whose stamp changes at each try.
            cause = error.__cause__
            why = reason(cause) if isinstance(cause, OSError) else cause
            raise RunDirError(f"the lineage in {self.directory} cannot be written: {why}") from cause
        # The new file is durable, so the older ones may be removed.
        for path in older:
            path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Publish lineage that waits; with the delivery "synced", wait until everything is durable."""
        self._event_files.sync()
        self._publish_lineage()

    def close(self) -> None:
        """Make the files durable and close them; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._publish_lineage()
                self._count_lineage()
            finally:
                self._event_files.close()

    def _lose(self, reason: str) -> None:
        """Note that events that were written are not in the files any more: no one knows how many."""
        self._failures.count(reason)
        self._health.missing = self._health.missing or reason

    def _count_lineage(self) -> None:
        """Count as dropped the lineage that still waits."""
        if waiting := self._health.waiting:
            self._health.waiting = {}
            self._failures.count(
                f"the lineage in {self.directory} could not be written until the end", dropped=waiting
            )

    def hurry(self, *, is_closing: bool = False) -> None:
        """There is no helper process."""

    def progress(self) -> int:
        """The bytes that the disk has taken."""
        return self._files.written_bytes

    def health(self) -> Health:
        """Counters so far."""
        return self._health


def _with_norm_totals(item: Event | Scalars) -> Event | Scalars:
    """The event; if it has norms, together with the scalars that viewers show of them."""
    if isinstance(item, Scalars):
        return item
    norms = next((value.data for value in item.values if value.plugin == NORMS), None)
    if norms is None:
        return item
    from distsummary.format.norm_totals import norm_totals, with_scalars

    return item._replace(values=[*with_scalars(item.values, norm_totals(norms))])
