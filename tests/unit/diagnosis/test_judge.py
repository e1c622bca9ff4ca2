"""Judge and own_times: from recorded scalars to verdicts."""

import json
import re

import numpy as np
import pytest

from distsummary.diagnosis.judge import Judge, OwnTimes, own_times
from distsummary.diagnosis.slow import PHASES
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import InvalidValueError

CPU, BLOCKED, SHARED, ARRIVAL, WAITING = range(5)


def told(
    step: int, ranks: int, *, data: float = 5.0, blocked: float = 0.0, slow: int | None = None
) -> OwnTimes:
    """A step in which all phases but data take 1 ms; `data` ms are added to rank `slow`."""
    rng = np.random.default_rng(step)
    times = np.zeros((ranks, 5, len(PHASES)))
    times[:, CPU] = rng.normal(1.0, 0.01, (ranks, len(PHASES)))
    times[:, CPU, PHASES.index("host")] = 0.0
    if slow is not None:
        times[slow, CPU, PHASES.index("data")] += data
        times[np.arange(ranks) != slow, BLOCKED, PHASES.index("forward")] += blocked
    return OwnTimes(step, np.arange(ranks), times, np.ones(ranks, int), np.zeros(ranks, int))


def first(one: OwnTimes, ranks: int) -> OwnTimes:
    """The same step without the other ranks."""
    return OwnTimes(one.step, *(column[:ranks] for column in one[1:]))


def one_axis(rank: int) -> dict[str, int]:
    return {"dp": rank}


def test_own_times_sorts_scalars_of_any_order_and_leaves_out_waiting() -> None:
    tags = [
        "loss",
        "perf/phase/data/cpu_ms",
        "perf/phase/data/blocked_ms",
        "perf/phase/wait/cpu_ms",
        "perf/phase/wait/blocked_ms",
        "perf/phase/backward/cpu_ms",
        "perf/phase/forward/queue_ms",
        "perf/phase/rest/queue_ms",
        "perf/phase/evaluation/cpu_ms",
        "perf/phase/forward/wait_ms",
    ]
    rows = [(tag, rank, step) for step in (2, 1) for rank in (1, 0) for tag in range(len(tags))]
    which, ranks, steps = (np.array(column) for column in zip(*rows, strict=True))
    values = 10.0**which * (1 + ranks)
    first, second = own_times(tags, which, ranks, steps, values)
    assert (first.step, second.step) == (1, 2)
    assert first.ranks.tolist() == [0, 1]
    rank_1 = first.times[1] / 2
    assert rank_1[CPU, PHASES.index("data")] == 10
    assert rank_1[BLOCKED, PHASES.index("data")] == 100
    assert rank_1[CPU, PHASES.index("backward")] == 100_000
    assert rank_1[WAITING, PHASES.index("backward")] == 1000
    assert rank_1[CPU, PHASES.index("host")] == 10**6 + 10**7
    assert rank_1[SHARED, PHASES.index("forward")] == 10**9
    assert rank_1.sum() == 10 + 100 + 1000 + 100_000 + 10**6 + 10**7 + 10**9
    assert list(own_times(["loss"], which[:0], ranks[:0], steps[:0], values[:0])) == []


def test_a_verdict_begins_ends_and_survives_json() -> None:
    judge = Judge(one_axis)
    changed = [
        verdict
        for step in range(1, 301)
        for verdict in judge.add(told(step, 4, slow=2 if 100 <= step < 200 else None))
    ]
    begun, ended = changed
    assert (begun.rank, begun.cause, begun.since_step, begun.until_step) == (2, "data", 100, None)
    assert begun.first_told_step <= 110
    assert (ended.since_step, ended.until_step, ended.first_told_step) == (100, 199, begun.first_told_step)
    assert re.fullmatch(r"loading data took 6 ms a step, on its peers 1\S* ms", begun.evidence)
    assert Verdict.from_json(json.loads(json.dumps(ended.as_json()))) == ended
    with pytest.raises(InvalidValueError, match="cause"):
        Verdict.from_json(ended.as_json() | {"cause": "weather"})


