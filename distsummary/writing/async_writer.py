"""A writer thread between the training thread, which only appends to a queue, and any other writer."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from distsummary.errors import ClosedError, WriteError
from distsummary.format.queued import (
    FLUSH,
    ITEM_BYTES,
    MAX_ROW_BYTES,
    SCALAR_BYTES,
    Item,
    as_written,
    events_in,
    size_of,
)
from distsummary.format.records import BULK_PLUGINS, QUEUED, WRITTEN, Batch, Event, Health, Scalars, Value
from distsummary.format.scalar_rows import events_of, packed
from distsummary.writing.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUDGET_FULL = "the queue's budget was full"
MANY = 1 << 14  # items that wake the thread early
AT_ONCE = 1 << 11  # items worked on in one go: a longer burst of Python would hold up the training thread
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
        delivery: "queued" drops what the writer cannot take now, and counts it; of the other levels the
            `writer` takes care.
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
        delivery: str = WRITTEN,
        budget_bytes: int = 64 << 20,
        interval_s: float = 0.1,
        batch_bytes: int = 1 << 20,
        retry_s: float = 0.2,
        raise_exception: bool = False,
    ) -> None:
        self._writer = writer
        self._run_id, self._attempt, self._rank = run_id, attempt, rank
        self._tries_again = delivery != QUEUED
        self._budget_bytes, self._batch_bytes = budget_bytes, batch_bytes
        self._interval_s, self._retry_s = interval_s, retry_s
        self._raise_exception = raise_exception
        self._queue: deque[Item] = deque()
        self._event_bytes = 0  # of the events in the queue and in the thread's hands; rows count by the item
        self._taken_over = 0  # items in the thread's hands
        self._unasked = 0  # how long the queue may get before `write_row` must look closer
        self._is_asleep = False
        self._done = 0
        self._stalled_at = -1  # what `_done` was when a caller last waited in vain
        self._changed = threading.Condition()
        self._hurry = self._is_closed = self._is_stopped = False
        self._give_up_at = float("inf")
        self._own = Health()
        self._failure: str | None = None
        self._stopped_by = "the writer thread has ended"
        self._next_seq = 1
        self._pid = os.getpid()
        self._set_unasked()
        _living.add(self)
        self._thread = threading.Thread(target=self._run, name="distsummary-writer", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    # --- for the training thread

    def write_row(self, tags: tuple[str, ...], row: bytes) -> None:
        """Queue an event of scalars alone, packed by `rows.row_struct`; as `write` in a tenth of the time."""
        if len(self._queue) >= self._unasked:
            self._write_row_carefully(tags, row)
            return
        self._queue.append((tags, row))
        if self._is_asleep:
            self._wake()

    def _write_row_carefully(self, tags: tuple[str, ...], row: bytes) -> None:
        self._check()
        with self._changed:
            if len(row) > MAX_ROW_BYTES or not self._has_room(0):
                [event] = events_of(Scalars(tags, row))
                self._queue_event(event)
            else:
                self._queue.append((tags, row))
            self._set_unasked(self._unasked + MANY)
            self._changed.notify_all()

    def write(self, event: Event) -> None:
        """Queue one event; takes microseconds unless the budget is full.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` was asked for.
        """
        self._check()
        with self._changed:
            self._queue_event(event)

    def _queue_event(self, event: Event) -> None:
        event, size = self._fit(event)
        if not event.values:
            return
        self._queue.append((event, size))
        self._event_bytes += size
        self._set_unasked()
        if self._is_asleep or self._event_bytes >= self._batch_bytes:
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _set_unasked(self, limit: int = MANY) -> None:
        """Rows go unasked while there is room for them and nothing to tell their caller."""
        is_open = not (self._is_closed or self._is_stopped or (self._raise_exception and self._failure))
        room = (self._budget_bytes - self._event_bytes) // ITEM_BYTES - self._taken_over
        self._unasked = min(room, limit) if is_open else 0

    def _has_room(self, size: int) -> bool:
        items = len(self._queue) + self._taken_over + 1
        return not self._is_stopped and self._event_bytes + items * ITEM_BYTES + size <= self._budget_bytes

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
        size = size_of(event)
        if self._has_room(size):
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
        self._changed.notify_all()
        if self._changed.wait_for(lambda: self._has_room(size), timeout=patience_s):
            return True
        self._stalled_at = self._done
        return False

    def _drop(self, values: Sequence[Value], reason: str) -> None:
        for value in values:
            self._own.drop(value.plugin)
        if values:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        if reason not in self._own.errors:
            logger.warning("rank=%d %s (said once; counted in health())", self._rank, reason)
        self._own.fail(reason)
        self._failure = reason
        if self._raise_exception:
            self._unasked = 0

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Return when everything queued so far is with the inner writer and flushed there.

        Raises WriteError when that takes longer than `timeout_s` seconds, or the thread has stopped.
        """
        self._check()
        with self._changed:
            self._queue.append((FLUSH, 0))
            target = self._done + self._taken_over + len(self._queue)
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= target or self._is_stopped, timeout=timeout_s)
            if self._done < target:
                reason = self._failure or "the writer is slow"
                raise WriteError(f"{target - self._done} event(s) could not be flushed: {reason}")

    def close(self) -> None:
        """Write what is queued, end the thread and close the inner writer; a second call does nothing.

        What cannot be written within 20 s is dropped and counted. A signal handler may call it.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        with self._changed:
            self._is_closed = self._hurry = True
            self._unasked = 0
            self._give_up_at = time.monotonic() + CLOSE_S
            self._changed.notify_all()
            # Not join: a handler's thread may hold the lock already, and only waiting for it gives it back.
            self._changed.wait_for(lambda: self._is_stopped, timeout=CLOSE_S + BLOCK_S)
            if not self._is_stopped:
                self._drop_queue("the inner writer neither took the last events nor refused them")
        if self._is_stopped:
            self._thread.join(BLOCK_S)

    def health(self) -> Health:
        """The inner writer's counters and what was dropped or failed before it."""
        return self._writer.health().plus(self._own)

    # --- in the writer thread

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
        try:
            self._writer.close()
        except Exception as error:  # the same: there is nobody left to raise to
            self._fail(f"closing: {type(error).__name__}: {error}")
        finally:  # whatever happens: `close` waits for this
            with self._changed:
                self._is_stopped = True
                self._unasked = 0
                self._drop_queue(self._stopped_by)
                self._changed.notify_all()

    def _drop_queue(self, reason: str) -> None:
        while self._queue:
            for event in events_in(self._queue.popleft()):
                self._drop(event.values, reason)

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
            self._is_asleep = True  # first: who appends after this looks at it
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            self._is_asleep = False
            return bool(self._queue)

    def _gather(self) -> None:
        """Let a batch grow for `interval_s`, unless somebody waits for it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._hurry or self._event_bytes >= self._batch_bytes or len(self._queue) >= MANY,
                timeout=self._interval_s,
            )

    def _hand_over(self) -> None:
        """Write everything that is queued now, a batch at a time."""
        while self._queue:
            taken, size = self._take()
            events = packed(as_written(taken, self._resolved))
            if events:
                self._write(events)
            if any(item[0] is FLUSH for item in taken):
                self._persist(self._writer.flush)
            with self._changed:
                self._event_bytes -= size
                self._taken_over = 0
                self._done += len(taken)
                self._set_unasked()
                self._changed.notify_all()
        self._hurry = self._is_closed

    def _take(self) -> tuple[list[Item], int]:
        """The next items, and the bytes of the events among them."""
        taken: list[Item] = []
        size = 0
        with self._changed:
            if not self._event_bytes:
                taken = [self._queue.popleft() for _ in range(min(len(self._queue), AT_ONCE))]
            while self._event_bytes and self._queue and len(taken) < AT_ONCE and size < self._batch_bytes:
                item = self._queue.popleft()
                taken.append(item)
                size += item[1] if isinstance(item[1], int) else 0
            self._taken_over = len(taken)
        return taken, size

    def _write(self, events: list[Event | Scalars]) -> None:
        batch = Batch(
            run_id=self._run_id,
            attempt=self._attempt,
            rank=self._rank,
            first_seq=self._next_seq,
            events=events,
        )
        try:
            if self._tries_again:
                self._persist(lambda: self._writer.write(batch))
            else:
                self._writer.write(batch)
        except Exception as error:  # kept and shown by health(), raised on the next call if asked for
            for plugin, count in batch.plugins().items():
                self._own.drop(plugin, count)
            self._fail(f"{type(error).__name__}: {error}")
        self._next_seq = batch.last_seq + 1  # also of a dropped batch: one of its files may hold it

    def _resolved(self, event: Event) -> Event:
        """The event with device copies waited for; a value whose copy failed is dropped and counted."""
        if not any(hasattr(value.data, "result") for value in event.values):
            return event
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


_living: "weakref.WeakSet[AsyncWriter]" = weakref.WeakSet()


def _ask_in_child() -> None:
    """After a fork every call looks closer, and finds that the writer is the parent's."""
    for writer in _living:
        writer._unasked = 0


os.register_at_fork(after_in_child=_ask_in_child)


def _close_at_exit(reference: "weakref.ref[AsyncWriter]") -> None:
    writer = reference()
    if writer is not None:
        writer.close()
