"""A thread for checkpoints, exports, messages and samples, so that the training need not wait."""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from distsummary.base.at_exit import DaemonThread, close_at_exit, is_closed
from distsummary.base.failures import BoundedWait, Failures, joined_in_time, place_of, written_by
from distsummary.base.guard import Guard, guarded_log
from distsummary.base.health import Health
from distsummary.errors import ClosedError

logger = guarded_log(__name__)

BUDGET_BYTES = 64 << 20
ALWAYS_WAITING = 2
CLOSE_S = 20.0
IDLE_S = 1.0


class _Job(NamedTuple):
    name: str
    function: Callable[[], object]
    nbytes: int
    on_failure: Callable[[str], object]


class Background:
    """Runs jobs in a thread, in the order of their submission; a job starts it, and without any it ends.

    Args:
        health: counts the failures.
        budget_bytes: how much memory the jobs may hold. Two jobs may wait, however large; a further job that
            would exceed the budget is dropped.
        raise_exception: also raise a job's failure, as WriteError, on the next call of a method.
        close_s: `close` waits while the jobs get something written within this time.
        idle_s: the thread ends if no job comes for so long.
    """

    def __init__(
        self,
        health: Health,
        *,
        budget_bytes: int = BUDGET_BYTES,
        raise_exception: bool = False,
        close_s: float = CLOSE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._close_s, self._idle_s = close_s, idle_s
        self._failures = Failures(health, logger, raise_exception=raise_exception)
        self._on_failures = Guard()
        self._budget_bytes = budget_bytes
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._held_bytes = 0  # including the running job
        self._accepted = self._done = 0
        self._room = BoundedWait(self._changed, lambda: self._done)
        self._is_closed = False
        self._job: _Job | None = None  # the one that runs
        self._thread: DaemonThread | None = None
        self._pid = os.getpid()
        close_at_exit(self.close)

    def submit(
        self,
        name: str,
        job: Callable[[], object],
        *,
        nbytes: int = 0,
        wait_s: float = 0.0,
        on_failure: Callable[[str], object] = lambda reason: None,
    ) -> None:
        """Queue `job()`; a failed or dropped job is counted under `name`.

        Args:
            nbytes: the bytes that the job holds.
            wait_s: the longest time that the caller waits for room in the budget. After a failed wait,
                later calls do not wait at all until a job has ended.
            on_failure: called with the reason if the job fails or is dropped, in the thread that finds it.

        Raises ClosedError after close, WriteError for an earlier failure if `raise_exception` is set.
        """

        def has_room() -> bool:
            return len(self._jobs) < ALWAYS_WAITING or self._held_bytes + nbytes <= self._budget_bytes

        self._check()
        with self._changed:
            if not self._room.wait_for(has_room, wait_s, wait_s):
                reason = f"{name}: dropped, because {len(self._jobs)} older jobs wait; is the disk slow?"
                self._failures.count(reason)
                on_failure(reason)
                return
            if self._thread is None:
                self._thread = DaemonThread(self._run, "distsummary-files")
                self._thread.start()
            self._jobs.append(_Job(name, job, nbytes, on_failure))
            self._held_bytes += nbytes
            self._accepted += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when every job has run; raises the errors of `submit`."""
        self._check()
        if (thread := self._thread) is not None and thread.is_deferred:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: self._done == self._accepted)
        self._failures.raise_last()

    def close(self, deadline_s: Callable[[], float] = lambda: math.inf) -> None:
        """Wait for the jobs to end; does nothing on a second call or after a fork.

        Gives up when no job has ended and no byte was written for `close_s`. `deadline_s` returns when it
        must end at the latest, as `time.monotonic` counts; it may become earlier during the wait.

        Raises WriteError for an earlier failure if `raise_exception` is set.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        is_closed(self.close)
        # An idle thread wakes up and ends; a busy one first runs the jobs that wait.
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            begun = time.monotonic()
            if not joined_in_time(thread, self.progress, self._close_s, deadline_s):
                left, took_s = self._accepted - self._done, time.monotonic() - begun
                self._failures.count(
                    f"files: {left} jobs were not done {took_s:.2g} s after the end{self._place()}"
                )
                # Report the jobs that still wait; the thread may take some of them meanwhile, hence the copy.
                for job in [*self._jobs]:
                    job.on_failure(f"{job.name}: not done {took_s:.2g} s after the end")
        self._failures.raise_last()

    def progress(self) -> tuple[int, int]:
        """How many jobs have ended, and bytes that they wrote; any thread may call it."""
        thread = self._thread
        return self._done, 0 if thread is None else written_by(thread.native_id)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"files are written in process {self._pid}; after a fork, open a new record or collector"
            )
        if self._is_closed:
            raise ClosedError("the thread for files is closed; open a new record or collector")
        self._failures.raise_last()

    def _place(self) -> str:
        """The job that runs, and the innermost lines at which it is."""
        job, thread = self._job, self._thread
        place = place_of(thread) if thread is not None else ""
        return f"; {job.name} is at {place}" if job is not None and place else ""

    def _run(self) -> None:
        job = None
        while True:
            with self._changed:
                if job is not None:
                    self._held_bytes -= job.nbytes
                    self._done += 1
                    self._changed.notify_all()
                # Drop the last reference to the job before the wait, so that its memory is free meanwhile.
                job = self._job = None
                self._changed.wait_for(lambda: self._jobs or self._is_closed, self._idle_s)
                if not self._jobs:
                    self._thread = None
                    return
                job = self._job = self._jobs.popleft()
            try:
                job.function()
            # Ray raises SystemExit in calls when it is shut down meanwhile.
            except (Exception, SystemExit) as error:
                reason = f"{job.name}: {type(error).__name__}: {error}"
                self._failures.count(reason)
                # The jobs that wait run all the same.
                self._on_failures.call(f"{job.name}: after its failure", job.on_failure, reason)