@pytest.mark.parametrize(
    ("phase", "measure", "cause"),
    [("checkpoint", "blocked_ms", "checkpoint"), ("rest", "cpu_ms", "unknown")],
)
def test_a_rank_that_is_slow_beside_its_model_is_named_with_the_cause(
    phase: str, measure: str, cause: str
) -> None:
    judge = Judge(one_axis)
    tags = [f"perf/phase/{phase}/{measure}"]
    found = []
    for step in range(1, 201):
        times = told(step, 4)
        [more] = own_times(tags, np.zeros(1, int), np.array([2]), np.array([step]), np.array([5.0]))
        if step >= 100:
            times.times[2] += more.times[0]
        found += judge.add(times)
    [verdict] = found
    assert (verdict.rank, verdict.cause, verdict.since_step) == (2, cause, 100)
    assert verdict.first_told_step <= 110


def test_the_rank_that_waits_for_a_slow_one_is_not_blamed_in_a_world_of_two() -> None:
    judge = Judge(one_axis)
    [verdict] = [
        verdict
        for step in range(1, 201)
        for verdict in judge.add(told(step, 2, slow=1 if step >= 100 else None, blocked=5.0))
    ]
    assert (verdict.rank, verdict.cause) == (1, "data")
    assert re.fullmatch(r"loading data took \S+ ms a step, on its peer \S+ ms", verdict.evidence)


@pytest.mark.parametrize(("queued", "is_told"), [(0.1, True), (100.0, False)])
def test_a_loader_that_blocks_is_told_unless_threads_wait_for_a_processor_anyway(
    queued: float, is_told: bool
) -> None:
    judge = Judge(one_axis)
    found = []
    for step in range(1, 201):
        times = told(step, 4)
        times.times[:, CPU, PHASES.index("host")] = queued
        if step >= 100 and step % 3 == 0:
            times.times[2, BLOCKED, PHASES.index("data")] = 30.0
        found += judge.add(times)
    assert [(one.rank, one.cause) for one in found] == ([(2, "data")] if is_told else [])


def test_a_step_in_which_the_others_seem_to_sleep_less_blames_nobody() -> None:
    judge = Judge(one_axis)
    for step in range(1, 101):
        times = told(step, 4)
        times.times[:, BLOCKED, PHASES.index("forward")] = 20.0
        if step % 30 == 0:
            times.times[:3, BLOCKED, PHASES.index("forward")] = 8.0
        assert judge.add(times) == []


