from collections.abc import Sequence

import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.landscape.directions import Directions
from distsummary.landscape.plan import Chunk, PlanePlan, plan_chunks
from distsummary.landscape.scheduler import Progress, Scheduler


def chunks(count: int, size: int = 2) -> list[Chunk]:
    return [Chunk(plane=0, kind="grid", row=row, start=0, stop=size) for row in range(count)]


def plane(size: tuple[int, int], states: int) -> PlanePlan:
    return PlanePlan(
        states=[{}] * states,
        names=(),
        recipe=Directions(x={}, y={}),
        x=np.zeros(size[0]),
        y=np.zeros(size[1]),
        points=np.zeros((states, 2)),
    )


@pytest.mark.parametrize("grid_chunk", [1, 3, 7, 100])
def test_the_plan_has_every_point_once_and_no_chunk_longer_than_asked(grid_chunk: int) -> None:
    planes = [plane((7, 4), 19), plane((5, 3), 1)]
    planned = plan_chunks(planes, grid_chunk=grid_chunk)
    points = [(c.plane, c.kind, c.row, column) for c in planned for column in range(c.start, c.stop)]
    assert len(points) == len(set(points)) == 7 * 4 + 2 * 19 + 5 * 3 + 2
    assert all(0 < len(c) <= grid_chunk for c in planned if c.kind == "grid")
    assert {(0, "grid", 3, 6), (0, "path", 0, 18), (0, "checkpoint", 0, 18), (1, "grid", 2, 4)} <= set(points)


def finish(scheduler: Scheduler, worker: str, chunk: Chunk, value: float = 1.0) -> None:
    scheduler.done(worker, chunk, np.full(len(chunk), value))


def take(scheduler: Scheduler, worker: str) -> Chunk:
    chunk = scheduler.next_chunk(worker)
    assert chunk is not None
    return chunk


def rows(found: Sequence[Chunk]) -> list[int]:
    return [chunk.row for chunk in found]


def test_chunks_are_handed_out_in_order_until_all_are_done() -> None:
    scheduler = Scheduler(chunks(3))
    first, second, third = take(scheduler, "a"), take(scheduler, "b"), take(scheduler, "a")
    assert rows([first, second, third]) == [0, 1, 2]
    assert scheduler.next_chunk("b") is None
    assert scheduler.waiting == 0
    for worker, chunk in [("b", second), ("a", first)]:
        finish(scheduler, worker, chunk)
    assert not scheduler.is_finished
    assert scheduler.progress() == Progress(done=4, total=6)
    finish(scheduler, "a", third)
    assert scheduler.is_finished
    assert set(scheduler.results) == {first, second, third}


def test_chunks_of_a_lost_worker_go_to_the_front_in_their_order() -> None:
    scheduler = Scheduler(chunks(4))
    take(scheduler, "a"), take(scheduler, "a"), take(scheduler, "b")
    assert scheduler.lost("a") == []
    assert rows([take(scheduler, "b") for _ in range(3)]) == [0, 1, 3]


def test_a_chunk_that_kills_three_workers_is_nan_and_reported_and_its_companions_are_not() -> None:
    scheduler = Scheduler(chunks(3))
    for name in ("a", "b", "c"):
        held = [take(scheduler, name), take(scheduler, name)]
        assert rows(held) == [0, 1]
        given_up = scheduler.lost(name)
    assert rows(given_up) == rows(scheduler.abandoned) == [0]
    assert np.isnan(scheduler.results[given_up[0]]).all()
    for expected in (1, 2):
        chunk = take(scheduler, "d")
        assert chunk.row == expected
        finish(scheduler, "d", chunk)
    assert scheduler.is_finished
    assert scheduler.progress() == Progress(done=6, total=6)


def test_losing_a_worker_that_holds_nothing_changes_nothing() -> None:
    scheduler = Scheduler(chunks(1))
    finish(scheduler, "a", take(scheduler, "a"))
    assert scheduler.lost("a") == scheduler.lost("never seen") == []
    assert scheduler.is_finished


def test_values_that_do_not_fit_the_chunk_are_refused() -> None:
    scheduler = Scheduler(chunks(1))
    chunk = take(scheduler, "a")
    with pytest.raises(InvalidValueError, match="2 points"):
        scheduler.done("a", chunk, np.zeros(3))
