"""Guard: what our own code raises while it records is counted, and does not reach the training.

A guard calls our code. Hooks, loaders and functions of users are called outside of it, so that what they
raise is never taken for ours. What a guarded call raises passes in four cases:

- it is no Exception, such as KeyboardInterrupt and SystemExit;
- the user has asked for it: NonFiniteError (`on_nan="stop"`) and WriteError (`raise_exception=True`);
- the guarded method names its class, such as UsageError where it takes the user's arguments;
- it is marked as the user's (`mark_users`), since a hook has raised it in a Run that our own code drives.

An Exception that a handler of signals raises while our code runs is therefore counted, too.
"""

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from distsummary.errors import NonFiniteError, WriteError


def guarded_log(name: str) -> logging.Logger:
    """The logger of this name; what a handler of the user's raises is printed, and ends nothing of ours."""
    log = logging.getLogger(name)
    vars(log)["handle"] = functools.partial(_handle, log)
    return log


def _handle(log: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(log).handle(log, record)
    except Exception as error:
        # The terminal may be gone, too.
        with suppress(Exception):
            print(f"{record.getMessage()} (a handler of logging raised {error!r})", file=sys.stderr)


logger = guarded_log(__name__)

MOST = 100  # failures of a part, after which it is switched off
MOST_PARTS = 1000  # whose failures are counted at a time: names may hold those of parameters
APART_S = 60.0  # a failure that comes later than this after the one before is counted from 1 again
ASKED_FOR = (NonFiniteError, WriteError)

_OF_USER = "_distsummary_of_user"  # an attribute of exceptions

Parts: TypeAlias = Iterable[tuple[str, Callable[[], object]]]

P = ParamSpec("P")
R = TypeVar("R")


def run_each(parts: Parts, fail: Callable[[str, Exception], object]) -> None:
    """Run all parts of an end, each with its name, whatever those before it raise; `fail` gets that.

    What is no Exception, such as Ctrl-C, is raised when all have run.
    """
    stop: BaseException | None = None
    for what, part in parts:
        try:
            part()
        except Exception as error:
            fail(what, error)
        except BaseException as error:
            stop = stop or error
    if stop is not None:
        raise stop


class Counts(Protocol):
    """What counts failures: `base.failures.Failures`."""

    def count(self, reason: str) -> None:
        """Count a failure, and log its reason once."""

    def fail(self, what: str, error: Exception) -> None:
        """Count an exception of a part; raises WriteError if the user has asked for that."""


class _Logged:
    """Counts for an object that no run has taken yet: each reason is logged once."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def count(self, reason: str) -> None:
        if reason not in self._reasons and len(self._reasons) < MOST:
            self._reasons.add(reason)
            logger.warning("%s (logged once)", reason)

    def fail(self, what: str, error: Exception) -> None:
        self.count(f"{what}: {type(error).__name__}: {error}")


_LOGGED = _Logged()


class ErrorSink:
    """Gives each exception to a function, in place of counting it."""

    def __init__(self, take: Callable[[Exception], None]) -> None:
        self._take = take

    def count(self, reason: str) -> None:
        """See `Counts`."""

    def fail(self, what: str, error: Exception) -> None:
        """See `Counts`."""
        self._take(error)


class Guard:
    """Calls the parts of an object, and counts what they raise.

    A part that fails MOST times, each time within APART_S after the last, is switched off; this is said once.

    Args:
        failures: returns what counts the failures; by default, they are logged.
        otherwise: called after each failure, and in place of a part that is switched off; brings the object
            into a state in which it can continue.
        clock: returns seconds.

    Attributes:
        off: the parts that are switched off.
    """

    def __init__(
        self,
        failures: Callable[[], Counts] | None = None,
        otherwise: Callable[[], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.off: set[str] = set()
        self._failures: Callable[[], Counts] = failures or (lambda: _LOGGED)
        self._otherwise, self._clock = otherwise, clock
        self._failed: dict[str, tuple[int, float]] = {}  # part -> how many times, and when the last time

    def call(self, part: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | None:
        """Call a function and return its result; None if it failed or is switched off."""
        if self.off and self.is_off(part):
            return None
        try:
            return function(*args, **named)
        except Exception as error:
            self.hold(part, error)
            return None

    def done(self, part: str, function: Callable[P, object], *args: P.args, **named: P.kwargs) -> bool:
        """Call a function and return whether that was done: not if it failed or is switched off."""
        if self.off and self.is_off(part):
            return False
        try:
            function(*args, **named)
            return True
        except Exception as error:
            self.hold(part, error)
            return False

    def wrap(self, part: str, function: Callable[P, R], instead: R | None = None) -> Callable[P, R]:
        """A function that calls `function` as `call` does, and returns `instead` if that failed."""

        def wrapped(*args: P.args, **named: P.kwargs) -> R:
            result = self.call(part, function, *args, **named)
            return cast(R, instead if result is None else result)

        return wrapped

    def is_off(self, part: str) -> bool:
        """Whether a part is switched off; what has to be done in its place is done then."""
        if part not in self.off:
            return False
        self._continue(part)
        return True

    def hold(self, part: str, error: Exception, place: str = "") -> None:
        """Count an exception; raises it if it passes, and WriteError if the user has asked for that."""
        if isinstance(error, ASKED_FOR) or is_users(error):
            raise error
        self._continue(part)
        try:
            self._count(part, error, f"{part} ({place})" if place else part)
        except ASKED_FOR:
            raise
        except Exception as another:
            logger.warning("%s failed, and so did counting it: %r, %r", part, error, another)

    # A copy of the object belongs to no run.
    def __reduce__(self) -> Any:
        return Guard, ()

    def _continue(self, part: str) -> None:
        try:
            if self._otherwise is not None:
                self._otherwise()
        except Exception as error:
            logger.warning("%s failed, and so did what is done instead: %r", part, error)

    def _count(self, part: str, error: Exception, shown: str) -> None:
        now_s = self._clock()
        times, last_s = self._failed.get(part, (0, now_s))
        times = times + 1 if now_s - last_s <= APART_S else 1
        if len(self._failed) >= MOST_PARTS:
            self._failed.clear()
        self._failed[part] = times, now_s
        if times >= MOST and part not in self.off:
            self.off.add(part)
            self._failures().count(f"{part} is switched off, since it failed {MOST} times")
        self._failures().fail(shown, error)


class Guarded(Protocol):
    """An object with guarded methods."""

    _own_guard: Guard


S = TypeVar("S", bound=Guarded)


def guarded(
    *passing: type[Exception], again: bool = False
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R | None]]:
    """Decorator for a method that its object's guard calls; it returns None if it failed or is switched off.

    Args:
        passing: the classes of exceptions that are meant for the user.
        again: if the method fails, it is called a second time; for methods that continue where they stopped.
    """

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R | None]:
        part = method.__qualname__
        second = guarded(*passing)(method) if again else None

        @functools.wraps(method)
        def wrapper(self: S, /, *args: P.args, **named: P.kwargs) -> R | None:
            guard = self._own_guard
            # Nearly always no part is off, and the first test is all that a call costs.
            if guard.off and guard.is_off(part):
                return None
            try:
                return method(self, *args, **named)
            except passing:
                raise
            except Exception as error:
                # The method may have given its object another guard.
                self._own_guard.hold(part, error, _place_of(error))
            return None if second is None else second(self, *args, **named)

        return wrapper

    return decorate


def mark_users(error: BaseException) -> None:
    """Have an exception pass every guard, since code of the user's has raised it."""
    vars(error)[_OF_USER] = True


def is_users(error: BaseException) -> bool:
    """Whether an exception is marked as that of the user's code."""
    return _OF_USER in vars(error)


def _place_of(error: BaseException) -> str:
    """The file and line that raised an exception, such as `phases.py:237`."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
