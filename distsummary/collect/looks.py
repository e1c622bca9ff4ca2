"""Looks: one thread of a process looks at each training in it, twice a second.

With a thread for each of many ranks in one process, the thread that trains them would hardly get the
interpreter lock, so that their steps were late because they were reported to be.
"""

import os
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from distsummary.base.at_exit import DaemonThread

LOOK_S = 0.5  # seconds between two looks
REST = 4  # after a look that has computed for long, the thread rests for so many times as long
STOP_S = 1.0  # `remove` waits this long for a look that is being taken

P = ParamSpec("P")
T = TypeVar("T")


class Look:
    """One look: what it reads of the process is read once, however many trainings are looked at."""

    def __init__(self) -> None:
        self._read: dict[Hashable, Any] = {}  # Any: results of different functions

    def read(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What the function returns, which is called at the first request."""
        key = function, args, *named.items()
        if key not in self._read:
            self._read[key] = function(*args, **named)
        found: T = self._read[key]
        return found


class Watched(Protocol):
    """Something to look at."""

    def look(self, view: Look) -> None:
        """Look once; raises nothing."""


class Looks:
    """The thread, and what it looks at; it ends when nothing is left. `look_s`: between two looks."""

    def __init__(self, look_s: float = LOOK_S) -> None:
        self._look_s = look_s
        self._changed = threading.Condition()
        self._watched: dict[Watched, None] = {}
        self._at: Watched | None = None  # what is being looked at
        self._thread: DaemonThread | None = None
        self._is_over = threading.Event()  # for that thread

    def add(self, one: Watched) -> None:
        """Look at it from now on."""
        with self._changed:
            self._watched[one] = None
            if self._thread is None or self._thread.is_deferred:
                self._is_over = threading.Event()
                self._thread = DaemonThread(partial(self._run, self._is_over), "distsummary-watcher")
                self._thread.start()

    def remove(self, one: Watched) -> None:
        """Do not look at it any more; waits at most a second for a look that is being taken."""
        with self._changed:
            if one not in self._watched:
                return
            del self._watched[one]
            is_own = self._thread is threading.current_thread()
            self._changed.wait_for(lambda: self._at is not one or is_own, STOP_S)
            if self._watched or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._is_over.set()
        if not is_own:
            thread.join(STOP_S)

    def _run(self, is_over: threading.Event) -> None:
        pause_s = self._look_s
        while not is_over.wait(pause_s):
            begun_s = time.thread_time()
            view = Look()
            for one in [*self._watched]:
                with self._changed:
                    # It may have been removed meanwhile.
                    self._at = one if one in self._watched else None
                try:
                    if self._at is not None:
                        one.look(view)
                finally:
                    with self._changed:
                        self._at = None
                        self._changed.notify_all()
            # What was read is as old as the look.
            del view
            pause_s = max(self._look_s, REST * (time.thread_time() - begun_s))


looks = Looks()
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=looks.__init__)  # type: ignore[misc]  # begins again
