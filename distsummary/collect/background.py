"""A thread for files that are no event files, so that a training thread need not write them."""

import atexit
import logging
import queue
import threading
import weakref
from collections.abc import Callable

from distsummary.events.records import Health

logger = logging.getLogger(__name__)

MAX_WAITING = 2
CLOSE_TIMEOUT_S = 60.0


class Background:
    """Runs jobs in the order they came; the thread starts with the first.

    Args:
        health: where failures are counted.
        max_waiting: jobs hold arrays, so only so many may wait; the next `submit` waits for a place.
    """

    def __init__(self, health: Health, *, max_waiting: int = MAX_WAITING) -> None:
        self._health = health
        self._jobs: queue.Queue[tuple[str, Callable[[], object]] | None] = queue.Queue(max_waiting)
        self._thread: threading.Thread | None = None
        atexit.register(_close_at_exit, weakref.ref(self))

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Have `job()` run; a failure is counted under `name`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distsummary-files", daemon=True)
            self._thread.start()
        self._jobs.put((name, job))

    def flush(self) -> None:
        """Return when every job has run."""
        self._jobs.join()

    def close(self) -> None:
        """Flush and end the thread; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                self._fail("files", TimeoutError(f"not written within {CLOSE_TIMEOUT_S:g} s"))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job[1]()
            except Exception as error:  # counted and shown in health(); nobody waits for this thread
                self._fail(job[0], error)
            self._jobs.task_done()
        self._jobs.task_done()

    def _fail(self, name: str, error: Exception) -> None:
        reason = f"{name}: {type(error).__name__}: {error}"
        if reason not in self._health.errors:
            logger.warning("%s (said once; counted in health())", reason)
        self._health.fail(reason)


def _close_at_exit(reference: "weakref.ref[Background]") -> None:
    background = reference()
    if background is not None:
        background.close()
