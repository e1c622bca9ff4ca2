"""A rank with an aggregator process; the process itself is tested in tests/processes."""

from pathlib import Path

import pytest

from distsummary.aggregate import process
from distsummary.aggregate.process import AggregatorProcess, ProcessCoordinator
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology


@pytest.mark.parametrize("is_shared", [True, False])
def test_one_rank_of_a_node_where_rank_0_does_not_appear_says_so_once(
    tmp_path: Path, is_shared: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "MISSING_S", 0.0)
    run = RunDir(tmp_path).create()
    places = [
        Topology(rank=n, world_size=4, local_rank=n % 2, incarnation="job", is_incarnation_unique=True)
        for n in range(4)
    ]
    if is_shared:
        LocalCoordinator(run).register(places[0])
    for place in places[2:]:
        coordinator = ProcessCoordinator(run)
        attempt = coordinator.register(place).attempt
        for step in range(2):
            coordinator.beat(place, attempt, Heartbeat(step, "step", 0.1, None))
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == (0 if is_shared else 1)
    assert all("not begun to record here within 0 s" in one and "rank_00002" in one for one in reported)


@pytest.mark.parametrize(
    ("how", "again_s", "times"),
    [("", 0.0, [1, 2, 3]), ("", 60.0, [1, 1, 2]), ("was ended by SIGKILL", 0.0, [1, 1, 1])],
)
def test_a_rank_0_that_continues_starts_the_next_aggregator_unless_it_has_failed_for_good(
    tmp_path: Path, how: str, again_s: float, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[AggregatorProcess] = []

    def start(run_dir: RunDir) -> AggregatorProcess:
        started.append(AggregatorProcess(run_dir))
        started[-1].join()
        return started[-1]

    monkeypatch.setattr(AggregatorProcess, "_run", lambda self: how)
    monkeypatch.setattr(process, "BACKOFF_S", (0.01,))
    monkeypatch.setattr(process, "AGAIN_S", again_s)
    monkeypatch.setattr(process, "start_aggregator", start)
    coordinator = ProcessCoordinator(RunDir(tmp_path).create())
    place = Topology(world_size=2, incarnation="job", is_incarnation_unique=True)
    attempt, found = coordinator.register(place).attempt, [len(started)]
    coordinator.beat(place, attempt, Heartbeat(1, "step", 0.1, None))
    found.append(len(started))
    coordinator.finish(place, attempt, {})
    assert [*found, len(started)] == times


def test_at_its_end_rank_0_starts_an_aggregator_that_died_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def run(self: AggregatorProcess) -> str:
        runs.append(self)
        return "was ended by SIGKILL" if len(runs) == 1 else ""

    monkeypatch.setattr(AggregatorProcess, "_run", run)
    monkeypatch.setattr(process, "BACKOFF_S", (600.0,))
    monkeypatch.setattr(process, "START_S", 0.0)
    kept = AggregatorProcess(RunDir(tmp_path).create())
    kept.hurry()
    kept.join()
    assert len(runs) == 2
    assert not kept.has_failed
