from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from distsummary import Directions
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.engines.chunks import Chunk, count_points, plan_chunks, spread
from distsummary.landscapes.run.scheduler import MAX_ATTEMPTS, Scheduler, call_size


def chunks(count: int, size: int = 1) -> list[Chunk]:
    return [Chunk(plane=0, kind="grid", row=row, columns=tuple(range(size))) for row in range(count)]


def plane(size: tuple[int, int], states: int) -> PlanePlan:
    return PlanePlan(
        states=[{}] * states, names=(), recipe=Directions(x={}, y={}), x=np.zeros(size[0]),
        y=np.zeros(size[1]), points=np.zeros((states, 2)),
    )  # fmt: skip


@pytest.mark.parametrize("grid_chunk", [1, 3, 7, 100])
def test_the_plan_has_every_point_once_and_no_chunk_longer_than_asked(grid_chunk: int) -> None:
    planes = [plane((7, 4), 19), plane((5, 3), 1)]
    planned = plan_chunks(planes, grid_chunk=grid_chunk)
    points = [(c.plane, c.kind, c.row, column) for c in planned for column in c.columns]
    assert len(points) == len(set(points)) == count_points(planes) == 7 * 4 + 2 * 19 + 5 * 3 + 2
    assert {len(c) for c in planned if c.plane == 0 and c.kind != "grid"} == {8, 3}
    assert all(0 < len(c) <= grid_chunk for c in planned if c.kind == "grid")
    assert {(0, "grid", 3, 6), (0, "path", 0, 18), (0, "checkpoint", 0, 18), (1, "grid", 2, 4)} <= set(points)


def test_only_wanted_points_are_planned() -> None:
    wanted = np.zeros((4, 7), bool)
    wanted[1, ::2] = wanted[3, 6] = True
    planned = [c for c in plan_chunks([plane((7, 4), 1)], grid_chunk=3, wanted=[wanted]) if c.kind == "grid"]
    assert [(c.row, c.columns) for c in planned] == [(3, (6,)), (1, (0, 2, 4)), (1, (6,))]
    two = plan_chunks([plane((7, 4), 1), plane((7, 4), 1)], wanted=[~wanted, wanted])
    assert sum(map(len, two)) == 2 * 2 + 7 * 4


@pytest.mark.parametrize("count", [1, 2, 7, 8, 51])
def test_the_rows_begun_are_always_spread(count: int) -> None:
    order = spread(count)
    assert sorted(order) == list(range(count))
    for done in range(2, count + 1):
        begun = sorted(order[:done])
        gaps = np.diff([*begun, count])
        assert gaps.max() <= 4 * count / done


def finish(scheduler: Scheduler, worker: str, chunk: Chunk, value: float = 1.0) -> None:
    scheduler.done(worker, chunk, np.full((len(chunk), 1), value))


def take(scheduler: Scheduler, worker: str) -> Chunk:
    (chunk,) = scheduler.next_chunks(worker)
    return chunk


def rows(found: Sequence[Chunk]) -> list[int]:
    return [chunk.row for chunk in found]


def test_chunks_are_handed_out_in_order_until_all_are_done() -> None:
    scheduler = Scheduler(chunks(3))
    first, second, third = take(scheduler, "a"), take(scheduler, "b"), take(scheduler, "a")
    assert rows([first, second, third]) == [0, 1, 2]
    assert scheduler.next_chunks("b") == []  # it is at work itself
    assert scheduler.waiting == 0
    for worker, chunk in [("b", second), ("a", first)]:
        finish(scheduler, worker, chunk)
    assert not scheduler.is_finished
    assert scheduler.missing == 1
    finish(scheduler, "a", third)
    assert scheduler.is_finished
    assert set(scheduler.results) == {first, second, third}


