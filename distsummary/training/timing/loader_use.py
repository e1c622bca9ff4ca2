"""LoaderUse: for how much of the time the worker processes of torch's DataLoader have something to do.

A rank that has batches in advance waits for the others, and not for its loader, which may be as slow as
theirs. So another thread looks now and then, at moments that no step chooses, how many workers load.
"""

from collections import deque
from typing import Any

LOOKS, ENOUGH = 24, 6  # the newest looks that count, and how many are needed


class LoaderUse:
    """Looks at the loader of a loop; of any other than torch's with workers, nothing is known."""

    def __init__(self) -> None:
        self._iterator: Any = None
        self._looks: deque[float] = deque(maxlen=LOOKS)  # the share of the workers that loaded

    def begin(self, iterator: object) -> None:
        """A loop takes its batches from this from now on; what is known of one before stays."""
        # These names are private: without them, it is as if there were no workers.
        has_workers = hasattr(iterator, "_tasks_outstanding") and hasattr(iterator, "_data_queue")
        self._iterator = iterator if has_workers else None

    def end(self) -> None:
        """The loop has ended."""
        self._iterator = None

    def look(self) -> None:
        """Count the workers that load; called by any thread, now and then."""
        if (iterator := self._iterator) is None:
            return
        # Batches that were requested, and of these what the workers have put into the queue.
        loading = iterator._tasks_outstanding - iterator._data_queue.qsize()
        workers = iterator._num_workers
        self._looks.append(min(max(loading, 0), workers) / workers)

    @property
    def idle(self) -> float | None:
        """The share of the time in which workers had nothing to do; None without workers, 0 until known."""
        if self._iterator is None:
            return None
        looks = [*self._looks]
        return 1.0 - sum(looks) / len(looks) if len(looks) >= ENOUGH else 0.0
