"""The progress of a landscape is shown where somebody looks, and not more often than they can read."""

import fcntl
import io
import logging
import os
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest

from distsummary import Progress
from distsummary.base.terminal import Estimate
from distsummary.errors import InvalidTypeError
from distsummary.landscapes.run.progress import MOST_RATES, line, progress_callback


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and what is on its lines once that is flushed."""

    def __init__(self, fileno: Callable[[], int] | None = None) -> None:
        super().__init__()
        self.flushed = ""
        self.fileno = fileno or super().fileno  # type: ignore[method-assign]  # the terminal's, if any

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushed = self.getvalue()

    @property
    def screen(self) -> list[str]:
        """What stands on each line: a carriage return goes back to its begin, and what follows overwrites."""
        lines = []
        for written in self.flushed.split("\n"):
            shown = ""
            for text in written.split("\r"):
                shown = text + shown[len(text) :]
            lines.append(shown.rstrip())
        return lines


def at(done: int, *, fresh: int | None = None, **changes: Any) -> Progress:
    """Of 2,601 points, 41 a second."""
    fresh = done if fresh is None else fresh
    return Progress(**({"done": done, "total": 2601, "seconds": fresh / 41, "fresh": fresh} | changes))


def first(progress: Progress) -> str:
    """The line while nothing is known of the time that is left."""
    return line(progress, Estimate())


WORKERS = {"a": 8.0, "b": 12.4, "c": 10.0, "d": 9.9}


def test_the_line_says_how_far_how_fast_how_long_and_by_whom() -> None:
    assert line(at(512, by_worker=WORKERS)) == (
        "landscape: 512/2601 points, 41 points/s, 51 s left, 4 workers (8 + 12 + 10 + 9.9 points/s)"
    )
    assert line(at(512, by_worker={"a": 8.0, "b": 12.0})).endswith("2 workers (8 + 12 points/s)")
    many = {str(number): 10.0 + number for number in range(MOST_RATES + 1)}
    assert line(at(512, by_worker=dict(list(many.items())[1:]))).endswith("+ 16 + 17 + 18 points/s)")
    assert line(at(512, by_worker=many)).endswith("9 workers (10 to 18 points/s)")
    assert line(at(512, by_worker={"here": 41.0})) == (
        "landscape: 512/2601 points, 41 points/s, 51 s left, 1 worker"
    )
    nodes = {"h0": 20.4, "h1": 19.9}
    assert line(at(512, by_worker=WORKERS, by_node=nodes)).endswith(
        "4 workers on 2 nodes (h0 20 + h1 20 points/s)"
    )
    assert line(at(512, by_worker=WORKERS, by_node={"h0": 41.0})).endswith("(8 + 12 + 10 + 9.9 points/s)")
    assert line(at(512, by_worker=many, by_node=many)).endswith("9 workers on 9 nodes (10 to 18 points/s)")
    assert line(at(2601)) == "landscape: 2601/2601 points, 41 points/s, in 63 s"


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (41.0, "41 points/s, 61 s left"),
        (0.463, "0.46 points/s, 90 min left"),
        (0.313, "0.31 points/s, 2.2 h left"),
    ],
)
def test_small_rates_and_long_times_are_said_in_two_digits(rate: float, said: str) -> None:
    assert line(at(100, total=2600, seconds=100 / rate)) == f"landscape: 100/2600 points, {said}"


def test_points_of_a_journal_count_as_done_and_not_into_the_rate() -> None:
    resumed = at(1100, fresh=100, seconds=10.0)
    assert (resumed.points_per_s, resumed.left_s) == (10.0, 150.1)
    assert line(at(2601, fresh=100, seconds=10.0)) == "landscape: 2601/2601 points, 10 points/s, in 10 s"
    nothing = at(1000, fresh=0, seconds=10.0)
    assert (nothing.points_per_s, nothing.left_s) == (0.0, None)
    assert line(nothing) == "landscape: 1000/2601 points"
    assert line(at(2601, fresh=0)) == "landscape: 2601/2601 points"
    assert at(5, seconds=0.0).left_s is None  # a clock that has not moved yet


def test_a_terminal_has_one_line_that_is_written_over_itself() -> None:
    stream, clock = Terminal(), Clock()
    with redirect_stderr(stream):
        report = progress_callback(True, clock=clock)
    assert report is not None
    report(at(32, by_worker=WORKERS))
    assert stream.screen == [first(at(32, by_worker=WORKERS))]
    clock.now += 0.4
    report(at(64))
    assert stream.screen == [first(at(32, by_worker=WORKERS))]  # too soon
    clock.now += 0.2
    report(at(96))
    assert stream.screen == [first(at(96))]  # nothing is left of the longer one
    report(at(2601))  # the end is shown at once,
    assert stream.screen == [first(at(2601)), ""]
    clock.now += 9.0
    report(at(2601))  # and once
    assert stream.screen == [first(at(2601)), ""]


def test_after_a_pause_lines_come_no_faster() -> None:
    stream, clock = Terminal(), Clock()
    with redirect_stderr(stream):
        report = progress_callback(True, clock=clock)
    assert report is not None
    clock.now += 9.0
    report(at(32))
    clock.now += 0.4
    report(at(64))
    assert stream.screen == [first(at(32))]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (20, "landscape: 512/2601"),
        (39, "landscape: 512/2601 points"),  # one more would fit, and the next line wrap
        (40, "landscape: 512/2601 points, 41 points/s"),
        (0, first(at(512))),  # that does not know its width
    ],
)
def test_a_line_never_wraps_in_a_narrow_terminal(columns: int, shown: str) -> None:
    terminal, device = os.openpty()
    fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    stream = Terminal(lambda: device)
    with redirect_stderr(stream):
        report = progress_callback(True, clock=Clock())
    assert report is not None
    report(at(512))
    assert stream.screen == [shown]
    os.close(device)
    os.close(terminal)


@pytest.mark.parametrize("error", [OSError, ValueError, AttributeError])
def test_a_terminal_that_does_not_report_its_width_has_the_whole_line(error: type[Exception]) -> None:
    def fileno() -> int:
        raise error

    stream = Terminal(fileno)
    with redirect_stderr(stream):
        report = progress_callback(True, clock=Clock())
    assert report is not None
    report(at(512))
    assert stream.screen == [first(at(512))]


def test_without_a_terminal_the_log_has_a_line_now_and_then_and_one_at_the_end(caplog):
    stream, clock = io.StringIO(), Clock()
    caplog.set_level(logging.INFO, "distsummary.landscapes.run.progress")
    with redirect_stderr(stream):
        report = progress_callback(True, clock=clock)
    assert report is not None
    for second in range(100):
        clock.now = 100.0 + second
        report(at(second + 1))
    said = ["41 points/s, 43 min left", "41 points/s, 42 min left", "41 points/s, 42 min left"]
    assert caplog.messages == [
        f"landscape: {done}/2601 points, {text}" for done, text in zip((31, 61, 91), said, strict=True)
    ]
    report(at(2601))
    report(at(2601))
    assert caplog.messages[3:] == [first(at(2601))]
    assert stream.getvalue() == ""


def test_a_process_without_stderr_reports_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "distsummary.landscapes.run.progress")
    with redirect_stderr(None):
        report = progress_callback(True, clock=Clock())
    assert report is not None
    report(at(2601))
    assert caplog.messages == [first(at(2601))]


class Display:
    """What IPython.display shows: by display id, the texts in the order of their showing."""

    def __init__(self) -> None:
        self.shown: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        texts = [data]
        self.shown.append(texts)
        return SimpleNamespace(update=lambda data, *, raw: texts.append(data))


def test_a_notebook_has_one_display_that_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = type("ZMQInteractiveShell", (), {})()  # IPython stands in: it is not among the dev tools
    display, clock = Display(), Clock()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    stream = Terminal()
    with redirect_stderr(stream):
        report = progress_callback(True, clock=clock)
    assert report is not None
    for done in (32, 64, 96):
        report(at(done))
        clock.now += 0.3
    report(at(2601))
    assert display.shown == [[{"text/plain": first(at(done))} for done in (32, 96, 2601)]]
    assert stream.getvalue() == ""


def test_a_function_gets_every_progress_and_false_reports_nothing() -> None:
    reported: list[Progress] = []
    assert progress_callback(reported.append) == reported.append
    assert progress_callback(False) is None


def test_anything_else_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="must be True, False or a function of a Progress, got 1"):
        progress_callback(1)  # type: ignore[arg-type]  # the point
