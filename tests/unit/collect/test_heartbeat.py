"""What a rank reports about its pace."""

import logging
import threading

import pytest

from distsummary.base.failures import Failures, Health
from distsummary.collect.heartbeat import Beat, Pulse, with_means
from distsummary.rundir.deal import Heartbeat
from tests.patience import PATIENCE_S

AT_ONCE = {"first_s": 0.0, "beat_s": 0.001}


@pytest.mark.parametrize(
    ("beats", "pace"),
    [
        ([(0, 100.0)], 0.0),
        ([(7, 100.0), (7, 105.0)], 0.0),
        ([(0, 100.0), (4, 105.0), (10, 110.0)], 1.0),
        ([(9, 100.0), (3, 105.0)], 0.0),
    ],
)
def test_a_pace_is_the_mean_over_all_heartbeats_that_are_kept(beats, pace):
    assert with_means(Heartbeat(), [Beat(*one) for one in beats]).step_s == pace


def test_own_and_waiting_time_are_means_of_the_same_steps():
    def means(place, sums):
        found = with_means(place, sums)
        return found.own_ms, found.wait_ms

    sums = [Beat(10, 100.0, None, None), Beat(14, 105.0, 40.0, 8.0), Beat(20, 110.0, 70.0, 20.0)]
    place = Heartbeat(step=20, own_ms=70.0, wait_ms=20.0)
    assert means(place, sums) == (7.0, 2.0)
    assert means(place, sums[1:]) == (5.0, 2.0)
    assert means(place, sums[2:]) == (None, None)
    assert means(place, [Beat(10, 100.0, 5.0, 0.0), Beat(20, 110.0, 9.0, -1e-9)]) == (0.4, 0.0)
    assert means(Heartbeat(step=20), [Beat(10, 100.0), Beat(20, 110.0)]) == (None, None)


def test_heartbeats_of_the_last_half_minute_make_the_pace():
    """By a clock that makes 5 s a heartbeat; a resumed training has 1,000 steps behind it."""
    ticks, beats, is_done = iter(range(100, 1000, 5)), [], threading.Event()
    steps = iter([1000, 1000, *[1001] * 7, 1051, 1101])

    def place():
        return Heartbeat(step=next(steps))

    def report(beat):
        beats.append(beat.step_s)
        if len(beats) == 11:
            is_done.set()
        return ()

    failures = Failures(Health(), logging.getLogger())
    pulse = Pulse(
        place, report, lambda deal: None, failures, 1000, **AT_ONCE, clock=lambda: float(next(ticks))
    )
    assert is_done.wait(PATIENCE_S)
    pulse.stop()
    assert beats[:4] == [0.0, 0.0, 5.0, 10.0]
    assert beats[8:11] == [0.0, 30 / 50, 30 / 100]


def test_a_heartbeat_that_fails_is_counted_and_the_next_one_follows():
    failures, is_done = [OSError("full"), SystemExit(0)], threading.Event()

    def report(beat):
        if failures:
            raise failures.pop()
        is_done.set()
        return ()

    health = Health()
    pulse = Pulse(Heartbeat, report, lambda deal: None, Failures(health, logging.getLogger()), **AT_ONCE)
    assert is_done.wait(PATIENCE_S)
    pulse.stop()
    assert list(health.errors) == ["heartbeat: SystemExit: 0", "heartbeat: OSError: full"]
