"""DaemonThread, where the system starts no further thread."""

import logging
import threading

from distsummary.base.at_exit import DaemonThread


def test_work_without_a_thread_is_done_once_by_the_thread_that_joins_it(monkeypatch, caplog):
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", start)
    thread = DaemonThread(lambda: done.append(threading.get_ident()), "distsummary-test")
    with caplog.at_level(logging.WARNING):
        thread.start()
    assert thread.is_alive()
    assert done == []
    for _ in range(2):
        thread.join()
        assert not thread.is_alive()
    assert done == [threading.get_ident()]
    assert caplog.messages == [
        "distsummary-test: can't start new thread; its work is done when the run is closed"
    ]
