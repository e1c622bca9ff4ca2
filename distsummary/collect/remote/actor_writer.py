"""RemoteWriter: a collector writes the batches of a rank, or this process if that fails for good."""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections import defaultdict
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
    why_not_begun,
)
from distsummary.base.failures import error_line
from distsummary.base.guard import guarded_log
from distsummary.base.health import Health
from distsummary.base.processes import Effort, is_alive, own_process
from distsummary.collect.remote.actor import NODE, reason_of, start_collector
from distsummary.collect.remote.patience import Patience
from distsummary.events.segment import has_live_writer
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import SYNCED, Batch

logger = guarded_log(__name__)

ATTEMPTS = 5  # of collectors in a row that fail, without one answered call in between
END_S = 2.0  # how long to wait for the end of a killed collector
PATH_S = 5.0  # how long `path` waits for the collector

_users: defaultdict[str, set[str]] = defaultdict(set)  # scope -> RemoteWriters of this process
_changing = threading.Lock()


class RemoteWriter:
    """Has a collector write each batch, and returns when that has acknowledged it.

    A collector that dies is followed by another one. After ATTEMPTS failures in a row, or if the collector
    hangs, none is up in time (see `Patience`) or Ray is shut down, this process writes the files itself for
    the rest of the run. An OSError means that the caller must repeat the call (see `Writer`): the files
    take only events that they do not have yet, whoever wrote these.

    Only the AsyncWriter's thread may use this object, except for `health`, `hurry`, `progress` and `path`,
    which any thread may call.

    Args:
        spec: where and how to write.
        scope: whose collector it is: "rank", of this process, or "node", of all ranks of the node.
        patience: how long it waits for the collector.
        start: starts the actor of a scope.
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
        self._patience = patience or Patience()
        self._ray = RayConnection()
        self._actor: Any = None
        self._process: Mapping[str, Any] = {}  # the collector's; empty while none is up
        self._effort: Effort | None = None  # of that process
        self._has_files = False  # whether the collector has opened the files
        self._failed_attempts = 0  # in a row
        self._away_since = time.monotonic()  # when the first of them failed, or the first collector starts
        self._own: RankWriter | None = None  # writes the files if no collector does
        self._gave_up = ""  # why there is no collector any more
        self._work = 0  # rises while collectors write
        self._size = 0  # of the files when they were looked at last
        self._last_seq: int | None = None  # that was acknowledged; None: nothing has opened the files yet
        self._past = Health()  # of the writers before the one that writes now
        self._health = Health()  # of the collector that writes now
        self._failures = Health()
        with _changing:
            _users[scope].add(self._key)

    def health(self) -> Health:
        """The counters of all writers of this rank's files so far."""
        current = self._health if self._own is None else self._own.health()
        return _added(self._past, current).plus(self._failures)

    def hurry(self, *, is_closing: bool = False) -> None:
        """See `Writer.hurry`."""
        self._patience.hurry(is_closing=is_closing)

    def progress(self) -> int:
        """See `Writer.progress`."""
        own = self._own
        return self._work + (0 if own is None else own.progress())

    def path(self, dialect: str) -> Path:
        """The newest file of a dialect, see `RankWriter.path`; the directory if the collector is not up."""
        own, actor = self._own, self._actor
        if own is not None:
            return own.path(dialect)
        # Ray and the collector may raise anything here, and only people ask for the path.
        with contextlib.suppress(Exception):
            if self._has_files:
                with self._ray.call():
                    asked = actor.path.remote(self._key, dialect)
                path: Path = self._ray.result(asked, PATH_S)
                return path
        return Path(self._spec.directory)

    def start(self) -> int:
        """Have the files opened; returns the last sequence number in them."""
        self._open()
        return self.health().last_seq

    def write(self, batch: Batch) -> None:
        """Have a batch written; an OSError means that it must be sent again."""
        self._ask("write", batch)
        if self._own is not None:
            self._own.write(batch)

    def flush(self) -> None:
        """Return when all that was acknowledged is as safe as the spec's `delivery` asks."""
        if self._own is None and self._spec.delivery == SYNCED:
            self._ask("flush")
        if self._own is not None:
            self._own.flush()

    def close(self) -> None:
        """Close the files and end the actor."""
        self._patience.hurry(is_closing=True)
        try:
            # A collector that has opened no file has nothing to close.
            if self._last_seq is not None:
                self._ask("close")
            if self._own is not None:
                self._own.close()
        except OSError as error:
            # What was acknowledged is in the files, but may not be durable.
            self._failures.fail(f"closing: {error_line(error)}")
        finally:
            self._leave()

    # --- with the collector

    def _ask(self, method: str, *args: Any) -> None:
        """Have the collector do something; nothing if this process writes the files itself.

        Raises OSError if the caller must repeat the call.
        """
        self._open()
        if self._own is not None:
            return
        try:
            health = self._answer(method, *args)
        except CollectorError as error:
            self._fail(error)
            return
        self._health, self._last_seq = health, health.last_seq
        self._failed_attempts = 0
        self._work += 1

    def _open(self) -> None:
        """Have the files open: by the collector, a new one if it has died, or in this process for good."""
        if self._own is not None or (self._has_files and self._ray.is_open()):
            return
        if self._gave_up or not self._ray.is_open():
            self._take_over(self._gave_up or RAY_IS_GONE)
            return
        try:
            if not self._process and not self._patience.is_closing:
                self._start()
            # The end does not wait for a collector that is not up yet, and needs none.
            if not self._process:
                self._open_own()
                return
            health = self._answer("hello", self._spec, own_process())
        except CollectorError as error:
            self._fail(error)
            return
        except OSError as error:
            reason = f"the collector cannot open its directory: {error_line(error)}"
            self._fail(CollectorError(reason, is_up=True), error)
            return
        self._has_files = True
        self._follow(health)
        self._health = health

    def _start(self) -> None:
        """Start the collector, and wait until it is up, or until a caller of `close` waits."""
        try:
            with self._call():
                self._actor = self._start_actor(self._scope)
                starting = self._actor.ready.remote(self._key, own_process())
        except (ValueError, RuntimeError) as error:
            # A cluster that is just ending raises these errors.
            reason = f"the collector cannot be started: {error_line(error)}"
            raise CollectorError(reason, is_dead=True) from None
        while not self._patience.is_closing:
            with self._call():
                if ray.wait([starting], timeout=SLICE_S)[0]:
                    self._process = ray.get(starting)
                    self._effort = Effort(self._process["pid"]) if is_alive(self._process) else None
                    return
            if time.monotonic() >= self._away_since + self._patience.start_s:
                raise CollectorError(
                    f"no collector is up after {self._patience.start_s:g} s: {why_not_begun({})} (ray status)"
                )

    def _answer(self, method: str, *args: Any) -> Any:
        """What the collector answers, in as much time as `Patience` gives.

        Raises CollectorError if there is no answer, otherwise what the collector has raised.
        """
        begun = time.monotonic()
        with self._call():
            asked = getattr(self._actor, method).remote(self._key, *args)
        while True:
            # It changes when a caller begins to wait, and while the collector is at work.
            left_s = self._patience.answer_until(begun) - time.monotonic()
            try:
                with self._call():
                    return ray.get(asked, timeout=max(0.0, min(left_s, SLICE_S)))
            except GetTimeoutError:
                self._look()
                if left_s <= SLICE_S:
                    raise CollectorError("the collector does not answer") from None

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Call Ray in the block, see `RayConnection.call`; raises as `_answer`, and GetTimeoutError."""
        try:
            with self._ray.call():
                yield
        except RayGoneError:
            raise CollectorError(RAY_IS_GONE) from None
        except GetTimeoutError:
            raise
        except RayTaskError as error:
            # Raise what the collector has raised, without the stack of Ray.
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ActorUnavailableError as error:
            # The connection is broken; the actor may be alive.
            raise CollectorError("the collector cannot be reached", reason_of(error), is_up=True) from None
        except RayError as error:
            if not self._process:
                reason = f"the collector does not start: {reason_of(error)}"
                raise CollectorError(reason, is_dead=True) from None
            raise CollectorError("the collector has died", reason_of(error), is_dead=True) from None

    def _look(self) -> None:
        """While an answer takes long: see whether the collector writes or computes."""
        is_at_work = self._effort is not None and self._effort.is_busy()
        with contextlib.suppress(OSError):
            size = sum(entry.stat().st_size for entry in os.scandir(self._spec.directory))
            is_at_work |= size != self._size
            self._size = size
        if is_at_work:
            self._work += 1
            self._patience.is_at_work()

    def _fail(self, error: "CollectorError", cause: OSError | None = None) -> None:
        """Raise the error, so that the caller tries again; or have this process write the files for good."""
        # A collector that hangs is given up now; one that died or cannot be reached gets further attempts.
        if not (error.is_dead or error.is_up):
            self._take_over(error.what)
            return
        if not self._failed_attempts:
            self._away_since = time.monotonic()
        self._failed_attempts += 1
        if self._patience.is_closing or self._failed_attempts >= ATTEMPTS:
            times = f" {self._failed_attempts} times in a row" if self._failed_attempts > 1 else ""
            self._take_over(error.what + times)
            return
        # Ray may be wrong about a death, and a collector that lives must not write beside the next one.
        if error.is_dead:
            self._end_collector()
        raise cause or error

    def _end_collector(self) -> None:
        """Kill the collector, so that one process alone writes; raises TimeoutError while it still lives."""
        # A stopped process would not react to Ray's kill, but SIGKILL ends it.
        if is_alive(self._process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process["pid"], signal.SIGKILL)
        # One that was not up has opened no files: another writer may wait for it.
        if self._process and self._ray.is_open():
            with contextlib.suppress(CollectorError), self._call():
                ray.kill(self._actor, no_restart=True)
        deadline = time.monotonic() + END_S
        while self._process and self._may_write():
            if time.monotonic() > deadline:
                pid = self._process["pid"]
                raise TimeoutError(f"the collector (process {pid}) cannot be ended: {self._gave_up}")
            time.sleep(0.01)
        self._actor, self._process, self._has_files = None, {}, False

    def _may_write(self) -> bool:
        """Whether the collector may still write; one on another machine shows by the locks of its files."""
        alive = is_alive(self._process)
        return has_live_writer(Path(self._spec.directory), self._spec.writer_name) if alive is None else alive

    def _leave(self) -> None:
        """Leave the collector, which is ended if it serves no other writer; that of a node ends itself."""
        with _changing:
            _users[self._scope].discard(self._key)
            is_last = not _users[self._scope] and self._scope != NODE
        if self._actor is not None and self._ray.is_open():
            with contextlib.suppress(CollectorError), self._call():
                if is_last:
                    ray.kill(self._actor, no_restart=True)
                else:
                    self._actor.leave.remote(self._key)

    # --- without the collector

    def _take_over(self, reason: str) -> None:
        """Let this process write the files for the rest of the run; raises OSError if that fails for now."""
        if not self._gave_up:
            self._gave_up = reason
            self._failures.fail(f"the rank writes its files itself: {reason}")
            logger.warning("rank=%d writes its files itself from now on: %s", self._spec.rank, reason)
        await_disconnected()
        # The collector ends first, because two processes must not write the same files.
        if not self._process:
            self._leave()
        self._end_collector()
        self._open_own()

    def _open_own(self) -> None:
        own = RankWriter(self._spec)
        self._follow(own.health())
        self._own = own

    def _follow(self, health: Health) -> None:
        """Count on from the writer before, which may have written a batch without acknowledging it."""
        if self._last_seq is not None:
            self._past, self._health = _added(self._past, self._health), Health()
            self._past.events += max(0, health.last_seq - self._last_seq)
        self._last_seq = health.last_seq


class CollectorError(ConnectionError):
    """Internal: the collector gives no answer.

    `is_dead`: Ray says that it has died. `is_up`: it may answer the next call. Neither: it hangs, or Ray was
    shut down.
    """

    def __init__(self, what: str, detail: str = "", *, is_dead: bool = False, is_up: bool = False) -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what, self.is_dead, self.is_up = what, is_dead, is_up


def _added(past: Health, current: Health) -> Health:
    """The counters of two writers of the same files, one after the other."""
    total = current.plus(past)
    total.events += past.events
    total.bytes += past.bytes
    # A writer counts what those before it removed.
    total.removed = max(past.removed, current.removed)
    return total
