"""Landscapes on Ray: any number of workers, and the death of one, give the same bytes."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distsummary import Evaluation, LossGrid, Progress, landscape
from distsummary.base import actor_calls
from distsummary.errors import LandscapeCancelled, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.hessian import mean_product
from distsummary.landscapes.model.user_code import BatchLoss
from distsummary.landscapes.run import actor_crew
from distsummary.landscapes.run.actor import RayWorkers
from distsummary.landscapes.run.runner import InProcessWorkers
from tests.conftest import ROOT
from tests.landscape_arguments import grouped
from tests.patience import PATIENCE_S
from tests.programs import run_program, run_python
from tests.unit.landscapes import golden_mlp

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


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


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_calls, "BEGIN_S", PATIENCE_S)
    monkeypatch.setattr(actor_crew, "GROW_S", 0.2)


def draw(workers: int | str, size: int = 7, **more: Any) -> LossGrid:
    loss = {} if "batch_loss" in more else {"loss_fn": nn.CrossEntropyLoss()}
    arguments = {
        "batches": batches(), "size": size, "workers": workers, "engine": "row", "progress": False
    }  # fmt: skip
    grid = landscape(make_model(), **grouped(**(loss | arguments | more)))
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


def draw_numpy(workers: int | str, batch_loss: Any = None, **more: Any) -> LossGrid:
    loss = {"batch_loss": batch_loss} if batch_loss else {"loss_fn": golden_mlp.cross_entropy}
    arguments = {"batches": golden_mlp.batches(), "size": 7, "workers": workers, "progress": False}
    grid = landscape(golden_mlp.Mlp(), **grouped(**(loss | arguments | more)))
    assert isinstance(grid, LossGrid)
    return grid


CENTRE_WEIGHT = float(golden_mlp.Mlp().parameters["d1.weight"][0, 0])


def test_any_number_of_workers_gives_the_same_bytes() -> None:
    here, one, auto = draw(0, 9), draw(1, 9), draw("auto", 9)
    for grid in (one, auto):
        assert grid.z.tobytes() == here.z.tobytes()
        assert grid.path_loss.tobytes() == here.path_loss.tobytes()
        assert grid.true_loss.tobytes() == here.true_loss.tobytes()
    assert list(here.worker_seconds) == ["here"]
    assert len(one.worker_seconds) == 1
    assert len(auto.worker_seconds) == 4
    assert sum(auto.worker_seconds.values()) > 0
    assert auto.engine == "torch-row"


def test_a_killed_worker_costs_no_chunk(tmp_path: Path) -> None:
    grid = draw_numpy(2, killer(tmp_path / "kills", kills=2, at=CENTRE_WEIGHT))
    killed = {path.name.split("-")[1] for path in (tmp_path / "kills").iterdir()}
    assert len(killed) == 2
    assert grid.z.tobytes() == draw_numpy(0).z.tobytes()
    assert grid.lost_points == 0
    assert len(grid.worker_seconds) == 2


def test_a_point_that_kills_every_worker_is_nan_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
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


def test_an_error_in_the_loss_is_raised_with_its_place_and_cause(tmp_path: Path) -> None:
    def loss_fn(model: Any, batch: Any) -> float:
        if model.parameters["d1.weight"][0, 0] > CENTRE_WEIGHT:
            raise ZeroDivisionError("in the loss")
        return golden_mlp.cross_entropy(model(batch[0]), batch[1])

    kept = (
        r"raised ZeroDivisionError: in the loss in batch 1 at y = .*, x = .*; .* finished points are kept in "
    )
    with pytest.raises(LandscapeError, match=kept) as failed:
        draw_numpy(2, loss_fn, run_dir=tmp_path)
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert "loss_fn" in str(failed.value.__cause__.__cause__)  # the worker's traceback
    assert "\n" not in str(failed.value)


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
        draw_numpy(2, progress=interrupt)
    assert not stopped.value.grids["random"].computed.all()


def test_a_cluster_that_is_fully_reserved_still_draws() -> None:
    group = ray.util.placement_group([{"CPU": 1}] * 4)
    assert group.wait(PATIENCE_S)
    try:
        grid = draw_numpy("auto")
        assert grid.z.tobytes() == draw_numpy(0).z.tobytes()
        assert len(grid.worker_seconds) == 1
    finally:
        ray.util.remove_placement_group(group)


def test_what_becomes_free_is_taken() -> None:
    group = ray.util.placement_group([{"CPU": 1}] * 3)
    assert group.wait(PATIENCE_S)

    def slow(model: Any, batch: Any) -> float:
        time.sleep(0.005)
        return golden_mlp.cross_entropy(model(batch[0]), batch[1])

    def release(progress: Progress) -> None:
        if progress.fresh and groups:
            ray.util.remove_placement_group(groups.pop())

    groups = [group]
    grid = draw_numpy("auto", slow, size=25, progress=release)
    assert not groups
    assert len(grid.worker_seconds) == 4
    assert sum(seconds > 0 for seconds in grid.worker_seconds.values()) > 1


def test_workers_leave_a_placement_group_that_captures_children() -> None:
    @ray.remote(num_cpus=1)
    def inside() -> bytes:
        return draw_numpy(2).z.tobytes()

    group = ray.util.placement_group([{"CPU": 1}])
    assert group.wait(PATIENCE_S)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    try:
        drawn = ray.get(inside.options(scheduling_strategy=strategy).remote(), timeout=PATIENCE_S)
        assert drawn == draw_numpy(0).z.tobytes()
    finally:
        ray.util.remove_placement_group(group)


def test_workers_compute_with_one_thread_and_keep_freed_memory() -> None:
    def loss_fn(model: nn.Module, batch: Any) -> Any:
        own = psutil.Process().memory_info
        freed = torch.ones(16 << 20, dtype=torch.uint8)
        held = own().rss
        del freed
        keeps = own().rss > held - (8 << 20)
        return torch.tensor(float(torch.get_num_threads() if keeps else -1))

    assert (draw(1, batch_loss=loss_fn, size=3).z == 1).all()


ON_GPUS = """
import os, time, ray, numpy as np, distsummary as ds
from distsummary.errors import LandscapeError
from distsummary.base import actor_calls

