"""Real Ray Train jobs, whose ranks are found and become one run."""

import importlib.util
from pathlib import Path

import pytest
import ray

from distsummary.events.reader import read_directory, read_lineage
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import read_run
from tests.manifests import whole_manifest
from tests.programs import run_python

STEPS, RESUMED_FROM = 6, 2  # as in ray_train_job.py

EXTRAS = ("fsspec", "pandas", "pyarrow", "pydantic", "requests")  # what ray.train imports in addition to Ray
MISSING = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(MISSING), reason=f"Ray Train needs {', '.join(MISSING)}: pip install 'ray[train]'"
    ),
]


@pytest.fixture(scope="module")
def job(ray_cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run dirs of `ray_train_job.py` lie, a process of its own that used the session's cluster."""
    place = tmp_path_factory.mktemp("ray_train")
    script = Path(__file__).with_name("ray_train_job.py")
    address = ray.get_runtime_context().gcs_address
    run_python(script, address, place)
    return place


def scalars(path: Path, tag: str) -> dict[int, float]:
    return {e.step: v.data for e in read_directory(path) for v in e.values if v.tag == tag}


def test_the_workers_of_a_trainer_make_one_run(job):
    run_dir = RunDir(job / "run")
    assert list(run_dir.rank_dirs()) == [0, 1]
    for rank, path in run_dir.rank_dirs().items():
        assert scalars(path, "loss") == {step: float(step + rank) for step in range(1, STEPS + 1)}
        kinds = {v.plugin for e in read_directory(path) for v in e.values}
        assert kinds == {"scalar", "histogram", *(["graph"] if rank == 0 else [])}
    assert scalars(run_dir.base, "loss") == {step: step + 0.5 for step in range(1, STEPS + 1)}
    lineage = read_lineage(run_dir.base)
    assert lineage.train.hyper_parameters.device_num == 2


def test_each_worker_knows_its_place(job):
    [attempt] = whole_manifest(job / "run")["attempts"]
    assert attempt["ranks"].keys() == {"0", "1"}
    for rank, reported in attempt["ranks"].items():
        number = int(rank)
        expected = {
            "rank": number, "world_size": 2, "local_rank": number, "local_world_size": 2, "node_rank": 0,
            "mesh": {"dp": [number, 2]}, "source": "ray.train", "state": "finished",
        }  # fmt: skip
        assert {key: reported[key] for key in expected} == expected
        assert (reported["health"]["errors"], reported["health"]["dropped"]) == (0, 0)


def test_workers_that_are_started_again_are_another_attempt_of_the_same_run(job):
    run_dir = RunDir(job / "restarted")
    attempts = whole_manifest(run_dir)["attempts"]
    assert [(attempt["attempt"], attempt["world_size"]) for attempt in attempts] == [(0, 2), (1, 2)]
    assert {rank["state"] for rank in attempts[1]["ranks"].values()} == {"finished"}
    found = read_run(run_dir)
    assert (found.state, found.attempts[0].state) == ("finished", "failed")
    victim, culprit = found.attempts[0].ranks
    assert culprit.state == "failed"
    assert victim.state in ("finished", "superseded")  # it may have come to its end before Ray Train ended it
    assert found.attempts[0].failure[:2] == (1, "ValueError: this shard is broken")
    first = {step: 100.0 + step for step in range(1, RESUMED_FROM + 1)}
    second = {step: float(step) for step in range(RESUMED_FROM + 1, STEPS + 1)}
    assert scalars(run_dir.base, "loss") == first | second
