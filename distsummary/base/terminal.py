"""What a long command does now: a line of the terminal that is written over, else a plain line at times.

Code that works for long calls `doing`, which costs next to nothing and says nothing unless somebody opened
`showing_progress`, as the command line does.
"""

import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

SHOWN_AFTER_S = 1.0  # a command that takes less says nothing
EVERY_S = 0.5  # in a terminal
# Elsewhere: the first line, and the longest time to the next; each time is twice the last.
PLAIN_S = 2.0, 60.0
# An estimate is from the speed in this time, or in the last third of the whole if that is longer.
WINDOW_S = 10.0
SETTLED_S = 3.0  # without an estimate at the beginning, when the speed says little
LEAST_SHARE, LATEST_S = 0.05, 30.0  # nor before this share is done, but after this time in any case
STEADY_S = 3.0  # a change of the speed enters the estimate within about this time
_COLOURS = (0, 31, 33, 32)  # of a terminal: none, red, yellow, green
_STATES = re.compile(  # what is broken, what is odd and what is well; no part of a path or a name
    r"(?<![\w/.=-])(?:(failed|lost|dead|stuck|hangs|hung|errors?|not finite|NaN)"
    r"|(held up|behind|interrupted|incomplete|superseded|missing|unreadable|warnings?)"
    r"|(running|finished|fine))(?![\w/=-]|\.\w)"
)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Estimate:
    """The seconds that are left, from the speed of the last while and smoothed, so that they do not jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()  # (time, done)
        self._begun = self._speed = 0.0
        self._end: float | None = None  # when it will be over

    def left_s(self, done: float, total: float) -> float | None:
        """Note how much is done now; the seconds that are left, None as long as the speed is not known."""
        now = self._clock()
        if not self._seen:
            self._begun = now
        passed = now - self._seen[-1][0] if self._seen else EVERY_S
        if passed >= EVERY_S:
            self._seen.append((now, done))
            window = max(WINDOW_S, (now - self._begun) / 3)
            # The oldest point that is kept is the newest one that is as old as the window.
            while len(self._seen) > 2 and now - self._seen[1][0] >= window:
                self._seen.popleft()
            first, done_then = self._seen[0]
            if now - self._begun >= SETTLED_S and done > done_then:
                # Exponential smoothing: the weight of the old speed falls with the time that has passed.
                kept = math.exp(-passed / STEADY_S) if self._speed else 0.0
                self._speed = kept * self._speed + (1 - kept) * (done - done_then) / (now - first)
                self._end = now + (total - done) / self._speed
        is_settled = now - self._begun >= LATEST_S or done >= LEAST_SHARE * total
        return None if self._end is None or not is_settled else max(0.0, self._end - now)


def duration(seconds: float) -> str:
    """As text, such as 3 s, 12 min, 3.2 h or 4.0 d."""
    for most, unit, name in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < most:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


class TerminalLine:
    """A line of a terminal that each call overwrites; spaces hide the end of a longer earlier text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._width = stream, 0

    def __call__(self, text: str, is_last: bool = False) -> None:
        """Show the text; the last one stays."""
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or sys.maxsize
        except (OSError, ValueError, AttributeError):
            # A terminal without a width.
            width = sys.maxsize
        # A line that wraps could not be overwritten.
        text = fitting(text, width - 1)
        self._stream.write(f"\r{text:<{self._width}}" + ("\n" if is_last else ""))
        self._stream.flush()
        self._width = 0 if is_last else len(text)

    def clear(self) -> None:
        """Leave an empty line, for another text to be written on."""
        if self._width:
            self("")
            self._stream.write("\r")
            self._stream.flush()
            self._width = 0


def fitting(text: str, width: int) -> str:
    """The line, shortened to fit the width by removing whole parts at its end."""
    while len(text) > width and (end := max(text.rfind(", "), text.rfind(" ("))) > 0:
        text = text[:end]
    return text[:width]


