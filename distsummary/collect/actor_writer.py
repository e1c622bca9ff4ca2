"""RemoteWriter: sends batches to the rank's collector until acknowledged, or writes them without it."""

import contextlib
import logging
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from distsummary.collect.actor import reason_of, start_collector
from distsummary.collect.load import Load
from distsummary.collect.patience import Patience
from distsummary.collect.teller import Teller, write_and_tell
from distsummary.coordination import Listener
from distsummary.errors import StaleAttemptError
from distsummary.format.records import QUEUED, SYNCED, Batch, Health
from distsummary.topology import is_alive
from distsummary.writing.health import told
from distsummary.writing.segment import has_live_writer
from distsummary.writing.spec import WriterSpec
from distsummary.writing.writer import RankWriter

logger = logging.getLogger(__name__)

WINDOW = 4  # batches sent and not yet acknowledged
SLICE_S = 0.2  # how often a wait looks whether it has become shorter
END_S = 2.0  # how long to wait for the end of a killed collector
RAY_IS_GONE = "Ray was shut down before the run was closed"


class RemoteWriter:
    """Sends batches in order to the rank's collector and keeps each one until it is acknowledged.

    If the collector dies or cannot write, its session ends. All unacknowledged batches are then sent to its
    next session, in the same order and with the same numbers; with the delivery QUEUED they are dropped. An
    OSError means that the caller must repeat the call (see `Writer`). Only the AsyncWriter's thread may use
    this object, except for `health`, `hurry` and `pending`, which any thread may call.

    A collector that hangs is killed. After that, and after a collector that does not come back (see
    `Patience`) or after `ray.shutdown()`, this process writes the files itself for the rest of the run,
    beginning with the unacknowledged batches; files take only the events that they lack.

    Args:
        spec: where and how to write.
        listener: is told what was written, by the collector or by this process.
        is_lazy: whether this process writes the files until that takes much of a processor (see `Load`); only
            then is a collector started, and takes over when it is up.
    """

    def __init__(self, spec: WriterSpec, listener: Listener | None = None, *, is_lazy: bool = False) -> None:
        self._spec, self._listener = spec, listener
        self._load = Load() if is_lazy else None  # None: a collector was started
        self._patience = Patience()
        self._cluster = ray.get_runtime_context().gcs_address
        self._actor: Any = None if is_lazy else start_collector(spec, listener)
        self._starting: Any = None  # the answer of a collector that takes over when it is up
        self._session: str | None = None
        self._process: Mapping[str, Any] = {}  # the collector's; empty before its first answer
        # Batches with references to their answers; None: the batch has not been sent to the new session yet.
        self._sent: deque[tuple[Batch, Any]] = deque()
        self._own: RankWriter | None = None  # writes the files if no collector does
        self._teller: Teller | None = None  # beside it
        self._gave_up = ""  # why there is no collector any more
        self._refusal = ""  # why the last write failed
        self._missing = ""  # why batches are missing from the files
        self._taken = 0  # rises while collectors write; the bytes that earlier writers of this process wrote
        self._size = 0  # of the files when they were looked at last
        self._past = Health()  # of the collectors before this one
        self._health = Health()
        self._failed = Health()

    def health(self) -> Health:
        """The counters of all collectors of this rank so far, plus the events of lost batches."""
        current = self._health if self._own is None else self._own.health()
        return _added(self._past, current).plus(self._failed)

    def hurry(self, *, is_closing: bool = False) -> None:
        """See `Writer.hurry`."""
        self._patience.hurry(is_closing=is_closing)

    def pending(self, before: int) -> Counter[str]:
        """See `Writer.pending`."""
        counted: Counter[str] = Counter()
        for batch, _ in tuple(self._sent):
            if batch.first_seq < before:
                counted += batch.plugins()
        return counted

    def progress(self) -> int:
        """See `Writer.progress`."""
        own = self._own
        return self._taken + (0 if own is None else own.progress())

    def _watch_files(self) -> None:
        """While an answer takes long: see whether the collector writes."""
        with contextlib.suppress(OSError):
            size = sum(entry.stat().st_size for entry in os.scandir(self._spec.directory))
            self._taken, self._size = self._taken + (size != self._size), size

    def start(self) -> int:
        """Wait for the collector, or open the files; returns the last sequence number in them."""
        if self._load is not None and self._own is None:
            self._open_own()
        self._connect()
        return self.health().last_seq

    def write(self, batch: Batch) -> None:
        """Send a batch; an OSError means: not accepted.

        Waits while WINDOW batches are unacknowledged, or while they and `batch` exceed the budget in bytes.
        """
        self._leave_ray_if_gone()
        while self._sent and (
            self._session is None or len(self._sent) >= WINDOW or self._exceeds_budget(batch)
        ):
            self._settle_oldest()
        if self._own is None and self._session is None:
            self._connect()
        if self._own is None:
            self._sent.append((batch, self._send(batch)))
        else:
            self._write_own(self._own, batch)

    def flush(self) -> None:
        """Return when each batch has been delivered or counted as lost."""
        while self._sent:
            self._settle_oldest()
        if self._own is None and self._spec.delivery == SYNCED:
            self._ask("flush")
        if self._own is not None:
            self._own.flush()

    def close(self) -> str:
        """Close the files and end the actor; batches without an acknowledgement are counted as dropped.

        Returns why batches are missing from the files; empty if none is.
        """
        self._patience.hurry(is_closing=True)
        try:
            with contextlib.suppress(OSError):  # the last attempt: what it leaves is counted below
                while self._sent:
                    self._settle_oldest()
            if not self._sent:
                if self._own is None and (self._session is not None or self._health.last_seq):
                    self._health = self._ask("close") or self._health
                if self._own is not None:
                    self._close_own(self._own)
        except OSError as error:  # what was acknowledged is in the files, but may not be durable
            self._failed.fail(f"closing: {told(error)}")
        finally:
            self._drop_sent(self._refusal or "the collector did not acknowledge it in time")
            if self._actor is not None and self._is_connected():
                ray.kill(self._actor, no_restart=True)
        return self._missing

    def _leave_ray_if_gone(self) -> None:
        """Without a connection a call would start a cluster; `_connect` then lets this process write."""
        if self._session is not None and not self._is_connected():
            self._session = None

    def _exceeds_budget(self, batch: Batch) -> bool:
        return batch.nbytes + sum(sent.nbytes for sent, _ in self._sent) > self._spec.budget_bytes

    # --- calls of the collector

    def _send(self, batch: Batch) -> Any:
        return self._actor.write.remote(self._session, batch)

    def _settle_oldest(self) -> None:
        """Await the oldest batch's acknowledgement; after an OSError, all batches are kept unless QUEUED."""
        if self._session is None:
            self._resume()
        if self._own is not None:
            self._write_sent(self._own)
            return
        batch, reference = self._sent[0]
        try:
            self._health = self._answer(reference, batch.nbytes)
            self._taken += 1
        except StaleAttemptError:  # this batch's session is over: the batch is sent again in the next session
            self._session = None
            return
        except CollectorError as error:
            self._fail(error)
            if self._own is None:
                self._drop_if_queued(error)
                raise
            return
        except OSError as error:
            self._session, self._refusal = None, told(error)
            self._drop_if_queued(error)
            raise
        except Exception as error:  # any other error: the collector would raise it again
            self._count_lost(batch, told(error))
        self._patience.works()
        self._sent.popleft()
        if self._sent and self._sent[0][1] is None:
            logger.warning("rank=%d sends %d batch(es) again", self._spec.rank, 1 + len(self._sent))
            self._sent = deque((waiting, self._send(waiting)) for waiting, _ in self._sent)

    def _resume(self) -> None:
        """Send the oldest batch to the collector's next session; the others follow when it is acknowledged.

        If the disk still takes nothing, only this one batch was sent in vain.
        """
        self._connect()
        if self._own is not None:
            return
        self._ignore_answers()  # they came before the greeting: their session is over
        batch, _ = self._sent[0]
        self._sent = deque((waiting, None) for waiting, _ in self._sent)
        self._sent[0] = batch, self._send(batch)

    def _connect(self) -> None:
        """Say hello to the collector, a new one if it has died; or let this process write from now on.

        Raises OSError if the caller must repeat the call.
        """
        if self._own is not None:
            return
        if self._gave_up or not self._is_connected():
            self._take_over(self._gave_up or RAY_IS_GONE)
            return
        if self._actor is None:
            pause_until = time.monotonic() + self._patience.pause_s()
            while time.monotonic() < pause_until and not self._patience.is_over():
                time.sleep(SLICE_S)
            if self._patience.is_over():
                self._take_over(self._refusal)
                return
            self._actor = start_collector(self._spec, self._listener)
        try:
            greeting = self._answer(self._actor.hello.remote(), until=self._patience.start_until)
        except CollectorError as error:
            self._fail(error)
            if self._own is None:
                raise
            return
        except OSError as error:  # it cannot open its directory
            self._patience.fails(is_dead=False)
            self._refusal = told(error)
            if not self._patience.is_over():
                raise
            self._take_over(f"the collector cannot open its directory: {self._refusal}")
            return
        if self._process and greeting.process != self._process:
            self._past = _added(self._past, self._health)
            self._count_unanswered(greeting.health.last_seq)
        self._session, self._process, self._health = greeting.session, greeting.process, greeting.health
        if not self._sent:
            self._patience.works()

    def _ask(self, method: str) -> Any:
        """The answer of the collector to `flush` or `close`; None if this process writes from now on."""
        self._leave_ray_if_gone()
        if self._session is None:
            self._connect()
        if self._own is not None:
            return None
        try:
            return self._answer(getattr(self._actor, method).remote())
        except CollectorError as error:
            self._fail(error)
            if self._own is None:
                raise
            return None

    def _answer(self, reference: Any, nbytes: int = 0, *, until: Callable[[], float] | None = None) -> Any:
        """Wait for the collector's answer, for a batch of `nbytes` or else until the time that `until` tells.

        Raises CollectorError if there is none, otherwise what the collector has raised.
        """
        begun = time.monotonic()
        until = until or partial(self._patience.answer_until, begun, nbytes)
        while self._is_connected():  # ray.get would start a cluster
            left_s = until() - time.monotonic()  # it changes when a caller begins to wait
            try:
                return ray.get(reference, timeout=max(0.0, min(left_s, SLICE_S)))
            except GetTimeoutError:
                self._watch_files()
                if left_s <= SLICE_S:
                    raise CollectorError("the collector does not answer") from None
            except RayTaskError as error:  # raised by the collector: without its stack
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ActorUnavailableError as error:  # the connection is broken; the actor may be alive
                raise CollectorError(
                    "the collector cannot be reached", reason_of(error), may_live=True
                ) from None
            except RayError as error:
                raise CollectorError("the collector has died", reason_of(error), is_dead=True) from None
            except Exception:
                if self._is_connected():  # otherwise Ray was shut down during the call
                    raise
        raise CollectorError(RAY_IS_GONE)

    def _fail(self, error: "CollectorError") -> None:
        """Decide what follows when the collector does not answer: another attempt, or the own files."""
        self._session, self._refusal = None, str(error)
        self._patience.fails(is_dead=error.is_dead)
        if error.is_dead:
            self._end_collector()  # also if Ray is wrong
        if not (error.is_dead or error.may_live) or self._patience.is_over():
            deaths = self._patience.deaths
            self._take_over(error.what + (f" {deaths} times in a row" if deaths > 1 else ""))

    def _is_connected(self) -> bool:
        # Without a connection, a Ray call would start a cluster; in another cluster the handle is not valid.
        return bool(ray.is_initialized() and ray.get_runtime_context().gcs_address == self._cluster)

    # --- without the collector

    def _take_over(self, reason: str) -> None:
        """Let this process write the files for the rest of the run; raises OSError if that fails for now."""
        if not self._gave_up:
            self._gave_up = reason
            self._failed.fail(f"the rank writes its files itself: {reason}")
            logger.warning("rank=%d writes its files itself from now on: %s", self._spec.rank, reason)
        try:
            self._end_collector()
            self._open_own()
        except OSError as error:
            self._refusal = told(error)
            raise
        self._ignore_answers()

    def _open_own(self) -> None:
        own = RankWriter(self._spec)
        self._past, self._health = _added(self._past, self._health), Health()
        self._count_unanswered(own.last_seq)
        self._own = own
        if self._listener is not None:
            self._teller = Teller(self._listener, self._spec.role)

    def _count_unanswered(self, last_seq: int) -> None:
        """Count the events that the last collector wrote but did not live to acknowledge."""
        for batch, _ in self._sent:
            self._past.events += max(0, min(batch.last_seq, last_seq) - batch.first_seq + 1)

    def _close_own(self, own: RankWriter) -> None:
        try:
            own.close()
        finally:
            if self._teller is not None:
                self._teller.close()

    def _write_own(self, own: RankWriter, batch: Batch) -> None:
        """Write a batch in this process; if that has become too much work, let a collector take over."""
        begun = time.thread_time()
        write_and_tell(own, batch, self._teller)
        if self._patience.is_closing or not self._is_connected():
            return
        if self._load is not None and self._load.worked(time.thread_time() - begun):
            self._load = None
            self._actor = start_collector(self._spec, self._listener)
            self._starting = self._actor.ready.remote()
        elif self._starting is not None and ray.wait([self._starting], timeout=0)[0]:
            self._hand_over(own)

    def _hand_over(self, own: RankWriter) -> None:
        """Leave the files to the collector that has just started, unless its start has failed."""
        starting, self._starting = self._starting, None
        try:
            ray.get(starting, timeout=0)
            self._close_own(own)
        except RayError as error:
            self._actor = None
            self._failed.fail(f"the collector does not start: {reason_of(error)}")
        except OSError as error:  # as in `close`
            self._failed.fail(f"closing: {told(error)}")
        if self._actor is not None:
            self._taken += own.progress()
            self._past, self._own, self._teller = _added(self._past, own.health()), None, None
            self._patience.begins()

    def _end_collector(self) -> None:
        """Kill the collector, so that one process alone writes; raises TimeoutError while it still lives."""
        if is_alive(self._process):  # a stopped process would not react to Ray's kill
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process["pid"], signal.SIGKILL)
        if self._actor is not None and self._is_connected():
            ray.kill(self._actor, no_restart=True)
        deadline = time.monotonic() + END_S
        while self._process and self._may_write():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the collector (process {self._process['pid']}) cannot be ended: {self._gave_up}"
                )
            time.sleep(0.01)
        self._actor, self._session = None, None

    def _may_write(self) -> bool:
        """Whether the collector may still write; one on another machine shows by the locks of its files."""
        alive = is_alive(self._process)
        return has_live_writer(Path(self._spec.directory), self._spec.writer_name) if alive is None else alive

    def _write_sent(self, own: RankWriter) -> None:
        """Write the unacknowledged batches; an OSError keeps them, unless QUEUED."""
        while self._sent:
            batch, _ = self._sent[0]
            try:
                write_and_tell(own, batch, self._teller)
            except OSError as error:
                self._refusal = told(error)
                self._drop_if_queued(error)
                raise
            except Exception as error:  # it would be raised again
                self._count_lost(batch, told(error))
            self._sent.popleft()

    # --- batches that are lost

    def _ignore_answers(self) -> None:
        """Fetch the answers that no longer count, because Ray prints each error that nobody fetches."""
        for _, reference in self._sent:
            if reference is not None and self._is_connected():
                with contextlib.suppress(Exception):
                    ray.get(reference, timeout=0)

    def _drop_if_queued(self, error: OSError) -> None:
        if self._spec.delivery == QUEUED:
            self._drop_sent(f"not sent again: {told(error)}")

    def _drop_sent(self, reason: str) -> None:
        self._ignore_answers()
        for batch, _ in self._sent:
            self._count_lost(batch, reason)
        self._sent.clear()

    def _count_lost(self, batch: Batch, reason: str) -> None:
        for plugin, count in batch.plugins().items():
            self._failed.drop(plugin, count)
        self._failed.fail(reason)
        self._missing = self._missing or reason
        logger.warning("rank=%d %d event(s) were not written: %s", self._spec.rank, batch.size, reason)


class CollectorError(ConnectionError):
    """Internal: the collector gives no answer.

    `is_dead`: Ray says that it has died. `may_live`: it may answer the next call. Neither: it hangs, or Ray
    was shut down.
    """

    def __init__(self, what: str, detail: str = "", *, is_dead: bool = False, may_live: bool = False) -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what, self.is_dead, self.may_live = what, is_dead, may_live


def _added(past: Health, current: Health) -> Health:
    """The counters of two writers of the same files, one after the other."""
    total = current.plus(past)
    total.events += past.events
    total.bytes += past.bytes
    return total
