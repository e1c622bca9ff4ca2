"""Landscapes on Ray: any number of workers, and the death of one, give the same bytes."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from ray.exceptions import RayActorError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distsummary.errors import InvalidValueError, LandscapeCancelled, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.hessian import mean_product
from distsummary.landscapes.directions.planes import Settings, prepare_random
from distsummary.landscapes.engines.chunks import plan_chunks
from distsummary.landscapes.engines.worker import Task
from distsummary.landscapes.generator import landscape, landscape_set
from distsummary.landscapes.model.quantities import Evaluation
from distsummary.landscapes.model.user_code import BatchLoss
from distsummary.landscapes.output.grid import LossGrid
from distsummary.landscapes.run import actor_crew, actor_end, actor_silence, actor_team
from distsummary.landscapes.run.actor import RayWorkers
from distsummary.landscapes.run.actor_crew import _Call
from distsummary.landscapes.run.actor_start import check_spread, plan_workers
from distsummary.landscapes.run.progress import Progress
from distsummary.landscapes.run.runner import Here
from distsummary.landscapes.run.scheduler import Scheduler
from tests.conftest import ROOT
from tests.unit.landscapes import golden_mlp

pytestmark = pytest.mark.usefixtures("ray_cluster")


def make_model() -> nn.Module:
    """The golden run's net with BN behind it, so that there are buffers."""
    torch.manual_seed(0)
    layers = {"d1": nn.Linear(4, 5), "tanh": nn.Tanh(), "bn": nn.BatchNorm1d(5), "d2": nn.Linear(5, 3)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def batches() -> list[Any]:
    return [(torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in golden_mlp.batches()]


PATIENCE_S = 300.0  # on a busy machine, too, nobody takes a slow worker's place


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_crew, "START_S", PATIENCE_S)
    monkeypatch.setattr(actor_team, "START_S", PATIENCE_S)


def draw(workers: int | str, size: int = 7, **more: Any) -> LossGrid:
    loss = {} if "batch_loss" in more else {"loss_fn": nn.CrossEntropyLoss()}
    arguments = {
        "batches": batches(), "size": size, "workers": workers, "engine": "row", "progress": False
    }  # fmt: skip
    grid = landscape(make_model(), **(loss | arguments | more))
    assert isinstance(grid, LossGrid)
    return grid


def killer(flag: Path, kills: int, at: float) -> Any:
    """A loss that kills its own process with SIGKILL, `kills` times in all, where a weight is beyond `at`.

    For the numpy model: its workers start in a third of the time, and no test needs more of them.
    """
    flag.mkdir()
    cross_entropy = golden_mlp.cross_entropy

    def loss_fn(model: Any, batch: Any) -> float:
        done = len(list(flag.iterdir()))
        if model.parameters["d1.weight"][0, 0] > at and done < kills:
            (flag / f"{done}-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(model(batch[0]), batch[1])

    return loss_fn


def draw_numpy(workers: int, batch_loss: Any = None) -> LossGrid:
    grid = landscape(
        golden_mlp.Mlp(),
        golden_mlp.cross_entropy if batch_loss is None else None,
        golden_mlp.batches(),
        batch_loss=batch_loss,
        size=7,
        workers=workers,
        progress=False,
    )
    assert isinstance(grid, LossGrid)
    return grid


CENTRE_WEIGHT = float(golden_mlp.Mlp().parameters["d1.weight"][0, 0])


def test_any_number_of_workers_gives_the_same_bytes() -> None:
    here, one, three, auto = draw(0), draw(1), draw(3), draw("auto")
    for grid in (one, three, auto):
        assert grid.z.tobytes() == here.z.tobytes()
        assert grid.path_loss.tobytes() == here.path_loss.tobytes()
        assert grid.true_loss.tobytes() == here.true_loss.tobytes()
    assert list(here.worker_seconds) == ["here"]
    assert len(one.worker_seconds) == 1
    assert len(three.worker_seconds) == 3
    assert sum(three.worker_seconds.values()) > 0
    assert three.engine == "torch-row"


def test_numpy_models_are_drawn_by_workers_too() -> None:
    arguments = {"around": golden_mlp.CKPT_DIR, "size": 5, "mode": "mindspore", "progress": False}
    grids = [
        landscape(
            golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches(), workers=workers, **arguments
        )
        for workers in (0, 2)
    ]
    for key in ("pca[1, 4]", "pca[3, 6]"):
        assert grids[0][key].z.tobytes() == grids[1][key].z.tobytes()


def test_a_killed_worker_costs_no_chunk(tmp_path: Path) -> None:
    grid = draw_numpy(2, killer(tmp_path / "kills", kills=2, at=CENTRE_WEIGHT))
    killed = {path.name.split("-")[1] for path in (tmp_path / "kills").iterdir()}
    assert len(killed) == 2
    assert grid.z.tobytes() == draw_numpy(0).z.tobytes()
    assert grid.lost_points == 0
    assert len(grid.worker_seconds) == 4


def test_a_killed_torch_worker_is_replaced_by_one_that_gives_the_same_bytes(tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if model.d1.weight[0, 0].item() > at and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    at = make_model().d1.weight[0, 0].item()
    grid = draw(1, batch_loss=loss_fn)  # another one might end it all before the death is known
    assert killed.exists()
    assert grid.z.tobytes() == draw(0).z.tobytes()
    assert len(grid.worker_seconds) == 2


def test_a_point_that_kills_every_worker_is_nan_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = list[float]()

    def watched(model: Any, batch: Any) -> float:
        weights.append(float(model.parameters["d1.weight"][0, 0]))
        return golden_mlp.cross_entropy(model(batch[0]), batch[1])

    before = draw_numpy(0, watched)
    second, first = sorted(set(weights))[-2:]  # a single point is beyond their middle
    grid = draw_numpy(1, killer(tmp_path / "kills", kills=1000, at=(first + second) / 2))
    lost = np.isnan(grid.z)
    assert grid.lost_points == lost.sum() == 1  # not what was in its chunk
    assert grid.z[~lost].tobytes() == before.z[~lost].tobytes()
    assert "was given up" in caplog.text


def test_workers_that_always_die_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LandscapeError, match="died one after the other"):
        draw_numpy(1, killer(tmp_path / "kills", kills=1000, at=-1e9))


class TwoArgumentsError(Exception):
    """Python pickles it, and cannot unpickle it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")


def test_an_error_in_the_loss_is_raised_with_its_place_and_cause(tmp_path: Path) -> None:
    at = make_model().d1.weight[0, 0].item()

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if model.d1.weight[0, 0].item() > at:
            raise ZeroDivisionError("in the loss")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    kept = (
        r"raised ZeroDivisionError: in the loss in batch 1 at y = .*, x = .*; .* points finished are kept in "
    )
    with pytest.raises(LandscapeError, match=kept) as failed:
        draw(2, batch_loss=loss_fn, run_dir=tmp_path)
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert "loss_fn" in str(failed.value.__cause__.__cause__)  # the worker's traceback
    assert "\n" not in str(failed.value)


def test_an_error_that_cannot_be_unpickled_is_quoted_and_kills_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def loss_fn(model: Any, batch: Any) -> float:
        raise TwoArgumentsError("in the", "loss")

    with pytest.raises(LandscapeError, match=r"TwoArgumentsError: in the loss in batch 1 when"):
        draw_numpy(1, loss_fn)
    assert "died" not in caplog.text


def test_own_errors_of_workers_are_raised_as_they_are() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return np.ones((2, 2, 2))

    found = []
    for workers in (0, 1):
        with pytest.raises(LandscapeError, match="return the mean over the batch") as failed:
            draw_numpy(workers, loss_fn)
        found.append(str(failed.value))
    assert found[0] == found[1]


def test_an_error_in_a_product_with_the_hessian_is_told_in_one_line() -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        raise ZeroDivisionError("in the loss")

    for workers in (0, 1):
        with pytest.raises(
            LandscapeError, match=r"ZeroDivisionError: in the loss in batch \d in a product"
        ) as failed:
            product(BatchLoss(loss_fn), workers)
        assert type(failed.value.__cause__) is ZeroDivisionError


def test_errors_in_other_products_are_not_printed_by_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    first = batches()[0][0]

    def loss_fn(model: Any, batch: Any) -> Any:
        if torch.equal(batch[0], first):
            time.sleep(0.5)  # meanwhile the others raise
        raise ZeroDivisionError("in the loss")

    told = told_by_ray(monkeypatch)
    with pytest.raises(LandscapeError, match="ZeroDivisionError"):
        product(BatchLoss(loss_fn), 2)
    gc.collect()  # of errors that nobody has read Ray tells when they are gone
    assert told == []


def test_errors_in_other_workers_are_not_printed_by_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, asked = tmp_path / "first", tmp_path / "asked"

    def loss_fn(model: Any, batch: Any) -> Any:
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            while not asked.exists():
                time.sleep(0.01)
        raise ZeroDivisionError("in the loss")

    def late(*arguments: Any) -> Any:
        asked.touch()
        time.sleep(0.5)  # meanwhile the other raises; Ray takes an error as read that it was asked for
        return answer(*arguments)

    answer, told = actor_crew._answer, told_by_ray(monkeypatch)
    monkeypatch.setattr(actor_crew, "_answer", late)
    with pytest.raises(LandscapeError, match="ZeroDivisionError"):
        draw(2, batch_loss=loss_fn)
    gc.collect()
    assert told == []


def told_by_ray(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors of which Ray tells from now on; of those before, it has told."""
    gc.collect()
    told: list[Exception] = []
    monkeypatch.setattr(ray._private.worker, "_unhandled_error_handler", told.append)
    return told


def test_what_cannot_be_pickled_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:

        def loss_fn(model: nn.Module, batch: Any) -> Any:
            return file.fileno()

        with pytest.raises(LandscapeError, match=r"\(Cannot pickle .*\); .* workers=0") as refused:
            draw(1, batch_loss=loss_fn)
        assert "\n" not in str(refused.value), "Ray's own text has many"


def test_an_interrupt_leaves_no_worker() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(LandscapeCancelled) as stopped:
        landscape(make_model(), nn.CrossEntropyLoss(), batches(), workers=2, progress=interrupt)
    assert not stopped.value.grids["random"].computed.all()


def test_a_cluster_that_is_fully_reserved_still_draws() -> None:
    group = ray.util.placement_group([{"CPU": 1}] * 4)
    assert group.wait(60)
    try:
        grid = draw("auto")
        assert grid.z.tobytes() == draw(0).z.tobytes()
        assert len(grid.worker_seconds) == 1
    finally:
        ray.util.remove_placement_group(group)


def test_what_becomes_free_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_crew, "GROW_S", 0.2)
    group = ray.util.placement_group([{"CPU": 1}] * 3)
    assert group.wait(60)

    def slow(model: Any, batch: Any) -> float:
        time.sleep(0.005)
        return golden_mlp.cross_entropy(model(batch[0]), batch[1])

    def release(progress: Progress) -> None:
        if progress.fresh and groups:
            ray.util.remove_placement_group(groups.pop())

    groups = [group]
    parts = (golden_mlp.Mlp(), slow, golden_mlp.batches())
    grid = landscape(*parts, size=25, workers="auto", progress=release)
    assert not groups
    assert len(grid.worker_seconds) == 4
    assert sum(seconds > 0 for seconds in grid.worker_seconds.values()) > 1


def test_workers_leave_a_placement_group_that_captures_children() -> None:
    @ray.remote(num_cpus=1)
    def inside() -> bytes:
        return draw(2).z.tobytes()

    group = ray.util.placement_group([{"CPU": 1}])
    assert group.wait(60)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    try:
        assert (
            ray.get(inside.options(scheduling_strategy=strategy).remote(), timeout=120) == draw(0).z.tobytes()
        )
    finally:
        ray.util.remove_placement_group(group)


def test_workers_compute_with_one_thread_and_keep_freed_memory() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        passive = os.environ["OMP_WAIT_POLICY"] == "PASSIVE" and os.environ["OMP_NUM_THREADS"] == "1"
        keeps = (
            int(os.environ["MALLOC_MMAP_THRESHOLD_"]) <= 32 << 20 < int(os.environ["MALLOC_TRIM_THRESHOLD_"])
        )
        return torch.tensor(float(torch.get_num_threads() if passive and keeps else -1))

    assert (draw(1, batch_loss=loss_fn, size=3).z == 1).all()


@pytest.mark.parametrize(
    ("free", "chunks", "asked", "gpus_each", "expected"),
    [
        ({"CPU": 4.0}, 100, None, 1, [{"num_cpus": 1}] * 4),
        ({"CPU": 4.0}, 3, None, 1, [{"num_cpus": 1}] * 3),
        ({"CPU": 0.5}, 100, None, 1, [{"num_cpus": 0}]),
        ({}, 100, None, 1, [{"num_cpus": 0}]),
        ({"CPU": 1.0}, 100, 3, 1, [{"num_cpus": 1}, {"num_cpus": 0}, {"num_cpus": 0}]),
        ({"CPU": 4.0, "GPU": 2.0}, 100, None, 1, [{"num_gpus": 1, "num_cpus": 0}] * 2),
        ({"CPU": 4.0, "GPU": 2.0}, 100, 1, 1, [{"num_gpus": 1, "num_cpus": 0}]),
        ({"CPU": 2.0, "GPU": 2.0}, 100, None, 0, [{"num_cpus": 1}] * 2),
        ({"CPU": 2.0, "GPU": 1.5}, 100, None, 0.25, [{"num_gpus": 0.25, "num_cpus": 0}] * 6),
        ({"CPU": 2.0, "GPU": 0.5}, 100, None, 1, [{"num_cpus": 1}] * 2),  # a training has the rest
        ({"CPU": 2.0, "GPU": 5.0}, 100, None, 2, [{"num_gpus": 2, "num_cpus": 0}] * 2),
    ],
)
def test_workers_start_with_what_is_free(
    free: dict[str, float],
    chunks: int,
    asked: int | None,
    gpus_each: float,
    expected: list[dict[str, float]],
) -> None:
    assert plan_workers(free, chunks, asked, gpus_each=gpus_each) == expected


@pytest.mark.parametrize(
    ("own", "given", "message"),
    [
        ([0, 1], 1, "must have the 2 GPUs that the model lies on, got 1"),
        ([0, 1], 0, "got 0; free as many"),
        ([1, 2], 2, r"must lie on the first ones for workers, got numbers \[1, 2\]"),
    ],
)
def test_a_model_over_several_gpus_wants_as_many_in_each_worker(
    own: list[int], given: float, message: str
) -> None:
    check_spread(list(range(len(own))), len(own))
    check_spread([], 0)
    with pytest.raises(InvalidValueError, match=message):
        check_spread(own, given)


def on_gpus_in_name_only(script: str, tmp_path: Path) -> str:
    """What a script prints that connects to a cluster of its own: Ray hands such GPUs out by number."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    found = subprocess.run(
        [sys.executable, "-c", NUMPY_MODEL + script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not found.returncode, found.stderr
    return found.stdout


NUMPY_MODEL = """
import os, time, ray, numpy as np, distsummary as ds

class Model:
    def __init__(self):
        self.parameters = {"w": np.ones((3, 2), np.float32)}

def norm(model, batch):
    return float((model.parameters["w"] ** 2).sum())
"""


def test_the_users_own_evaluation_sees_all_gpus_of_its_worker(tmp_path: Path) -> None:
    script = """
def loss(model, batch):
    if os.environ.get("CUDA_VISIBLE_DEVICES") not in ("0,1", "2,3"):
        raise RuntimeError("not two GPUs of its own")
    return norm(model, batch)

ray.init(address="local", num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False)
grid = ds.landscape(Model(), loss, [np.zeros(1)], directions="random", size=5, gpus_per_worker=2)
print("finite", bool(np.isfinite(grid.z).all()))
"""
    assert "finite True" in on_gpus_in_name_only(script, tmp_path)


@pytest.mark.parametrize("gpus", [1, 2])
def test_landscapes_one_after_the_other_use_all_gpus(tmp_path: Path, gpus: int) -> None:
    """Also the first one, which tries engines on a GPU before; and workers on CPUs."""
    script = f"""
def loss(model, batch):
    if bool(ray.get_gpu_ids()) != bool(each):
        raise RuntimeError(f"{{ray.get_gpu_ids()}} of {{each}} GPUs")
    return norm(model, batch)

ray.init(address="local", num_cpus={gpus}, num_gpus={gpus}, include_dashboard=False, log_to_driver=False)
for each in (1, 1, 0, 0):
    grid = ds.landscape(Model(), loss, [np.zeros(1)], size=5, gpus_per_worker=each, progress=False)
    print("workers", len(grid.worker_seconds))
"""
    assert on_gpus_in_name_only(script, tmp_path).count(f"workers {gpus}") == 4


def test_shares_of_several_gpus_that_hold_no_worker_are_not_waited_for(tmp_path: Path) -> None:
    script = """
from distsummary.errors import LandscapeError
from distsummary.landscapes.run import actor_start

def loss(model, batch):
    if ray.get_gpu_ids():
        raise RuntimeError("a GPU that nobody had")
    return norm(model, batch)

@ray.remote(num_gpus=0.6, num_cpus=0)
class Training:
    def begun(self):
        return True

ray.init(address="local", num_cpus=2, num_gpus=3, include_dashboard=False, log_to_driver=False)
trainings = [Training.remote() for _ in range(3)]
ray.get([training.begun.remote() for training in trainings])
while ray.available_resources()["GPU"] > 1.3:
    time.sleep(0.05)
actor_start.FIT_S = 1.0
grid = ds.landscape(Model(), loss, [np.zeros(1)], size=5, gpus_per_worker=1, progress=False)
print("workers", len(grid.worker_seconds))
actor_start.FIT_S = 60.0  # what fits is there at once
try:
    ds.landscape(Model(), loss, [np.zeros(1)], size=5, gpus_per_worker=0.4, progress=False)
except LandscapeError as error:
    print(error)
"""
    printed = on_gpus_in_name_only(script, tmp_path)
    assert "workers 2" in printed
    assert "a GPU that nobody had" in printed


class Asked:
    """An actor that has nothing to do."""

    def answer(self) -> int:
        return 42


NOWHERE: Any = {"num_gpus": 1, "num_cpus": 0}  # the cluster has none


@pytest.mark.parametrize("resources", [[NOWHERE, {"num_cpus": 1}], [NOWHERE]])
def test_a_team_does_not_wait_for_what_it_cannot_get(
    resources: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_team, "START_S", PATIENCE_S if len(resources) > 1 else 0.1)
    team = actor_team.Team(Asked, resources)
    try:
        assert [ray.get(actor.answer.remote()) for actor in team.started()] == [42]
        dead = team.started()[0]
        assert [team.replace(dead), team.replace(dead)] == [True, False]
        assert [ray.get(actor.answer.remote()) for actor in team.started()] == [42]
    finally:
        team.end()


def test_a_crew_goes_on_when_what_a_dead_worker_held_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(actor_crew, "START_S", 1.0)
    task = numpy_task(BatchLoss(killer(tmp_path / "kills", kills=1, at=CENTRE_WEIGHT)))
    scheduler = Scheduler(plan_chunks(task.planes))
    with RayWorkers(1) as workers, workers.crew(task) as crew:
        crew._resources["worker-0"] = {"num_cpus": 64.0}  # as if others had taken it
        crew.run(scheduler, lambda worker, chunk, result: scheduler.done(worker, chunk, result.measured))
    assert scheduler.is_finished
    assert not scheduler.abandoned
    died = next(message for message in caplog.messages if "died" in message)
    assert died.startswith("landscape worker-0 died (")
    assert len(died) < 200
    assert "\n" not in died


def test_what_others_have_taken_is_waited_for_no_longer_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_end, "RETURN_S", 0.5)
    group = ray.util.placement_group([{"CPU": 1}])
    try:
        actor = ray.remote(Loader).options(num_cpus=1).remote()
        ray.get([group.ready(), actor.__ray_ready__.remote()])
        begun = time.monotonic()
        actor_end.end_actors([(actor, {"num_cpus": 4})])
        assert actor_end.free_resources()["CPU"] == 3
        waited = time.monotonic()
        actor_end.free_resources()
        assert 0.5 <= waited - begun < 5
        assert time.monotonic() - waited < 0.3  # nothing is waited for any more
    finally:
        ray.util.remove_placement_group(group)


def test_an_interrupt_while_workers_are_ended_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(held: Any) -> None:
        raise KeyboardInterrupt

    killed: list[Any] = []
    monkeypatch.setattr(actor_end, "_await", interrupt)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: killed.append(actor))
    with pytest.raises(KeyboardInterrupt):
        actor_end.end_actors([("one", {"num_cpus": 1}), ("another", {"num_cpus": 1})])
    assert killed == ["one", "another"]


def numpy_task(loss_fn: Any) -> Task:
    model = golden_mlp.Mlp()
    prepared = prepare_random(model.parameters, None, list(model.parameters), Settings(size=3))
    return Task(model=model, loss_fn=loss_fn, batches=golden_mlp.batches(), planes=[prepared.plane])


def test_the_runner_reports_after_every_chunk() -> None:
    task = numpy_task(golden_mlp.cross_entropy)
    scheduler, seen = Scheduler(plan_chunks(task.planes)), []

    def keep(worker, chunk, result) -> None:
        scheduler.done(worker, chunk, result.measured)
        seen.append(scheduler.progress().done)

    with RayWorkers(1) as workers, workers.crew(task) as crew:
        assert crew.facts is None
        crew.run(scheduler, keep)
        assert crew.facts is not None
        assert crew.facts.name == "numpy-naive"
        assert seen == sorted(seen)
        assert seen[-1] == scheduler.progress().total == 11
        spent = crew.seconds["worker-0"]
        assert spent > 0
        scheduler = Scheduler(plan_chunks(task.planes))
        crew.run(scheduler, keep)  # the same actors
        assert scheduler.is_finished
        assert list(crew.seconds) == ["worker-0"]
        assert crew.seconds["worker-0"] > spent


class Ender(logging.Handler):
    """Kills whom a warning of a silent worker names, if it is stopped: on a busy machine others are slow."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = re.search(r"\(process (\d+) on \S+\)", text)
        if found and psutil.Process(int(found[1])).status() == psutil.STATUS_STOPPED:
            self.told.append(text)
            os.kill(int(found[1]), signal.SIGKILL)


def stopper(flag: Path) -> Any:
    """A loss that stops its own process once, as SIGSTOP does, so that it never answers."""

    def loss_fn(model: Any, batch: Any) -> float:
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return golden_mlp.cross_entropy(model(batch[0]), batch[1])

    return loss_fn


@pytest.fixture
def ender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ender]:
    monkeypatch.setattr(actor_silence, "SILENT_S", 1.0)
    ender = Ender()
    logger = logging.getLogger(actor_silence.__name__)
    logger.addHandler(ender)
    yield ender
    logger.removeHandler(ender)


