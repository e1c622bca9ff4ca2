"""Guard: what our own code raises while it records is counted, and does not reach the user's code.

The user's code calls ours through doors: methods with the decorator `door`, and hooks, which a Guard calls.
Behind a door our code may fail at any line. These exceptions pass a door unchanged:

- those that are no Exception, such as KeyboardInterrupt and SystemExit;
- those of code of the user's that ours calls (by functions with the decorator `calls_user`), or of a signal
  handler, which Python may run between any two lines of ours;
- errors of distsummary that are raised on purpose: by the door itself, by a function with the decorator
  `check` that the door calls directly, or by one with the decorator `deliberate` at any depth.

The traceback shows which of these an exception is, so that nothing is paid for it while nothing is raised.
"""

import functools
import inspect
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from distsummary.base import checks
from distsummary.errors import DistSummaryError

logger = logging.getLogger(__name__)

MOST = 100  # failures of a part, after which it is switched off
MOST_PARTS = 1000  # whose failures are counted at a time: names may hold those of parameters
APART_S = 60.0  # a failure that comes later than this after the one before is counted from 1 again

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_doors: set[CodeType] = set()  # of decorated methods and their wrappers
_checks: dict[CodeType, tuple[type[Exception], ...]] = {}
_deliberate: set[CodeType] = set()
_of_user: set[CodeType] = set()  # functions that call the user's code
_CHECKS_FILE = checks.__file__


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
    """Counts what our code raises behind the doors of an object, by the part that failed.

    A part that fails MOST times, each time within APART_S after the last, is switched off; this is said once.

    Args:
        failures: returns what counts the failures; by default, they are logged.
        mend: called after each failure; brings the object into a state in which it can continue.
        clock: returns seconds.

    Attributes:
        off: the parts that are switched off.
    """

    def __init__(
        self,
        failures: Callable[[], Counts] | None = None,
        mend: Callable[[], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.off: set[str] = set()
        self._failures: Callable[[], Counts] = failures or (lambda: _LOGGED)
        self._mend, self._clock = mend, clock
        self._failed: dict[str, tuple[int, float]] = {}  # part -> how many times, and when the last time

    def holds(self, part: str, error: Exception) -> bool:
        """Count an exception that a door has caught; returns False for one that has to pass.

        Raises WriteError if `raise_exception` asks for that.
        """
        if passes(error):
            return False
        self._hold(part, f"{part} ({_place_of(error)})", error)
        return True

    def call(self, what: str, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R | None:
        """Call a function, a part of its own, and return its result; None if it failed or is switched off.

        Raises WriteError if `raise_exception` asks for that.
        """
        if what in self.off:
            return None
        try:
            return function(*args, **named)
        except Exception as error:
            if passes(error, is_door=False):
                raise
            self._hold(what, what, error)
            return None

    def wrap(self, what: str, function: Callable[P, R], otherwise: R | None = None) -> Callable[P, R]:
        """A function that calls `function` as `call` does, and returns `otherwise` if that failed."""

        def wrapped(*args: P.args, **named: P.kwargs) -> R:
            result = self.call(what, function, *args, **named)
            return cast(R, otherwise if result is None else result)

        return wrapped

    # A copy of the object belongs to no run.
    def __reduce__(self) -> Any:
        return Guard, ()

    def _hold(self, part: str, shown: str, error: Exception) -> None:
        try:
            if self._mend is not None:
                self._mend()
            self._count(part, shown, error)
        except Exception as another:
            # This is a WriteError that the user has asked for.
            if passes(another, is_door=False):
                raise
            logger.warning("%s failed, and so did counting it: %r, %r", part, error, another)

    def _count(self, part: str, shown: str, error: Exception) -> None:
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
    """An object with doors."""

    _own_guard: Guard


S = TypeVar("S", bound=Guarded)


def door(
    otherwise: Callable[..., Any] | None = None, *, again: bool = False
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorator for a method that the user's code calls, or that leaves its object in order if it fails.

    Args:
        otherwise: called in place of the method if that fails or is switched off, with the same arguments;
            its result is returned. By default None is.
        again: if the method fails, it is called a second time; for methods that continue where they stopped.
    """

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        part = method.__qualname__

        def wrapper(self: S, /, *args: P.args, **named: P.kwargs) -> R:
            guard = self._own_guard
            # Nearly always no part is off, and the first test is all that a call costs.
            if not (guard.off and part in guard.off):
                try:
                    return method(self, *args, **named)
                except Exception as error:
                    if not guard.holds(part, error):
                        raise
                if again:
                    try:
                        return method(self, *args, **named)
                    except Exception as error:
                        if not guard.holds(part, error):
                            raise
            if otherwise is not None:
                try:
                    return cast(R, otherwise(self, *args, **named))
                except Exception as error:
                    if not guard.holds(part, error):
                        raise
            return cast(R, None)

        # A traceback shows the wrapper and then the method: both count as the door.
        functools.update_wrapper(wrapper, at_door(method))
        return at_door(wrapper)

    return decorate


def at_door(function: F) -> F:
    """Decorator for a function that a door calls: its errors are meant, and so are those of checks in it."""
    _doors.add(function.__code__)
    return function


def check(*errors: type[Exception]) -> Callable[[F], F]:
    """Decorator for a function whose errors of distsummary, or of `errors`, pass a door that calls it."""

    def decorate(function: F) -> F:
        _checks[function.__code__] = (DistSummaryError, *errors)
        return function

    return decorate


def deliberate(function: F) -> F:
    """Decorator for a function whose errors of distsummary pass every door."""
    _deliberate.add(function.__code__)
    return function


def calls_user(function: F) -> F:
    """Decorator for a function that calls code of the user's: all exceptions that it raises are theirs."""
    _of_user.add(inspect.unwrap(function).__code__)
    return function


@calls_user
def call_user(function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """Call a function of the user's: what it raises passes every door."""
    return function(*args, **named)


def is_decorated(method: Any) -> bool:
    """Whether a method is a door already."""
    return getattr(method, "__code__", None) in _doors


def passes(error: Exception, *, is_door: bool = True) -> bool:
    """Whether an exception has to reach the user's code; called where it is caught.

    Args:
        is_door: whether it was caught by a door, so that an error which the door raises is meant.
    """
    is_ours = isinstance(error, DistSummaryError)
    handlers = _handlers()
    trace: TracebackType | None = error.__traceback__
    # The traceback leads from the frame that caught the error to the one that raised it.
    while trace is not None:
        frame = trace.tb_frame
        code = frame.f_code
        if code in _of_user or code in handlers or _is_handler(frame):
            return True
        if is_ours and (code in _deliberate or (is_door and code.co_filename == _CHECKS_FILE)):
            return True
        if is_door and isinstance(error, _checks.get(code, ())):
            return True
        # From here on, only a frame that a door calls directly counts as part of it.
        is_door = is_door and code in _doors
        trace = trace.tb_next
    return is_ours and is_door


def calls_users(code: CodeType) -> bool:
    """Whether code was decorated by `calls_user`."""
    return code in _of_user


def raises_on_purpose(code: CodeType) -> bool:
    """Whether code was decorated by `check` or `deliberate`, or checks arguments."""
    return code in _checks or code in _deliberate or code.co_filename == _CHECKS_FILE


def _handlers() -> set[CodeType]:
    """The code of the signal handlers that are installed now."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        # A handler may be a partial, an object with `__call__` or a method: find the code that runs.
        while isinstance(handler, functools.partial):
            handler = handler.func
        if callable(handler) and not inspect.isroutine(handler):
            handler = type(handler).__call__
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            found.add(code)
    return found


def _is_handler(frame: FrameType) -> bool:
    """Whether a frame got the number of a signal and the frame before it, as Python calls its handlers.

    So a handler is found that has put back another one before it raised.
    """
    caller, code = frame.f_back, frame.f_code
    if caller is None or (code.co_argcount < 2 and not code.co_flags & inspect.CO_VARARGS):
        return False
    # The two are arguments next to each other, by name or in *args.
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    held = frame.f_locals
    values: list[Any] = [held.get(name) for name in names[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        values += held.get(code.co_varnames[len(names)], ())
    return any(isinstance(number, int) and given is caller for number, given in itertools.pairwise(values))


def _place_of(error: BaseException) -> str:
    """The file and line that raised an exception, such as `phases.py:237`."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
