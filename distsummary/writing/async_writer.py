"""AsyncWriter: the training thread queues events, and a background thread passes them to another writer."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from distsummary.errors import ClosedError, WriteError
from distsummary.format.records import BULK_PLUGINS, QUEUED, Batch, Event, Health, Scalars, Value
from distsummary.format.scalar_rows import (
    FLUSH,
    ITEM_BYTES,
    MAX_ROW_BYTES,
    Item,
    events_in,
    events_of,
    joined,
    size_of,
)
from distsummary.writing.health import NONE, BoundedWait, Failures, told
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import Writer

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BUDGET_FULL = "the queue's budget was full"
MANY = 1 << 14  # this many items in the queue wake the writer thread early
RESERVE = 16  # 1/16 of the budget is left for other events while an event larger than the budget waits
AT_ONCE = 1 << 11  # items processed in one go; more would make the training thread wait for the GIL
BLOCK_S = 0.5  # how long a caller waits when the budget is full
FLUSH_S = 30.0
CLOSE_S = 20.0  # how long `close` waits for a slow disk
CLOSE_HELPER_S = 9.0  # how long it waits for a helper process that takes nothing, such as a collector
REFUSED_S = 0.5  # how long `flush` waits for a disk that takes nothing, such as a full one
CLOSE_REFUSED_S = 3.0  # how long `close` does
LATE_S = 1.0  # how much longer it tries each of the remaining batches once: a small one may find room
SLOWEST = 5  # a failed call is repeated after `retry_s`, then after twice the pause, up to 5 times `retry_s`


class AsyncWriter:
    """Numbers events, packs them into batches and passes the batches to `writer` in a thread of its own.

    If `writer` raises OSError, the batch is kept and passed again with the same seq (sequence numbers) until
    `writer` accepts it. After any other exception the batch is dropped and counted; with the delivery
    "queued", also after OSError.

    Args:
        writer: receives the batches; its `start()` returns the highest seq that it has already written.
        spec: the run, attempt and rank of the batches, and the settings of the queue.
    """

    def __init__(self, writer: Writer, spec: WriterSpec) -> None:
        self._writer, self._spec = writer, spec
        self._queue: deque[Item] = deque()
        self._event_bytes = 0  # of the events in the queue and in progress, without those of `write_row`
        self._in_progress = 0  # items that the thread is processing
        self._taken: list[Item] = []  # these items
        self._fast_length = 0  # length of the queue up to which `write_row` may skip the checks
        self._is_asleep = False
        self._done = 0
        self._changed = threading.Condition()
        self._room = BoundedWait(self._changed, lambda: self._done)
        self._hurry = self._is_closed = self._is_stopped = False
        self._closed_at = float("inf")
        self._refusal = ""  # why the disk takes nothing now; empty: it does
        self._refused_since = 0.0
        self._flushes = 0
        self._missing = ""  # why events are missing from the files
        self._final: Health | None = None  # the counters when `close` gave up
        self._failures = Failures(
            Health(), logger, raise_exception=spec.raise_exception, prefix=f"rank={spec.rank} "
        )
        self._stop_reason = "the writer thread has ended"
        self._next_seq = 1
        self._pid = os.getpid()
        self._set_fast_length()
        _living.add(self)
        self._thread = threading.Thread(target=self._run, name="distsummary-writer", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    # --- for the training thread

    def write_row(self, tags: tuple[str, ...], row: bytes) -> None:
        """Queue an event of scalars only, packed by `scalar_rows.row_struct`; raises what `write` raises.

        It is ten times faster than `write`.
        """
        if len(self._queue) < self._fast_length:
            self._queue.append((tags, row))
            if self._is_asleep:
                with self._changed:
                    self._changed.notify_all()
            return
        self._check()
        with self._changed:
            if len(row) > MAX_ROW_BYTES or not self._has_room(0):
                [event] = events_of(Scalars(tags, row))
                self._queue_event(event)
            else:
                self._queue.append((tags, row))
            self._set_fast_length(self._fast_length + MANY)
            self._changed.notify_all()

    def write(self, event: Event) -> None:
        """Queue one event; takes microseconds unless the budget is full.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` is set.
        """
        self._check()
        with self._changed:
            self._queue_event(event)

    def _queue_event(self, event: Event) -> None:
        """Queue as much of the event as the budget has room for; the lock must be held."""
        # An event counts with at most 15/16 of the budget: even the largest is taken if little else waits,
        # and the scalars of the following steps find room while it is written.
        size = min(size_of(event), self._spec.budget_bytes - self._spec.budget_bytes // RESERVE)
        if not self._has_room(size):
            if self._is_stopped:
                self._drop(event.values, self._stop_reason)
                return
            self._drop([value for value in event.values if value.plugin in BULK_PLUGINS], BUDGET_FULL)
            small = [value for value in event.values if value.plugin not in BULK_PLUGINS]
            size = size_of(event._replace(values=small))
            self._changed.notify_all()
            if small and not self._room.wait_for(lambda: self._has_room(size), BLOCK_S):
                self._drop(small, BUDGET_FULL)
                self._missing = self._missing or BUDGET_FULL
                return
            event = event._replace(values=small)
        if not event.values:
            return
        self._queue.append((event, size))
        self._event_bytes += size
        self._set_fast_length()
        if self._is_asleep or self._event_bytes >= self._spec.batch_bytes:
            self._changed.notify_all()

    def _set_fast_length(self, limit: int = MANY) -> None:
        """Let `write_row` skip the checks while there is room for rows and no failure to raise."""
        is_open = not (
            self._is_closed or self._is_stopped or (self._spec.raise_exception and self._failures.last)
        )
        room = (self._spec.budget_bytes - self._event_bytes) // ITEM_BYTES - self._in_progress
        self._fast_length = min(room, limit) if is_open else 0

    def _has_room(self, size: int) -> bool:
        items = len(self._queue) + self._in_progress + 1
        return (
            not self._is_stopped and self._event_bytes + items * ITEM_BYTES + size <= self._spec.budget_bytes
        )

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this writer belongs to process {self._pid}; open one in each process after a fork"
            )
        if self._is_closed:
            raise ClosedError("the writer is closed; open a new one")
        self._failures.raise_last()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until everything queued so far has been passed to the inner writer and flushed there.

        Returns False, or raises WriteError if `raise_exception` is set, if that failed: the disk took
        nothing for half a second (a full disk), `timeout_s` seconds have passed, or the thread has stopped.
        What has not been written then stays queued, without a guarantee.
        """
        self._check()
        with self._changed:
            self._queue.append((FLUSH, 0))
            target = self._done + self._in_progress + len(self._queue)
            self._hurry = True
            self._flushes += 1
            self._writer.hurry()
            self._changed.notify_all()

            def is_over() -> bool:
                return self._done >= target or self._is_stopped

            self._changed.wait_for(is_over, min(timeout_s, REFUSED_S))
            self._changed.wait_for(lambda: is_over() or self._is_refused(), max(0.0, timeout_s - REFUSED_S))
            if self._done >= target:
                return True
            reason = self._stop_reason if self._is_stopped else self._refusal or "the writer is slow"
            if self._spec.raise_exception:
                raise WriteError(f"{target - self._done} event(s) could not be flushed: {reason}")
            self._count(f"flush returned before everything was written: {reason}")
            return False

    def _is_refused(self) -> bool:
        """Whether the disk has taken nothing for a while."""
        return bool(self._refusal) and time.monotonic() - self._refused_since >= REFUSED_S

    def close(self) -> str:
        """Write the queued events, end the thread and close the inner writer; a second call does nothing.

        Events are dropped and counted if the disk takes nothing for 3 s (a full disk), if a helper process
        that the inner writer uses takes nothing for 9 s, or if a slow disk has not taken all after 20 s.
        A signal handler may call `close`.

        Returns why events are missing from the files; empty if all were written.
        """
        if self._is_closed or os.getpid() != self._pid:
            return self._missing
        with self._changed:
            self._is_closed = self._hurry = True
            self._fast_length = 0
            self._closed_at = time.monotonic()
            self._writer.hurry(is_closing=True)
            self._changed.notify_all()
            # Not Thread.join: if a signal handler calls `close`, its thread may already hold the lock, and
            # only waiting on the condition releases the lock.
            self._changed.wait_for(lambda: self._is_stopped, timeout=CLOSE_S + BLOCK_S)
            if not self._is_stopped:
                self._give_up("the inner writer neither accepted nor refused the last events")
        if self._is_stopped:
            self._thread.join(BLOCK_S)
        return self._missing

    def health(self) -> Health:
        """The inner writer's counters plus the drops and failures of this queue."""
        return self._final or self._writer.health().plus(self._failures.health)

    # --- in the writer thread

    def _run(self) -> None:
        try:
            self._next_seq = self._persist(self._writer.start) + 1
            while True:
                with self._changed:
                    self._is_asleep = True  # set before the queue is read, so that later appends notify
                    self._changed.wait_for(lambda: self._queue or self._is_closed)
                    self._is_asleep = False
                    if not self._queue:
                        break
                    self._changed.wait_for(  # let the batch grow, unless a caller waits for it
                        lambda: (
                            self._hurry
                            or self._event_bytes >= self._spec.batch_bytes
                            or len(self._queue) >= MANY
                        ),
                        timeout=self._spec.interval_s,
                    )
                while self._queue:
                    self._write_next()
                self._hurry = self._is_closed
            self._persist(self._writer.flush)
        except Exception as error:  # shown by health(): no caller waits for this thread
            self._stop_reason = f"the writer thread stopped: {told(error)}"
            self._lose(self._stop_reason)
        finally:
            try:
                missing = self._writer.close()
                self._missing = self._missing or missing
            except Exception as error:  # as above: no caller is left to raise to
                self._count(f"closing: {told(error)}")
            finally:  # in any case: `close` waits for this
                with self._changed:
                    self._is_stopped = True
                    self._fast_length = 0
                    self._drop_queue(self._stop_reason)
                    self._changed.notify_all()

    def _write_next(self) -> None:
        """Write the next batch of the queue."""
        taken: list[Item] = []
        size = 0  # bytes of the events among the items
        with self._changed:
            if not self._event_bytes:  # the queue holds only rows
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
            while (
                self._event_bytes and self._queue and len(taken) < AT_ONCE and size < self._spec.batch_bytes
            ):
                item = self._queue.popleft()
                taken.append(item)
                size += item[1] if isinstance(item[1], int) else 0
            self._in_progress, self._taken = len(taken), taken
        events = joined(taken, self._resolved)
        if events:
            batch = Batch(
                run_id=self._spec.run_id,
                attempt=self._spec.attempt,
                rank=self._spec.rank,
                first_seq=self._next_seq,
                events=events,
            )
            try:
                if self._spec.delivery == QUEUED:
                    self._writer.write(batch)
                else:
                    self._persist(self._writer.write, batch)
            except Exception as error:  # shown by health(), raised on the next call if requested
                self._lose(f"events were dropped: {told(error)}", batch.plugins())
                if isinstance(error, OSError) and self._is_overdue(LATE_S):
                    raise  # do not try each of the remaining batches
            self._next_seq = batch.last_seq + 1  # even if the batch was dropped: a file may contain it
        if any(item[0] is FLUSH for item in taken):
            self._persist(self._writer.flush)
        with self._changed:
            self._event_bytes -= size
            self._in_progress, self._taken = 0, []
            self._done += len(taken)
            self._set_fast_length()
            self._changed.notify_all()

    def _persist(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Repeat a call until it raises no OSError; when the time allowed by `close` is over, raise it."""
        pause_s = self._spec.retry_s
        while True:
            try:
                answer = call(*args, **named)
            except OSError as error:
                reason = told(error)
                self._count(reason)
                with self._changed:
                    if isinstance(error, (ConnectionError, TimeoutError)):
                        self._refusal = ""
                    else:
                        self._refused_since = self._refused_since if self._refusal else time.monotonic()
                        self._refusal = reason
                        self._changed.notify_all()
                    if self._is_overdue():
                        raise
                    is_asked = self._pause(pause_s)
                retry_s = self._spec.retry_s
                pause_s = retry_s if is_asked else min(2 * pause_s, SLOWEST * retry_s)
            else:
                self._refusal = ""
                return answer

    def _pause(self, pause_s: float) -> bool:
        """Wait, the lock being held; True: a call of `flush` or `close` has just asked for a new attempt."""
        calls = self._flushes, self._is_closed
        return self._changed.wait_for(lambda: (self._flushes, self._is_closed) != calls, pause_s)

    def _is_overdue(self, more_s: float = 0.0) -> bool:
        """Whether `close` was called so long ago that the inner writer gets no more time."""
        patience_s = CLOSE_REFUSED_S if self._refusal else CLOSE_HELPER_S
        return time.monotonic() > self._closed_at + patience_s + more_s

    def _resolved(self, event: Event) -> Event:
        """Return the event with its device copies finished; drop and count a value whose copy failed."""
        values = []
        for value in event.values:
            if hasattr(value.data, "result"):
                try:
                    value = value._replace(data=value.data.result())
                except Exception as error:  # one bad value must not affect the others
                    self._count(f"{value.tag}: {told(error)}", {value.plugin: 1})
                    continue
            values.append(value)
        return event._replace(values=values)

    # --- in either thread

    def _drop(self, values: Sequence[Value], reason: str) -> None:
        if values:
            self._count(reason, Counter(value.plugin for value in values))

    def _count(self, reason: str, dropped: Mapping[str, int] = NONE) -> None:
        """Count a failure; `dropped` maps each plugin to the number of its values that were lost."""
        self._failures.count(reason, dropped=dropped)
        if self._spec.raise_exception:
            self._fast_length = 0  # so that the next `write_row` raises the failure

    def _lose(self, reason: str, dropped: Mapping[str, int] = NONE) -> None:
        """Count a failure after which events are missing from the files."""
        self._missing = self._missing or reason
        self._count(reason, dropped)

    def _give_up(self, reason: str) -> None:
        """Count as dropped what is not acknowledged, whatever the thread, which is stuck, may do with it."""
        self._drop_queue(reason)
        taken = [event for item in self._taken for event in events_in(item)]
        lost = Counter(value.plugin for event in taken for value in event.values) + self._writer.pending()
        if lost:
            self._lose(reason, lost)
        self._final = self.health()

    def _drop_queue(self, reason: str) -> None:
        while self._queue:
            for event in events_in(self._queue.popleft()):
                self._missing = self._missing or reason
                self._drop(event.values, reason)


_living: "weakref.WeakSet[AsyncWriter]" = weakref.WeakSet()


def _check_in_child() -> None:
    """Make every call in a forked child run the checks, which reject a writer of the parent process."""
    for writer in _living:
        writer._fast_length = 0


os.register_at_fork(after_in_child=_check_in_child)


def _close_at_exit(reference: "weakref.ref[AsyncWriter]") -> None:
    writer = reference()
    if writer is not None:
        writer.close()
