"""Load: tells when writing takes so much of a processor that another process should do it."""

import time
from collections.abc import Callable

WINDOW_S = 5.0
BUSY = 0.1  # of a processor


class Load:
    """Adds up processor time, in windows of at least WINDOW_S seconds; `clock` gives the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since, self._worked_s = clock(), 0.0

    def worked(self, seconds: float) -> bool:
        """Count processor time; True if a window has just ended that was busy."""
        self._worked_s += seconds
        passed_s = self._clock() - self._since
        if passed_s < WINDOW_S:
            return False
        is_busy = self._worked_s > BUSY * passed_s
        self._since, self._worked_s = self._clock(), 0.0
        return is_busy
