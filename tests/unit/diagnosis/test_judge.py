"""Judge and own_times: from recorded scalars to verdicts."""

import json
import re

import numpy as np
import pytest

from distsummary.diagnosis.judge import Judge, OwnTimes, own_times
from distsummary.diagnosis.measured_steps import is_measured
from distsummary.diagnosis.slow import PHASES
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import InvalidValueError

CPU, BLOCKED = range(2)


def reported(step: int, ranks: int, *, data: float = 5.0, slow: int | None = None) -> OwnTimes:
    """A step in which all phases but data take 1 ms; `data` ms are added to rank `slow`."""
    rng = np.random.default_rng(step)
    times = np.zeros((ranks, 3, len(PHASES)))
    times[:, CPU] = rng.normal(1.0, 0.01, (ranks, len(PHASES)))
    if slow is not None:
        times[slow, CPU, PHASES.index("data")] += data
    zeros = np.zeros(ranks)
    return OwnTimes(step, np.arange(ranks), times, np.ones(ranks, int), zeros, zeros, np.full(ranks, np.inf))


def first(one: OwnTimes, ranks: int) -> OwnTimes:
    """The same step without the other ranks."""
    return OwnTimes(one.step, *(column[:ranks] for column in one[1:]))


def one_axis(rank: int) -> dict[str, int]:
    return {"dp": rank}


def test_own_times_sorts_scalars_of_any_order_and_leaves_out_waiting() -> None:
    tags = [
        "loss", "zz_perf/phase/data/cpu_ms", "zz_perf/phase/data/blocked_ms", "zz_perf/phase/wait/cpu_ms",
        "zz_perf/phase/wait/blocked_ms", "zz_perf/phase/backward/cpu_ms", "zz_perf/phase/forward/queue_ms",
        "zz_perf/phase/rest/queue_ms", "zz_perf/phase/evaluation/cpu_ms",
    ]  # fmt: skip
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
    assert rank_1.sum() == 10 + 100 + 100_000 + 10**6 + 10**7
    assert first.queued.tolist() == [10**6 + 10**7, 2 * (10**6 + 10**7)]
    assert list(own_times(["loss"], which[:0], ranks[:0], steps[:0], values[:0])) == []


def test_a_verdict_begins_ends_and_survives_json() -> None:
    judge = Judge(one_axis)
    changed = [
        verdict
        for step in range(1, 301)
        for verdict in judge.add(reported(step, 4, slow=2 if 100 <= step < 200 else None))
    ]
    begun, ended = changed
    assert (begun.rank, begun.cause, begun.since_step, begun.until_step) == (2, "data", 100, None)
    assert begun.reported_step <= 110
    assert (ended.since_step, ended.until_step, ended.reported_step) == (100, 199, begun.reported_step)
    assert re.fullmatch(r"loading data took 6 ms a step, on its peers 1\S* ms", begun.evidence)
    assert Verdict.from_json(json.loads(json.dumps(ended.as_json()))) == ended
    with pytest.raises(InvalidValueError, match="cause"):
        Verdict.from_json(ended.as_json() | {"cause": "weather"})


@pytest.mark.parametrize(
    ("phase", "measure", "cause"), [("checkpoint", "blocked_ms", "checkpoint"), ("rest", "cpu_ms", "unknown")]
)
def test_a_rank_that_is_slow_outside_of_its_model_is_named_with_the_cause(phase, measure, cause):
    judge = Judge(one_axis)
    tags = [f"zz_perf/phase/{phase}/{measure}"]
    found = []
    for step in range(1, 201):
        times = reported(step, 4)
        [more] = own_times(tags, np.zeros(1, int), np.array([2]), np.array([step]), np.array([5.0]))
        if step >= 100:
            times.times[2] += more.times[0]
        found += judge.add(times)
    [verdict] = found
    assert (verdict.rank, verdict.cause, verdict.since_step) == (2, cause, 100)
    assert verdict.reported_step <= 110


def test_of_two_ranks_the_quicker_one_is_the_measure() -> None:
    judge = Judge(one_axis)
    [verdict] = [
        verdict
        for step in range(1, 201)
        for verdict in judge.add(reported(step, 2, slow=1 if step >= 100 else None))
    ]
    assert (verdict.rank, verdict.cause) == (1, "data")
    assert re.fullmatch(r"loading data took \S+ ms a step, on its peer \S+ ms", verdict.evidence)