class Model:
    def __init__(self):
        self.parameters = {"w": np.ones((3, 2), np.float32)}

def loss(model, batch):
    if len(ray.get_gpu_ids()) != each:
        raise RuntimeError(f"{ray.get_gpu_ids()} of {each} GPUs")
    if each and os.environ["CUDA_VISIBLE_DEVICES"] not in ("0,1", "2,3"):
        raise RuntimeError("not two GPUs of its own")
    return float((model.parameters["w"] ** 2).sum())

@ray.remote(num_gpus=0.6, num_cpus=0)
class Training:
    def begun(self):
        return True

def draw(share):
    grid = ds.landscape(
        Model(), batch_loss=loss, batches=[np.zeros(1)], plane=ds.Plane(size=5),
        compute=ds.Compute(gpus_per_worker=share), progress=False,
    )
    print("share", share, "workers", len(grid.worker_seconds))

ray.init(address="local", num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False)
for each in (2, 2, 0, 0):
    draw(each)
trainings = [Training.remote() for _ in range(4)]
ray.get([training.begun.remote() for training in trainings])
while ray.available_resources()["GPU"] > 1.7:
    time.sleep(0.05)
for share, actor_calls.BEGIN_S in ((1, 3.0), (0.4, 400.0)):  # of 0.4 what fits is there at once
    try:
        draw(share)
    except LandscapeError as error:
        print(error)
