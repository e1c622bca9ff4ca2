"""Keeps failures of the recording from stopping the training: counts them, logs each once, bounds waits."""

import gc
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import ParamSpec, TypeVar

from distsummary.base.guard import Guard, guarded_log
from distsummary.base.health import Health
from distsummary.errors import WriteError, remedy_of

P = ParamSpec("P")
R = TypeVar("R")

SHOWN_CALLS = 4  # of a stuck thread
LOOK_S = 0.25  # how often a wait looks for progress
WINDOW_S = 10.0  # in which it is added up how long a loop waits
MAX_REASONS = 1000  # reasons may name tags and steps, and memory has to stay bounded
NONE: Mapping[str, int] = MappingProxyType({})
_awaited: dict[int, threading.Thread] = {}  # the id of a thread -> the thread that it waits for
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def error_line(error: Exception) -> str:
    """An error as the reason of a failure, with the remedy if it is the operating system's."""
    remedy = remedy_of(error)
    return one_line(f"{type(error).__name__}: {error}") + (f"; {remedy}" if remedy else "")


def one_line(text: str) -> str:
    """The text in one line, without colour codes: errors of Ray and C++ are pages of them."""
    return " ".join(filter(None, map(str.strip, _COLOUR.sub("", text).splitlines())))


class Failures:
    """Counts failures by their reason and logs each reason once.

    Args:
        health: the counters to update.
        logger: logs the reasons; each line begins with `prefix`.
        raise_exception: whether `raise_last`, `call` and `fail` raise failures as WriteError.

    Attributes:
        guard: counts here what it catches.
    """

    def __init__(
        self, health: Health, logger: logging.Logger, *, raise_exception: bool = False, prefix: str = ""
    ) -> None:
        self.health = health
        self.last: str | None = None  # the newest reason that has not been raised yet
        self.guard = Guard(lambda: self)
        self._logger, self._prefix = guarded_log(logger.name), prefix
        self._raise_exception = raise_exception

    def count(
        self, reason: str, times: int = 1, *, dropped: Mapping[str, int] = NONE, logs: bool = True
    ) -> None:
        """Count a failure, and log it unless `logs` is False; any thread may call `count`.

        `dropped`: plugin (kind of value) -> lost values.
        """
        errors, reason = self.health.errors, one_line(reason)
        if reason not in errors and len(errors) >= MAX_REASONS:
            reason = f"further reasons, after {MAX_REASONS} different ones"
        is_new = reason not in errors
        self.health.fail(reason, times)
        self.drop(dropped, reason)
        self.last = reason
        if logs and is_new:
            self._logger.warning("%s%s (logged once; counted in health())", self._prefix, reason)

    def drop(self, values: Mapping[str, int], reason: str = "") -> None:
        """Count lost values by plugin, of a failure that was counted."""
        for plugin, times in values.items():
            if times:
                self.health.drop(plugin, times, reason)

    def raise_last(self, cause: Exception | None = None) -> None:
        """Raise the newest failure as WriteError, once, if `raise_exception` is set."""
        if self._raise_exception and self.last is not None:
            reason, self.last = self.last, None
            raise WriteError(f"not recorded: {reason}") from cause

    def call(self, what: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | None:
        """Call the function and return its result; if it raises, count that as of `what` and return None."""
        return self.guard.call(what, function, *args, **named)

    def fail(self, what: str, error: Exception) -> None:
        """Count an exception, with a reason that begins with `what`; raise WriteError if so configured."""
        self.count(f"{what}: {type(error).__name__}: {error}")
        self.raise_last(error)


class BoundedWait:
    """Waits for a thread as long as it makes progress: a dead disk must not delay every step.

    Args:
        changed: the condition that the thread notifies; the caller must hold it.
        progress: returns something that changes whenever the thread gets on.
        clock: the time in seconds.
    """

    def __init__(
        self,
        changed: threading.Condition,
        progress: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed, self._progress, self._clock = changed, progress, clock
        self._stalled_at: object = None  # the progress when a caller last waited in vain

    def wait_for(self, is_over: Callable[[], bool], patience_s: float, limit_s: float = math.inf) -> bool:
        """Wait until `is_over()`, at most `limit_s` seconds; returns whether it is.

        Gives up as soon as there was no progress for `patience_s` seconds. Later calls then do not wait at
        all until there is some.
        """
        mark = self._progress()
        begun = since = self._clock()
        # An earlier caller has waited in vain, and nothing has moved since: this one must not wait again.
        if mark == self._stalled_at:
            return is_over()
        while not is_over():
            now, reached = self._clock(), self._progress()
            if reached != mark:
                mark, since = reached, now
            left_s = min(since + patience_s, begun + limit_s) - now
            if left_s <= 0:
                # A caller without patience has not found out whether the thread makes progress.
                if patience_s > 0:
                    self._stalled_at = mark
                return False
            self._changed.wait(min(left_s, LOOK_S))
        return True


class Slowdown:
    """Finds out, in windows of WINDOW_S seconds or more, whether a loop waits for most of its time.

    `clock` gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._waited_s = 0.0

    def waited(self, seconds: float) -> float:
        """Note a wait that ends now; returns its share of a window that ends with it, otherwise 0."""
        now = self._clock()
        if self._since is None:
            self._since = now - seconds
        self._waited_s += seconds
        passed_s = now - self._since
        if passed_s < WINDOW_S:
            return 0.0
        share = self._waited_s / passed_s
        self._since, self._waited_s = now, 0.0
        return share


class DroppedSteps:
    """Counts steps that are dropped, and logs when that begins and, in `end`, what it cost.

    Args:
        failures: counts the values. logger, prefix: as of Failures. clock: the time in seconds.
    """

    def __init__(
        self,
        failures: Failures,
        logger: logging.Logger,
        prefix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures, self._logger, self._prefix, self._clock = failures, logger, prefix, clock
        self._begun, self._reason = 0.0, ""
        self._values = 0
        self.steps = 0  # that were dropped so far; 0: none is being dropped

    def add(self, reason: str, dropped: Mapping[str, int]) -> None:
        """A step is dropped; `dropped`: plugin -> values."""
        if not self.steps:
            self._begun, self._reason = self._clock(), reason
            self._logger.warning(
                "%s%s; whole steps are dropped and counted from now on", self._prefix, reason
            )
        self.steps += 1
        self._values += sum(dropped.values())
        self._failures.count(reason, dropped=dropped, logs=False)

    def end(self) -> None:
        """No more steps are dropped for now."""
        if self.steps:
            self._logger.warning(
                "%s%s step(s) with %s values were dropped in %.0f s: %s",
                self._prefix,
                f"{self.steps:,}",
                f"{self._values:,}",
                self._clock() - self._begun,
                self._reason,
            )
            self.steps = self._values = 0


@contextmanager
def awaiting(thread: threading.Thread) -> Iterator[None]:
    """Wait for another thread in the block; `place_of` then names where that one is."""
    own = threading.get_ident()
    _awaited[own] = thread
    try:
        yield
    finally:
        _awaited.pop(own, None)


def joined_in_time(
    thread: threading.Thread,
    progress: Callable[[], object],
    patience_s: float,
    deadline_s: Callable[[], float] = lambda: math.inf,
) -> bool:
    """Wait for a thread as long as its progress changes within `patience_s`; returns whether it has ended.

    `deadline_s` returns when the wait has to end at the latest, as `time.monotonic` counts.
    """
    mark, since = progress(), time.monotonic()
    with awaiting(thread):
        while thread.is_alive():
            now, reached = time.monotonic(), progress()
            if reached != mark:
                mark, since = reached, now
            left_s = min(since + patience_s, deadline_s()) - now
            if left_s <= 0:
                return False
            thread.join(min(LOOK_S, left_s))
    return True


def place_of(thread: threading.Thread) -> str:
    """The innermost lines at which a thread is, such as `writer.py:7 < session.py:9`; empty if unknown.

    If it only waits for another thread, by `awaiting`, those of that one.
    """
    ident, seen = thread.ident or 0, set[int]()
    while ident in _awaited and ident not in seen:
        seen.add(ident)
        ident = _awaited[ident].ident or 0
    frame = frame_of(ident)
    calls = traceback.walk_stack(frame) if frame is not None else ()
    lines = [f"{os.path.basename(call.f_code.co_filename)}:{line}" for call, line in calls]
    # That it waits is clear; what for is in the lines around.
    return " < ".join([line for line in lines if not line.startswith("threading.py:")][:SHOWN_CALLS])


def frame_of(thread_id: int) -> FrameType | None:
    """The innermost frame of a thread of this process; None if it has ended."""
    # Python 3.11 may collect garbage within this call, under a lock that the start of a thread needs: a
    # finalizer that gives way to a thread which starts another one would stop the process for ever.
    is_collecting = sys.version_info < (3, 12) and gc.isenabled()
    if is_collecting:
        gc.disable()
    try:
        return sys._current_frames().get(thread_id)
    finally:
        if is_collecting:
            gc.enable()


def written_by(native_id: int | None) -> int:
    """The bytes that a thread of this process has passed to write calls; 0 if that is unknown."""
    try:
        fields = Path(f"/proc/self/task/{native_id}/io").read_bytes().split()
        return int(fields[fields.index(b"wchar:") + 1])
    except (OSError, ValueError, IndexError):
        return 0
