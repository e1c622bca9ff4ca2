"""A long command shows what it does: over one line of a terminal, else in plain lines; times do not jump."""

import io
import re
import threading
from typing import Any

import numpy as np
import pytest

from distsummary.base.terminal import Estimate, doing, fitting, painted, pausing_progress, showing_progress
from tests.patience import PATIENCE_S

LINE = "landscape: 512/2601 points, 41 points/s, 51 s left, 4 workers (8 + 12 + 10 + 9.9 points/s)"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, "landscape: 512/2601 points, 41 points/s, 51 s left, 4 workers (8 + 12 + 10 + 9.9 points/s)"),
        (79, "landscape: 512/2601 points, 41 points/s, 51 s left, 4 workers"),
        (60, "landscape: 512/2601 points, 41 points/s, 51 s left"),
        (50, "landscape: 512/2601 points, 41 points/s, 51 s left"),
        (40, "landscape: 512/2601 points, 41 points/s"),
        (30, "landscape: 512/2601 points"),
        (12, "landscape: 5"),
    ],
)
def test_what_does_not_fit_is_left_out_from_the_end(width: int, shown: str) -> None:
    assert fitting(LINE, width) == shown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_states_have_a_colour_on_a_terminal_whose_user_wants_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    text = "0 running, 1 lost; rank 2 held up the run: runs/lost, lost.py, --failed"
    red, green, yellow = "\x1b[31mlost\x1b[0m", "\x1b[32mrunning\x1b[0m", "\x1b[33mheld up\x1b[0m"
    assert painted(text, Screen()) == (
        f"0 {green}, 1 {red}; rank 2 {yellow} the run: runs/lost, lost.py, --failed"
    )
    assert painted(text, io.StringIO()) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted(text, Screen()) == text


def estimates(done: Any, total: float, *, each_s: float = 0.5) -> list[float]:
    """The estimates of work of which `done` is done at each moment, from the first one on."""
    now = 100.0
    estimate = Estimate(lambda: now)
    found = []
    for part in done:
        left_s = estimate.left_s(part, total)
        found += [] if left_s is None else [left_s]
        now += each_s
    return found


def test_an_even_speed_has_an_exact_estimate() -> None:
    found = estimates(10.0 * np.arange(100), 1000)
    assert len(found) > 90, "after the first seconds"
    np.testing.assert_allclose(found, (100 - np.arange(100)[-len(found) :]) * 0.5, atol=0.5)


def test_an_estimate_does_not_jump_while_workers_join() -> None:
    speed = np.repeat([0.2, 25, 60, 100], [4, 8, 10, 80])  # points in half a second
    found = np.array(estimates(np.cumsum(speed), 9000))
    ratio = found[1:] / found[:-1]
    assert ratio.max() < 1.3
    assert ratio.min() > 0.6


def test_a_slow_beginning_is_soon_forgotten() -> None:
    done = np.cumsum(np.repeat([0.5, 50.0], [40, 60]))  # 20 s in which workers start
    found = np.array(estimates(done, 4000))
    left_s = (4000 - done[-len(found) :]) / 100
    assert (found < 2 * left_s)[16:].all(), "within 8 s"


def test_bursts_do_not_make_it_jump() -> None:
    found = np.array(estimates(np.repeat(np.arange(40) * 50.0, 8), 2000)[4:-40])
    assert np.abs(np.diff(found)).max() < 0.25 * found[0]


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and sets an event when it shows how much is done."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        if " 3 of 64" in self.getvalue():  # the first line may come before `doing`
            self.written.set()


def test_a_terminal_shows_what_is_done_and_is_left_clean() -> None:
    stream = Terminal()
    with showing_progress("fsck", stream, after_s=0.01):
        doing("checking directory", 3, 64)
        assert stream.written.wait(PATIENCE_S)
        assert re.search(r"\rdistsummary fsck: checking directory 3 of 64, \d+ s so far", stream.getvalue())
        with pausing_progress():
            assert stream.getvalue().endswith("\r")
    assert stream.getvalue().endswith("\r")
    assert "\n" not in stream.getvalue()


def test_a_file_gets_plain_lines_and_a_short_command_none() -> None:
    stream = io.StringIO()
    with showing_progress("merge", stream):
        doing("reading part", 1, 2)
    assert stream.getvalue() == ""
    reported = threading.Event()

    class File(io.StringIO):
        def flush(self) -> None:
            if " 1 of 2" in self.getvalue():
                reported.set()

    file = File()
    with showing_progress("merge", file, after_s=0.01):
        doing("reading part", 1, 2)
        assert reported.wait(PATIENCE_S)
    assert re.search(r"^distsummary merge: reading part 1 of 2, \d+ s so far$", file.getvalue(), re.MULTILINE)
    assert "\r" not in file.getvalue()
