"""How late a rank begins its collectives: simulated ranks that wait for each other at each one."""

import numpy as np
import pytest

from distsummary.training.arrivals import ARRIVALS, FIRST, Arrivals, arrival_tag

PHASES = {"forward": "forward", "backward": "backward", "wait": "backward", "optimizer": "optimizer"}
COLLECTIVES = {"data": 0, "forward": 4, "backward": 6, "optimizer": 0}
OWN_S = 0.001


def simulated(delays_s: dict[tuple[int, str, int], float], *, ranks: int = 4) -> list[dict[str, float]]:
    """What the ranks tell after FIRST steps; `delays_s`: rank, phase, place in it -> s that it is blocked.

    Each rank's clock is an hour ahead of the one before.
    """
    ahead_s = 3600.0 * np.arange(ranks)
    now_s = np.full(ranks, 100.0)
    begun_s: list[list[float]] = [[] for _ in range(ranks)]
    told: list[dict[str, float]] = [{} for _ in range(ranks)]
    every = [
        Arrivals(lambda rank=rank: np.array(begun_s[rank][-2000:]), PHASES, lambda: 0.0, lambda: 1e9)
        for rank in range(ranks)
    ]

    def work(phase: str, place: int) -> None:
        for rank in range(ranks):
            now_s[rank] += OWN_S + delays_s.get((rank, phase, place), 0.0)

    for rank, one in enumerate(every):
        one.begin("recording", float(now_s[rank] + ahead_s[rank]))
    for step in range(1, FIRST + 1):
        for phase, count in COLLECTIVES.items():
            for rank, one in enumerate(every):
                one.enter(phase, float(now_s[rank] + ahead_s[rank]))
            for place in range(count):
                work(phase, place)
                for rank in range(ranks):
                    begun_s[rank].append(1e9 + float(now_s[rank] + ahead_s[rank]))
                now_s[:] = now_s.max() + 0.0001
            work(phase, count)
        for rank, one in enumerate(every):
            told[rank] |= one.end_step(step, "recording", float(now_s[rank] + ahead_s[rank]))
    assert [one.shared for one in every] == [["forward", "backward"]] * ranks
    return told


def later_ms(told: list[dict[str, float]], phase: str) -> list[float]:
    values = np.array([one[arrival_tag(phase)] for one in told])
    return (values - np.median(values)).tolist()


@pytest.mark.parametrize(("phase", "other"), [("forward", "backward"), ("backward", "forward")])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_rank_that_is_blocked_before_a_collective_begins_it_later_in_that_phase(
    phase: str, other: str, place: int
) -> None:
    told = simulated({(2, phase, place): 0.008})
    assert later_ms(told, phase) == pytest.approx([0, 0, 8, 0], abs=1e-3)
    assert max(later_ms(told, other)) < 1e-3
    assert {one[ARRIVALS] for one in told} == {
        FIRST / 2 * 10
    }  # the first step began before the first of them


@pytest.mark.parametrize(("phase", "place"), [("data", 0), ("optimizer", 0)])
def test_what_delays_a_rank_before_a_phase_is_not_that_of_the_phase(phase: str, place: int) -> None:
    told = simulated({(2, phase, place): 0.008})
    for computing in ("forward", "backward"):
        assert later_ms(told, computing) == pytest.approx([0, 0, 0, 0], abs=1e-3)


def test_a_recorder_that_is_off_tells_nothing() -> None:
    arrivals = Arrivals(lambda: np.array([]), PHASES, lambda: 0.0, lambda: 1e9)
    arrivals.begin("data", 0.0)
    found = [arrivals.end_step(step, "data", float(step)) for step in range(1, 2 * FIRST)]
    assert not any(found)
    assert arrivals.shared is None


def test_collectives_outside_of_the_phases_count_for_none_of_them() -> None:
    arrivals = Arrivals(lambda: 1e9 + np.arange(1, FIRST) - 0.5, PHASES, lambda: 0.0, lambda: 1e9)
    arrivals.begin("data", 0.0)
    found = [arrivals.end_step(step, "data", float(step)) for step in range(1, FIRST + 1)]
    assert not any(found)
    assert arrivals.shared == []  # so that nobody is waited for while this rank computes
