"""Gathers scalars that are given one by one: those of a step become a row, and rows are written together."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from distsummary.base.at_exit import close_at_exit, is_closed
from distsummary.errors import ClosedError, InvalidValueError, WriteError
from distsummary.events.writer import EventWriter
from distsummary.format.scalar_rows import Row, row_dtype, row_struct
from distsummary.training.forks import register_for_forks
from distsummary.training.values import check_tag

INTERVAL_S = 0.1  # what was added is passed on after so long
MOST = 4096  # scalars that wait; then the caller passes them on itself
STEPS = range(-(2**63), 2**63)  # int64 in the files

# tag, number, step, the time that was given (None: none was), the time
Scalar: TypeAlias = tuple[str, float, int, float | None, float]


class StepRows:
    """Passes rows to `writer`; one ends with the next step, a tag that it has, or another given time.

    The scalars of a row have one time: that of the first one, or the `wall_time` that all were given with.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._tags: set[str] = set()  # that were checked
        self._waiting: deque[Scalar] = deque()
        self._lock = threading.RLock()  # for who takes them
        self._is_asleep, self._most = True, MOST
        self._begun, self._closed = threading.Event(), threading.Event()
        threading.Thread(target=self._pass_on, name="distsummary-rows", daemon=True).start()
        # At exit the newest is closed first, hence this one before the writer.
        close_at_exit(self.close)
        register_for_forks(self)

    def after_fork(self) -> None:
        """In a forked child, which has no thread to pass rows on: the writer refuses what is added."""
        self._waiting.clear()
        self._lock = threading.RLock()
        self._is_asleep, self._most = False, 0

    def add(self, tag: str, number: float, step: int, wall_time: float | None = None) -> None:
        """Take one scalar; raises InvalidTypeError or InvalidValueError for a bad tag or step.

        Raises ClosedError in a forked child.
        """
        if tag not in self._tags:
            self._tags.add(check_tag(tag))
        if step not in STEPS:
            raise InvalidValueError(f"global_step of {tag!r} must be in [-2**63, 2**63), got {step}")
        waiting = self._waiting
        waiting.append((tag, number, step, wall_time, time.time() if wall_time is None else wall_time))
        if self._is_asleep:
            self._is_asleep = False
            self._begun.set()
        elif len(waiting) >= self._most:
            self.end_row()

    def end_row(self) -> None:
        """Pass on what waits, if anything does."""
        with self._lock:
            taken: list[Scalar] = []
            # A signal handler may have taken the rest.
            with suppress(IndexError):
                for _ in range(len(self._waiting)):
                    taken.append(self._waiting.popleft())
            for tags, rows in _rows(taken) if taken else ():
                self._writer.write_rows(tags, rows)

    def _pass_on(self) -> None:
        while not self._closed.is_set():
            self._begun.wait()
            self._closed.wait(INTERVAL_S)
            self._begun.clear()
            # Set before it takes what waits: what comes later wakes it again.
            self._is_asleep = True
            # What cannot be given to the writer has been counted by it.
            with suppress(ClosedError, WriteError):
                self.end_row()

    def close(self) -> None:
        """Pass the last row on; a second call does nothing."""
        if not self._closed.is_set():
            is_closed(self.close)
            self.end_row()
            self._closed.set()
            self._begun.set()


def _rows(scalars: Sequence[Scalar]) -> list[Row]:
    """The scalars as rows: tags, and the rows of consecutive steps with these tags, one after the other."""
    tags, numbers, steps, given_times, times = zip(*scalars, strict=True)
    # Mostly each step has the same tags in the same order: the whole rows among these form a table.
    width = next((place for place, step in enumerate(steps) if step != steps[0]), len(steps))
    names, height = tags[:width], len(steps) // width
    table = np.array(steps[: height * width], np.int64).reshape(height, width)
    is_regular = (
        len(set(names)) == width
        and tags[: height * width] == names * height
        and given_times.count(None) == len(given_times)
        and bool((table == table[:, :1]).all())
    )
    if not is_regular:
        return _irregular_rows(scalars)
    rows = np.empty(height, row_dtype(width))
    rows["wall_time"], rows["step"] = times[: height * width : width], table[:, 0]
    rows["numbers"] = np.array(numbers[: height * width], np.float64).reshape(height, width)
    return [(names, rows.tobytes()), *_irregular_rows(scalars[height * width :])]


def _irregular_rows(
    scalars: Sequence[Scalar],
) -> list[Row]:
    found: list[Row] = []
    row: dict[str, float] = {}
    head: tuple[float, int] = 0.0, 0
    given: float | None = None
    for tag, number, step, given_time, wall_time in scalars:
        if row and (step != head[1] or tag in row or given_time != given):
            found.append((tuple(row), row_struct(len(row)).pack(*head, *row.values())))
            row = {}
        if not row:
            head, given = (wall_time, step), given_time
        row[tag] = number
    if row:
        found.append((tuple(row), row_struct(len(row)).pack(*head, *row.values())))
    return found
