"""Ray Train's callbacks, called with Ray's own objects; a whole training is in tests/hosts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.train.v2._internal.execution import callback as developer_api
from ray.train.v2._internal.execution.controller.state import AbortedState, ErroredState, RunningState
from ray.train.v2._internal.execution.scaling_policy.scaling_policy import ResizeDecision
from ray.train.v2._internal.execution.worker_group.poll import WorkerGroupPollStatus, WorkerStatus
from ray.train.v2.api.exceptions import WorkerGroupError

import distsummary as ds
from distsummary.diagnosis.alerts import read_alerts
from distsummary.integrations.ray_train import DistSummaryCallback, controller_classes
from distsummary.rundir.run_dir import RunDir


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DistSummaryCallback:
    """Of a training of two workers, whose run has one attempt that is open."""
    monkeypatch.delenv("DISTSUMMARY", raising=False)
    found = DistSummaryCallback(tmp_path)
    found.before_worker_group_start(SimpleNamespace(num_workers=2))
    with ds.init(tmp_path, rank=0, world_size=2, quiet=True, aggregate=False) as run:
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
    return found


def deaths(path: Path) -> dict[str, str]:
    found = RunDir(path).read_manifest()["attempts"][-1].get("deaths", {})
    return {rank: death["reason"] for rank, death in found.items()}


def group(**errors: Exception) -> SimpleNamespace:
    """A group of two workers, which run or have failed."""
    workers = {rank: WorkerStatus(running=not errors, error=errors.get(f"rank_{rank}")) for rank in range(2)}
    return SimpleNamespace(get_latest_poll_status=lambda: WorkerGroupPollStatus(workers))


def test_another_number_of_workers_is_a_message_and_why_the_workers_end(callback, tmp_path):
    callback.before_controller_execute_resize_decision(ResizeDecision(num_workers=2, resources_per_worker={}))
    assert read_alerts(RunDir(tmp_path)) == []
    callback.before_controller_execute_resize_decision(ResizeDecision(num_workers=3, resources_per_worker={}))
    callback.before_worker_group_shutdown(group())
    [alert] = read_alerts(RunDir(tmp_path))
    assert alert["evidence"] == "Ray Train ends the workers, to continue with 3 workers in place of 2"
    assert (alert["level"], alert["since_step"]) == ("info", 3)
    reason = "ended by Ray Train, to continue with 3 workers in place of 2"
    assert deaths(tmp_path) == {"0": reason, "1": reason}


def test_workers_that_end_before_the_first_step_are_not_noted_in_the_attempt_before(callback, tmp_path):
    callback.before_worker_group_start(SimpleNamespace(num_workers=2))
    status = group(rank_1=RuntimeError("early"))
    callback.after_worker_group_poll_status(status.get_latest_poll_status())
    callback.before_worker_group_shutdown(status)
    assert deaths(tmp_path) == {}


@pytest.mark.parametrize(
    ("ended", "state"),
    [(ErroredState(WorkerGroupError("x", {1: ValueError("x")})), "failed"), (AbortedState(), "interrupted")],
)
def test_how_the_training_ended_is_the_state_of_the_run(callback, tmp_path, ended, state):
    callback.after_controller_state_update(RunningState(), ended)
    assert RunDir(tmp_path).read_manifest()["state"] == state


def test_what_goes_wrong_in_a_callback_reaches_no_training(callback, tmp_path, caplog):
    (tmp_path / "run.json").write_text("{")
    callback.before_worker_group_shutdown(group())
    assert "run.json" in caplog.text


def test_a_version_of_ray_that_moved_its_classes_is_known_by_what_is_missing() -> None:
    assert controller_classes(developer_api) == (
        developer_api.ControllerCallback,
        developer_api.WorkerGroupCallback,
    )
    without_a_call = SimpleNamespace(
        ControllerCallback=developer_api.ControllerCallback, WorkerGroupCallback=object
    )
    for module in (None, SimpleNamespace(), without_a_call):
        assert controller_classes(module) == ()
