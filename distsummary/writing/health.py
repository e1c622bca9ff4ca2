"""Keeps failures of the recording from stopping the training: counts them, logs each once, bounds waits."""

import errno
import logging
import re
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from distsummary.errors import WriteError
from distsummary.format.records import Health

P = ParamSpec("P")
R = TypeVar("R")

MAX_REASONS = 1000  # reasons may name tags and steps, and memory has to stay bounded
NONE: Mapping[str, int] = MappingProxyType({})
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: "raise the limit of the file size (ulimit -f)",
    errno.EROFS: "make the file system writable",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def told(error: Exception) -> str:
    """An error as the reason of a failure, with the remedy if the disk takes no more."""
    remedy = _REMEDIES.get(error.errno) if isinstance(error, OSError) and error.errno else None
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
    """

    def __init__(
        self, health: Health, logger: logging.Logger, *, raise_exception: bool = False, prefix: str = ""
    ) -> None:
        self.health = health
        self.last: str | None = None  # the newest reason that has not been raised yet
        self._logger, self._prefix = logger, prefix
        self._raise_exception = raise_exception

    def count(self, reason: str, times: int = 1, *, dropped: Mapping[str, int] = NONE) -> None:
        """Count a failure; `dropped`: plugin (kind of value) -> lost values. Any thread may call `count`."""
        errors, reason = self.health.errors, one_line(reason)
        if reason not in errors and len(errors) >= MAX_REASONS:
            reason = f"further reasons, after {MAX_REASONS} different ones"
        if reason not in errors:
            self._logger.warning("%s%s (logged once; counted in health())", self._prefix, reason)
        self.health.fail(reason, times)
        for plugin, values in dropped.items():
            if values:
                self.health.drop(plugin, values)
        self.last = reason

    def raise_last(self, cause: Exception | None = None) -> None:
        """Raise the newest failure as WriteError, once, if `raise_exception` is set."""
        if self._raise_exception and self.last is not None:
            reason, self.last = self.last, None
            raise WriteError(f"not recorded: {reason}") from cause

    def call(self, what: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | None:
        """Call the function and return its result; if it raises, call `fail` and return None."""
        try:
            return function(*args, **named)
        except Exception as error:
            self.fail(what, error)
            return None

    def fail(self, what: str, error: Exception) -> None:
        """Count an exception, with a reason that begins with `what`; raise WriteError if so configured."""
        if self._raise_exception and isinstance(error, WriteError):
            raise error
        self.count(f"{what}: {type(error).__name__}: {error}")
        self.raise_last(error)


class BoundedWait:
    """Waits for room in a queue, once per stall (no progress): a dead disk must not delay every step.

    Args:
        changed: the condition that the thread making room notifies; the caller must hold it.
        done: returns how many items that thread has processed so far.
    """

    def __init__(self, changed: threading.Condition, done: Callable[[], int]) -> None:
        self._changed, self._done = changed, done
        self._stalled_at = -1  # the value of `done` when a caller last waited in vain

    def wait_for(self, has_room: Callable[[], bool], timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds, at most once per stall; returns whether there is room."""
        patience_s = 0.0 if self._stalled_at == self._done() else timeout_s
        if self._changed.wait_for(has_room, timeout=patience_s):
            return True
        if timeout_s:
            self._stalled_at = self._done()
        return False
