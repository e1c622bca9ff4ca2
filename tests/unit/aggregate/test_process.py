"""A rank with an aggregator process; the process itself is tested in tests/processes."""

from itertools import count
from pathlib import Path

import pytest

from distsummary.aggregate.process import AGAIN_S, MISSING_S, AggregatorProcess, ProcessCoordinator
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology

ENDS, DIES = ("true",), ("sh", "-c", "kill -9 $$")


@pytest.mark.parametrize("is_shared", [True, False])
def test_one_rank_of_a_node_where_rank_0_does_not_appear_says_so_once(tmp_path, is_shared, caplog):
    run = RunDir(tmp_path).create()
    places = [
        Topology(rank=n, world_size=4, local_rank=n % 2, incarnation="job", is_incarnation_unique=True)
        for n in range(4)
    ]
    if is_shared:
        LocalCoordinator(run).register(places[0])
    for place in places[2:]:
        coordinator = ProcessCoordinator(run, clock=count(0.0, 1.1 * MISSING_S).__next__)
        attempt = coordinator.register(place).attempt
        for step in range(2):
            coordinator.beat(place, attempt, Heartbeat(step, "step", 0.1, None))
    assert len(caplog.messages) == (0 if is_shared else 1)
    for message in caplog.messages:
        assert "not begun to record here within 30 s" in message
        assert "rank_00002" in message


@pytest.mark.parametrize(
    ("command", "passed_s", "times"),
    [(ENDS, 1.1 * AGAIN_S, [1, 2, 3]), (ENDS, 0.9 * AGAIN_S, [1, 1, 2]), (DIES, 1.1 * AGAIN_S, [1, 1, 1])],
)
def test_a_rank_0_that_continues_starts_the_next_aggregator_unless_it_has_failed_for_good(
    tmp_path: Path, command: tuple[str, ...], passed_s: float, times: list[int]
) -> None:
    started: list[AggregatorProcess] = []
    now = 0.0

    def start(run_dir: RunDir) -> AggregatorProcess:
        started.append(AggregatorProcess(run_dir, command=command, backoff_s=(0.01,)))
        started[-1].join()
        return started[-1]

    coordinator = ProcessCoordinator(RunDir(tmp_path).create(), start=start, clock=lambda: now)
    place = Topology(world_size=2, incarnation="job", is_incarnation_unique=True)
    attempt, found = coordinator.register(place).attempt, [len(started)]
    now += passed_s
    coordinator.beat(place, attempt, Heartbeat(1, "step", 0.1, None))
    found.append(len(started))
    coordinator.finish(place, attempt, {})
    assert [*found, len(started)] == times


def test_at_its_end_rank_0_starts_an_aggregator_that_died_at_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = ("sh", "-c", 'echo >>"$0"; test $(wc -l <"$0") -gt 1 || kill -9 $$', str(runs))
    kept = AggregatorProcess(RunDir(tmp_path).create(), command=command, backoff_s=(600.0,))
    kept.hurry()
    kept.join()
    assert runs.read_text() == "\n\n"
    assert not kept.has_failed