class _Progress(threading.Thread):
    """Shows every half second what `doing` noted last."""

    def __init__(self, name: str, stream: TextIO, after_s: float | None) -> None:
        super().__init__(name="distsummary-progress", daemon=True)
        self._after_s = after_s
        self.lock = threading.RLock()
        self.line = TerminalLine(stream) if stream.isatty() else None
        self.over = threading.Event()
        self.noted: tuple[str, float, float] = ("", 0, 0)
        self._name, self._stream, self._begun = name, stream, time.monotonic()

    def run(self) -> None:
        """Until `over` is set."""
        estimate, what = Estimate(), ""
        pause, longest = PLAIN_S
        wait = (SHOWN_AFTER_S if self.line else pause) if self._after_s is None else self._after_s
        while not self.over.wait(wait):
            text, done, total = self.noted
            if text != what:
                estimate, what = Estimate(), text
            left_s = estimate.left_s(done, total) if total else None
            seconds = duration(time.monotonic() - self._begun)
            parts = [f"distsummary {self._name}: {text or 'working'}"]
            if done:
                parts[0] += f" {done:,.0f} of {total:,.0f}" if total else f" {done:,.0f}"
            parts.append(f"{seconds} so far")
            if left_s:
                parts.append(f"about {duration(left_s)} left")
            try:
                with self.lock:
                    # The command may have ended while this thread waited for the lock.
                    if self.over.is_set():
                        return
                    if self.line:
                        self.line(", ".join(parts))
                    else:
                        print(", ".join(parts), file=self._stream, flush=True)
            except (OSError, ValueError):
                # The stream was closed: no one looks any more.
                return
            wait = EVERY_S if self.line else min(longest, wait * 2)


_progress: _Progress | None = None
_noted: tuple[str, float, float] = ("", 0, 0)


def doing(text: str, done: float = 0, total: float = 0) -> None:
    """Note what is being done now, such as "reading rank", and how much of it; total 0: unknown."""
    global _noted
    _noted = text, done, total
    if _progress is not None:
        _progress.noted = _noted


def noted() -> tuple[str, float, float]:
    """What `doing` noted last, by any thread."""
    return _noted


@contextmanager
def pausing_progress() -> Iterator[None]:
    """Within it, no progress is shown and its line is empty, for something else to be written."""
    progress = _progress
    if progress is None:
        yield
        return
    with progress.lock:
        if progress.line is not None:
            progress.line.clear()
        yield


def cleaned(text: str) -> str:
    """Text of others without characters that control a terminal; they become "?"."""
    return _CONTROL.sub("?", text)


def printed(text: str, *, file: TextIO | None = None) -> None:
    """Print cleaned lines on stdout or `file`; no progress is shown while `less` keeps it waiting."""
    with pausing_progress():
        print(painted(cleaned(text), file or sys.stdout), file=file, flush=file is not None)


def painted(text: str, stream: TextIO) -> str:
    """The text, its words for good and bad states in colours if the stream is a terminal (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return _STATES.sub(lambda found: f"\x1b[{_COLOURS[found.lastindex or 0]}m{found[0]}\x1b[0m", text)


def announced(text: str) -> None:
    """Write a cleaned line to stderr, past `print`: that of Ray Train's workers writes everything twice."""
    sys.stderr.write(f"{cleaned(text)}\n")
    sys.stderr.flush()


@contextmanager
def showing_progress(
    name: str, stream: TextIO | None = None, *, after_s: float | None = None
) -> Iterator[None]:
    """While it is open, show on stderr (or `stream`) what `doing` notes, from the first second on.

    Where stderr is no terminal, as in a batch job, there is a line after 2 s and then after twice the time
    each, but at least every minute. `after_s`: seconds until the first one; None: as above.
    """
    global _progress
    stream = stream or sys.stderr
    # A process may have no stderr, and progress may be shown already.
    if stream is None or _progress is not None:
        yield
        return
    progress = _progress = _Progress(name, stream, after_s)
    progress.start()
    try:
        yield
    finally:
        _progress = None
        progress.over.set()
        progress.join()
        if progress.line is not None:
            progress.line.clear()
