"""What a landscape computes, workers of one kind compute: those with GPUs, or those without."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import ray

from distsummary.landscapes.engines.chunks import plan_chunks
from distsummary.landscapes.run import actor, actor_crew, actor_team
from distsummary.landscapes.run.actor import RayWorkers
from distsummary.landscapes.run.actor_crew import RayCrew
from distsummary.landscapes.run.actor_start import UNRESERVED
from distsummary.landscapes.run.actor_team import Team
from distsummary.landscapes.run.scheduler import Scheduler
from tests.ray.test_landscape import Asked, numpy_task
from tests.unit.landscapes import golden_mlp

pytestmark = pytest.mark.usefixtures("ray_cluster")

ON_GPU = {"num_gpus": 1.0, "num_cpus": 0.0}  # the cluster has none
ON_CPU = {"num_cpus": 1.0}
AMPLE = {"num_cpus": 64.0}  # nor as many of these


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_crew, "START_S", 0.0)
    monkeypatch.setattr(actor_team, "START_S", 0.0)


@pytest.fixture
def crew(request: pytest.FixtureRequest, impatient: None) -> Iterator[RayCrew]:
    """Workers of which none starts; of any kind more could be added."""
    task = numpy_task(golden_mlp.cross_entropy)
    crew = RayCrew(ray.put(task), [request.param] * 2, lambda points: [ON_GPU, ON_CPU])
    yield crew
    crew.end()


def kinds(crew: RayCrew) -> list[dict[str, float]]:
    return [crew._resources[worker] for worker in crew._actors]


@pytest.mark.parametrize("crew", [ON_GPU], indirect=True)
def test_a_worker_without_a_reservation_takes_the_place_of_those_that_wait_for_gpus(crew: RayCrew) -> None:
    crew._lose_patience()
    assert kinds(crew) == [UNRESERVED]
    assert crew._starting() == {"worker-2"}


@pytest.mark.parametrize("crew", [AMPLE], indirect=True)
def test_it_stands_beside_those_that_wait_for_cpus(crew: RayCrew) -> None:
    crew._lose_patience()
    assert kinds(crew) == [AMPLE, AMPLE, UNRESERVED]


@pytest.mark.parametrize("crew", [ON_GPU], indirect=True)
def test_a_gpu_is_waited_for_where_points_were_computed_on_gpus(
    crew: RayCrew, caplog: pytest.LogCaptureFixture
) -> None:
    crew._ended = 5
    crew._lose_patience()
    crew._lose_patience()
    assert kinds(crew) == [ON_GPU, ON_GPU]
    assert caplog.text.count("got its GPU in 0 s; one is waited for") == 1


@pytest.mark.parametrize("crew", [ON_GPU], indirect=True)
def test_what_is_added_later_is_of_the_kind_that_there_is(crew: RayCrew) -> None:
    crew._lose_patience()
    task = numpy_task(golden_mlp.cross_entropy)
    crew._grows_at = 0.0
    [begun] = crew._pending
    ray.wait([begun])
    crew._take(begun, scheduler := Scheduler(plan_chunks(task.planes)), lambda *_: None)
    crew._grow(scheduler)
    assert kinds(crew) == [UNRESERVED, ON_CPU]


def test_a_team_is_of_one_kind_too(impatient: None) -> None:
    team = Team(Asked, [ON_GPU, ON_GPU])
    try:
        assert len(team.started()) == 1
        assert [options for _, options, _ in team._members] == [UNRESERVED]
    finally:
        team.end()


def test_a_team_that_has_begun_on_gpus_waits_for_one(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    team = Team(Asked, [ON_GPU])
    team._has_started = True
    try:
        monkeypatch.setattr(team, "_started", lambda timeout_s: [] if timeout_s is not None else ["a GPU's"])
        answers: list[Any] = team.started()
        assert answers == ["a GPU's"]
        assert [options for _, options, _ in team._members] == [ON_GPU]
        assert "one is waited for" in caplog.text
    finally:
        team.end()


def test_gpus_that_were_waited_for_in_vain_are_not_waited_for_again(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actor, "free_resources", lambda: {"GPU": 1.0, "CPU": 1.0})  # as Ray counts them
    monkeypatch.setattr(actor, "fits", lambda gpus: True)
    task = numpy_task(golden_mlp.cross_entropy)
    with RayWorkers(1, gpus_each=1.0) as workers:
        task = replace(task, choice=workers.plan(task))
        monkeypatch.setattr(actor_crew, "START_S", 600.0)
        scheduler = Scheduler(plan_chunks(task.planes))
        with workers.crew(task) as crew:
            crew.run(scheduler, lambda worker, chunk, result: scheduler.done(worker, chunk, result.measured))
            assert kinds(crew) == [{"num_cpus": 1}]
    assert caplog.text.count("no landscape worker started") == 1


@pytest.mark.parametrize("crew", [ON_GPU], indirect=True)
def test_a_crew_that_waited_for_gpus_in_vain_says_so_to_who_plans_workers(crew: RayCrew) -> None:
    said: list[bool] = []
    crew._forgo = lambda: said.append(True)
    crew._lose_patience()
    assert said == [True]
