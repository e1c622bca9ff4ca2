"""WorkerQueues: how long the processes that load a rank's batches waited for a processor."""

import contextlib
import os
import sys

LISTED = 16  # calls after which the threads are listed again, as at so many of the first ones


class WorkerQueues:
    """Reads the run queues of the processes that multiprocessing has started in this one, such as workers.

    They are those of all threads: some of them hand over what the others have made. Without Linux's
    schedstat, none waits.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._pids: set[int] = set()  # of those that were there at the last call
        self._files: dict[str, tuple[int, int, int | None]] = {}  # by thread: pid, file, waited

    def take(self) -> dict[int, float]:
        """The seconds since the last call, by pid; takes 3 us for each thread."""
        # `active_children` would also collect processes that have ended, before their loader sees it.
        pids = {child.pid for child in getattr(sys.modules.get("multiprocessing.process"), "_children", ())}
        if not pids and not self._files:
            return {}
        is_first, self._calls = not self._calls, self._calls + 1
        # A process may start threads later. What they waited before the first call does not count; of a
        # thread that is found later all counts.
        if pids - self._pids or self._calls < LISTED or self._calls % LISTED == 0:
            self._list(pids, None if is_first else 0)
        self._pids = pids
        waited: dict[int, float] = {}
        for path, (pid, file, before) in [*self._files.items()]:
            try:
                now = int(os.pread(file, 64, 0).split(b" ", 2)[1])
            except (OSError, IndexError, ValueError):
                # The thread has ended.
                self._close(path)
                continue
            waited[pid] = waited.get(pid, 0.0) + 1e-9 * (now - (now if before is None else before))
            self._files[path] = pid, file, now
        return waited

    def _list(self, pids: set[int], before: int | None) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    path = f"/proc/{pid}/task/{thread}/schedstat"
                    if path not in self._files:
                        self._files[path] = pid, os.open(path, os.O_RDONLY | os.O_CLOEXEC), before

    def close(self) -> None:
        """Close the files."""
        for path in [*self._files]:
            self._close(path)

    def _close(self, path: str) -> None:
        os.close(self._files.pop(path)[1])
