"""SlowRanks on made-up step times: noise, a busy host, and one rank that takes longer in one phase."""

import numpy as np
import pytest

from distsummary.diagnosis.slow import PHASES, Slow, SlowRanks

STEP_MS = {
    "data": 4.4, "forward": 5.2, "backward": 3.6, "optimizer": 2.4, "python": 0.0, "recording": 0.08,
    "checkpoint": 0.0, "rest": 1.4,
}  # fmt: skip
OWN_MS = sum(STEP_MS.values())


def step_times(seed: int, steps: int, ranks: int, spikes: float = 0.005) -> np.ndarray:
    """Own milliseconds (steps, ranks, phases) with noise, rare spikes and steps in which the host is busy."""
    rng = np.random.default_rng(seed)
    usual = np.array([STEP_MS[phase] for phase in PHASES])
    times = usual * rng.lognormal(0.0, 0.05, (steps, ranks, len(PHASES)))
    times *= 1 + 10 * (rng.random(times.shape) < spikes)
    busy = np.repeat(rng.random((steps // 50 + 1, ranks)) < 0.1, 50, axis=0)[:steps]
    times *= np.where(busy, 1.4, 1.0)[:, :, None]
    return times


def judged(times: np.ndarray, ranks: list[int] | None = None) -> list[Slow]:
    ranks = ranks or list(range(times.shape[1]))
    judge = SlowRanks(ranks)
    found = []
    for number, row in enumerate(times, 1):
        found += judge.add(number, row, row)
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_nothing_is_said_of_noise_spikes_and_a_busy_host(ranks: int) -> None:
    assert judged(step_times(ranks, 3000, ranks)) == []


@pytest.mark.parametrize("phase", ["data", "backward", "rest"])
@pytest.mark.parametrize(("excess", "within", "ranks"), [(0.25, 20, 2), (0.25, 20, 4), (0.15, 45, 4)])
def test_the_rank_and_the_phase_are_named_in_time(phase: str, excess: float, within: int, ranks: int) -> None:
    times = step_times(7, 500, ranks)
    culprit = ranks - 1
    times[300:420, culprit, PHASES.index(phase)] += excess * OWN_MS
    begun, ended = judged(times)
    assert (begun.rank, begun.phase) == (culprit, phase)
    assert 301 <= begun.reported <= 300 + within
    assert abs(begun.since - 301) <= 5
    assert begun.until is None
    assert ended.until is not None
    assert abs(ended.until - 420) <= within
    assert begun.own_ms > begun.peers_ms


def test_a_rank_that_is_slow_from_the_beginning_is_named() -> None:
    times = step_times(3, 200, 4)
    times[:, 2, PHASES.index("forward")] += 0.15 * OWN_MS
    [found] = judged(times)
    assert (found.rank, found.phase, found.reported <= 60) == (2, "forward", True)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_whose_batches_are_longer_is_named_but_not_one_whose_caches_are_shared(ranks: int) -> None:
    phases = [PHASES.index("forward"), PHASES.index("backward")]
    for factor, named in ((1.3, set()), (3.0, {ranks - 1})):
        times = step_times(3, 200, ranks)
        times[:, ranks - 1, phases] *= factor
        assert {found.rank for found in judged(times)} == named


def test_ranks_that_come_late_or_leave_and_a_world_of_one_are_no_alarm() -> None:
    times = step_times(5, 600, 4)
    times[:100, 3] = np.nan
    times[400:, 1] = np.nan
    assert judged(times) == []
    assert judged(step_times(5, 100, 1)) == []


def test_two_slow_ranks_are_both_named() -> None:
    times = step_times(13, 500, 8)
    times[200:, 1, PHASES.index("data")] += 0.3 * OWN_MS
    times[300:, 6, PHASES.index("backward")] += 0.3 * OWN_MS
    first, second = judged(times)
    assert (first.rank, first.phase, second.rank, second.phase) == (1, "data", 6, "backward")


def test_steps_of_a_millisecond_of_ten_minutes_and_of_changing_length_are_no_alarm() -> None:
    times = step_times(17, 2000, 4)
    assert judged(times * 1e5) == []
    lengths = np.random.default_rng(0).uniform(0.2, 5.0, (2000, 1, 1))
    assert judged(times * lengths) == []
    own_lengths = np.random.default_rng(1).uniform(0.7, 1.3, (2000, 4, 1))  # each rank its own batch
    assert judged(times * own_lengths) == []