def test_chunks_of_a_lost_worker_go_to_the_front_in_their_order() -> None:
    scheduler = Scheduler(chunks(4))
    take(scheduler, "a"), take(scheduler, "a"), take(scheduler, "b")
    scheduler.lost("a")
    assert scheduler.abandoned == []
    assert rows([take(scheduler, "b") for _ in range(3)]) == [0, 1, 3]


def test_a_chunk_that_kills_three_workers_is_nan_and_reported_and_its_companions_are_not() -> None:
    scheduler = Scheduler(chunks(3))
    for name in ("a", "b", "c"):
        held = [take(scheduler, name), take(scheduler, name)]
        assert rows(held) == [0, 1]
        assert scheduler.abandoned == []
        # Suspects have no company: an answer may be lost with a worker that dies in the next call.
        assert scheduler.in_flight == (2 if name == "a" else 1)
        scheduler.lost(name)
    assert rows(scheduler.abandoned) == [0]
    assert np.isnan(scheduler.results[scheduler.abandoned[0]]).all()
    for expected in (1, 2):
        chunk = take(scheduler, "d")
        assert chunk.row == expected
        finish(scheduler, "d", chunk)
    assert scheduler.is_finished
    assert scheduler.in_flight == 2
    assert scheduler.missing == 0


def test_a_worker_that_died_of_what_it_was_at_before_leaves_no_suspect() -> None:
    scheduler = Scheduler(chunks(2))
    for name in ("a", "b", "c"):
        assert rows([take(scheduler, name), take(scheduler, name)]) == [0, 1]
        scheduler.lost(name, was_at_it=False)
    assert rows(scheduler.next_chunks("d", points=2 * len(chunks(1)[0]))) == [0, 1]  # neither goes alone
    assert not scheduler.abandoned


def test_losing_a_worker_that_holds_nothing_changes_nothing() -> None:
    scheduler = Scheduler(chunks(1))
    finish(scheduler, "a", take(scheduler, "a"))
    scheduler.lost("a")
    scheduler.lost("never seen")
    assert scheduler.is_finished


def test_a_worker_without_work_shares_what_another_holds_rather_what_it_has_not_begun() -> None:
    scheduler = Scheduler(chunks(2))
    first, second = take(scheduler, "slow"), take(scheduler, "slow")
    assert take(scheduler, "idle") == second
    assert take(scheduler, "third") == first
    assert scheduler.next_chunks("fourth") == []  # two are enough
    finish(scheduler, "idle", second, 1.0)
    finish(scheduler, "third", first, 2.0)
    assert scheduler.is_finished
    assert scheduler.next_chunks("fourth") == []  # what the slow one holds is known
    for chunk in (first, second):  # what the slow one gives in the end changes nothing
        assert scheduler.done("slow", chunk, np.full((len(chunk), 1), 9.0)) is False
    assert scheduler.results[first].tolist() == [[2.0]]
    assert scheduler.missing == 0


def test_a_shared_chunk_of_a_lost_worker_stays_with_the_other_and_costs_no_attempt() -> None:
    scheduler = Scheduler(chunks(1))
    chunk = take(scheduler, "a")
    assert take(scheduler, "b") == chunk
    scheduler.lost("a")
    assert scheduler.abandoned == []
    assert scheduler.waiting == 0
    finish(scheduler, "b", chunk)
    assert scheduler.is_finished
    assert scheduler.abandoned == []


def test_what_came_from_another_is_not_put_back_with_a_lost_worker() -> None:
    scheduler = Scheduler(chunks(1))
    chunk = take(scheduler, "a")
    assert take(scheduler, "b") == chunk
    finish(scheduler, "b", chunk)
    scheduler.lost("a")
    assert scheduler.abandoned == []
    assert scheduler.waiting == 0


def test_a_worker_that_asked_in_vain_shares_when_there_is_something_to_share() -> None:
    scheduler = Scheduler(chunks(1))
    chunk = take(scheduler, "a")
    assert take(scheduler, "b") == chunk
    assert scheduler.next_chunks("c") == []
    scheduler.lost("b")
    assert take(scheduler, "c") == chunk


