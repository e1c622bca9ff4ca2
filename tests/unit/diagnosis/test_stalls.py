"""Stalls on made-up step times: noise, spikes on all ranks, and a rank that stalls at some steps."""

import numpy as np
import pytest

from distsummary.diagnosis.slow import PHASES, Slow
from distsummary.diagnosis.stalls import FEWEST, GREAT, LONG, SPAN, WINDOW, Stalls, StepSpent
from tests.unit.diagnosis.test_slow import step_times

DATA, CHECKPOINT, REST = PHASES.index("data"), PHASES.index("checkpoint"), PHASES.index("rest")


def spent(at_once: np.ndarray, own: np.ndarray | None = None, queued: float = 0.0) -> StepSpent:
    """A step on a quiet host, or with what is usual of computing phases (`own`) on another one."""
    wall_ms = float(np.nanmax(at_once.sum(axis=1)))
    usual, is_quiet = (at_once, True) if own is None else (own, False)
    queues = np.full(at_once.shape, queued)
    return StepSpent(own=usual, at_once=at_once, queued=queues, wall_ms=wall_ms, is_quiet=is_quiet)


def judged(
    times: np.ndarray,
    *,
    slow: tuple[int, ...] = (),
    slow_from: int = 0,
    is_busy: bool = False,
    every: int = 1,
) -> list[Slow]:
    judge, ranks = Stalls(), np.arange(times.shape[1])
    return [
        found
        for number, row in enumerate(times, 1)
        for found in judge.add(
            number * every, ranks, spent(row), slow=slow if number > slow_from else (), is_busy=is_busy
        )
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_said_of_noise_spikes_and_a_busy_host(ranks: int, seed: int) -> None:
    assert judged(step_times(seed, 3000, ranks)) == []


@pytest.mark.parametrize("each", [8, 50])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_stalls_at_some_steps_is_named_with_them(each: int, ranks: int) -> None:
    times = step_times(7, 1400, ranks, spikes=0)
    times[300:1000:each, ranks - 1, DATA] += 200.0
    begun, ended = judged(times)
    assert (begun.rank, begun.phase, begun.since, begun.until) == (ranks - 1, "data", 301, None)
    assert begun.reported <= 301 + max(SPAN + each, FEWEST * each)
    assert begun.own_ms == pytest.approx(204, abs=5)
    assert begun.peers_ms == pytest.approx(4.4, abs=1)
    assert begun.when.startswith("in ")
    assert ended.when.startswith(f"in {len(range(300, 1000, each))} of ")
    assert ended.until == 300 + 1 + (699 // each) * each


def test_stalls_that_take_little_of_the_time_or_come_all_at_once_or_on_all_ranks_are_none() -> None:
    few, pause, every = (step_times(7, 1400, 4, spikes=0) for _ in range(3))
    few[300:1000:100, 1, DATA] += 60.0
    pause[300:312, 1, DATA] += 2000.0
    for rank in range(4):
        every[300 + rank : 1000 : 30, rank, DATA] += 200.0
    assert [judged(times) for times in (few, pause, every)] == [[], [], []]


@pytest.mark.parametrize("phase", ["forward", "optimizer", "rest"])
@pytest.mark.parametrize("steps", [2.0, 8.0])
def test_few_stalls_of_a_phase_that_computes_are_named_if_no_batch_takes_so_long(phase: str, steps: float):
    times = step_times(7, 1400, 4, spikes=0)
    step_ms = float(np.median(times.sum(axis=2)))
    times[300:1000:45, 2, PHASES.index(phase)] += steps * step_ms
    found = [(one.rank, one.phase, one.until is None) for one in judged(times)]
    assert found == ([(2, phase, True), (2, phase, False)] if steps > LONG else [])


def test_a_rank_that_is_the_last_one_where_all_take_long_does_not_stall() -> None:
    times = step_times(7, 1000, 4, spikes=0)
    times[::20, :, DATA] += 500.0
    times[::20, 0, DATA] += 60.0
    assert judged(times) == []


def test_ranks_that_are_slow_already_and_busy_hosts_have_none() -> None:
    times = step_times(7, 1000, 4, spikes=0)
    times[300::32, 3, DATA] += 200.0
    assert judged(times, slow=(3,)) == []
    assert judged(times, is_busy=True) == []


def test_a_rank_that_saves_checkpoints_alone_is_named() -> None:
    times = step_times(7, 600, 4, spikes=0)
    times[::40, 0, CHECKPOINT] += 300.0
    [found] = judged(times)
    assert (found.rank, found.phase) == (0, "checkpoint")


def test_a_rank_that_reports_no_steps_does_not_stall() -> None:
    times = step_times(7, WINDOW, 4, spikes=0)
    times[::32, 3] = np.nan
    assert judged(times) == []


@pytest.mark.parametrize("slow_from", [0, 200, 299])
def test_stalls_of_a_rank_that_was_found_slow_still_count_for_its_peer(slow_from: int) -> None:
    times = step_times(7, 600, 2, spikes=0)
    for step in range(len(times)):
        times[step, step % 2, PHASES.index("backward")] += 60.0 * (step % 9 < 2)
    assert judged(times, slow=(0,), slow_from=slow_from) == []


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(("queued", "is_found"), [(0.0, True), (20.0, True), (60.0, False)])
def test_a_long_stall_counts_on_a_busy_host_if_its_own_phase_was_hardly_queued(queued, is_found, is_busy):
    usual = step_times(7, 700, 2, spikes=0)
    times = usual.copy()
    times[300::37, 1, REST] += 120.0
    judge, ranks = Stalls(), np.arange(2)
    found = [
        one
        for number, (row, own) in enumerate(zip(times, usual, strict=True), 1)
        for one in judge.add(number, ranks, spent(row, own, queued), slow=(), is_busy=is_busy)
    ]
    assert [(one.rank, one.phase) for one in found] == [(1, "rest")] * is_found


@pytest.mark.parametrize(
    ("each", "steps", "is_found"), [(100, 60, True), (400, 60, True), (400, 15, False), (1200, 60, False)]
)
def test_two_very_long_stalls_are_named_if_they_took_a_twentieth_of_the_time(each, steps, is_found):
    times = step_times(7, 2500, 2, spikes=0)
    assert steps != 60 or steps > GREAT
    times[each::each, 0, REST] += steps * float(np.median(times.sum(axis=2)))
    found = judged(times[: 2 * each + 50])
    assert [(one.rank, one.phase, one.since) for one in found] == [(0, "rest", each + 1)] * is_found


@pytest.mark.parametrize(
    ("step_ms", "steps", "every", "is_found"),
    [
        (20, 60, 1, False),  # in less than 100 steps
        (20, 60, 8, True),  # of which few are measured
        (2, 60, 8, False),  # 120 ms, as a loader may take to start
        (2, 200, 8, True),
    ],
)
def test_very_long_stalls_are_counted_in_all_steps_and_last_long_enough(step_ms, steps, every, is_found):
    times = step_times(7, 90, 2, spikes=0)
    times *= step_ms / float(np.median(times.sum(axis=2)))
    times[30::30, 0, REST] += steps * step_ms
    found = judged(times, every=every)
    assert [(one.rank, one.phase, one.reported) for one in found] == [(0, "rest", 61 * every)] * is_found
