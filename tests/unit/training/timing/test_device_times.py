"""DeviceTimes and what Phases makes of them, with a device whose clock and progress the test turns."""

from collections.abc import Iterator

import pytest

from distsummary.format.own_tags import OWN_MS, WAIT_MS
from distsummary.training.timing.device_times import MAX_PENDING, DeviceTimes
from distsummary.training.timing.phases import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    RECORDING,
    REST,
    WAIT,
    Phases,
)
from tests.unit.training.timing.test_phases import Turned


class Device:
    """Does what it was asked to do when `run` is called."""

    def __init__(self) -> None:
        self.asked_ms = self.done_ms = 0.0
        self.events = 0
        self.is_captured = False

    def ask(self, ms: float) -> None:
        self.asked_ms += ms

    def run(self) -> None:
        self.done_ms = self.asked_ms


class Event:
    def __init__(self, device: Device) -> None:
        device.events += 1
        self.device, self.at = device, -1.0

    def record(self) -> None:
        assert not self.device.is_captured
        self.at = self.device.asked_ms

    def query(self) -> bool:
        return self.device.done_ms >= self.at

    def elapsed_time(self, end: "Event") -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def times(device: Device) -> DeviceTimes:
    return DeviceTimes(lambda: Event(device), lambda: device.is_captured)


def step(times: DeviceTimes, device: Device, **ms: float) -> dict[str, float]:
    for phase, asked in ms.items():
        times.enter(phase)
        device.ask(asked)
    return dict(times.take(RECORDING))


def test_times_come_when_the_device_has_done_a_step_and_are_never_waited_for(times, device):
    assert step(times, device, data=0, forward=5, backward=8, wait=2) == {}
    assert step(times, device, data=0, forward=6, backward=8, wait=2) == {}
    device.run()
    found = step(times, device, data=0, forward=7, backward=8, wait=2)
    assert found == {RECORDING: 0, DATA: 0, FORWARD: 6, BACKWARD: 8, WAIT: 2}
    device.run()
    assert step(times, device, data=0, forward=1)[FORWARD] == 7


def test_a_phase_that_is_entered_twice_has_both_times(times: DeviceTimes, device: Device) -> None:
    for phase, ms in ((FORWARD, 1), (BACKWARD, 2), (WAIT, 3), (FORWARD, 4), (BACKWARD, 5), (WAIT, 6)):
        times.enter(phase)
        device.ask(ms)
    times.was(BACKWARD)
    times.enter(WAIT)
    device.ask(7)
    device.run()
    assert times.take(REST) == {FORWARD: 5, BACKWARD: 2 + 5 + 6, WAIT: 3 + 7}


def test_events_are_used_again_and_of_a_device_that_lags_far_behind_few_steps_are_measured(times, device):
    for _ in range(3 * MAX_PENDING):
        step(times, device, forward=1, backward=2)
    assert device.events <= 5 * (MAX_PENDING + 1)
    device.run()
    assert step(times, device, forward=9, backward=2)[FORWARD] == 1
    made = device.events
    for number in range(100):
        device.run()
        found = step(times, device, forward=number, backward=2)
    assert found[FORWARD] == 98
    assert device.events == made


def test_nothing_is_recorded_into_what_a_graph_captures(times: DeviceTimes, device: Device) -> None:
    step(times, device, forward=1)
    device.is_captured = True
    assert step(times, device, forward=1, backward=1) == {}
    device.is_captured = False
    step(times, device, forward=3)
    device.run()
    assert step(times, device, forward=1)[FORWARD] == 3


def test_a_step_that_is_not_marked_has_no_events(times: DeviceTimes, device: Device) -> None:
    times.enter(FORWARD)
    device.ask(50)
    times.begin(DATA)
    device.ask(1)
    times.enter(FORWARD)
    device.ask(2)
    device.run()
    assert times.take(REST) == {DATA: 1, FORWARD: 2}


@pytest.fixture
def clocks() -> Turned:
    return Turned()


@pytest.fixture
def phases(clocks: Turned, times: DeviceTimes) -> Iterator[Phases]:
    found = Phases(clocks)
    found.device = times
    yield found
    found.close()


def test_the_longer_of_thread_and_device_is_the_ranks_own(phases, clocks, times, device):
    found = {}
    for number in range(1, 4):
        phases.enter(DATA)
        clocks.turn(cpu=1, blocked=3)
        phases.enter(FORWARD)
        clocks.turn(cpu=2)
        device.ask(10)
        times.enter(BACKWARD)  # by a thread of torch
        device.ask(20)
        times.enter(WAIT)
        device.ask(7)
        clocks.turn(blocked=30)  # the loop's thread waits for backward to be queued
        phases.enter(OPTIMIZER)
        clocks.turn(cpu=5)
        device.ask(4)
        phases.enter(REST)
        clocks.turn(blocked=40)  # such as loss.item()
        device.run()
        found = phases.end_step(number)
    found.pop("zz_perf/phase/python/blocked_ms", None)  # of a garbage collection in these steps
    assert {name: round(value, 6) for name, value in found.items() if name.endswith("blocked_ms")} == {
        "zz_perf/phase/rest/blocked_ms": 0, "zz_perf/phase/recording/blocked_ms": 0,
        "zz_perf/phase/data/blocked_ms": 3, "zz_perf/phase/forward/blocked_ms": 8,
        "zz_perf/phase/optimizer/blocked_ms": 0, "zz_perf/phase/backward/blocked_ms": 20,
        "zz_perf/phase/wait/blocked_ms": 7,
    }  # fmt: skip
    assert found[OWN_MS] == pytest.approx(1 + 3 + 10 + 20 + 5)
    assert found[WAIT_MS] == pytest.approx(7)