def test_a_worker_that_is_silent_is_told_of_with_its_process_and_may_be_killed(
    tmp_path: Path, ender: Ender
) -> None:
    task = numpy_task(BatchLoss(stopper(tmp_path / "stopped")))
    scheduler = Scheduler(plan_chunks(task.planes))
    with RayWorkers(1) as workers, workers.crew(task) as crew:
        crew.run(scheduler, lambda worker, chunk, result: scheduler.done(worker, chunk, result.measured))
    assert scheduler.is_finished
    assert not scheduler.abandoned
    assert re.fullmatch(
        r"landscape worker-0 \(process \d+ on [\w.:]+\) has not answered for \d+ s; if it hangs, "
        "kill that process: another takes its place",
        ender.told[0],
    )


class Sleeper:
    """An actor that takes long."""

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_silent_member_of_a_team_is_told_of_too(ender: Ender) -> None:
    team = actor_team.Team(Sleeper, [{"num_cpus": 1}])
    try:
        actor = team.started()[0]
        with pytest.raises(RayActorError):
            team.answer(actor, actor.stop.remote(), "a worker", ", please")
    finally:
        team.end()
    assert re.fullmatch(
        r"a worker \(process \d+ on [\w.:]+\) has not answered for \d+ s; if it hangs, "
        "kill that process, please",
        ender.told[0],
    )


