"""What the system's counters become, and when they are sampled."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect import heartbeat
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.collect.values.system_metrics import Reading, Sampler, SystemMonitor, sources_of
from distsummary.errors import ClosedError, InvalidTypeError
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from tests.patience import wait_for
from tests.unit.collect.doubles import ListWriter, train

PERCENT = ("zz_system/node/cpu_percent", "zz_system/node/memory_percent", "zz_system/node/disk_used_percent")


@pytest.fixture
def failures() -> Failures:
    return Failures(Health(), logging.getLogger(__name__))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_this_process_and_this_node_are_measured(tmp_path: Path, failures: Failures) -> None:
    clock = Clock()
    sampler = Sampler(sources_of(Topology(), tmp_path, None), failures, clock)
    levels = sampler.sample()
    clock.now_s += 1e6  # no processor is that busy: every rate is there, and small
    sample = sampler.sample()
    assert failures.health.errors == {}
    assert levels.keys() < sample.keys()
    assert {tag for tag in sample if "process" in tag} >= {
        "zz_system/process/cpu_percent",
        "zz_system/process/memory_gib",
    }
    assert all(np.isfinite(value) and value >= 0 for value in sample.values())
    assert all(sample[tag] <= 100 for tag in PERCENT)


def test_only_one_rank_of_a_node_measures_the_node(tmp_path: Path, failures: Failures) -> None:
    topology = Topology(rank=1, world_size=2, local_rank=1, local_world_size=2)
    sample = Sampler(sources_of(topology, tmp_path, None), failures).sample()
    assert {tag.split("/")[1] for tag in sample} == {"process"}


def test_totals_become_growth_per_second(failures: Failures) -> None:
    total, clock = 7.0, Clock()
    sampler = Sampler({"x": lambda: Reading({"level": 1.0}, {"rate": total})}, failures, clock)
    assert sampler.sample() == {"level": 1.0}
    clock.now_s, total = clock.now_s + 2, total + 3
    assert sampler.sample() == {"level": 1.0, "rate": 1.5}
    clock.now_s, total = clock.now_s + 0.0625, total + 1  # too soon for a rate: the next one has it
    assert sampler.sample() == {"level": 1.0}
    clock.now_s, total = clock.now_s + 0.0625, total + 1
    assert sampler.sample() == {"level": 1.0, "rate": 16.0}
    clock.now_s, total = clock.now_s + 1, 0.0  # a counter that began again
    assert sampler.sample() == {"level": 1.0, "rate": 0.0}


def test_a_source_that_fails_is_counted_once_and_the_others_continue(failures: Failures) -> None:
    def broken() -> Reading:
        raise PermissionError("hidden")

    sampler = Sampler({"disk": broken, "x": lambda: Reading({"level": 1.0}, {})}, failures)
    assert [sampler.sample() for _ in range(3)] == [{"level": 1.0}] * 3
    [(reason, times)] = failures.health.errors.items()
    assert times == 1
    assert "the disk cannot be read" in reason
    assert "hidden" in reason
    assert "system_metrics=False" in reason


def at_once(name: str, job: Callable[[], object]) -> None:
    job()


def test_a_sample_is_taken_every_ten_seconds_with_the_heartbeats(failures: Failures) -> None:
    recorded: list[float] = []
    clock = Clock()

    def record(sample: Mapping[str, float], is_last: bool) -> bool:
        recorded.append(clock.now_s)
        return len(recorded) > 1  # before the first step there is nothing to record it at

    monitor = SystemMonitor(Sampler({}, failures), record, failures, at_once, clock=clock)
    for clock.now_s in (101.0, 106.0, 111.1, 116.0, 121.0, 126.2):
        monitor.look()
    monitor.stop()
    clock.now_s = 200.0
    monitor.look()  # the heartbeats end later
    assert recorded == [101.0, 106.0, 116.0, 126.2, 126.2]


def test_a_sample_that_cannot_be_recorded_is_counted_and_the_next_one_is_taken(failures: Failures) -> None:
    recorded: list[object] = []

    def record(sample: object, is_last: bool) -> bool:
        recorded.append(sample)
        if len(recorded) == 1:
            raise OSError("no space left")
        return True

    monitor = SystemMonitor(Sampler({}, failures), record, failures, at_once)
    monitor.look()
    monitor.look()
    assert len(recorded) == 2
    assert failures.health.errors == {"system metrics: OSError: no space left": 1}


def test_a_source_that_hangs_holds_no_heartbeat(failures: Failures) -> None:
    jobs: list[Callable[[], object]] = []
    monitor = SystemMonitor(
        Sampler({}, failures), lambda sample, is_last: True, failures, lambda name, job: jobs.append(job)
    )
    for _ in range(3):
        monitor.look()
    assert len(jobs) == 2  # the totals to begin with, and one sample that waits for them


def test_samples_end_with_the_writer(failures: Failures) -> None:
    def record(sample: object, is_last: bool) -> bool:
        raise ClosedError("closed")

    monitor = SystemMonitor(Sampler({}, failures), record, failures, at_once)
    monitor.look()
    assert failures.health.errors == {}


def test_a_short_training_has_one_sample_in_its_last_step_and_leaves_no_thread(tmp_path, writers):
    train(SummaryCollector(tmp_path, system_metrics=True), log={"loss": 0.5})
    events = [event for event in writers[0].events if event.values[0].tag.startswith("zz_system/")]
    assert [event.step for event in events] == [4]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("distsummary")]


def test_a_step_with_a_sample_gets_no_last_one(tmp_path, writers, monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.001)

    def samples() -> list[int]:
        return [e.step for e in writers[0].events if any(v.tag.startswith("zz_system/") for v in e.values)]

    with Run(callbacks=SummaryCollector(tmp_path, system_metrics=True)) as run:
        for _ in run.steps([1]):
            run.log(loss=0.5)
        wait_for(lambda: bool(samples()))
    assert samples() == [1]


def test_a_training_without_a_step_has_no_sample(tmp_path: Path, writers: list[ListWriter]) -> None:
    with Run(callbacks=SummaryCollector(tmp_path, system_metrics=True), initial_step=7) as run:
        for _ in run.steps([]):
            pass
    assert not [e for e in writers[0].events if any(v.tag.startswith("zz_system/") for v in e.values)]


def test_a_collector_samples_only_if_asked(tmp_path: Path, writers: list[ListWriter]) -> None:
    train(SummaryCollector(tmp_path), log={"loss": 0.5})
    assert not [e for e in writers[0].events if any(v.tag.startswith("zz_system/") for v in e.values)]
    with pytest.raises(InvalidTypeError, match="system_metrics"):
        SummaryCollector(tmp_path, system_metrics="yes")  # type: ignore[arg-type]
