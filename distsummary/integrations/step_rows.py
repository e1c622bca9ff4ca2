"""Gathers scalars that are given one by one: those of a step become one row, which costs little to write."""

import threading
import time
from collections.abc import Callable

from distsummary.base.at_exit import close_at_exit, is_closed
from distsummary.events.writer import EventWriter
from distsummary.format.scalar_rows import MAX_PACKERS, row_struct
from distsummary.training.values import check_tag

INTERVAL_S = 0.1  # a row is passed on after so long, even if its step has not ended


class StepRows:
    """Passes rows to `writer`; one ends with the next step, a tag that it has, or another time.

    The scalars of a row have one time: that of the first one, or the `wall_time` that all were given with.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._lock = threading.RLock()  # a signal handler may add, too
        self._tags: set[str] = set()  # that were checked
        self._packers: dict[tuple[str, ...], tuple[tuple[str, ...], Callable[..., bytes]]] = {}
        self._numbers: dict[str, float] = {}
        self._step, self._wall_time = 0, 0.0
        self._given_time: float | None = None
        self._begun, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._pass_on, name="distsummary-rows", daemon=True).start()
        close_at_exit(self.close)  # before the writer is

    def add(self, tag: str, number: float, step: int, wall_time: float | None = None) -> None:
        """Take one scalar; raises InvalidTypeError or InvalidValueError for a bad tag."""
        if tag not in self._tags:
            self._tags.add(check_tag(tag))
        with self._lock:
            numbers = self._numbers
            if numbers and (step != self._step or tag in numbers or wall_time != self._given_time):
                self._pack()
                numbers = self._numbers
            if not numbers:
                self._step, self._given_time = step, wall_time
                self._wall_time = time.time() if wall_time is None else wall_time
                if not self._begun.is_set():
                    self._begun.set()
            numbers[tag] = number

    def end_row(self) -> None:
        """Pass the row on, if there is one."""
        with self._lock:
            if self._numbers:
                self._pack()

    def _pack(self) -> None:
        """Pass the row on; the lock must be held."""
        numbers, self._numbers = self._numbers, {}
        key = tuple(numbers)
        if (known := self._packers.get(key)) is None:
            if len(self._packers) >= MAX_PACKERS:
                self._packers.clear()
            known = self._packers[key] = key, row_struct(len(key)).pack
        tags, pack = known
        self._writer.write_row(tags, pack(self._wall_time, self._step, *numbers.values()))

    def _pass_on(self) -> None:
        while not self._closed.is_set():
            self._begun.wait()
            self._closed.wait(INTERVAL_S)
            self._begun.clear()
            self.end_row()

    def close(self) -> None:
        """Pass the last row on; a second call does nothing."""
        if not self._closed.is_set():
            is_closed(self.close)
            self.end_row()
            self._closed.set()
            self._begun.set()
