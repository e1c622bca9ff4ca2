"""SessionEnd: ends what a session keeps open, in one order and in time, whatever fails or hangs."""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

from distsummary.base.at_exit import DaemonThread
from distsummary.base.failures import Failures, joined_in_time, place_of
from distsummary.base.interrupts import AGAIN_S, interrupts_after, is_of_signal
from distsummary.base.termination import END_S, Terminated, on_termination
from distsummary.collect.provenance import error_text
from distsummary.errors import WriteError

GIVE_UP_S = 4.0  # more for the end of the run, after it was asked to drop what it waits for
LEAVE_S = 2.0  # of the time that a signal leaves, for the rank's manifest

Parts: TypeAlias = Sequence[tuple[str, Callable[[], object]]]


class EndingWriter(Protocol):
    """What an end needs of an AsyncWriter."""

    def end_within(self, seconds: float, reason: str) -> None:
        """See `AsyncWriter.end_within`."""

    def close(self) -> None:
        """See `AsyncWriter.close`."""


class SessionEnd:
    """Ends a session once: called by the loop, by a signal, or early because the run dir is gone.

    Args:
        parts: begins the end of a training that an exception or nothing has ended, and returns the parts of
            the end in their order, each with its name. A second call is the repetition of an end that failed.
        writer: drops what it waits for when the time is over.
        progress: returns something that changes as long as something is written.
        failures: counts what raises.
        directory: the rank's, for messages.

    Attributes:
        is_early: whether the loop continues after the end, though nothing is recorded any more, for `reason`.
        is_asked: whether that is so because a signal asks the process to end.
    """

    def __init__(
        self,
        parts: Callable[[BaseException | None], Parts],
        *,
        writer: EndingWriter,
        progress: Callable[[], object],
        failures: Failures,
        directory: Path,
    ) -> None:
        self.is_early = self.is_asked = False
        self.reason = "the files were closed after a signal"
        self._parts, self._writer, self._progress = parts, writer, progress
        self._failures, self._directory = failures, directory
        self._pid = os.getpid()
        # A signal may end the session from a thread, and a user's handler within `close`.
        self._closing = threading.RLock()
        self._thread: DaemonThread | None = None
        self._error: BaseException | None = None
        self._part = ""  # the name of the one that runs
        self._deadline_s = math.inf
        self._unsubscribe = on_termination(self._terminate)

    def deadline_s(self) -> float:
        """When the parts that wait have to end, as `time.monotonic` counts; may become earlier."""
        return self._deadline_s

    def close(self, error: BaseException | None) -> bool:
        """Run all parts, even if one fails; a second call does nothing.

        `error` is what ended the training, if anything did. Returns False in a process forked from the
        session's own, where it does nothing. Raises the first WriteError of a part.
        """
        if os.getpid() != self._pid:
            return False
        # The signal that led here leaves limited time, and must not be taken for a further Ctrl-C below.
        is_asked = False
        if error is not None and is_of_signal(error):
            is_asked = True
            left_s = error.left_s if isinstance(error, Terminated) else END_S
            self._end_within(left_s, f"{END_S:g} s after {error_text(error)} the process has to end")
        stop_waiting = partial(self._end_within, 0.0, "Ctrl-C ended the wait")
        try:
            with interrupts_after(stop_waiting, ignores_s=AGAIN_S if is_asked else 0.0), self._closing:
                self._run_in_time(error)
        finally:
            self._unsubscribe()
        return True

    def begin_early(self, reason: str) -> None:
        """Close in a thread of its own, while the training continues; `close` does the rest."""

        def run() -> None:
            with self._closing:
                self._failures.call("the end", self._run_in_time, None)

        self.is_early, self.reason = True, reason
        threading.Thread(target=run, name="distsummary-end", daemon=True).start()

    def _terminate(self, error: Terminated) -> None:
        """Close in the calling thread, while the training continues, before a signal ends the process."""
        self.is_early = self.is_asked = True
        self.close(error)

    def _end_within(self, seconds: float, reason: str) -> None:
        """Let the end, also one that has begun, take so many seconds; `reason` says why."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + seconds - LEAVE_S)
        self._writer.end_within(max(0.0, seconds - LEAVE_S), reason)

    def _run_in_time(self, error: BaseException | None) -> None:
        """Run the parts in a thread; leave it if nothing is written for END_S: a disk may hang for ever."""

        def run() -> None:
            try:
                self._run(error)
            except BaseException as failure:
                self._error = failure

        # Begin the end, again if an earlier attempt has failed; one that still runs is awaited.
        if self._thread is None or self._error is not None:
            self._error = None
            self._thread = DaemonThread(run, "distsummary-end")
            self._thread.start()
        thread = self._thread
        if not joined_in_time(thread, self._progress, END_S, self.deadline_s):
            # Nothing is written any more: let the writer drop what it waits for, which may free the end.
            until = time.monotonic() + GIVE_UP_S
            place = f"{self._part} is at {place_of(thread)}"
            self._writer.end_within(0.0, f"the end of the run was not done: {place}")
            # A second call does nothing, if closing these files is what hangs.
            self._writer.close()
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self._failures.count(
                    f"the end of the run is not done: {place}; check that the disk of {self._directory} "
                    "works (a process that the kernel holds there ends only with its disk)"
                )
        if self._error is not None:
            raise self._error

    def _run(self, error: BaseException | None) -> None:
        """Run every part, whatever fails before it; the first error is raised at the end."""
        errors: list[WriteError] = []
        for what, part in self._parts(error):
            self._part = what
            try:
                self._failures.call(what, part)
            except WriteError as failure:
                errors.append(failure)
        if errors:
            raise errors[0]