@pytest.mark.parametrize(("queued", "is_reported"), [(5.0, True), (20.0, False)])
def test_nothing_is_said_while_ranks_wait_for_processors_much_longer_than_they_work(queued, is_reported):
    judge = Judge(one_axis)
    found = []
    for step in range(1, 201):
        one = reported(step, 4, slow=2 if 100 <= step < 150 else None)
        if step < 180:
            one.queued[:] = queued * 10.0  # a step takes 8 to 13 ms
        found += judge.add(one)
    assert {(verdict.rank, verdict.cause) for verdict in found} == ({(2, "data")} if is_reported else set())
    assert (judge.steps, 170 < judge.abstained < 200) == (200, not is_reported)


def test_what_blocks_a_rank_in_fewer_than_half_of_the_steps_while_it_computes_is_no_habit() -> None:
    rare, often = Judge(one_axis), Judge(one_axis)
    found = []
    for step in range(1, 201):
        for judge, every in ((rare, 3), (often, 1)):
            one = reported(step, 4)
            if step >= 100 and step % every == 0:
                one.times[3, BLOCKED, PHASES.index("forward")] = 20.0
            found += judge.add(one)
    [verdict] = found
    assert (verdict.rank, verdict.cause, 100 <= verdict.since_step <= 105) == (3, "forward", True)
    assert verdict.reported_step <= 112


def test_what_blocks_a_rank_now_and_then_while_it_computes_is_its_own_on_a_quiet_host() -> None:
    judge, found = Judge(one_axis), []
    for step in range(1, 301):
        one = reported(step, 4)
        if step >= 100 and step % 20 == 0:
            one.times[3, BLOCKED, PHASES.index("forward")] = 30.0
        found += judge.add(one)
    [verdict] = found
    assert (verdict.rank, verdict.cause, verdict.since_step) == (3, "forward", 100)
    assert re.fullmatch(r"forward took 31 ms in 10 of 181 steps, on its peers \S+ ms", verdict.evidence)


@pytest.mark.parametrize(
    ("measure", "queued", "is_reported"), [(BLOCKED, 0.0, True), (BLOCKED, 20.0, False), (CPU, 20.0, True)]
)
def test_recording_that_is_blocked_where_other_processes_run_is_not_the_ranks_own(
    measure: int, queued: float, is_reported: bool
) -> None:
    judge, found = Judge(one_axis), []
    for step in range(1, 201):
        one = reported(step, 4)
        one.queued[:] = queued
        if step >= 100:
            one.times[3, measure, PHASES.index("recording")] += 5.0
        found += judge.add(one)
    assert [(one.rank, one.cause) for one in found] == [(3, "recording")] * is_reported


def test_a_loader_that_blocks_now_and_then_is_named() -> None:
    judge, found = Judge(one_axis), []
    for step in range(1, 201):
        one = reported(step, 4)
        if step >= 100 and step % 3 == 0:
            one.times[2, BLOCKED, PHASES.index("data")] = 30.0
        found += judge.add(one)
    assert [(one.rank, one.cause) for one in found] == [(2, "data")]


