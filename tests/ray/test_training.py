"""Trainings on several ranks through the whole way: loop, collector actor, files, merged run."""

import os
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
