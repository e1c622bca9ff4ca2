"""What tells the progress of a landscape: a line in a terminal, a display in a notebook, else the log."""

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO, TypeAlias

from distsummary.errors import InvalidTypeError
from distsummary.topology import in_notebook

TELL_EVERY_S = 0.5  # in a terminal and a notebook
LOG_EVERY_S = 30.0
MOST_RATES = 8  # in one line; a callback is told them all
_MINUTE, _HOUR = 60, 3600

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a landscape is, in points of all its planes.

    Attributes:
        done, total: points with a value, and all there are.
        seconds: since this call's first worker began to evaluate.
        fresh: how many of `done` this call evaluated; the others were read from a journal.
        by_worker: points per second of each worker, of its own working time.
    """

    done: int
    total: int
    seconds: float
    fresh: int
    by_worker: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether every point has a value."""
        return self.done >= self.total

    @property
    def points_per_s(self) -> float:
        """Of all workers together, 0 while nothing fresh is done."""
        return self.fresh / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the end if it goes on like that; None while nothing fresh is done."""
        return (self.total - self.done) / self.points_per_s if self.points_per_s else None


ProgressCallback: TypeAlias = Callable[[Progress], None]


def line(progress: Progress) -> str:
    """`landscape: 512/2601 points, 41 points/s, 51 s left, 4 workers (8 + 12 + 10 + 9.9 points/s)`."""
    parts = [f"{progress.done}/{progress.total} points"]
    if progress.left_s is not None:
        parts.append(f"{_rate(progress.points_per_s)} points/s")
        is_done = progress.is_done
        parts.append(f"in {_duration(progress.seconds)}" if is_done else f"{_duration(progress.left_s)} left")
    if progress.by_worker:
        parts.append(_workers(list(progress.by_worker.values())))
    return "landscape: " + ", ".join(parts)


def _workers(rates: list[float]) -> str:
    """How many there are, and how fast each is; of many the slowest and the fastest."""
    if len(rates) == 1:
        return "1 worker"
    speeds = " + ".join(map(_rate, rates))
    if len(rates) > MOST_RATES:
        speeds = f"{_rate(min(rates))} to {_rate(max(rates))}"
    return f"{len(rates)} workers ({speeds} points/s)"


def _rate(points_per_s: float) -> str:
    return f"{points_per_s:.0f}" if points_per_s >= 10 else f"{points_per_s:.2g}"


def _duration(seconds: float) -> str:
    """In the unit that leaves two digits or three."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def open_teller(
    progress: bool | ProgressCallback, *, clock: Callable[[], float] = time.monotonic
) -> ProgressCallback | None:
    """What is to be called with every Progress of one landscape; None where nothing is to be told.

    True: a line on a terminal's stderr, rewritten in place, or a display of a notebook, updated in place,
    every half second at most; where there is neither, a line in the log every 30 s and at the end. A function
    is called with every Progress. Raises InvalidTypeError for anything else.
    """
    if callable(progress):
        return progress
    if not isinstance(progress, bool):
        raise InvalidTypeError(
            f"progress must be True, False or a function of a Progress, got {progress!r} of type "
            f"{type(progress).__name__}"
        )
    if not progress:
        return None
    if in_notebook():
        return _Paced(_Display(), TELL_EVERY_S, clock)
    if sys.stderr is not None and sys.stderr.isatty():
        return _Paced(_TerminalLine(sys.stderr), TELL_EVERY_S, clock)
    return _Paced(_to_log, LOG_EVERY_S, clock, first_after_s=LOG_EVERY_S)


class _Paced:
    """Says the line every `every_s` seconds at most, and once at the end, behind which it says nothing."""

    def __init__(
        self,
        say: Callable[[str, bool], None],  # the line, whether it is the last
        every_s: float,
        clock: Callable[[], float],
        *,
        first_after_s: float = 0.0,
    ) -> None:
        self._say, self._every_s, self._clock = say, every_s, clock
        self._next = clock() + first_after_s
        self._is_over = False

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if self._is_over or (now < self._next and not progress.is_done):
            return
        self._next, self._is_over = now + self._every_s, progress.is_done
        self._say(line(progress), progress.is_done)


class _TerminalLine:
    """One line of a terminal, written over itself; a shorter one erases what is left of a longer one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._width = stream, 0

    def __call__(self, text: str, is_last: bool) -> None:
        text = fitting(text, _columns(self._stream) - 1)  # one that wraps could not be written over
        self._stream.write(f"\r{text:<{self._width}}" + ("\n" if is_last else ""))
        self._stream.flush()
        self._width = len(text)


def fitting(text: str, width: int) -> str:
    """The line without those of its last parts that do not fit."""
    while len(text) > width and (end := max(text.rfind(", "), text.rfind(" ("))) > 0:
        text = text[:end]
    return text[:width]


def _columns(stream: TextIO) -> int:
    """The width of the terminal; no limit where it has none, or does not tell."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or sys.maxsize
    except (OSError, ValueError, AttributeError):
        return sys.maxsize


class _Display:
    """One output of a notebook's cell, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None  # Any: IPython is not installed where this is checked

    def __call__(self, text: str, is_last: bool) -> None:
        data = {"text/plain": text}
        if self._handle is None:
            display: Any = importlib.import_module("IPython.display")  # Any: as above
            self._handle = display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _to_log(text: str, is_last: bool) -> None:
    _log.info("%s", text)
