"""An interrupt that Python drops is raised all the same."""

import signal
import sys
import threading
import time
import weakref

import pytest

from distsummary.base.interrupts import handles_interrupts, uninterrupted
from tests.interrupts import Dropping, sigint

LONG_S = 60


@pytest.fixture(autouse=True)
def _interruptible():
    with sigint(signal.default_int_handler):
        yield


def weakly_referenced():
    """Interrupts in the callback of a weak reference to what is gone at once."""
    return weakref.ref(set(), lambda _: signal.raise_signal(signal.SIGINT))


@pytest.mark.parametrize("drop", [Dropping, weakly_referenced])
def test_what_waits_is_interrupted(drop):
    @handles_interrupts()
    def wait():
        drop()
        time.sleep(LONG_S)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - begun < LONG_S


def test_one_that_is_dropped_again_is_sent_again():
    class Slow:
        def __del__(self):
            time.sleep(0.5)

    @handles_interrupts()
    def wait():
        Dropping()
        Slow()
        time.sleep(LONG_S)

    with pytest.raises(KeyboardInterrupt):
        wait()


def test_one_that_is_dropped_at_the_very_end_is_raised_there():
    with pytest.raises(KeyboardInterrupt), handles_interrupts(), handles_interrupts():
        Dropping()


@pytest.fixture
def seen(monkeypatch):
    """The types of the errors that Python's own hook gets."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: found.append(ignored.exc_type))
    return found


def test_the_hook_and_the_thread_go_and_other_errors_are_reported_as_before(seen):
    class Failing:
        def __del__(self):
            raise ValueError("in a destructor")

    before, threads = sys.unraisablehook, threading.active_count()
    with handles_interrupts():
        Failing()
    assert seen == [ValueError]
    assert sys.unraisablehook is before
    assert threading.active_count() == threads


def test_a_handler_of_the_users_own_is_called_once(seen):
    calls = []

    def handler(number, frame):
        calls.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    with handles_interrupts():
        Dropping()
    assert calls == [signal.SIGINT]
    assert seen == [KeyboardInterrupt]


def test_nothing_changes_in_other_threads():
    hooks = []

    @handles_interrupts()
    def ask():
        hooks.append(sys.unraisablehook)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert hooks == [sys.unraisablehook]


def test_what_must_be_finished_is_finished_before_an_interrupt_is_raised():
    done = []

    def finish():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        finish()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