def test_ranks_of_different_stages_of_a_pipeline_are_not_compared() -> None:
    judge, all_alike = Judge(lambda rank: {"pp": rank // 2, "dp": rank % 2}), Judge(one_axis)
    blamed = []
    for step in range(1, 101):
        times = reported(step, 8)
        times.times[6:, CPU, PHASES.index("forward")] += 3.0  # the last stage has more layers
        assert judge.add(times) == []
        blamed += all_alike.add(times)
    assert blamed


def test_ranks_that_split_each_layer_are_compared() -> None:
    judge = Judge(lambda rank: {"dp": rank // 2, "tp": rank % 2})
    found = [
        one for step in range(1, 201) for one in judge.add(reported(step, 4, slow=2 if step > 99 else None))
    ]
    assert [(one.rank, one.cause, one.since_step) for one in found] == [(2, "data", 100)]


def test_a_single_rank_has_no_verdict() -> None:
    judge = Judge(one_axis)
    assert all(judge.add(reported(step, 1)) == [] for step in range(1, 101))


def test_a_rank_that_joins_later_is_compared_too() -> None:
    judge = Judge(one_axis)
    found = [
        verdict
        for step in range(1, 301)
        for verdict in judge.add(reported(step, 4 if step > 100 else 3, slow=3 if step > 200 else None))
    ]
    assert [(one.rank, one.cause, one.since_step) for one in found] == [(3, "data", 201)]


def test_a_rank_that_joins_ends_no_verdict_and_is_not_blamed_for_its_first_steps() -> None:
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 401):
        one = reported(step, 4 if step > 100 else 3, slow=1 if 50 <= step < 300 else None)
        if 100 < step <= 115:
            one.times[3] *= 3.0  # it fills its caches, and compiles
        changed += judge.add(one)
    begun, ended = changed
    assert (begun.rank, begun.cause, begun.since_step, begun.until_step) == (1, "data", 50, None)
    assert (ended.rank, ended.since_step, ended.until_step) == (1, 50, 299)


@pytest.mark.parametrize("last", [10, 64, 100, 130])
def test_a_rank_that_is_gone_holds_up_no_one(last: int) -> None:
    """Rank 3 reports one step in 64, and nothing after `last`."""
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 1001):
        one = reported(step, 4, slow=1 if step >= 200 else None)
        one.every[3] = 64
        if step > last or (step > 8 and not is_measured(step, 64)):
            one = first(one, 3)
        changed += judge.add(one)
    [begun] = changed
    assert (begun.rank, begun.cause, begun.since_step) == (1, "data", 200)
    assert begun.reported_step <= 210


@pytest.mark.parametrize(("ranks", "ended"), [(2, 1), (3, 1), (4, 2)])
@pytest.mark.parametrize("tail", [4, 15])
def test_ranks_that_are_blocked_alike_are_alike_after_epochs_of_different_lengths(ranks, ended, tail):
    """As on a device, where they are blocked while it computes; the last ranks have shorter epochs."""
    judge, changed = Judge(one_axis), []
    for step in range(1, 401):
        one = reported(step, ranks)
        one.times[:, BLOCKED, PHASES.index("backward")] = 6.0
        changed += judge.add(first(one, ranks - ended) if step % 50 > 50 - tail else one)
    assert changed == []


def test_a_rank_that_comes_back_is_no_alarm() -> None:
    judge = Judge(one_axis)
    for step in range(1, 201):
        one = reported(step, 4)
        one.times[:, BLOCKED, PHASES.index("forward")] = 1.0
        if 50 < step < 100:
            one = first(one, 3)
        assert judge.add(one) == []


def test_only_steps_that_all_ranks_report_are_judged() -> None:
    judge = Judge(one_axis)
    changed = []
    for step in range(1, 401):
        one = reported(step, 4, slow=1 if step >= 200 else None)
        one.every[3] = 4  # rank 3 reports one step in four
        if step > 20 and not is_measured(step, 4):
            one = first(one, 3)
        changed += judge.add(one)
    [begun] = changed
    since, *_, fifth = [step for step in range(200, 230) if is_measured(step, 4)][:5]
    assert (begun.rank, begun.cause, begun.since_step) == (1, "data", since)
    assert begun.reported_step == fifth


def test_own_times_reports_which_step_a_rank_reports_next() -> None:
    tags = ["zz_perf/phase/data/cpu_ms", "zz_perf/phase/every"]
    which, ranks = np.array([0, 0, 1]), np.array([0, 1, 1])
    [one] = own_times(tags, which, ranks, np.array([8, 8, 8]), np.array([1.0, 2.0, 8.0]))
    assert one.every.tolist() == [1, 8]
    assert one.times.sum() == 3


@pytest.mark.parametrize("phase", ["forward", "backward", "python"])
def test_the_milliseconds_of_a_verdict_are_those_of_its_steps(phase: str) -> None:
    """Also of what blocks a rank while it computes, which is found by medians of several steps."""
    judge, found = Judge(one_axis), []
    for step in range(1, 150):
        one = reported(step, 2)
        if step >= 60:
            one.times[1, BLOCKED, PHASES.index(phase)] = 30.0
        found += judge.add(one)
    [verdict] = found
    assert (verdict.rank, verdict.cause) == (1, phase)
    assert re.match(r"\w+( \w+)* took 31 ms a step, on its peer (1|0\.9\d*) ms", verdict.evidence), (
        verdict.evidence
    )
