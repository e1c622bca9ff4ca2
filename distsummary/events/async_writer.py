"""A writer thread between the training thread, which only appends to a queue, and any other writer."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque

from distsummary.errors import ClosedError, WriteError
from distsummary.events.records import BULK_PLUGINS, Batch, Event, Health, Value, split_event
from distsummary.events.writer import Writer

logger = logging.getLogger(__name__)

SCALAR_BYTES = 64  # what a value without an array counts in the budget
BLOCK_S = 0.5
CLOSE_TIMEOUT_S = 30.0


class AsyncWriter:
    """Numbers events, packs them to batches and hands them to `writer` from one thread of its own.

    Args:
        writer: where the batches go. Its `health().last_seq` tells where the numbering goes on.
        run_id, attempt, rank: what every batch carries.
        budget_bytes: how much may wait. When it is full, bulk values are dropped and counted; other events
            block the caller at most 0.5 s and are then dropped and counted.
        interval_s: how long the thread gathers events before it writes them; it sleeps while there are none.
        batch_bytes: a batch closes early at this size.
        raise_exception: raise a background failure as WriteError on the next call.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        run_id: str,
        attempt: int = 0,
        rank: int = 0,
        budget_bytes: int = 64 << 20,
        interval_s: float = 0.1,
        batch_bytes: int = 1 << 20,
        raise_exception: bool = False,
    ) -> None:
        self._writer = writer
        self._run_id, self._attempt, self._rank = run_id, attempt, rank
        self._budget_bytes, self._interval_s, self._batch_bytes = budget_bytes, interval_s, batch_bytes
        self._raise_exception = raise_exception
        self._queue: deque[tuple[Event, int]] = deque()
        self._queued_bytes = 0
        self._accepted = self._done = 0
        self._changed = threading.Condition()
        self._hurry = self._closing = self._is_closed = self._is_stopped = False
        self._own = Health()
        self._failure: str | None = None
        self._next_seq = 1
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="distsummary-writer", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    def write(self, event: Event) -> None:
        """Queue one event; takes microseconds unless the budget is full.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` was asked for.
        """
        self._check()
        with self._changed:
            event, size = self._fit(event)
            if not event.values:
                return
            self._queue.append((event, size))
            self._queued_bytes += size
            self._accepted += 1
            if len(self._queue) == 1 or self._queued_bytes >= self._batch_bytes:
                self._changed.notify_all()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this writer belongs to process {self._pid}; open one in each process after a fork"
            )
        if self._is_closed:
            raise ClosedError("the writer is closed; open a new one")
        if self._raise_exception and self._failure is not None:
            failure, self._failure = self._failure, None
            raise WriteError(f"recording failed in the background: {failure}")

    def _fit(self, event: Event) -> tuple[Event, int]:
        """The event as far as the budget takes it, and its size (called with the lock held)."""
        size = _size(event)
        if self._queued_bytes + size <= self._budget_bytes:
            return event, size
        self._drop([value for value in event.values if value.plugin in BULK_PLUGINS])
        small = [value for value in event.values if value.plugin not in BULK_PLUGINS]
        room = self._budget_bytes - len(small) * SCALAR_BYTES
        if small and not self._changed.wait_for(lambda: self._queued_bytes <= room, timeout=BLOCK_S):
            self._drop(small)
            small = []
        return event._replace(values=small), len(small) * SCALAR_BYTES

    def _drop(self, values: list[Value]) -> None:
        for value in values:
            self._own.drop(value.plugin)
        if values:
            self._fail("the queue's budget was full")

    def _fail(self, reason: str) -> None:
        if reason not in self._own.errors:
            logger.warning("rank=%d %s (said once; counted in health())", self._rank, reason)
        self._own.fail(reason)
        self._failure = reason

    def flush(self) -> None:
        """Return when everything queued so far is with the inner writer and flushed there."""
        self._check()
        with self._changed:
            target = self._accepted
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= target or self._is_stopped)
        self._writer.flush()

    def close(self) -> None:
        """Write what is queued, end the thread and close the inner writer; a second call does nothing."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        with self._changed:
            self._closing = self._hurry = True
            self._changed.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._fail(f"the inner writer did not take the last events within {CLOSE_TIMEOUT_S:g} s")
        self._writer.close()

    def health(self) -> Health:
        """The inner writer's counters and what was dropped or failed before it."""
        return self._writer.health().plus(self._own)

    def _run(self) -> None:
        try:
            self._next_seq = self._writer.health().last_seq + 1
            while self._await_work():
                self._gather()
                self._hand_over()
        except (
            Exception
        ) as error:  # nothing can be written any more: said in health(), and nobody waits for us
            self._fail(f"the writer thread stopped: {type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._is_stopped = True
                self._changed.notify_all()

    def _await_work(self) -> bool:
        """Sleep while there is nothing to write; False when nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return bool(self._queue)

    def _gather(self) -> None:
        """Let a batch grow for `interval_s`, unless somebody waits for it."""
        deadline = time.monotonic() + self._interval_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurry or self._queued_bytes >= self._batch_bytes,
                timeout=max(0.0, deadline - time.monotonic()),
            )

    def _hand_over(self) -> None:
        taken: list[Event] = []
        size = 0
        with self._changed:
            while self._queue and (not taken or size < self._batch_bytes):
                event, event_size = self._queue.popleft()
                taken.append(event)
                size += event_size
        events = [part for event in taken for part in split_event(self._resolved(event)) if part.values]
        if events:
            self._write(events)
        with self._changed:
            self._queued_bytes -= size
            self._done += len(taken)
            if not self._queue:
                self._hurry = self._closing
            self._changed.notify_all()

    def _write(self, events: list[Event]) -> None:
        batch = Batch(
            run_id=self._run_id,
            attempt=self._attempt,
            rank=self._rank,
            first_seq=self._next_seq,
            events=events,
        )
        self._next_seq = batch.last_seq + 1
        try:
            self._writer.write(batch)
        except Exception as error:  # kept and shown by health(), raised on the next call if asked for
            for event in events:
                for value in event.values:
                    self._own.drop(value.plugin)
            self._fail(f"{type(error).__name__}: {error}")

    def _resolved(self, event: Event) -> Event:
        """The event with device copies waited for; a value whose copy failed is dropped and counted."""
        values = []
        for value in event.values:
            if hasattr(value.data, "result"):
                try:
                    value = value._replace(data=value.data.result())
                except Exception as error:  # one bad value costs that value
                    self._own.drop(value.plugin)
                    self._fail(f"{value.tag}: {type(error).__name__}: {error}")
                    continue
            values.append(value)
        return event._replace(values=values)


def _size(event: Event) -> int:
    bulk = [value.data for value in event.values if value.plugin in BULK_PLUGINS]
    return SCALAR_BYTES * len(event.values) + sum(int(getattr(data, "nbytes", 0)) for data in bulk)


def _close_at_exit(reference: "weakref.ref[AsyncWriter]") -> None:
    writer = reference()
    if writer is not None:
        writer.close()
