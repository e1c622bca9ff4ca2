"""Reports the progress of a landscape in a line of a terminal, in an output of a notebook, or in the log."""

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from distsummary.base.guard import guarded_log
from distsummary.base.terminal import EVERY_S, Estimate, TerminalLine, duration
from distsummary.errors import InvalidTypeError
from distsummary.rundir.topology import in_notebook

REPORT_EVERY_S = EVERY_S  # in a terminal and a notebook
LOG_EVERY_S = 30.0
PLAIN_EVERY_S = 10.0  # of the command line, if no one looks at a terminal
MOST_RATES = (
    8  # with more workers or nodes, a line shows only the range of their rates; a callback gets them all
)

_log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How many points of a landscape are done; the points of all its planes are counted together.

    Attributes:
        done, total: the number of points with a value, and of all points.
        seconds: the time since the first worker of this call began to evaluate.
        fresh: how many of `done` this call evaluated; the others were read from a journal.
        by_worker: worker -> its points per second, over the time that it worked.
        by_node: the name of a host -> the points per second of its workers together.
    """

    done: int
    total: int
    seconds: float
    fresh: int
    by_worker: Mapping[str, float] = field(default_factory=dict)
    by_node: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether every point has a value."""
        return self.done >= self.total

    @property
    def points_per_s(self) -> float:
        """The speed of all workers together; 0 until this call has evaluated a point."""
        return self.fresh / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the end; None until this call has evaluated a point."""
        return (self.total - self.done) / self.points_per_s if self.points_per_s else None


ProgressCallback: TypeAlias = Callable[[Progress], None]


def line(progress: Progress, estimate: Estimate | None = None) -> str:
    """As text: `landscape: 512/2601 points, 41 points/s, 51 s left, 2 workers (20 + 21 points/s)`.

    Of workers on several nodes, it has the speed of each: `4 workers on 2 nodes (h0 20 + h1 21 points/s)`.
    The time that is left is that of `estimate`, None: from the mean speed.
    """
    parts = [f"{progress.done}/{progress.total} points"]
    left_s = estimate.left_s(progress.done, progress.total) if estimate else progress.left_s
    if progress.points_per_s:
        parts.append(f"{_rate(progress.points_per_s)} points/s")
        if progress.is_done:
            parts.append(f"in {duration(progress.seconds)}")
        elif left_s is not None:
            parts.append(f"{duration(left_s)} left")
    if progress.by_worker:
        count, nodes = len(progress.by_worker), progress.by_node
        named = {f"{node} ": rate for node, rate in nodes.items()} if len(nodes) > 1 else {}
        rates = [*(nodes if named else progress.by_worker).values()]
        speeds = " + ".join(
            f"{name}{_rate(rate)}" for name, rate in named.items() or (("", one) for one in rates)
        )
        # Of many only the slowest and the fastest are shown.
        if len(rates) > MOST_RATES:
            speeds = f"{_rate(min(rates))} to {_rate(max(rates))}"
        where = f" on {len(nodes)} nodes" if named else ""
        parts.append("1 worker" if count == 1 else f"{count} workers{where} ({speeds} points/s)")
    return "landscape: " + ", ".join(parts)


def _rate(points_per_s: float) -> str:
    return f"{points_per_s:.0f}" if points_per_s >= 10 else f"{points_per_s:.2g}"


def progress_callback(
    progress: bool | ProgressCallback,
    *,
    clock: Callable[[], float] = time.monotonic,
    plain: Callable[[str], None] | None = None,
) -> ProgressCallback | None:
    """The function to call with every Progress of one landscape; None if progress is not reported.

    If `progress` is True, the function updates a line of a terminal (stderr) or an output of a notebook, at
    most every half second; if there is neither, it logs a line every 30 s and at the end. If `progress` is a
    function, it is returned unchanged. `plain` gets the lines in place of the log, every 10 s.
    Raises InvalidTypeError for other values.
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
        return _Paced(_Display(), REPORT_EVERY_S, clock)
    if sys.stderr is not None and sys.stderr.isatty():
        return _Paced(TerminalLine(sys.stderr), REPORT_EVERY_S, clock)
    if plain is not None:
        return _Paced(lambda text, _: plain(text), PLAIN_EVERY_S, clock)
    return _Paced(lambda text, _: _log.info("%s", text), LOG_EVERY_S, clock, first_after_s=LOG_EVERY_S)


class _Paced:
    """Passes the line to `say` every `every_s` seconds at most, and once more at the end."""

    def __init__(
        self,
        say: Callable[[str, bool], None],  # gets the line and whether it is the last one
        every_s: float,
        clock: Callable[[], float],
        *,
        first_after_s: float = 0.0,
    ) -> None:
        self._say, self._every_s, self._clock = say, every_s, clock
        self._next = clock() + first_after_s
        self._estimate = Estimate(clock)
        self._is_over = False

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        # The estimate needs every report, even those for which no line is shown.
        self._estimate.left_s(progress.done, progress.total)
        if self._is_over or (now < self._next and not progress.is_done):
            return
        self._next, self._is_over = now + self._every_s, progress.is_done
        self._say(line(progress, self._estimate), progress.is_done)


class _Display:
    """One output of a notebook's cell, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None  # Any: IPython is not installed where types are checked

    def __call__(self, text: str, is_last: bool) -> None:
        data = {"text/plain": text}
        if self._handle is None:
            display: Any = importlib.import_module("IPython.display")  # Any: as above
            self._handle = display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
