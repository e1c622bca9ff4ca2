"""Group commit: what was written is made durable from a thread of its own, some time or bytes later."""

import threading
from collections.abc import Callable

INTERVAL_S = 1.0
GROUP_BYTES = 8 << 20
MAX_BYTES = 64 << 20


class GroupSync:
    """Calls `sync` 1 s after the first write that it has not covered, or at 8 MiB; else it sleeps.

    A disk that does not keep up holds its writer up at 64 MiB. `sync` must not raise: it keeps its own
    account of failures. The thread starts with the first write.
    """

    def __init__(self, sync: Callable[[], None], *, interval_s: float = INTERVAL_S) -> None:
        self._sync, self._interval_s = sync, interval_s
        self._pending = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def wrote(self, nbytes: int) -> None:
        """Tell that so many bytes wait to be made durable."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distsummary-sync", daemon=True)
                self._thread.start()
            is_first = not self._pending
            self._pending += nbytes
            if is_first or self._pending >= GROUP_BYTES:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._pending < MAX_BYTES or self._is_closed)

    def close(self) -> None:
        """End the thread, without another sync; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._await_group():
            self._sync()

    def _await_group(self) -> bool:
        """Sleep until a group is due; False when nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            self._changed.wait_for(
                lambda: self._pending >= GROUP_BYTES or self._is_closed, timeout=self._interval_s
            )
            self._pending = 0
            self._changed.notify_all()
            return not self._is_closed
