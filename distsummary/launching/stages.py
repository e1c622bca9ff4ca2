"""Says on stderr what a launch is waiting for, if it takes long."""

import sys
import threading
import time
from itertools import chain, count
from types import TracebackType

REPORTED_AFTER_S = (5.0, 15.0, 30.0)  # then every 30 s
EVERY_S = 30.0


class Stages:
    """The stages of a start, one after the other; a context manager, which ends the last stage.

    A stage that ends within the first of `reported_after_s` says nothing.

    Args:
        reported_after_s: seconds after the beginning of a stage at which it is reported.
    """

    def __init__(self, reported_after_s: tuple[float, ...] = REPORTED_AFTER_S) -> None:
        self._reported_after_s = reported_after_s
        self._begun = time.monotonic()
        self._has_reported = False
        self._stage: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self, what: str) -> None:
        """End the stage before, and begin the next: `what` the launch is doing, such as "starting Ray"."""
        self.end()
        self._stage = threading.Event()
        self._thread = threading.Thread(
            target=self._report, args=(what, self._stage), name="distsummary-stages", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """End the stage."""
        if self._stage is not None and self._thread is not None:
            self._stage.set()
            self._thread.join()

    def done(self, what: str) -> None:
        """End the last stage; say `what` has begun, with the seconds since the start, if one was reported."""
        self.end()
        if self._has_reported:
            say(f"{what} ({time.monotonic() - self._begun:.0f} s after the start)")

    def __enter__(self) -> "Stages":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def _report(self, what: str, ended: threading.Event) -> None:
        begun = time.monotonic()
        last = self._reported_after_s[-1]
        for moment in chain(self._reported_after_s, count(last + EVERY_S, EVERY_S)):
            if ended.wait(max(0.0, begun + moment - time.monotonic())):
                return
            self._has_reported = True
            say(f"{what} ({time.monotonic() - begun:.0f} s)")


def say(line: str) -> None:
    """One line on stderr, from the launcher."""
    print(f"distsummary: {line}", file=sys.stderr, flush=True)
