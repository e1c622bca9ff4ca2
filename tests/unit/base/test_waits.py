"""Where a stuck thread is, and threads that are none."""

import threading

import pytest

from distsummary import SummaryCollector, SummaryRecord
from distsummary.base.failures import awaiting, joined_in_time, place_of
from distsummary.errors import UsageError


def stuck(gate: threading.Event) -> None:
    gate.wait()


def test_the_place_of_a_waiter_is_that_of_the_thread_that_it_waits_for() -> None:
    gate, begun = threading.Event(), threading.Event()
    worker = threading.Thread(target=stuck, args=(gate,))

    def wait() -> None:
        with awaiting(worker):
            begun.set()
            worker.join()

    waiter = threading.Thread(target=wait)
    worker.start()
    waiter.start()
    begun.wait()
    try:
        assert stuck.__code__.co_filename.endswith("test_waits.py")
        assert f"test_waits.py:{stuck.__code__.co_firstlineno + 1}" in place_of(waiter)
        assert not joined_in_time(waiter, lambda: 0, 0.0)
    finally:
        gate.set()
        waiter.join()
        worker.join()
    assert place_of(waiter) == ""


@pytest.mark.parametrize("opens", [SummaryRecord, SummaryCollector])
def test_greenlets_in_place_of_threads_are_refused(opens, tmp_path, monkeypatch):
    # As monkey.patch_all() of gevent: a function of Python in place of the interpreter's.
    monkeypatch.setattr(threading, "get_ident", lambda: 1)
    with pytest.raises(UsageError, match=r"greenlets.*patch_all\(thread=False"):
        opens(str(tmp_path))
