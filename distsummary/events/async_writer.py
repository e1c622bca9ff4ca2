"""AsyncWriter: the training thread queues events, and a background thread passes them to another writer."""

import errno
import math
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from distsummary.base.at_exit import DaemonThread, close_at_exit, closing
from distsummary.base.failures import (
    NONE,
    BoundedWait,
    DroppedSteps,
    Failures,
    Slowdown,
    awaiting,
    error_line,
    place_of,
)
from distsummary.base.guard import guarded_log, run_each
from distsummary.base.health import Health
from distsummary.base.publish import is_gone
from distsummary.errors import ClosedError, WriteError
from distsummary.events.closing_line import ClosingLine
from distsummary.events.spec import DROP, WriterSpec
from distsummary.events.writer import Writer
from distsummary.format.encode import finish_value
from distsummary.format.records import BULK_PLUGINS, QUEUED, Batch, Event, Scalars, Value
from distsummary.format.scalar_rows import (
    FLUSH,
    ITEM_BYTES,
    NUMBER_BYTES,
    ROW_BYTES,
    Item,
    events_of,
    joined,
    size_of,
)

logger = guarded_log(__name__)

P = ParamSpec("P")
T = TypeVar("T")

RESERVE = 16  # 1/16 of the budget is left for other events while an event larger than the budget waits
AT_ONCE = 1 << 11  # items processed in one go; more would make the training thread wait for the GIL
STALL_S = 2.0  # a writer that gets nothing done for so long holds the training thread no longer
FLUSH_S = 30.0
REFUSED_S = 0.5  # how long `flush` waits for a disk that takes nothing, such as a full one
CLOSE_S = 20.0  # `close` waits while the writer gets something done within this time
LATE_S = 1.0  # of these, for each of the remaining batches once: a small one may find room
CUT_S = 1.0  # how long the thread may take to end after the wait for it was ended
TOO_SLOW = 0.1  # part of the time that the training thread may wait without a warning
BUSY, LEAST_WORK_S = 0.03, 0.01  # of a processor, and seconds: a thread that uses so much is at work
SLOWEST = 5  # a failed call is repeated after `retry_s`, then after twice the pause, up to 5 times `retry_s`