def test_chunks_that_are_known_are_not_handed_out() -> None:
    wanted = chunks(3)
    scheduler = Scheduler(wanted, known=[wanted[1], Chunk(plane=9, kind="grid", row=0, columns=(0,))])
    assert scheduler.missing == 2
    assert rows([take(scheduler, "a"), take(scheduler, "a")]) == [0, 2]
    for row in (0, 2):
        finish(scheduler, "a", wanted[row])
    assert scheduler.is_finished
    assert set(scheduler.results) == {wanted[0], wanted[2]}
    path = replace(wanted[0], kind="path")
    assert Scheduler([path], known=wanted).missing == 1


def test_a_call_has_as_many_chunks_as_asked_for_and_its_worker_may_end_them_one_by_one() -> None:
    scheduler = Scheduler(chunks(5))
    assert rows(scheduler.next_chunks("a", 3)) == [0, 1, 2]
    call = scheduler.next_chunks("b", 3)
    assert rows(call) == [3, 4]
    assert rows(scheduler.next_chunks("c", 3)) == [1]  # one alone, which "a" cannot be at yet
    for chunk in call:
        finish(scheduler, "b", chunk)
    assert rows(scheduler.next_chunks("b", 3)) == [2]


def test_a_worker_may_end_its_calls_in_any_order() -> None:
    scheduler = Scheduler(chunks(2))
    for chunk in reversed([take(scheduler, "a"), take(scheduler, "a")]):
        finish(scheduler, "a", chunk)
    assert scheduler.is_finished
    scheduler.lost("a")
    assert scheduler.abandoned == []


def test_a_call_has_no_more_points_than_asked_for_whatever_its_chunks_have() -> None:
    sizes = (1, 1, 2, 1)
    scheduler = Scheduler([chunks(row + 1, size)[row] for row, size in enumerate(sizes)])
    assert [rows(scheduler.next_chunks("a", 4)) for _ in range(2)] == [[0, 1, 2], [3]]


def test_of_a_call_that_killed_its_worker_the_chunk_that_kills_is_found() -> None:
    scheduler, deadly, deaths = Scheduler(chunks(9)), 2, 0
    while not scheduler.is_finished:
        call = scheduler.next_chunks(name := f"worker {deaths}", 4)
        if deadly in rows(call):
            scheduler.next_chunks(name, 4)  # what is behind it is not to blame
            scheduler.lost(name)
            deaths += 1
        else:
            for chunk in call:
                finish(scheduler, name, chunk)
    assert rows(scheduler.abandoned) == [deadly]
    assert deaths == 4


def test_chunks_of_a_call_that_killed_go_alone_and_those_behind_it_together() -> None:
    scheduler = Scheduler(chunks(6))
    for _ in range(2):
        scheduler.next_chunks("a", 2)
    finish(scheduler, "a", chunks(1)[0])  # the call has one chunk less now, and is known to be at it
    scheduler.lost("a")
    assert [rows(scheduler.next_chunks("b", 4)) for _ in range(2)] == [[1], [2, 3, 4, 5]]


def test_both_chunks_of_a_call_of_two_that_killed_go_alone_in_their_order() -> None:
    scheduler = Scheduler(chunks(3))
    scheduler.next_chunks("a", 2)
    scheduler.lost("a")
    assert [rows(scheduler.next_chunks("b", 3)) for _ in range(3)] == [[0], [1], [2]]


def test_chunks_that_may_kill_do_not_go_with_those_that_were_put_before_them() -> None:
    scheduler = Scheduler(chunks(4))
    for worker in ("a", "b"):
        scheduler.next_chunks(worker, 2)
    scheduler.lost("a")
    scheduler.lost("b", was_at_it=False)
    assert [rows(scheduler.next_chunks("c", 4)) for _ in range(3)] == [[2, 3], [0], [1]]


def columns(found: Sequence[Chunk]) -> list[tuple[int, ...]]:
    return [chunk.columns for chunk in found]


