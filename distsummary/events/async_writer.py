"""A writer thread between the training thread, which only appends to a queue, and any other writer."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from distsummary.errors import ClosedError, WriteError
from distsummary.events.records import BULK_PLUGINS, Batch, Event, Health, Value, split_event
from distsummary.events.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUDGET_FULL = "the queue's budget was full"
SCALAR_BYTES = 64  # what a value without an array counts in the budget
FLUSH = Event(0, 0.0, [])  # in the queue: flush the inner writer here
BLOCK_S = 0.5  # how long a caller is held up when the budget is full
FLUSH_S = 30.0
CLOSE_S = 20.0  # how long what is left is tried again at the end


class AsyncWriter:
    """Numbers events, packs them to batches and hands them to `writer` from one thread of its own.

    What the writer cannot take now (OSError) is kept and handed over again, same seq, until it can; what it
    refuses for good is dropped and counted.

    Args:
        writer: where the batches go; `start()` tells where the numbering goes on.
        run_id, attempt, rank: what every batch carries.
        budget_bytes: how much may wait. When it is full, bulk values are dropped and counted; other events
            block the caller at most 0.5 s, once per stall, and are then dropped and counted.
        interval_s: how long the thread gathers events before it writes them; it sleeps while there are none.
        batch_bytes: a batch closes early at this size.
        retry_s: pause before a batch is handed over again.
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
        retry_s: float = 0.2,
        raise_exception: bool = False,
    ) -> None:
        self._writer = writer
        self._run_id, self._attempt, self._rank = run_id, attempt, rank
        self._budget_bytes, self._batch_bytes = budget_bytes, batch_bytes
        self._interval_s, self._retry_s = interval_s, retry_s
        self._raise_exception = raise_exception
        self._queue: deque[tuple[Event, int]] = deque()
        self._queued_bytes = 0
        self._accepted = self._done = 0
        self._stalled_at = -1  # what `_done` was when a caller last waited in vain
        self._changed = threading.Condition()
        self._hurry = self._is_closed = self._is_stopped = False
        self._give_up_at = float("inf")
        self._own = Health()
        self._failure: str | None = None
        self._stopped_by = "the writer thread has ended"
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
        if self._is_stopped:
            self._drop(event.values, self._stopped_by)
            return event._replace(values=[]), 0
        size = _size(event)
        if self._queued_bytes + size <= self._budget_bytes:
            return event, size
        self._drop([value for value in event.values if value.plugin in BULK_PLUGINS], BUDGET_FULL)
        small = [value for value in event.values if value.plugin not in BULK_PLUGINS]
        if small and not self._await_room(len(small) * SCALAR_BYTES):
            self._drop(small, BUDGET_FULL)
            small = []
        return event._replace(values=small), len(small) * SCALAR_BYTES

    def _await_room(self, size: int) -> bool:
        """Wait for room, but not again before the thread got on: a dead disk must not slow every step."""
        patience_s = 0.0 if self._stalled_at == self._done else BLOCK_S
        room = self._budget_bytes - size
        if self._changed.wait_for(lambda: self._queued_bytes <= room, timeout=patience_s):
            return True
        self._stalled_at = self._done
        return False

    def _drop(self, values: list[Value], reason: str) -> None:
        for value in values:
            self._own.drop(value.plugin)
        if values:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        if reason not in self._own.errors:
            logger.warning("rank=%d %s (said once; counted in health())", self._rank, reason)
        self._own.fail(reason)
        self._failure = reason

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Return when everything queued so far is with the inner writer and flushed there.

        Raises WriteError when that takes longer than `timeout_s` seconds, or the thread has stopped.
        """
        self._check()
        with self._changed:
            self._queue.append((FLUSH, 0))
            self._accepted += 1
            target = self._accepted
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= target or self._is_stopped, timeout=timeout_s)
            if self._done < target:
                reason = self._failure or "the writer is slow"
                raise WriteError(f"{target - self._done} event(s) could not be flushed: {reason}")

    def close(self) -> None:
        """Write what is queued, end the thread and close the inner writer; a second call does nothing.

        What cannot be written within 20 s is dropped and counted.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closed = self._hurry = True
            self._give_up_at = time.monotonic() + CLOSE_S
            self._changed.notify_all()
        self._thread.join(CLOSE_S + BLOCK_S)
        if self._thread.is_alive():
            self._drop_queue("the inner writer neither took the last events nor refused them")

    def health(self) -> Health:
        """The inner writer's counters and what was dropped or failed before it."""
        return self._writer.health().plus(self._own)

    def _run(self) -> None:
        try:
            self._next_seq = self._persist(self._writer.start) + 1
            while self._await_work():
                self._gather()
                self._hand_over()
            self._persist(self._writer.flush)
        except Exception as error:  # said in health(): nobody waits for this thread
            self._stopped_by = f"the writer thread stopped: {type(error).__name__}: {error}"
            self._fail(self._stopped_by)
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._drop_queue(self._stopped_by)
            self._changed.notify_all()
        try:
            self._writer.close()
        except Exception as error:  # the same: there is nobody left to raise to
            self._fail(f"closing: {type(error).__name__}: {error}")

    def _drop_queue(self, reason: str) -> None:
        while self._queue:
            self._drop(self._queue.popleft()[0].values, reason)

    def _persist(self, call: Callable[[], T]) -> T:
        """Call until no OSError refuses it; at the end of the grace that `close` gives, raise that."""
        while True:
            try:
                return call()
            except OSError as error:
                self._fail(f"{type(error).__name__}: {error}")
                if time.monotonic() > self._give_up_at:
                    raise
                with self._changed:  # not sleep: close() must be heard
                    self._changed.wait(self._retry_s)

    def _await_work(self) -> bool:
        """Sleep while there is nothing to write; False when nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            return bool(self._queue)

    def _gather(self) -> None:
        """Let a batch grow for `interval_s`, unless somebody waits for it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurry or self._queued_bytes >= self._batch_bytes, timeout=self._interval_s
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
        if FLUSH in taken:
            self._persist(self._writer.flush)
        with self._changed:
            self._queued_bytes -= size
            self._done += len(taken)
            if not self._queue:
                self._hurry = self._is_closed
            self._changed.notify_all()

    def _write(self, events: list[Event]) -> None:
        batch = Batch(
            run_id=self._run_id,
            attempt=self._attempt,
            rank=self._rank,
            first_seq=self._next_seq,
            events=events,
        )
        try:
            self._persist(lambda: self._writer.write(batch))
        except Exception as error:  # kept and shown by health(), raised on the next call if asked for
            for event in events:
                self._drop(event.values, f"{type(error).__name__}: {error}")
        self._next_seq = batch.last_seq + 1  # also of a dropped batch: one of its files may hold it

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