class AsyncWriter:
    """Numbers events, packs them into batches and passes the batches to `writer` in a thread of its own.

    If `writer` raises OSError, the batch is kept and passed again with the same seq (sequence numbers) until
    `writer` accepts it. After any other exception it is passed once more, then dropped and counted; with the
    delivery "queued", it is dropped after OSError, too.

    Its attributes are what two threads share, under one lock but for `write_row`: the queue, the counters
    that must add up at every moment, and the state of the end.

    Args:
        writer: receives the batches; its `start()` returns the highest seq that it has already written.
        spec: the run, attempt and rank of the batches, and the settings of the queue.
        is_timed: whether the caller finds out itself that it waits too long; else that is logged once.
        clock: the time in seconds.
    """

    def __init__(
        self,
        writer: Writer,
        spec: WriterSpec,
        *,
        is_timed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._spec, self._clock = writer, spec, clock
        self._directory = Path(spec.directory)
        self._most_bytes = spec.budget_bytes - spec.budget_bytes // RESERVE  # that an event counts with
        self._queue: deque[Item] = deque()
        self._put = self._got = 0  # bytes of all items that were queued, and that the thread has processed
        self._fast_until = 0  # the value of `_put` up to which `write_row` may skip the checks
        self._given_rows = 0  # scalars given by `write_row`
        self._given: Counter[str] = Counter()  # plugin -> values given otherwise
        self._accepted: Counter[str] = Counter()  # plugin -> values that the inner writer has accepted
        self._in_progress = 0  # items that the thread is processing
        self._is_asleep = False
        self._done = 0
        self._changed = threading.Condition()
        self._hurry = self._is_closed = self._is_stopped = False
        self._closed_at = math.inf
        self._deadline, self._deadline_reason = math.inf, ""  # when `close` has to end, and why
        self._ends = ""  # why the thread must not write what still waits
        self._refusal = ""  # why the disk takes nothing now; empty: it does
        self._refused_since = self._accepted_at = 0.0
        self._flushes = 0
        self._dropped = 0  # values, when `flush` returned last
        self._final: Health | None = None  # the counters when `close` gave up
        prefix = f"rank={spec.rank} "
        self._failures = Failures(Health(), logger, raise_exception=spec.raise_exception, prefix=prefix)
        self._dropping = DroppedSteps(self._failures, logger, prefix, clock)
        self._room = BoundedWait(self._changed, self._progress, clock)
        self._slowdown = Slowdown(clock)
        self._is_warned = is_timed
        self._cpu_clock: int | None = None  # that of the thread
        self._work = 0, 0.0, clock()  # times that it was seen at work; its CPU time, and when that was read
        self._stop_reason = "the writer thread has ended"
        self._next_seq = 0  # until the writer has started
        self._pid = os.getpid()
        self._set_fast_until()
        _living.add(self)
        self._thread = DaemonThread(self._run, "distsummary-writer")
        self._thread.start()
        close_at_exit(self.close)

    # --- for the training thread

    def write_row(self, tags: tuple[str, ...], row: bytes) -> None:
        """Queue an event of scalars only, packed by `scalar_rows.row_struct`; raises what `write` raises.

        It is ten times faster than `write`.
        """
        count = len(tags)
        # This way needs no lock: Python changes threads at calls only, and there is none between reading
        # these counters and setting them.
        put = self._put + NUMBER_BYTES * count + ROW_BYTES
        if put < self._fast_until:
            self._put = put
            self._given_rows += count
            self._queue.append((tags, row))
            if self._is_asleep:
                with self._changed:
                    self._changed.notify_all()
            return
        self.write_rows(tags, row)

    def write_rows(self, tags: tuple[str, ...], rows: bytes) -> None:
        """Queue events of the same scalars, packed one after the other; raises what `write` raises."""
        events, size = Scalars(tags, rows), len(rows) + ITEM_BYTES
        if size > self._most_bytes:
            for event in events_of(events):
                self.write(event)
            return
        plugins = {"scalar": len(tags) * events.size}
        self._check(plugins)
        with self._changed:
            self._given_rows += plugins["scalar"]
            if self._finds_room(size, plugins):
                self._put += size
                self._queue.append((tags, rows))
            self._set_fast_until()
            self._changed.notify_all()

    def write(self, event: Event) -> None:
        """Queue one event; takes microseconds unless the budget is full.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` is set; the
        event is then dropped and counted.
        """
        plugins = Counter(value.plugin for value in event.values)
        self._check(plugins)
        with self._changed:
            self._given += plugins
            self._queue_event(event, plugins)

    def _queue_event(self, event: Event, plugins: Mapping[str, int]) -> None:
        """Queue as much of the event as the budget has room for; the lock must be held."""
        size = self._size(event)
        if not self._has_room(size):
            # Without room, bulk values are dropped at once; only the others wait for it.
            bulk = [value for value in event.values if value.plugin in BULK_PLUGINS]
            kept = event._replace(values=[v for v in event.values if v.plugin not in BULK_PLUGINS])
            size = self._size(kept)
            if kept.values and not self._finds_room(size, plugins):
                return
            self._drop(bulk, self._stop_reason if self._is_stopped else self._bulk_reason)
            event = kept
        if event.values:
            self._queue.append((event, size))
            self._put += size
            self._set_fast_until()
            if self._is_asleep or self._put - self._got >= self._spec.batch_bytes:
                self._changed.notify_all()

    def _size(self, event: Event) -> int:
        """The bytes of the budget that an event takes, at most 15/16 of it.

        So even the largest event is taken if little else waits, and the scalars of the following steps find
        room while it is written.
        """
        return min(size_of(event) + ITEM_BYTES, self._most_bytes)

    def _has_room(self, size: int) -> bool:
        return not self._is_stopped and self._put - self._got + size <= self._spec.budget_bytes

    def _finds_room(self, size: int, plugins: Mapping[str, int]) -> bool:
        """Hold the training thread, as the spec allows, until there is room for an event of `size` bytes.

        Returns False if there is none: then its values (plugin -> values) have been counted as dropped.
        """
        if self._has_room(size):
            return True
        is_found = False
        try:
            if self._spec.overload != DROP and not self._is_stopped:
                self._changed.notify_all()
                begun = self._clock()
                self._room.wait_for(lambda: self._has_room(size) or self._is_stopped, STALL_S)
                is_found = self._has_room(size)
                if is_found:
                    self._note_wait(self._clock() - begun, sum(plugins.values()))
        finally:
            # Also if a signal's handler raises in the wait: the values must be counted.
            if not is_found:
                self._drop_step(plugins)
        return is_found

    def _note_wait(self, seconds: float, values: int) -> None:
        """Warn once if the training thread waits too long; the step that waited has so many values."""
        share = self._slowdown.waited(seconds)
        if share > TOO_SLOW and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "rank=%d recording slows the training down: for %.0f %% of the time it waits till its values "
                "are written (%s in this step); record fewer of them, or only those of every %d. step (for "
                "example: if run.step %% %d == 0), or have steps dropped instead: "
                'record=ds.Record(overload="drop")',
                self._spec.rank, 100 * share, f"{values:,}", *2 * [math.ceil(1 / max(1 - share, 0.01))],
            )  # fmt: skip

    def _drop_step(self, plugins: Mapping[str, int]) -> None:
        """Count the values of a step that finds no room."""
        if self._is_stopped:
            self._count(self._stop_reason, plugins)
            return
        if self._spec.overload == DROP:
            reason = "the loop records more than the writer can write"
        else:
            cause = self._refusal or "check that its disk works"
            reason = f"nothing was written to {self._spec.directory} for {STALL_S:g} s: {cause}"
        self._dropping.add(reason, plugins)

    @property
    def _bulk_reason(self) -> str:
        return (
            f"the queue ({self._spec.budget_bytes >> 20} MiB) was full: tensors, histograms, images and the "
            "like are dropped while they are more than the writer can write; record fewer of them"
        )

    def _set_fast_until(self) -> None:
        """Let `write_row` skip the checks while there is room for rows, and no failure to raise.

        It must not skip them at the row with which the waiting bytes are enough for a batch: the thread may
        sleep until then.
        """
        is_open = not (
            self._is_closed or self._is_stopped or (self._spec.raise_exception and self._failures.last)
        )
        batch = self._spec.batch_bytes
        next_look = max(self._got, self._put if self._put - self._got >= batch else 0) + batch
        self._fast_until = min(self._got + self._most_bytes, next_look) if is_open else 0

    def _check(self, plugins: Mapping[str, int] = NONE) -> None:
        """Raise what forbids to record values (plugin -> values), which are then counted as dropped.

        What comes after `close` is refused, and not counted: the run, and its health, have ended.
        """
        try:
            self._raise_refusal()
        except (ClosedError, WriteError):
            for plugin, count in () if self._is_closed else plugins.items():
                self._given[plugin] += count
                self._failures.health.drop(plugin, count)
            raise

    def _raise_refusal(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this writer belongs to process {self._pid}; open one in each process after a fork"
            )
        if self._is_closed:
            raise ClosedError("the writer is closed; open a new one")
        self._failures.raise_last()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until everything given so far has been passed to the inner writer and flushed there.

        Returns False, or raises WriteError if `raise_exception` is set, if something that was given since the
        last call is not in the files: the disk took nothing for half a second (a full disk), `timeout_s`
        seconds have passed, the thread has stopped, or values were dropped or refused. What still waits stays
        queued, without a guarantee.
        """
        before = self._counted()
        try:
            self._check()
            return self._flush(timeout_s)
        finally:
            # Values that other threads gave meanwhile may be among those that were dropped: then the next
            # call reports these, too.
            now = self._counted()
            self._dropped = sum((now if now.given == before.given else before).dropped.values())

    def _flush(self, timeout_s: float) -> bool:
        with self._changed:
            self._queue.append((FLUSH, 0))
            target = self._done + self._in_progress + len(self._queue)
            self._hurry = True
            self._flushes += 1
            self._writer.hurry()
            self._changed.notify_all()

            def is_over() -> bool:
                return self._done >= target or self._is_stopped

            # This call has a disk that refuses tried once more: only after that does the refusal count.
            self._changed.wait_for(is_over, min(timeout_s, REFUSED_S))
            self._changed.wait_for(lambda: is_over() or self._is_refused(), max(0.0, timeout_s - REFUSED_S))
            found = self._counted()
            # What was dropped since the last call, and lineage that still waits, is not in the files either.
            dropped = sum(found.dropped.values()) - self._dropped + sum(found.waiting.values())
            if self._done < target:
                reason = self._stop_reason if self._is_stopped else self._refusal or "the writer is slow"
                if self._spec.raise_exception:
                    raise WriteError(f"{target - self._done} event(s) could not be flushed: {reason}")
                self._count(f"flush returned before everything was written: {reason}")
            elif dropped and self._spec.raise_exception:
                reason = found.missing or "lineage cannot be written now"
                raise WriteError(f"{dropped:,} value(s) are not in the files: {reason}")
            return self._done >= target and not dropped

    def _is_refused(self) -> bool:
        """Whether the disk has taken nothing for a while."""
        return bool(self._refusal) and self._clock() - self._refused_since >= REFUSED_S

    def end_within(self, seconds: float, reason: str) -> None:
        """Let `close`, also one that is waiting, take so many seconds at most; what waits then is dropped.

        `reason` says in the message why. A signal handler may call it.
        """
        with self._changed:
            deadline = self._clock() + seconds
            if deadline < self._deadline:
                self._deadline, self._deadline_reason = deadline, reason
            self._changed.notify_all()

    def close(self) -> None:
        """Write the queued events, end the thread and close the inner writer; a second call does nothing.

        Waits as long as the writer gets something done, and shows in a terminal how much is left. Events are
        dropped and counted if it has got nothing done for 20 s, or at the time set by `end_within`. A signal
        handler may call `close`.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        with closing(self.close):
            self._close()

    def _close(self) -> None:
        with self._changed:
            self._is_closed = self._hurry = True
            self._fast_until = 0
            self._closed_at = self._accepted_at = self._clock()
            # Even a deadline in the past leaves CUT_S for what can be written until then.
            self._deadline = max(self._deadline, self._closed_at + CUT_S)
            self._writer.hurry(is_closing=True)
            self._changed.notify_all()
            try:
                if self._thread.is_deferred:
                    self._thread.join()
                self._wait_for_end()
            except BaseException as error:
                # Such as Ctrl-C: what still waits is dropped and counted before it is raised again.
                self._end(f"{type(error).__name__} ended the wait for {self._disk}")
                raise
            finally:
                self._dropping.end()
                self._log_dropped()
        if self._is_stopped:
            self._thread.join(CUT_S)

    def _wait_for_end(self) -> None:
        line = ClosingLine(self._spec.rank, self._clock)

        def is_over() -> bool:
            line.show(self._put - self._got, self._refusal)
            return self._is_stopped or self._clock() >= self._deadline

        # Not Thread.join: if a signal handler calls `close`, its thread may already hold the lock, and only
        # waiting on the condition releases the lock.
        idle = BoundedWait(self._changed, self._progress, self._clock)
        try:
            with awaiting(self._thread):
                is_late = idle.wait_for(is_over, CLOSE_S) and not self._is_stopped
        finally:
            line.end()
        if not self._is_stopped:
            place = place_of(self._thread)
            at = f" (the writer is at {place})" if place else ""
            nothing = f"{self._disk} took nothing for {CLOSE_S:g} s{at}; check that it works"
            self._end(self._deadline_reason if is_late else nothing)

    @property
    def _disk(self) -> str:
        return f"the disk of {self._spec.directory}"

    def _end(self, reason: str) -> None:
        """Have the thread drop what waits; if it is stuck, count that for it, whatever it may do later."""
        self._ends = reason
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._is_stopped, CUT_S)
        if self._is_stopped:
            return
        # The thread is stuck in a call: what it has not written counts as lost, even if it is written later.
        found = self._counted()
        lost = Counter(found.given) - Counter(found.written) - Counter(found.dropped)
        if lost:
            self._count(_not_written(lost, reason), lost)
            found.dropped = dict(Counter(found.dropped) + lost)
        else:
            self._count(f"the files were not closed: {reason}")
        newest = self._writer.health().plus(self._failures.health)
        found.errors, found.missing = newest.errors, newest.missing
        self._queue.clear()
        self._final = found

    def _log_dropped(self) -> None:
        """Log, as the last line, how much of what was given is not in the files, and why."""
        found = self.health()
        if lost := sum(found.dropped.values()):
            kinds = ", ".join(f"{plugin} {count:,}" for plugin, count in sorted(found.dropped.items()))
            logger.warning("rank=%d dropped %s of %s values (%s): %s", self._spec.rank, f"{lost:,}",
                f"{sum(found.given.values()):,}", kinds, found.missing or "health() counts the reasons",
            )  # fmt: skip

    def health(self) -> Health:
        """The counters of this queue and of the inner writer; any thread may call it."""
        if self._final is not None:
            return self._final
        # `write_row` takes no lock, so a row may have come while the thread ended.
        if self._is_stopped and self._queue:
            with self._changed:
                self._drop_queue(self._stop_reason)
        return self._counted()

    def _counted(self) -> Health:
        # What the inner writer accepted, it has written unless it says otherwise. Other threads continue:
        # what was given is read last, so that it is never less than the rest.
        inner = self._writer.health()
        accepted = Counter(dict(self._accepted))
        total = inner.plus(self._failures.health)
        total.written = dict(accepted - Counter(inner.dropped) - Counter(inner.waiting))
        total.given = dict(Counter(dict(self._given)) + Counter(scalar=self._given_rows))
        return total

    def _progress(self) -> tuple[int, int, int]:
        """Changes whenever the thread gets something done: items, bytes, or work of the processor."""
        return self._done, self._writer.progress(), self._times_at_work()

    def _times_at_work(self) -> int:
        """How often the thread was seen at work: encoding a large event may take long.

        Waiting for another process takes some work, too, and so does trying again on a full disk.
        """
        times, cpu_s, at = self._work
        now, used_s = self._clock(), self._cpu_s()
        if used_s - cpu_s > max(BUSY * (now - at), LEAST_WORK_S) and not self._refusal:
            self._work = times + 1, used_s, now
        elif now - at > STALL_S:
            self._work = times, used_s, now
        return self._work[0]

    def _cpu_s(self) -> float:
        try:
            return 0.0 if self._cpu_clock is None else time.clock_gettime(self._cpu_clock)
        except OSError:
            # The thread has ended.
            return 0.0

    # --- in the writer thread

    def _run(self) -> None:
        try:
            # Without that clock, a writer that computes for long looks stuck.
            with suppress(OSError, AttributeError):
                self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
            self._next_seq = self._persist(self._writer.start) + 1
            while not self._ends:
                with self._changed:
                    # Set before the queue is looked at, so that whatever is appended later notifies.
                    self._is_asleep = True
                    self._changed.wait_for(lambda: self._queue or self._is_closed)
                    self._is_asleep = False
                    if not self._queue:
                        break
                    # Let the batch grow, unless a caller waits; what comes while it is written waits as well.
                    self._changed.wait_for(
                        lambda: self._hurry or self._put - self._got >= self._spec.batch_bytes,
                        timeout=self._spec.interval_s,
                    )
                    self._hurry, until = self._is_closed, self._done + len(self._queue)
                while self._done < until and not self._ends:
                    self._write_next()
            if self._ends:
                self._stop_reason = self._ends
            self._persist(self._writer.flush)
        except Exception as error:
            # No caller waits for this thread: `health` shows why it has stopped.
            self._stop_reason = f"the writer thread stopped: {error_line(error)}"
            self._count(self._stop_reason)
        finally:
            # As above, no caller is left to raise to.
            run_each(
                [("closing", self._writer.close), ("the end", self._stop)],
                lambda what, error: self._count(f"{what}: {error_line(error)}"),
            )

    def _stop(self) -> None:
        """Say that the thread has ended, and count what it has not written."""
        with self._changed:
            # `close` waits for this.
            self._is_stopped = True
            self._fast_until = 0
            self._changed.notify_all()
            self._drop_queue(self._stop_reason)
            self._drop_missing()

    def _write_next(self) -> None:
        """Write the next batch of the queue."""
        # Take items up to the size of a batch, but never so many that the training thread waits long.
        taken: list[Item] = []
        size, most = 0, self._spec.batch_bytes
        with self._changed:
            take = self._queue.popleft
            for _ in range(min(len(self._queue), AT_ONCE)):
                item = take()
                taken.append(item)
                body = item[1]
                size += body if isinstance(body, int) else len(body) + ITEM_BYTES
                if size >= most:
                    break
            self._in_progress = len(taken)
        events: Sequence[Event | Scalars] = ()
        try:
            events = joined(taken, self._finished)
        except Exception as error:
            self._count(f"events were dropped: {error_line(error)}", _plugins_of(taken))
        if events:
            batch = Batch(
                run_id=self._spec.run_id,
                attempt=self._spec.attempt,
                rank=self._spec.rank,
                first_seq=self._next_seq,
                events=events,
            )
            try:
                # With the delivery "queued" a batch is offered once, otherwise until the writer accepts it.
                if self._spec.delivery == QUEUED:
                    self._twice(self._writer.write, batch)
                else:
                    self._persist(self._writer.write, batch)
                self._accepted += batch.plugins()
            except Exception as error:
                # `health` shows it, and the next call raises it if that was requested.
                self._count(f"events were dropped: {error_line(error)}", batch.plugins())
                if isinstance(error, OSError) and self._is_overdue(LATE_S):
                    # The time that `close` allows is over: do not try each of the remaining batches.
                    raise
            # Even if the batch was dropped, its seqs are used up: a file may contain it.
            self._next_seq = batch.last_seq + 1
        if any(item[0] is FLUSH for item in taken):
            self._persist(self._writer.flush)
        with self._changed:
            self._got += size
            self._in_progress = 0
            self._done += len(taken)
            if self._dropping.steps and self._put - self._got <= self._most_bytes // 2:
                self._dropping.end()
            self._set_fast_until()
            self._changed.notify_all()

    def _twice(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Make a call, again if it raises: that may be no fault of its own, but of the interpreter."""
        try:
            return call(*args, **named)
        except OSError:
            raise
        except Exception:
            return call(*args, **named)

    def _persist(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Repeat a call until it raises no OSError; when the time allowed by `close` is over, raise it."""
        pause_s = self._spec.retry_s
        while True:
            try:
                answer = self._twice(call, *args, **named)
            except OSError as error:
                reason = error_line(error)
                self._count(reason)
                # A directory that was removed does not come back.
                is_removed = bool(self._next_seq) and error.errno == errno.ENOENT and is_gone(self._directory)
                with self._changed:
                    # Another process that does not answer is no disk that refuses.
                    if isinstance(error, (ConnectionError, TimeoutError)):
                        self._refusal = ""
                    else:
                        self._refused_since = self._refused_since if self._refusal else self._clock()
                        self._refusal = reason
                        self._changed.notify_all()
                    # A directory that was removed does not come back.
                    if self._is_overdue() or (self._is_closed and is_removed):
                        raise
                    is_asked = self._pause(pause_s)
                retry_s = self._spec.retry_s
                pause_s = retry_s if is_asked else min(2 * pause_s, SLOWEST * retry_s)
            else:
                self._refusal, self._accepted_at = "", self._clock()
                return answer

    def _pause(self, pause_s: float) -> bool:
        """Wait, the lock being held; True: a call of `flush` or `close` has just asked for a new attempt."""
        calls = self._flushes, self._is_closed, self._ends
        return self._changed.wait_for(lambda: (self._flushes, self._is_closed, self._ends) != calls, pause_s)

    def _is_overdue(self, more_s: float = 0.0) -> bool:
        """Whether `close` was called, and the inner writer has since taken nothing for too long."""
        return bool(self._ends) or (
            self._is_closed and self._clock() > self._accepted_at + CLOSE_S - 2 * LATE_S + more_s
        )

    def _finished(self, event: Event) -> Event:
        """Return the event with its device copies finished and its histograms counted.

        Bins, unlike the numbers that they count, cost little to pass on to another process. A value of which
        that fails is dropped and counted.
        """
        values = []
        for value in event.values:
            try:
                if hasattr(value.data, "result"):
                    value = value._replace(data=value.data.result())
                if value.plugin == "histogram":
                    value = self._twice(finish_value, value, compatibility=self._spec.compatibility)
            except Exception as error:
                # One bad value must not affect the others.
                self._count(f"{value.tag}: {error_line(error)}", {value.plugin: 1})
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
            # The next `write_row` must not skip the check that raises the failure.
            self._fast_until = 0

    def _drop_queue(self, reason: str) -> None:
        """Count as dropped what still waits; the lock must be held."""
        items = [*self._queue]
        self._queue.clear()
        if lost := _plugins_of(items):
            self._count(_not_written(lost, reason), lost)

    def _drop_missing(self) -> None:
        """Count as dropped what the thread took and has neither written nor counted, since it failed."""
        found = self._counted()
        if lost := Counter(found.given) - Counter(found.written) - Counter(found.dropped):
            self._count(_not_written(lost, self._stop_reason), lost)


def _plugins_of(items: Sequence[Item]) -> Counter[str]:
    """How many values of each plugin items of the queue hold."""
    found: Counter[str] = Counter()
    for head, body in items:
        if isinstance(body, int):
            found.update(value.plugin for value in head.values)
        else:
            found["scalar"] += len(head) * Scalars(head, body).size
    return found


def _not_written(lost: Mapping[str, int], reason: str) -> str:
    return f"{sum(lost.values()):,} value(s) are not in the files: {reason}"


_living: "weakref.WeakSet[AsyncWriter]" = weakref.WeakSet()


def _check_in_child() -> None:
    """Make every call in a forked child run the checks, which reject a writer of the parent process."""
    for writer in _living:
        writer._fast_until = 0


os.register_at_fork(after_in_child=_check_in_child)