def test_ranks_of_different_stages_of_a_pipeline_are_not_compared() -> None:
    judge, all_alike = Judge(lambda rank: {"pp": rank // 2, "dp": rank % 2}), Judge(one_axis)
    blamed = []
    for step in range(1, 101):
        times = told(step, 8)
        times.times[6:, CPU, PHASES.index("forward")] += 3.0  # the last stage has more layers
        assert judge.add(times) == []
        blamed += all_alike.add(times)
    assert blamed


@pytest.mark.parametrize(("waiting", "is_told"), [(1.9, False), (6.0, True)])
def test_what_a_rank_computes_while_it_waits_counts_if_it_is_more_than_being_woken(
    waiting: float, is_told: bool
) -> None:
    judge, found = Judge(one_axis), []
    for step in range(1, 201):
        one = told(step, 4)
        one.times[:, WAITING, PHASES.index("backward")] = 1.0
        if step >= 100:
            one.times[3, WAITING, PHASES.index("backward")] = waiting
        found += judge.add(one)
    assert [(one.rank, one.cause) for one in found] == ([(3, "backward")] if is_told else [])


def test_ranks_that_split_each_layer_are_compared() -> None:
    judge = Judge(lambda rank: {"dp": rank // 2, "tp": rank % 2})
    found = [one for step in range(1, 201) for one in judge.add(told(step, 4, slow=2 if step > 99 else None))]
    assert [(one.rank, one.cause, one.since_step) for one in found] == [(2, "data", 100)]


def split(step: int, ranks: int, late_ms: dict[int, float]) -> OwnTimes:
    """A step of a split model, in which ranks wait 30 ms in forward; every 16th tells of its collectives."""
    one = told(step, ranks)
    forward = PHASES.index("forward")
    one.times[:, SHARED, forward] = 30.0
    if step % 16 == 0:
        one.arrivals[:] = 100
        one.times[:, ARRIVAL, forward] = 500.0 + 0.1 * np.arange(ranks)
        for rank, late in late_ms.items():
            one.times[rank, ARRIVAL, forward] += late
    return one


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_where_ranks_wait_for_each_other_the_one_that_is_late_is_named(
    ranks: int,
) -> None:
    judge, changed = Judge(one_axis), []
    for step in range(1, 601):
        one = split(step, ranks, {1: 8.0} if 200 <= step < 400 else {})
        changed += judge.add(first(one, 4) if step > 100 else one)  # the fifth one ends
    begun, ended = changed
    assert (begun.rank, begun.cause) == (1, "forward")
    assert 200 <= begun.since_step <= begun.first_told_step <= 200 + 3 * 16 + 20
    assert ended.until_step is not None
    assert 400 - 16 <= ended.until_step <= 400 + 16 + 20


def test_a_rank_is_late_only_if_it_is_so_again_more_than_others_and_was_blocked() -> None:
    once, spread, unblocked, other_steps, little = (Judge(one_axis) for _ in range(5))
    for step in range(1, 401):
        assert once.add(split(step, 4, {1: 8.0} if step % 64 == 0 else {})) == []
        assert spread.add(split(step, 4, {0: 3.0, 1: 8.0, 2: -5.0})) == []
        computes = split(step, 4, {1: 8.0})
        computes.times[1, SHARED] = 0.0
        assert unblocked.add(computes) == []
        others = split(step, 4, {1: 8.0})
        others.arrivals[1] *= 2  # the recorder of this rank held more steps
        assert other_steps.add(others) == []
        assert little.add(split(step, 4, {1: 1.2})) == []  # of a step of 39 ms


def test_a_single_rank_has_no_verdict() -> None:
    judge = Judge(one_axis)
    assert all(judge.add(told(step, 1)) == [] for step in range(1, 101))


def test_a_rank_that_joins_later_is_compared_too() -> None:
    judge = Judge(one_axis)
    found = [
        verdict
        for step in range(1, 301)
        for verdict in judge.add(told(step, 4 if step > 100 else 3, slow=3 if step > 200 else None))
    ]
    assert [(one.rank, one.cause, one.since_step) for one in found] == [(3, "data", 201)]


def test_a_rank_that_joins_ends_no_verdict_and_is_not_blamed_for_its_first_steps() -> None:
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 401):
        one = told(step, 4 if step > 100 else 3, slow=1 if 50 <= step < 300 else None)
        if 100 < step <= 115:
            one.times[3] *= 3.0  # it fills its caches, and compiles
        changed += judge.add(one)
    begun, ended = changed
    assert (begun.rank, begun.cause, begun.since_step, begun.until_step) == (1, "data", 50, None)
    assert (ended.rank, ended.since_step, ended.until_step) == (1, 50, 299)


@pytest.mark.parametrize("last", [10, 64, 100, 130])
def test_a_rank_that_is_gone_holds_up_nobody(last: int) -> None:
    """Rank 3 tells every 64th step, and nothing after `last`."""
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 1001):
        one = told(step, 4, slow=1 if step >= 200 else None)
        one.every[3] = 64
        if step > last or (step > 8 and step % 64):
            one = first(one, 3)
        changed += judge.add(one)
    [begun] = changed
    assert (begun.rank, begun.cause, begun.since_step) == (1, "data", 200)
    assert begun.first_told_step <= 210


def test_of_two_that_are_left_of_three_the_one_that_waits_for_the_other_is_not_blamed() -> None:
    judge, found = Judge(one_axis), []
    for step in range(1, 301):
        one = told(step, 3, slow=1 if step >= 200 else None, blocked=5.0)
        found += judge.add(one if step < 100 else first(one, 2))
    assert [(one.rank, one.cause) for one in found] == [(1, "data")]


def test_a_rank_that_comes_back_is_no_alarm() -> None:
    judge = Judge(one_axis)
    for step in range(1, 201):
        one = told(step, 4)
        one.times[:, BLOCKED, PHASES.index("forward")] = 1.0
        if 50 < step < 100:
            one = first(one, 3)
        assert judge.add(one) == []


def test_only_steps_that_all_ranks_tell_are_judged() -> None:
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 401):
        one = told(step, 4, slow=1 if step >= 200 else None)
        one.every[3] = 4  # rank 3 tells every fourth step
        if step > 20 and step % 4:
            one = first(one, 3)
        changed += judge.add(one)
    [begun] = changed
    assert (begun.rank, begun.cause, begun.since_step) == (1, "data", 200)
    assert begun.first_told_step == 212  # four steps that are told


def test_own_times_tells_which_step_a_rank_tells_next() -> None:
    tags = ["perf/phase/data/cpu_ms", "perf/phase/every"]
    which, ranks = np.array([0, 0, 1]), np.array([0, 1, 1])
    [one] = own_times(tags, which, ranks, np.array([8, 8, 8]), np.array([1.0, 2.0, 8.0]))
    assert one.every.tolist() == [1, 8]
    assert one.times.sum() == 3
