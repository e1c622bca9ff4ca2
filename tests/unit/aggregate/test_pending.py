"""What is pending until it is due."""

import math
from pathlib import Path

import numpy as np

from distsummary.aggregate.pending import Due, PendingSteps, Source
from distsummary.aggregate.rank_columns import Window
from distsummary.events.reader import ReadEvent
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.format.records import Value

FILE = Path("events")


def event(rank: int, step: int, *values: Value) -> ReadEvent:
    return ReadEvent("aa", 0, 1, step, 100.0 + step + rank, [*values], FILE, 0, 10)


def report(pending: PendingSteps, rank: int, step: int, **values: float) -> None:
    pending.add(
        Source(rank), [event(rank, step, *(Value("scalar", tag, data) for tag, data in values.items()))]
    )


def columns(steps: list[int]) -> ScalarColumns:
    """One loss at each step."""
    numbers = np.array(steps, np.int64)
    ones = np.ones(len(steps), np.int64)
    empty = np.zeros(len(steps), np.int64)
    losses = numbers.astype(np.float64)
    return ScalarColumns(
        "aa", 0, empty, numbers, losses, empty, empty, ones, losses, empty.astype(np.int32), ["loss"]
    )


def due_below(pending: PendingSteps, floor: float, now_s: float = 0.0, wait_s: float = math.inf) -> Due:
    return pending.due(floor, floor, now_s, wait_s)


def steps_of(*windows: Window | None) -> list[int]:
    return [step for window in windows if window is not None for step in window.steps.tolist()]


def found(due: Due) -> tuple[list[int], ...]:
    return steps_of(*due.steps), steps_of(due.late), steps_of(due.sampled)


def rows(window: Window | None) -> list[tuple[str, int, int, float]]:
    scalars = window.scalars
    return [
        (scalars.tags[which], rank, step, value)
        for which, rank, step, value in zip(*(column.tolist() for column in scalars[1:]), strict=True)
    ]


def test_what_is_reported_of_an_older_step_waits_for_the_ranks_that_may_report_it_still():
    pending = PendingSteps(0)
    report(pending, 0, 1, loss=1.0)
    report(pending, 0, 4, loss=1.0)
    report(pending, 0, 1, acc=0.5)
    report(pending, 1, 6, loss=1.0)
    report(pending, 1, 1, acc=0.7)
    assert found(due_below(pending, 5)) == ([1, 4], [], [])
    assert found(due_below(pending, 6)) == ([], [], [])
    due = due_below(pending, 7)
    assert found(due) == ([6], [1], [])
    assert rows(due.late) == [("acc", 0, 1, 0.5), ("acc", 1, 1, 0.7)]


def test_columns_are_divided_at_the_steps_that_a_rank_had_passed():
    pending = PendingSteps(0)
    pending.add(Source(0), [columns([1, 2, 5, 3, 5, 6])])
    due = due_below(pending, 6)
    assert rows(due.steps[0]) == [("loss", 0, 1, 1.0), ("loss", 0, 2, 2.0), *[("loss", 0, 5, 5.0)] * 2]
    pending.add(Source(0), [columns([4, 7])])
    assert found(due_below(pending, 7)) == ([6], [3], [])
    assert found(due_below(pending, 8)) == ([7], [4], [])


def test_memory_is_bounded_the_older_half_is_given_up():
    pending = PendingSteps(0, max_held=100)
    for step in range(100):
        report(pending, 0, step, loss=1.0)
    due = due_below(pending, -math.inf)
    assert (found(due), due.short) == ((list(range(51)), [], []), 51)
    assert found(due_below(pending, -math.inf)) == ([], [], [])
