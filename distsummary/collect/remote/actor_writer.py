"""RemoteWriter: sends batches to the rank's collector until acknowledged, or writes them without it."""

import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from distsummary.base.actor_calls import (
    RAY_IS_GONE,
    SLICE_S,
    RayConnection,
    RayGoneError,
    await_disconnected,
)
from distsummary.base.failures import error_line
from distsummary.base.health import Health
from distsummary.base.processes import Effort, is_alive, own_process
from distsummary.collect.remote.actor import NODE, reason_of, start_collector
from distsummary.collect.remote.patience import Patience
from distsummary.errors import StaleAttemptError
from distsummary.events.segment import has_live_writer
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import QUEUED, SYNCED, Batch

logger = logging.getLogger(__name__)

WINDOW = 4  # batches sent and not yet acknowledged
END_S = 2.0  # how long to wait for the end of a killed collector
# So much waits in memory for a collector that starts; beyond it, this process writes until that is up.
KEPT_BYTES = 16 << 20
ANSWER_PATH_S = 5.0  # how long `path` waits for the collector


_users: Counter[str] = Counter()  # scope -> RemoteWriters of this process that are open
_counting = threading.Lock()


class RemoteWriter:
    """Sends batches in order to a collector and keeps each one until it is acknowledged.

    If the collector dies or cannot write, its session ends. All unacknowledged batches are then sent to its
    next session, in the same order and with the same numbers; with the delivery QUEUED they are dropped. An
    OSError means that the caller must repeat the call (see `Writer`). Only the AsyncWriter's thread may use
    this object, except for `health`, `hurry`, `pending` and `path`, which any thread may call.

    While a collector starts, batches are kept. If a caller waits for them, or they become more than
    KEPT_BYTES, or the collector has been away too long, this process writes the files until it is up.

    A collector that hangs is killed. After that, and after a collector that does not come back (see
    `Patience`) or after `ray.shutdown()`, this process writes the files itself for the rest of the run,
    beginning with the unacknowledged batches; files take only events that they do not have yet.

    Its attributes are the state of one machine (a collector that starts, is up, is late, or is given up) and
    the batches that it has not acknowledged; every transition needs those.

    Args:
        spec: where and how to write.
        scope: whose collector it is: "rank", of this process, or "node", of all ranks of the node.
        patience: how long it waits for the collector.
        start: starts the actor of a scope.

    Attributes:
        waiting_bytes: returns how many bytes wait to be passed to this writer.
    """

    def __init__(
        self,
        spec: WriterSpec,
        *,
        scope: str = "rank",
        patience: Patience | None = None,
        start: Callable[[str], Any] = start_collector,
    ) -> None:
        self._spec, self._scope, self._start_actor = spec, scope, start
        self._key = uuid.uuid4().hex  # names this writer to the collector
        self.waiting_bytes: Callable[[], int] = lambda: 0
        self._patience = patience or Patience()
        self._ray = RayConnection()
        self._actor: Any = None
        self._starting: Any = None  # the answer of an actor that is not up yet
        self._is_late = False  # whether it was logged that the actor is not up
        self._session: str | None = None
        self._up: Mapping[str, Any] = {}  # the process of the actor that is up
        self._effort: Effort | None = None  # of that process
        self._process: Mapping[str, Any] = {}  # the collector's; empty before its first answer
        # Batches with references to their answers; None: the batch has not been sent to the new session yet.
        self._sent: deque[tuple[Batch, Any]] = deque()
        self._own: RankWriter | None = None  # writes the files if no collector does
        self._gave_up = ""  # why there is no collector any more
        self._refusal = ""  # why the last write failed
        # Progress: this rises while collectors write, and by the bytes that writers in this process wrote.
        self._taken = 0
        self._size = 0  # of the files when they were looked at last
        self._past = Health()  # of the collectors before this one
        self._health = Health()
        self._failed = Health()
        with _counting:
            _users[scope] += 1

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

    def path(self, dialect: str) -> Path:
        """The newest file of a dialect, see `RankWriter.path`; the directory if the collector is not up."""
        own, actor = self._own, self._actor
        if own is not None:
            return own.path(dialect)
        # Ray and the collector may raise anything here, and only people ask for the path.
        with contextlib.suppress(Exception):
            if self._session is not None:
                with self._ray.call():
                    asked = actor.path.remote(self._key, dialect)
                path: Path = self._ray.result(asked, ANSWER_PATH_S)
                return path
        return Path(self._spec.directory)

    def _look(self) -> None:
        """While an answer takes long: see whether the collector writes or computes."""
        is_at_work = self._effort is not None and self._effort.is_busy()
        with contextlib.suppress(OSError):
            size = sum(entry.stat().st_size for entry in os.scandir(self._spec.directory))
            is_at_work |= size != self._size
            self._size = size
        if is_at_work:
            self._taken += 1
            self._patience.is_at_work()

    def start(self) -> int:
        """Wait for the collector, or open the files; returns the last sequence number in them."""
        self._connect()
        return self.health().last_seq

    def write(self, batch: Batch) -> None:
        """Send a batch; an OSError means: not accepted.

        Waits while WINDOW batches are unacknowledged, or while they and `batch` exceed the budget in bytes.
        """
        self._leave_ray_if_gone()
        # Earlier batches come first: after the end of a session all of them, else as many as make room.
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

    def close(self) -> None:
        """Close the files and end the actor; batches without an acknowledgement are counted as dropped."""
        self._patience.hurry(is_closing=True)
        try:
            # This is the last attempt: what it leaves is counted below.
            with contextlib.suppress(OSError):
                while self._sent:
                    self._settle_oldest()
            if not self._sent:
                # A collector that was never reached has nothing to close.
                if self._own is None and (self._session is not None or self._health.last_seq):
                    self._health = self._ask("close") or self._health
                if self._own is not None:
                    self._own.close()
        except OSError as error:
            # What was acknowledged is in the files, but may not be durable.
            self._failed.fail(f"closing: {error_line(error)}")
        finally:
            self._drop_sent(self._refusal or "the collector did not acknowledge it in time")
            self._leave_collector()

    def _leave_collector(self) -> None:
        """End the actor, if it serves no other writer; that of a node ends itself."""
        with _counting:
            _users[self._scope] -= 1
            is_last = not _users[self._scope] and self._scope != NODE
        if self._actor is not None and self._ray.is_open():
            with contextlib.suppress(CollectorError), self._call():
                if is_last:
                    ray.kill(self._actor, no_restart=True)
                else:
                    self._actor.leave.remote(self._key)

    def _leave_ray_if_gone(self) -> None:
        """Without a connection `_connect` lets this process write."""
        if self._session is not None and not self._ray.is_open():
            self._session = None

    def _exceeds_budget(self, batch: Batch) -> bool:
        return batch.nbytes + sum(sent.nbytes for sent, _ in self._sent) > self._spec.budget_bytes

    # --- calls of the collector

    def _send(self, batch: Batch) -> Any:
        with self._call():
            return self._actor.write.remote(self._key, self._session, batch)

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
        except StaleAttemptError:
            # The session of this batch is over: the batch is sent again in the next session.
            self._session = None
            return
        except CollectorError as error:
            self._fail(error)
            # Unless this process has taken over the files, the caller has to repeat the call.
            if self._own is None:
                self._drop_if_queued(error)
                raise
            return
        except OSError as error:
            self._session, self._refusal = None, error_line(error)
            self._drop_if_queued(error)
            raise
        except Exception as error:
            # The collector would raise any other error again, so the batch is given up.
            self._count_lost(batch, error_line(error))
        self._patience.works()
        self._sent.popleft()
        # The first batch of a new session is acknowledged: now the others follow, in their order.
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
        # These answers came before the greeting: their session is over.
        self._ignore_answers()
        batch, _ = self._sent[0]
        self._sent = deque((waiting, None) for waiting, _ in self._sent)
        self._sent[0] = batch, self._send(batch)

    def _connect(self) -> None:
        """Say hello to the collector, a new one if it has died; or let this process write from now on.

        Raises OSError if the caller must repeat the call.
        """
        if self._own is not None:
            return
        if self._gave_up or not self._ray.is_open():
            self._take_over(self._gave_up or RAY_IS_GONE)
            return
        try:
            if self._actor is None:
                self._start_again()
            if self._own is None and self._starting is not None:
                self._await_start()
            if self._own is not None:
                return
            with self._call():
                asked = self._actor.hello.remote(self._key, self._spec, own_process())
            greeting = self._answer(asked)
        except CollectorError as error:
            self._fail(error)
            if self._own is None:
                raise
            return
        except OSError as error:
            # The collector is up, but cannot open its directory.
            self._patience.fails(is_dead=False)
            self._refusal = error_line(error)
            if not self._patience.is_over():
                raise
            self._take_over(f"the collector cannot open its directory: {self._refusal}")
            return
        # Another process answers than before: its counters follow those of the last one, which may have
        # written batches without acknowledging them.
        if self._process and greeting.process != self._process:
            self._past = _added(self._past, self._health)
            self._count_unanswered(greeting.health.last_seq)
        self._session, self._process, self._health = greeting.session, greeting.process, greeting.health
        if not self._sent:
            self._patience.works()

    def _start_again(self) -> None:
        """Start the collector, after a pause if it has died before; or let this process write."""
        pause_until = time.monotonic() + self._patience.pause_s()
        # The pause is cut into slices, so that `close` can end it.
        while time.monotonic() < pause_until and not self._patience.is_worn():
            time.sleep(SLICE_S)
        if self._patience.is_worn() and self._patience.deaths:
            self._take_over(self._refusal)
        else:
            self._start()

    def _start(self) -> None:
        """Start the collector without waiting for it; raises CollectorError."""
        try:
            with self._call():
                self._actor = self._start_actor(self._scope)
                self._starting = self._actor.ready.remote(self._key, own_process())
        except (RayError, ValueError, RuntimeError) as error:
            # A cluster that is just ending raises these errors, too.
            raise CollectorError("the collector cannot be started", error_line(error), is_dead=True) from None

    def _await_start(self) -> None:
        """Wait for the collector's process, or let this process write until it is up.

        Raises CollectorError if it has died.
        """
        while self._ray.is_open():
            if self._has_started(SLICE_S):
                self._take_note()
                return
            if (is_late := self._patience.is_late()) and not self._is_late:
                self._is_late = True
                logger.warning(
                    "rank=%d the collector is not up after %g s (is there memory and a process for it? "
                    "see ray status); this process writes the files until it is",
                    self._spec.rank, self._patience.outage_s,
                )  # fmt: skip
            # If a caller waits, the start takes too long or much is kept, this process writes until the
            # collector is up.
            kept = self.waiting_bytes() + sum(batch.nbytes for batch, _ in self._sent)
            if self._patience.is_awaited() or is_late or kept > KEPT_BYTES:
                self._open_own()
                return
        self._take_over(RAY_IS_GONE)

    def _has_started(self, timeout_s: float = 0.0) -> bool:
        with self._call():
            return bool(ray.wait([self._starting], timeout=timeout_s)[0])

    def _take_note(self) -> None:
        """Take note of the collector's process; raises CollectorError if it has died."""
        starting, self._starting = self._starting, None
        try:
            with self._call():
                self._up = ray.get(starting, timeout=0)
        except RayError as error:
            reason = f"the collector does not start: {reason_of(error)}"
            raise CollectorError(reason, is_dead=True) from None
        self._effort = Effort(self._up["pid"]) if is_alive(self._up) else None
        self._patience.begins()

    def _ask(self, method: str) -> Any:
        """The answer of the collector to `flush` or `close`; None if this process writes from now on."""
        self._leave_ray_if_gone()
        if self._session is None:
            self._connect()
        if self._own is not None:
            return None
        try:
            with self._call():
                asked = getattr(self._actor, method).remote(self._key)
            return self._answer(asked)
        except CollectorError as error:
            self._fail(error)
            if self._own is None:
                raise
            return None

    def _answer(self, reference: Any, nbytes: int = 0) -> Any:
        """Wait for the collector's answer, for a batch of `nbytes`, as long as `Patience` says.

        Raises CollectorError if there is none, otherwise what the collector has raised.
        """
        begun = time.monotonic()
        while self._ray.is_open():
            # it changes when a caller begins to wait, and while the collector is at work
            left_s = self._patience.answer_until(begun, nbytes) - time.monotonic()
            try:
                with self._call():
                    return ray.get(reference, timeout=max(0.0, min(left_s, SLICE_S)))
            except GetTimeoutError:
                self._look()
                if left_s <= SLICE_S:
                    raise CollectorError("the collector does not answer") from None
            except RayTaskError as error:
                # Raise what the collector has raised, without the stack of Ray.
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ActorUnavailableError as error:
                # The connection is broken; the actor may be alive.
                raise CollectorError(
                    "the collector cannot be reached", reason_of(error), may_live=True
                ) from None
            except RayError as error:
                raise CollectorError("the collector has died", reason_of(error), is_dead=True) from None
        raise CollectorError(RAY_IS_GONE)

    def _fail(self, error: "CollectorError") -> None:
        """Decide what follows when the collector does not answer: another attempt, or the own files."""
        self._session, self._refusal = None, str(error)
        self._patience.fails(is_dead=error.is_dead)
        # Ray may be wrong about a death, and a collector that lives must not write beside the next one.
        if error.is_dead:
            self._end_collector()
        is_over = self._patience.is_worn() if error.is_dead else self._patience.is_over()
        # A collector that hangs is given up now; one that died or cannot be reached gets further attempts.
        if not (error.is_dead or error.may_live) or is_over:
            deaths = self._patience.deaths
            self._take_over(error.what + (f" {deaths} times in a row" if deaths > 1 else ""))

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Call Ray in the block; raises CollectorError if Ray is shut down."""
        try:
            with self._ray.call():
                yield
        except RayGoneError:
            raise CollectorError(RAY_IS_GONE) from None

    # --- without the collector

    def _take_over(self, reason: str) -> None:
        """Let this process write the files for the rest of the run; raises OSError if that fails for now."""
        if not self._gave_up:
            self._gave_up = reason
            self._failed.fail(f"the rank writes its files itself: {reason}")
            logger.warning("rank=%d writes its files itself from now on: %s", self._spec.rank, reason)
        await_disconnected()
        # The collector ends first, because two processes must not write the same files.
        try:
            self._end_collector()
            self._open_own()
        except OSError as error:
            self._refusal = error_line(error)
            raise
        self._ignore_answers()

    def _open_own(self) -> None:
        own = RankWriter(self._spec)
        self._past, self._health = _added(self._past, self._health), Health()
        self._count_unanswered(own.last_seq)
        self._own = own

    def _count_unanswered(self, last_seq: int) -> None:
        """Count the events that the last collector wrote but did not live to acknowledge."""
        for batch, _ in self._sent:
            self._past.events += max(0, min(batch.last_seq, last_seq) - batch.first_seq + 1)

    def _write_own(self, own: RankWriter, batch: Batch) -> None:
        """Write a batch in this process; if the collector has come up, leave the next ones to it."""
        own.write(batch)
        if self._starting is None or self._patience.is_closing or not self._ray.is_open():
            return
        if self._has_started():
            self._hand_over(own)

    def _hand_over(self, own: RankWriter) -> None:
        """Leave the files to the collector that is up, or start the next one if it has died."""
        try:
            self._take_note()
        except CollectorError as error:
            self._actor = None
            self._patience.fails(is_dead=True)
            if self._patience.is_worn():
                self._gave_up = str(error)
                self._failed.fail(f"the rank writes its files itself: {error}")
                logger.warning("rank=%d writes its files itself from now on: %s", self._spec.rank, error)
            else:
                with contextlib.suppress(CollectorError):
                    self._start()
            return
        try:
            own.close()
        except OSError as error:
            # As in `close`, what was acknowledged is in the files.
            self._failed.fail(f"closing: {error_line(error)}")
        self._taken += own.progress()
        self._past, self._own = _added(self._past, own.health()), None
        self._health, self._process = Health(), {}

    def _end_collector(self) -> None:
        """Kill the collector, so that one process alone writes; raises TimeoutError while it still lives."""
        # A stopped process would not react to Ray's kill, but SIGKILL ends it.
        for process in (self._process, self._up):
            if is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process["pid"], signal.SIGKILL)
        if self._actor is not None and self._ray.is_open():
            with contextlib.suppress(CollectorError), self._call():
                ray.kill(self._actor, no_restart=True)
        deadline = time.monotonic() + END_S
        while self._process and self._may_write():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the collector (process {self._process['pid']}) cannot be ended: {self._gave_up}"
                )
            time.sleep(0.01)
        self._actor, self._starting, self._session = None, None, None

    def _may_write(self) -> bool:
        """Whether the collector may still write; one on another machine shows by the locks of its files."""
        alive = is_alive(self._process)
        return has_live_writer(Path(self._spec.directory), self._spec.writer_name) if alive is None else alive

    def _write_sent(self, own: RankWriter) -> None:
        """Write the unacknowledged batches; an OSError keeps them, unless QUEUED."""
        while self._sent:
            batch, _ = self._sent[0]
            try:
                own.write(batch)
            except OSError as error:
                self._refusal = error_line(error)
                self._drop_if_queued(error)
                raise
            except Exception as error:
                # The writer would raise it again, so the batch is given up.
                self._count_lost(batch, error_line(error))
            self._sent.popleft()

    # --- batches that are lost

    def _ignore_answers(self) -> None:
        """Fetch the answers that no longer count, because Ray prints each error that is not fetched."""
        for _, reference in self._sent:
            if reference is not None:
                with contextlib.suppress(Exception):
                    self._ray.result(reference, 0)

    def _drop_if_queued(self, error: OSError) -> None:
        if self._spec.delivery == QUEUED:
            self._drop_sent(f"not sent again: {error_line(error)}")

    def _drop_sent(self, reason: str) -> None:
        self._ignore_answers()
        for batch, _ in self._sent:
            self._count_lost(batch, reason)
        self._sent.clear()

    def _count_lost(self, batch: Batch, reason: str) -> None:
        for plugin, count in batch.plugins().items():
            self._failed.drop(plugin, count, reason)
        self._failed.fail(reason)
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
