"""Trainings on several ranks through the whole way: loop, collector actor, files, merged run."""

import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import distsummary as ds
from distsummary.events.reader import read_directory, read_lineage
from distsummary.events.segments import segments
from distsummary.format.frames import read_frames
from distsummary.format.records import DIALECTS
from distsummary.format.wire import read_identity
from distsummary.rundir.run_dir import RunDir
from tests.manifests import whole_manifest


@pytest.fixture(autouse=True)
def _connected(ray_cluster):
    """Every test here needs the cluster."""


def scalars(path, tag: str, dialect: str = "mindspore") -> dict[int, float]:
    events = read_directory(path, dialect)
    return {e.step: v.data for e in events for v in e.values if v.tag == tag}


def seqs(path, dialect: str) -> list[int]:
    """Every numbered frame of every file, nothing hidden by the reader's own de-duplication."""
    frames = [frame for segment in segments(path, dialect) for frame in read_frames(segment)]
    assert all(frame.damage is None for frame in frames)
    return [seq for frame in frames if (seq := read_identity(frame.payload).seq)]


def collectors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[0].startswith("ray::CollectorActor"):
                found.append(process)
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found


def test_four_ranks_make_one_run(tmp_path):
    def train():
        with ds.init(tmp_path / "run", optimizer=None, collect_freq=5) as run:
            for batch in run.steps([np.ones(4)] * 20):
                run.log(loss=float(run.step + run.rank + batch[0]), lr=0.1)
        return run.rank

    assert ds.launch(train, ranks=4, backend=None) == [0, 1, 2, 3]
    run_dir = RunDir(tmp_path / "run")
    assert list(run_dir.rank_dirs()) == [0, 1, 2, 3]
    for rank, path in run_dir.rank_dirs().items():
        assert scalars(path, "loss") == {step: step + rank + 1.0 for step in range(1, 21)}
    for dialect in DIALECTS:
        assert scalars(run_dir.base, "loss", dialect) == {step: step + 2.5 for step in range(1, 21)}
        assert scalars(run_dir.base, "zz_ranks/loss/max", dialect)[20] == 24.0
        assert set(scalars(run_dir.base, "zz_ranks/loss/argmax_rank", dialect).values()) == {3.0}
        assert set(scalars(run_dir.base, "zz_perf/step_ms", dialect)) == set(range(1, 21))
    merged = read_lineage(run_dir.base)
    assert merged.train is not None
    assert merged.train.hyper_parameters.device_num == 4
    manifest = whole_manifest(run_dir)
    assert manifest["state"] == "finished"
    assert {rank["state"] for rank in manifest["attempts"][0]["ranks"].values()} == {"finished"}


def test_by_default_each_rank_has_an_actor_which_takes_all_it_gives_and_ends_with_it(tmp_path):
    def train():
        with ds.init(tmp_path / "run") as run, ds.SummaryRecord(tmp_path / "own") as record:
            for _ in run.steps(range(20)):
                run.log(**{f"n/{number}": 1.0 for number in range(1200)})
                if run.rank == 0:
                    record.scalars(run.step, {"a": 1.0})
                if run.step == 10:
                    while not (actors := names_of_collectors()):
                        time.sleep(0.1)
            found = run.health()
        return actors, os.getpid(), found.errors, found.dropped

    results = ds.launch(train, ranks=2, backend=None)
    actors = {name for names, *_ in results for name in names}
    assert {int(name.rpartition("-")[2]) for name in actors} <= {pid for _, pid, *_ in results}
    assert [(errors, dropped) for *_, errors, dropped in results] == [({}, {})] * 2
    run_dir = RunDir(tmp_path / "run")
    for path in run_dir.rank_dirs().values():
        assert len(seqs(path, "mindspore")) >= 20
        assert scalars(path, "n/1199") == dict.fromkeys(range(1, 21), 1.0)
    assert scalars(tmp_path / "own", "a") == dict.fromkeys(range(1, 21), 1.0)


def names_of_collectors() -> list[str]:
    import ray

    actors = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["name"].startswith("collector-")]


def test_a_collector_of_several_ranks_has_an_aggregator_as_ds_init_has(tmp_path):
    def train():
        with ds.Run(callbacks=ds.SummaryCollector(tmp_path / "run")) as run:
            for _ in run.steps(range(3)):
                run.log(loss=float(run.rank))

    ds.launch(train, ranks=2, backend=None)
    assert scalars(tmp_path / "run", "loss") == {1: 0.5, 2: 0.5, 3: 0.5}


@pytest.mark.long
def test_collectors_killed_during_a_training_cost_no_acknowledged_event_and_double_none(tmp_path):
    steps = 150
    ended = threading.Event()
    killed = []

    def train():
        with ds.init(tmp_path / "run", record=ds.Record(collectors="rank")) as run:
            for _ in run.steps(range(steps)):
                time.sleep(0.02)  # a step of a real training: long enough to be killed in
                while run.step == 10 and not (tmp_path / "killed").exists():
                    time.sleep(0.02)  # on a busy machine, collectors come up late
                run.log(loss=float(run.step))

    def kill_now_and_then():
        # Not for ever: on a busy machine one that is killed every 0.7 s never gets to its first answer.
        while len(killed) < 4 and not ended.wait(0.7):
            for process in collectors()[:1]:
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
                (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        ds.launch(train, ranks=2, backend=None)
    finally:
        ended.set()
        killer.join()
    assert killed
    run_dir = RunDir(tmp_path / "run")
    for rank, path in run_dir.rank_dirs().items():
        health = whole_manifest(run_dir)["attempts"][0]["ranks"][str(rank)]["health"]
        assert health["dropped"] == 0
        found = seqs(path, "mindspore")
        assert found == sorted(set(found))  # each once, in order
        assert scalars(path, "loss") == {step: float(step) for step in range(1, steps + 1)}
    assert scalars(run_dir.base, "loss") == {step: float(step) for step in range(1, steps + 1)}


@pytest.mark.long
def test_fsdp2_records_loss_mesh_and_shards(tmp_path):
    def train():
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"collect_freq": 2, "histograms": ".*", "tensors": "0.weight"}
        with ds.init(tmp_path / "run", watch=model, optimizer=optimizer, **options) as run:
            for x in run.steps([torch.ones(4, 6)] * 4):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
        return {name: tuple(p.to_local().shape) for name, p in model.named_parameters()}

    local_shapes = ds.launch(train, ranks=2)
    run_dir = RunDir(tmp_path / "run")
    ranks = whole_manifest(run_dir)["attempts"][0]["ranks"]
    assert [ranks[str(rank)]["mesh"] for rank in range(2)] == [{"fsdp": [0, 2]}, {"fsdp": [1, 2]}]
    for rank, path in run_dir.rank_dirs().items():
        assert set(scalars(path, "loss")) == {1, 2, 3, 4}
        values = [v for e in read_directory(path) for v in e.values if v.shard is not None]
        tensors = [v for v in values if v.plugin == "tensor"]
        assert {v.plugin for v in values} == {"tensor", "histogram"}
        assert {v.shard.global_shape for v in tensors} == {(5, 6)}
        assert {v.shard.offset for v in tensors} == {(0, 0) if rank == 0 else (3, 0)}
        assert {v.data.shape for v in tensors} == {local_shapes[rank]["0.weight"]}
