"""One thread of a process looks at all that is watched in it."""

import threading
from collections.abc import Callable

from distsummary.collect.looks import Look, Looks
from tests.patience import PATIENCE_S


class Counted:
    """Something to look at, which counts its looks and calls a function in each."""

    def __init__(self, call: Callable[[Look], object] = lambda view: None) -> None:
        self.call, self.looks, self.is_seen = call, 0, threading.Event()

    def look(self, view: Look) -> None:
        self.looks += 1
        self.call(view)
        self.is_seen.set()


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "distsummary-watcher"]


def test_one_thread_looks_at_all_reads_each_thing_once_a_look_and_ends_with_the_last() -> None:
    read: list[int] = []
    looks = Looks(0.0)
    watched = [Counted(lambda view: view.read(read.append, 7)) for _ in range(300)]
    for one in watched:
        looks.add(one)
    assert threads() == ["distsummary-watcher"]
    for one in watched:
        assert one.is_seen.wait(PATIENCE_S)
    for one in watched:
        looks.remove(one)
    assert threads() == []
    assert len(read) <= max(one.looks for one in watched)
    looks.add(watched[0])
    assert threads() == ["distsummary-watcher"]
    looks.remove(watched[0])
    assert threads() == []


def test_what_was_removed_is_not_looked_at_any_more_and_may_remove_itself() -> None:
    looks = Looks(0.0)
    itself = Counted(lambda view: looks.remove(itself))
    is_free = threading.Event()
    slow = Counted(lambda view: is_free.wait(PATIENCE_S))
    looks.add(itself)
    assert itself.is_seen.wait(PATIENCE_S)
    looks.add(slow)
    while not slow.looks:
        pass
    removal = threading.Thread(target=looks.remove, args=(slow,))
    removal.start()
    is_free.set()
    removal.join()
    assert slow.is_seen.is_set()
    assert (itself.looks, slow.looks, threads()) == (1, slow.looks, [])
