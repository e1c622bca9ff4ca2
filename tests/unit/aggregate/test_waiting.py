"""What waits until it is due."""

import math
from pathlib import Path

import numpy as np
import pytest

from distsummary.aggregate import waiting as module
from distsummary.aggregate.rank_tail import FileRange
from distsummary.aggregate.waiting import GRAPH, Due, PackedRow, Waiting, rows_of
from distsummary.format.records import MAX_TAG_BYTES
from distsummary.format.scalar_rows import row_struct

SAMPLE = "system/process/memory_gib"
PLACE = FileRange(Path("events"), 0, 10)


def report(waiting: Waiting, rank: int, step: int, **values: float) -> None:
    tags = tuple(values)
    packed = row_struct(len(tags)).pack(100.0 + step + rank, step, *values.values())
    waiting.add_row(rank, step, 100.0 + step + rank, tags, packed)


def due_below(waiting: Waiting, floor: float, now_s: float = 0.0, wait_s: float = math.inf) -> Due:
    return waiting.due(floor, floor, now_s, wait_s)


def pending(due: Due) -> tuple[list[int], ...]:
    return list(due.steps), list(due.late), list(due.sampled)


def test_steps_are_due_in_rising_order_below_the_floor():
    waiting = Waiting()
    for step in (3, 7, 5):
        report(waiting, step, step, loss=1.0)
    assert pending(due_below(waiting, 6)) == ([3, 5], [], [])
    assert pending(due_below(waiting, 6)) == ([], [], [])
    assert pending(due_below(waiting, math.inf)) == ([7], [], [])
    assert waiting.is_empty
    assert waiting.reached == {3: 3, 5: 5, 7: 7}


def test_a_step_that_has_waited_long_enough_is_due_with_those_before_it():
    waiting = Waiting()
    report(waiting, 0, 8, loss=1.0)
    assert pending(due_below(waiting, 0, now_s=10.0, wait_s=30.0)) == ([], [], [])
    report(waiting, 1, 4, loss=1.0)
    report(waiting, 0, 9, loss=1.0)
    due = due_below(waiting, 0, now_s=40.0, wait_s=30.0)
    assert (pending(due), due.short) == (([4, 8], [], []), 2)


def test_what_is_reported_of_an_older_step_waits_for_the_ranks_that_may_report_it_still():
    waiting = Waiting()
    report(waiting, 0, 1, loss=1.0)
    report(waiting, 0, 4, loss=1.0)
    report(waiting, 0, 1, acc=0.5)
    report(waiting, 1, 6, loss=1.0)
    report(waiting, 1, 1, acc=0.7)
    assert pending(due_below(waiting, 5)) == ([1, 4], [], [])
    assert pending(due_below(waiting, 6)) == ([], [], [])
    due = due_below(waiting, 7)
    assert pending(due) == ([6], [1], [])
    assert [row.rank for row in due.late[1].rows] == [0, 1]


def test_samples_wait_as_long_as_it_takes_and_are_divided_from_the_rest():
    waiting = Waiting()
    report(waiting, 0, 2, **{"loss": 1.0, SAMPLE: 3.0, "": 9.0, "x" * (MAX_TAG_BYTES + 1): 9.0})
    due = waiting.due(3, 2, 100.0, 0.0)
    assert pending(due) == ([2], [], [])
    assert [(row.tags, row_struct(1).unpack(row.packed)) for row in due.steps[2].rows] == [
        (("loss",), (102.0, 2, 1.0))
    ]
    due = waiting.due(3, 3, 200.0, 0.0)
    assert [(row.tags, row_struct(1).unpack(row.packed)) for row in due.sampled[2].rows] == [
        ((SAMPLE,), (102.0, 2, 3.0))
    ]


def test_the_lowest_rank_has_the_bulk_value_and_a_graph_has_no_step():
    waiting = Waiting()
    for rank, start in ((2, 1), (1, 2), (1, 3), (5, 4)):
        waiting.add_bulk(rank, 7, 100.0, ("text", "note"), PLACE._replace(start=start))
        waiting.add_bulk(rank, 0, 100.0, ("graph", "net"), PLACE._replace(start=start))
        waiting.add_shard(rank, 7, 100.0, ("histogram", "weight"), PLACE._replace(start=start))
    due = due_below(waiting, 8)
    assert pending(due) == ([7], [], [])
    assert [(key, bulk.rank, bulk.place.start) for key, bulk in due.steps[7].bulk.items()] == [
        (("text", "note"), 1, 3)
    ]
    assert {rank: place.start for rank, place in due.steps[7].shards["histogram", "weight"].items()} == {
        2: 1,
        1: 3,
        5: 4,
    }
    graph = waiting.take_graph()
    assert graph is not None
    assert (graph[0].rank, graph[0].place.start) == (1, 3)
    assert waiting.take_graph() is None
    assert GRAPH[0] == "graph"


def test_memory_is_bounded_the_older_half_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 10_000)
    waiting = Waiting()
    for step in range(100):
        report(waiting, 0, step, loss=1.0)
    due = due_below(waiting, -math.inf)
    assert (pending(due), due.short) == ((list(range(51)), [], []), 51)
    assert pending(due_below(waiting, -math.inf)) == ([], [], [])


def test_rows_of_several_sets_of_tags_keep_their_order():
    def row(rank: int, step: int, **values: float) -> PackedRow:
        return PackedRow(rank, tuple(values), row_struct(len(values)).pack(0.0, step, *values.values()))

    rows = rows_of([row(0, 1, a=1.0, b=2.0), row(1, 1, b=3.0), row(0, 1, b=4.0, a=5.0), row(1, 2, b=6.0)])
    found = [
        (rows.tags[tag], rank, step, value)
        for tag, rank, step, value in zip(rows.which, rows.ranks, rows.steps, rows.values, strict=True)
    ]
    assert found == [
        ("a", 0, 1, 1.0),
        ("b", 0, 1, 2.0),
        ("b", 1, 1, 3.0),
        ("b", 0, 1, 4.0),
        ("a", 0, 1, 5.0),
        ("b", 1, 2, 6.0),
    ]
    assert rows_of([]).values.dtype == np.float64