def test_a_worker_that_waited_for_its_place_was_not_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: set[str] = set()
    monkeypatch.setattr(actor_silence, "asked_where", lambda actor: actor)
    monkeypatch.setattr(actor_silence, "_has_started", lambda where: where in started)
    monkeypatch.setattr(ray, "get", lambda where: where)
    silences = actor_silence.Silences()
    asked = {"worker-0": time.monotonic() - 3600.0}
    silences.add("worker-0", "there")
    silences.tell(asked)
    started.add("there")
    silences.tell(asked)
    assert not caplog.records
    silences._limit_s = 0.0
    silences.tell(asked)
    assert "worker-0 (there) has not answered for 0 s" in caplog.text


def test_what_a_worker_died_of_before_its_calls_makes_none_of_them_a_suspect(tmp_path: Path) -> None:
    task = numpy_task(BatchLoss(killer(tmp_path / "kills", kills=1, at=CENTRE_WEIGHT)))
    planned = plan_chunks(task.planes)
    harmless = [chunk for chunk in planned if chunk.kind == "path"]
    with RayWorkers(1) as workers, workers.crew(task) as crew:
        before = Scheduler(harmless)
        crew.run(before, lambda worker, chunk, result: before.done(worker, chunk, result.measured))
        left = tuple(chunk for chunk in planned if chunk.kind == "grid")
        crew._ask(_Call("worker-0", left, before))  # as of a round of refinement that others ended
        scheduler = Scheduler(planned)
        crew.run(scheduler, lambda worker, chunk, result: scheduler.done(worker, chunk, result.measured))
    assert len(list((tmp_path / "kills").iterdir())) == 1
    assert scheduler.is_finished
    assert scheduler._losses == {}


