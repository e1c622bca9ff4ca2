"""Failures are counted and logged once; waits for room are not repeated while nothing is done."""

import logging
import threading

import pytest

from distsummary.errors import WriteError
from distsummary.format.records import Health
from distsummary.writing.health import BoundedWait, Failures, told


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
    assert told(ValueError("one\n  two")) == "ValueError: one two"


def test_a_failure_of_the_background_is_raised_once_if_asked_for():
    quiet, strict = failures(), failures(raise_exception=True)
    for counted in (quiet, strict):
        counted.count("lost")
    quiet.raise_last()
    assert quiet.last == "lost"
    with pytest.raises(WriteError, match="not recorded: lost"):
        strict.raise_last()
    strict.raise_last()


def test_a_wait_in_vain_is_repeated_only_after_something_was_done(monkeypatch):
    changed, done, waits = threading.Condition(), [0], []
    monkeypatch.setattr(changed, "wait_for", lambda has_room, timeout: waits.append(timeout) or has_room())
    room = BoundedWait(changed, lambda: done[0])
    for has_room in (False, False, True):
        assert room.wait_for(lambda has_room=has_room: has_room, 0.5) is has_room
    done[0] = 1
    assert not room.wait_for(lambda: False, 0.5)
    assert waits == [0.5, 0.0, 0.0, 0.5]
