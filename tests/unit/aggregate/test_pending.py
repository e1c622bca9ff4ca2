"""What is pending until it is due."""

import math
from pathlib import Path

import numpy as np

from distsummary.aggregate.pending import Due, PendingSteps, Source
from distsummary.aggregate.rank_columns import Window
from distsummary.events.reader import ReadEvent
from distsummary.events.scalar_columns import ScalarColumns
from distsummary.format.records import Shard, Value

SAMPLE = "zz_system/process/memory_gib"
FILE = Path("events")


def event(rank: int, step: int, *values: Value, offset: int = 0) -> ReadEvent:
    return ReadEvent("aa", 0, 1, step, 100.0 + step + rank, [*values], FILE, offset, offset + 10)


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
    assert window is not None
    scalars = window.scalars
    return [
        (scalars.tags[which], rank, step, value)
        for which, rank, step, value in zip(*(column.tolist() for column in scalars[1:]), strict=True)
    ]


def test_steps_are_due_in_rising_order_below_the_floor():
    pending = PendingSteps(0)
    for step in (3, 7, 5):
        report(pending, step, step, loss=1.0)
    assert found(due_below(pending, 6)) == ([3, 5], [], [])
    assert found(due_below(pending, 6)) == ([], [], [])
    assert found(due_below(pending, math.inf)) == ([7], [], [])
    assert pending.size == 0
    assert pending.last_steps == {3: 3, 5: 5, 7: 7}


def test_a_step_that_has_waited_long_enough_is_due_with_those_before_it():
    pending = PendingSteps(0)
    report(pending, 0, 8, loss=1.0)
    assert found(due_below(pending, 0, now_s=10.0, wait_s=30.0)) == ([], [], [])
    report(pending, 1, 4, loss=1.0)
    report(pending, 0, 9, loss=1.0)
    due = due_below(pending, 0, now_s=40.0, wait_s=30.0)
    assert (found(due), due.short) == (([4, 8], [], []), 2)
    assert found(due_below(pending, 0, now_s=69.0, wait_s=30.0)) == ([], [], [])
    assert found(due_below(pending, 0, now_s=70.0, wait_s=30.0)) == ([9], [], [])


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


def test_samples_wait_as_long_as_it_takes_and_are_divided_from_the_rest():
    pending = PendingSteps(0)
    report(pending, 0, 2, **{"loss": 1.0, SAMPLE: 3.0})
    due = pending.due(3, 2, 100.0, 0.0)
    assert found(due) == ([2], [], [])
    assert (rows(due.steps[0]), due.samplers) == ([("loss", 0, 2, 1.0)], {2: {0}})
    due = pending.due(3, 3, 200.0, 0.0)
    assert rows(due.sampled) == [(SAMPLE, 0, 2, 3.0)]


def test_the_lowest_rank_has_the_bulk_value_and_a_graph_has_no_step():
    pending = PendingSteps(0)
    shard = Shard(global_shape=(4,), offset=(2,))
    for rank, start in ((2, 1), (1, 2), (1, 3), (5, 4)):
        values = Value("text", "note", "hi"), Value("histogram", "weight", None, shard)
        pending.add(Source(rank), [event(rank, 7, *values, offset=start)])
        pending.add(Source(rank), [event(rank, 0, Value("graph", "net", f"{rank} at {start}"))])
    due = due_below(pending, 8)
    assert found(due) == ([7], [], [])
    assert [(one.tag, one.rank, one.start) for one in due.steps[0].bulk if not one.is_shard] == [
        ("note", 1, 3)
    ]
    shards = {one.rank: one.start for one in due.steps[0].bulk if one.is_shard}
    assert shards == {2: 1, 1: 3, 5: 4}
    assert pending.graph is not None
    assert (pending.graph.rank, pending.graph.value.data) == (1, "1 at 3")


def test_memory_is_bounded_the_older_half_is_given_up():
    pending = PendingSteps(0, max_held=100)
    for step in range(100):
        report(pending, 0, step, loss=1.0)
    due = due_below(pending, -math.inf)
    assert (found(due), due.short) == ((list(range(51)), [], []), 51)
    assert found(due_below(pending, -math.inf)) == ([], [], [])
