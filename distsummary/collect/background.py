"""A thread for what is no event, so that a training thread need not write it or wait for an answer."""

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from distsummary.errors import ClosedError, WriteError
from distsummary.format.records import Health

logger = logging.getLogger(__name__)

BUDGET_BYTES = 64 << 20
ALWAYS_WAITING = 2
CLOSE_TIMEOUT_S = 60.0


class _Job(NamedTuple):
    name: str
    function: Callable[[], object]
    nbytes: int


class Background:
    """Runs jobs in the order they came; the thread starts with the first.

    Args:
        health: where failures are counted.
        budget_bytes: how much the jobs may hold; two may wait whatever they hold, others are dropped.
        raise_exception: raise a failure as WriteError on the next call, too.
    """

    def __init__(
        self, health: Health, *, budget_bytes: int = BUDGET_BYTES, raise_exception: bool = False
    ) -> None:
        self._health = health
        self._budget_bytes, self._raise_exception = budget_bytes, raise_exception
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._held_bytes = 0  # by the job under way, too
        self._accepted = self._done = 0
        self._stalled_at = -1  # what `_done` was when a caller last waited in vain
        self._is_closed = False
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        atexit.register(_close_at_exit, weakref.ref(self))

    def submit(self, name: str, job: Callable[[], object], *, nbytes: int = 0, wait_s: float = 0.0) -> None:
        """Have `job()` run; a failure is counted under `name`, and so is a job that is dropped.

        Args:
            nbytes: what the job holds.
            wait_s: how long the caller waits at most until there is room for it; once per stall.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` was asked for.
        """
        self._check()
        self._raise_failure()
        with self._changed:
            if not self._await_room(nbytes, wait_s):
                self._fail(name, f"dropped, because {len(self._jobs)} wait already; is the disk slow?")
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distsummary-files", daemon=True)
                self._thread.start()
            self._jobs.append(_Job(name, job, nbytes))
            self._held_bytes += nbytes
            self._accepted += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when every job has run; raises as `submit`."""
        self._check()
        with self._changed:
            self._changed.wait_for(lambda: self._done == self._accepted)
        self._raise_failure()

    def close(self) -> None:
        """Flush, within a minute, and end the thread; a second call, or one after a fork, does nothing.

        Raises WriteError for an earlier failure if `raise_exception` was asked for.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                left = self._accepted - self._done
                self._fail("files", f"{left} not written within {CLOSE_TIMEOUT_S:g} s of the end")
        self._raise_failure()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this thread belongs to process {self._pid}; open a new record or collector after a fork"
            )
        if self._is_closed:
            raise ClosedError("the thread for files is closed; open a new record or collector")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if self._raise_exception and failure is not None:
            raise WriteError(f"not recorded: {failure}")

    def _await_room(self, nbytes: int, wait_s: float) -> bool:
        """Wait for room, but not again before a job was done: a dead disk must not slow every step."""

        def has_room() -> bool:
            return len(self._jobs) < ALWAYS_WAITING or self._held_bytes + nbytes <= self._budget_bytes

        patience_s = 0.0 if self._stalled_at == self._done else wait_s
        if self._changed.wait_for(has_room, timeout=patience_s):
            return True
        if wait_s:
            self._stalled_at = self._done
        return False

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Wait for a job and run it; False when none will come. What it held is free before the next wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closed)
            if not self._jobs:
                return False
            job = self._jobs.popleft()
        try:
            job.function()
        except Exception as error:  # counted and shown in health(), raised on the next call if asked for
            self._fail(job.name, f"{type(error).__name__}: {error}")
        with self._changed:
            self._held_bytes -= job.nbytes
            self._done += 1
            self._changed.notify_all()
        return True

    def _fail(self, name: str, what: str) -> None:
        reason = f"{name}: {what}"
        if reason not in self._health.errors:
            logger.warning("%s (said once; counted in health())", reason)
        self._health.fail(reason)
        self._failure = reason


def _close_at_exit(reference: "weakref.ref[Background]") -> None:
    background = reference()
    if background is not None:
        background.close()
