"""Failures are counted and logged once; waits for room are not repeated while nothing is done."""

import logging
from collections.abc import Callable

import pytest

from distsummary.base.failures import BoundedWait, DroppedSteps, Failures, Slowdown, error_line
from distsummary.base.health import Health
from distsummary.errors import WriteError


def failures(**options) -> Failures:
    return Failures(Health(), logging.getLogger(__name__), **options)


def test_a_failed_call_is_counted_and_raised_only_if_asked_for():
    quiet = failures()
    assert quiet.call("sum", lambda: 1 / 0) is None
    assert quiet.call("sum", sum, [1, 2]) == 3
    strict = Failures(quiet.health, logging.getLogger(__name__), raise_exception=True)
    with pytest.raises(WriteError, match="sum"):
        strict.call("around", strict.call, "sum", lambda: 1 / 0)
    assert quiet.health.errors == {"sum: ZeroDivisionError: division by zero": 2}


def test_a_reason_is_logged_once_with_its_prefix_and_counts_what_it_cost(caplog):
    counted = failures(prefix="rank=3 ")
    for _ in range(3):
        counted.count("the disk is full", dropped={"scalar": 2})
    assert caplog.text.count("rank=3 the disk is full") == 1
    assert counted.health.errors == {"the disk is full": 3}
    assert counted.health.dropped == {"scalar": 6}


def test_a_reason_is_one_line_without_colours():
    counted = failures()
    counted.count("\x1b[36mray::B.x()\x1b[39m (pid=7)\n    ^^^^\n\nValueError: no")
    assert counted.health.errors == {"ray::B.x() (pid=7) ^^^^ ValueError: no": 1}
    assert error_line(ValueError("one\n  two")) == "ValueError: one two"


def test_a_failure_of_the_background_is_raised_once_if_asked_for():
    quiet, strict = failures(), failures(raise_exception=True)
    for counted in (quiet, strict):
        counted.count("lost")
    quiet.raise_last()
    assert quiet.last == "lost"
    with pytest.raises(WriteError, match="not recorded: lost"):
        strict.raise_last()
    strict.raise_last()


class Waiting:
    """A condition and a clock: a wait takes the time that it was given, then `happen` is called."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, 0
        self.happen: Callable[[], None] = lambda: None

    def wait(self, timeout: float) -> None:
        self.now += timeout
        self.happen()

    def room(self) -> BoundedWait:
        return BoundedWait(self, lambda: self.done, lambda: self.now)


def test_a_wait_may_have_a_limit_whatever_is_done():
    at = Waiting()

    def happen() -> None:
        at.done += 1

    at.happen = happen
    room = at.room()
    assert not room.wait_for(lambda: False, 2.0, 5.0)
    assert at.now == 5.0
    assert not room.wait_for(lambda: False, 0.0)
    assert at.now == 5.0
    at.done += 1
    assert not room.wait_for(lambda: False, 2.0, 5.0)
    assert at.now == 10.0


def test_the_share_of_waiting_is_reported_for_each_window():
    at = Waiting()
    slowdown = Slowdown(lambda: at.now)
    shares = []
    for _ in range(44):  # 0.1 s of work, 0.4 s of waiting
        at.now += 0.5
        shares.append(slowdown.waited(0.4))
    reported = [share for share in shares if share]
    assert len(reported) == 2
    assert reported == pytest.approx([0.8, 0.8], abs=0.02)
    at.now += 1000.0
    assert slowdown.waited(0.5) < 0.01


def test_steps_that_are_dropped_are_reported_when_it_begins_and_when_it_ends(caplog):
    at, counted = Waiting(), failures()
    steps = DroppedSteps(counted, logging.getLogger(__name__), "rank=1 ", lambda: at.now)
    steps.end()
    assert steps.steps == 0
    assert caplog.messages == []
    for _ in range(1000):
        steps.add("the disk hangs", {"scalar": 20, "tensor": 1})
    assert steps.steps == 1000
    at.now = 7.0
    steps.end()
    assert steps.steps == 0
    assert caplog.messages == [
        "rank=1 the disk hangs; whole steps are dropped and counted from now on",
        "rank=1 1,000 step(s) with 21,000 values were dropped in 7 s: the disk hangs",
    ]
    assert counted.health.dropped == {"scalar": 20_000, "tensor": 1_000}
    assert counted.health.errors == {"the disk hangs": 1000}