def test_refinement_on_workers_gives_the_same_bytes_and_leaves_out_the_same_points() -> None:
    parts, arguments = (golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches()), {"size": 33}
    grids = [landscape(*parts, workers=n, refine=0.05, progress=False, **arguments) for n in (0, 2)]
    assert grids[0].computed.tobytes() == grids[1].computed.tobytes()
    assert grids[0].z.tobytes() == grids[1].z.tobytes()
    assert not grids[0].computed.all()


def product(loss_fn: Any, workers: int) -> bytes:
    """A Hessian-vector product at the net's own values; 0 workers: in this process."""
    net = make_model()
    options: Any = {
        "names": [name for name, _ in net.named_parameters()],
        "centre": framework_of(net).state(net),
        "mode": "standard",
    }
    vector = np.linspace(-1, 1, sum(p.numel() for p in net.parameters()))
    crew: Any = RayWorkers(workers) if workers else nullcontext(Here())
    with crew as made, made.hessian(net, loss_fn, batches(), **options) as hessian:
        return mean_product(hessian)(vector).tobytes()


def test_hessian_products_of_any_number_of_workers_are_the_same_bytes() -> None:
    criterion = nn.CrossEntropyLoss()
    assert product(criterion, 0) == product(criterion, 1) == product(criterion, 3)