"""


def test_workers_get_gpus_as_long_as_there_are_some(tmp_path: Path) -> None:
    """In a cluster of its own, with GPUs in name only: Ray hands such GPUs out by number.

    Landscapes one after the other use all GPUs, also the first one, for which a worker chose the engine. Each
    worker sees its own. A share that no single GPU has is not waited for.
    """
    found = run_python("-c", ON_GPUS, cwd=tmp_path, RAY_AUTH_MODE="disabled")
    drawn = re.findall("share (.+) workers (.+)", found.stdout)
    assert drawn == [("2", "2"), ("2", "2"), ("0", "2"), ("0", "2")]
    assert re.search("no engine-choosing worker began within 3 s: .*", found.stdout)
    assert re.search(r"raised RuntimeError: \[\d\] of 0 GPUs", found.stdout)


ON_ONE_CPU = """
import os, sys, threading, time
from pathlib import Path
import ray, distsummary as ds
from distsummary.base import actor_calls
from tests.unit.landscapes.golden_mlp import Mlp, batches, cross_entropy

def end_soon():
    log = Path(ray._private.worker._global_node.get_logs_dir_path(), "raylet.err")
    while not (log.exists() and "No such file" in log.read_text()):
        time.sleep(0.1)
    actor_calls.SETUP_S = 0.1

actor_calls.BEGIN_S = actor_calls.SETUP_S = 400.0
env = {"py_executable": sys.argv[1]} if sys.argv[1:] else None
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=env)
if env:
    threading.Thread(target=end_soon, daemon=True).start()
parts = Mlp(), cross_entropy, batches()
grid = ds.landscape(*parts, plane=ds.Plane(size=3), compute=ds.Compute(workers=1), progress=False)
print("workers", *grid.worker_seconds)
"""


def test_a_cluster_in_which_no_process_can_start_ends_the_landscape_with_the_reason(tmp_path: Path) -> None:
    absent = "/no such/python"
    failed = run_python("-c", ON_ONE_CPU, absent, cwd=ROOT, RAY_AUTH_MODE="disabled", code=1)
    assert re.search(
        r"LandscapeError: no landscape worker began within .* s: it needs 1 CPU \(\d of 1 free\); "
        r".*raylet.err ends with: .*No such file or directory.*; check that",
        failed.stderr,
    )


def test_the_path_of_python_may_have_spaces(tmp_path: Path) -> None:
    python = tmp_path / "a b" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    path = os.pathsep.join([str(ROOT), *sys.path])
    found = run_program(python, "-c", ON_ONE_CPU, cwd=ROOT, RAY_AUTH_MODE="disabled", PYTHONPATH=path)
    assert found.stdout == "workers worker-0\n"


def test_refinement_on_workers_gives_the_same_bytes_and_leaves_out_the_same_points() -> None:
    parts, arguments = (golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches()), {"size": 33}
    grids = [
        landscape(*parts, **grouped(workers=n, refine=0.05, progress=False, **arguments)) for n in (0, 2)
    ]
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
    made: Any = RayWorkers(workers) if workers else InProcessWorkers()
    with made.hessian(net, loss_fn, batches(), **options) as hessian:
        return mean_product(hessian)(vector).tobytes()


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
            evaluation=Evaluation(streamed=True),
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


def test_too_little_memory_on_a_worker_continues_with_a_smaller_engine() -> None:
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
ds.landscape(
    *parts, around=CKPT_DIR, directions=["pca"], plane=ds.Plane(size=9), run_dir=sys.argv[2],
    compute=ds.Compute(workers=2), progress=stop,
)
"""


def test_a_killed_driver_is_resumed_and_no_finished_chunk_is_evaluated_again(tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    run_python("-c", STOPPED, address, tmp_path, cwd=ROOT, code=-signal.SIGKILL)
    reported: list[int] = []
    arguments = {
        "around": golden_mlp.CKPT_DIR, "directions": ["pca"], "size": 9, "run_dir": tmp_path, "workers": 2,
    }  # fmt: skip
    parts = (golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches())
    resumed = landscape(*parts, **grouped(**arguments, progress=lambda now: reported.append(now.done)))
    assert reported[0] > max(reported) // 2
    undisturbed = landscape(
        *parts, **grouped(**(arguments | {"run_dir": None, "workers": 0}), progress=False)
    )
    for key, grid in resumed.items():
        assert grid.z.tobytes() == undisturbed[key].z.tobytes()
    assert not list(tmp_path.glob("landscape/journal-*"))
