"""WorkerQueues: how long the processes that load a rank's batches waited for a processor."""

import contextlib
import os
import sys

LISTED = 16  # calls after which the threads are listed again, and as many of the first


class WorkerQueues:
    """Reads the run queues of the processes that multiprocessing has started in this one, such as workers.

    They are those of all threads: some of them hand over what the others have made. Without Linux's
    schedstat, none waits.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._files: dict[str, tuple[int, int]] = {}  # of a thread -> its file, and what that said last

    def take(self) -> float:
        """The seconds since the last call, the mean of the processes; takes 3 us for each thread.

        They load as many batches at a time, so that a batch is late by what one of them waits.
        """
        # `active_children` would also collect those that have ended, before their loader sees it
        started = [*getattr(sys.modules.get("multiprocessing.process"), "_children", ())]
        if not started and not self._files:
            return 0.0
        self._calls += 1
        if self._calls < LISTED or self._calls % LISTED == 0:
            self._list([child.pid for child in started])
        waited = 0
        for path, (file, before) in [*self._files.items()]:
            try:
                now = int(os.pread(file, 64, 0).split(b" ", 2)[1])
            except (OSError, IndexError, ValueError):  # it has ended
                self._close(path)
                continue
            waited += now - before if before else 0
            self._files[path] = file, now
        return 1e-9 * waited / max(1, len(started))

    def _list(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    path = f"/proc/{pid}/task/{thread}/schedstat"
                    if path not in self._files:
                        self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0

    def close(self) -> None:
        """Close the files."""
        for path in [*self._files]:
            self._close(path)

    def _close(self, path: str) -> None:
        os.close(self._files.pop(path)[0])