def test_a_chunk_that_would_take_too_long_is_given_in_parts() -> None:
    scheduler = Scheduler(chunks(2, size=5))
    assert columns(scheduler.next_chunks("a", 2)) == [(0, 1)]
    assert scheduler.waiting == 8
    assert columns(scheduler.next_chunks("b", 8)) == [(2, 3, 4), (0, 1, 2, 3, 4)]


def test_parts_begin_where_the_engine_begins() -> None:
    scheduler = Scheduler(chunks(1, size=8), align=3)
    given = [columns(scheduler.next_chunks("a", points)) for points in (1, 4)]
    assert given == [[(0, 1, 2)], [(3, 4, 5, 6, 7)]]


def test_of_a_chunk_that_is_known_in_part_the_rest_is_handed_out() -> None:
    [chunk] = chunks(1, size=8)
    known = [replace(chunk, columns=(2, 3)), replace(chunk, columns=(5,)), replace(chunk, plane=1)]
    scheduler = Scheduler([chunk], known=known)
    assert scheduler.missing == 5
    assert columns(scheduler.next_chunks("a", 8)) == [(0, 1, 4, 6, 7)]


def test_of_a_chunk_that_kills_only_the_points_that_kill_are_given_up() -> None:
    scheduler, deaths = Scheduler(chunks(3, size=8), align=2), 0
    while not scheduler.is_finished:
        call = scheduler.next_chunks(name := f"worker {deaths}", 100)
        if any(chunk.row == 1 and 5 in chunk.columns for chunk in call):
            scheduler.lost(name)
            deaths += 1
        else:
            for chunk in call:
                finish(scheduler, name, chunk)
    assert columns(scheduler.abandoned) == [(4, 5)]
    assert scheduler.missing == 0
    assert deaths == MAX_ATTEMPTS + 2  # the call, the chunk, the points


@pytest.mark.parametrize(
    ("waiting", "workers", "point_s", "expected"),
    [
        (1000, 2, 0.0, 1), (1000, 2, 0.035, 14), (1000, 2, 0.6, 1), (40, 2, 0.001, 5), (7, 2, 0.001, 5),
        (7, 2, 0.01, 1), (0, 9, 0.5, 1),
    ],
)  # fmt: skip
def test_a_call_is_filled_by_time_and_shrinks_towards_the_end(waiting, workers, point_s, expected):
    assert call_size(waiting, workers, point_s) == expected
    assert call_size(waiting, workers, point_s, least=32) == max(32, expected)


@pytest.mark.parametrize("point_s", [0.001, 1.0])
def test_eight_workers_and_skewed_chunks_end_in_little_more_than_the_ideal_time(point_s: float) -> None:
    """Simulated: chunk costs differ by 20 times and one worker is five times slower."""
    wanted = chunks(160 if point_s == 1 else 4_000)
    random = np.random.default_rng(7)
    costs = point_s * random.choice([0.5, 1.0, 1.0, 2.0, 10.0], len(wanted))
    cost = dict(zip(wanted, costs.tolist(), strict=True))
    speed = dict.fromkeys("abcdefgh", 1.0) | {"a": 0.2}
    scheduler = Scheduler(wanted)
    now, until, calls = 0.0, dict.fromkeys(speed, 0.0), 0
    at: dict[str, list[Chunk]] = {}
    while not scheduler.is_finished:
        for name in speed:
            most = call_size(scheduler.waiting, len(speed), float(np.mean(costs)))
            if name not in at and (call := scheduler.next_chunks(name, most)):
                at[name], until[name] = call, now + sum(cost[chunk] for chunk in call) / speed[name]
                calls += 1
        name = min(at, key=lambda worker: until[worker])
        now = until[name]
        for chunk in at.pop(name):
            finish(scheduler, name, chunk)
    assert now <= 1.3 * sum(cost.values()) / sum(speed.values())
    assert calls < (200 if point_s == 1 else 400)