class Loader:
    """Batches that are read again and again; it has no length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(batches())


def test_a_landscape_along_the_hessian_has_its_products_from_workers_also_of_streamed_data() -> None:
    more: Any = {"directions": "hessian", "size": 3, "evaluation": Evaluation(streamed=True)}
    grid = draw(2, batches=Loader(), **more)
    here = draw(0, **(more | {"evaluation": None}))
    assert grid.z.tobytes() == here.z.tobytes()
    assert grid.eigenvalues == here.eigenvalues


def test_a_loader_that_shuffles_gives_every_worker_the_same_data() -> None:
    inputs, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    data = TensorDataset(inputs, labels)
    grids = [
        draw(
            workers, size=7, batches=DataLoader(data, batch_size=5, shuffle=True),
            evaluation=Evaluation(streamed=True, tolerance=0.2),
        )
        for workers in (0, 2)
    ]  # fmt: skip
    assert grids[0].z.tobytes() == grids[1].z.tobytes()


def test_a_killed_worker_of_the_hessian_is_replaced(tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if os.getpid() != driver and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    driver = os.getpid()
    found = product(BatchLoss(loss_fn), 2)
    assert killed.exists()
    assert found == product(BatchLoss(loss_fn), 0)


def test_too_little_memory_on_a_worker_goes_on_with_a_smaller_engine() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:  # while it is recorded
            raise MemoryError("too small")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    grid = draw(1, batch_loss=loss_fn, engine="torch-graph x2")
    assert grid.engine == "torch-row"
    assert grid.z.tobytes() == draw(0).z.tobytes()


STOPPED = """
import os, signal, sys
import distsummary as ds
from tests.unit.landscapes.golden_mlp import CKPT_DIR, Mlp, batches, cross_entropy
import ray

def stop(progress):
    if progress.done > progress.total // 2:
        os.kill(os.getpid(), signal.SIGKILL)

ray.init(address=sys.argv[1], namespace="stopped", log_to_driver=False)
parts = Mlp(), cross_entropy, batches()
ds.landscape_set(*parts, around=CKPT_DIR, size=9, run_dir=sys.argv[2], workers=2, progress=stop)
"""


def test_a_killed_driver_is_resumed_and_no_finished_chunk_is_evaluated_again(tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    killed = subprocess.run([sys.executable, "-c", STOPPED, address, tmp_path], cwd=ROOT, timeout=150)
    assert killed.returncode == -signal.SIGKILL
    told: list[int] = []
    arguments = {"around": golden_mlp.CKPT_DIR, "size": 9, "run_dir": tmp_path, "workers": 2}
    parts = (golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches())
    resumed = landscape_set(*parts, **arguments, progress=lambda now: told.append(now.done))
    assert told[0] > max(told) // 2
    undisturbed = landscape_set(*parts, **(arguments | {"run_dir": None, "workers": 0}), progress=False)
    for key, grid in resumed.items():
        assert grid.z.tobytes() == undisturbed[key].z.tobytes()
    assert not list(tmp_path.glob("landscape/journal-*"))
