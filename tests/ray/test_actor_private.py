"""A private name of Ray that is gone, or has another one in its place, costs its feature alone."""

import sys
from contextlib import nullcontext

import pytest
import ray

from distsummary.base import actor_private as private
from distsummary.base import health as names
from distsummary.base.cluster import LOOPBACK
from distsummary.launching.actor_listing import actor_lines
from distsummary.rundir.run_dir import RunDir

# A private name -> its use, what that returns without it, and what `health()` says; "": nothing is lost.
USED = {
    "worker.disconnect": (lambda: private.guard_shutdown(nullcontext), None, r"during ray.shutdown\(\)"),
    "auto_init_hook": (private.forbid_start, None, "may start a cluster"),
    "worker.global_worker": (private.is_disconnected, True, ""),
    "utils": (private.memory, None, "is not tried"),
    "state": (private.jobs, [], "command line of the driver"),
    "state.actors": (private.actors, None, ""),
    "services": (lambda: private.bootstrap_address("host:1"), "host:1", ""),
    "services.canonicalize_bootstrap_address": (lambda: private.bootstrap_address(None), "auto", ""),
    "worker._global_node": (private.raylet_log, None, ""),
    "ray.train._internal.session._TrainSession.finish": (
        lambda: private.close_with_trial(print),
        None,
        "the last values of a trial",
    ),
}


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "another"])
@pytest.mark.parametrize("path", USED)
def test_without_a_private_name_its_feature_is_off_and_named_once(path, is_there, monkeypatch, caplog):
    monkeypatch.setattr(names, "_absent", {})
    use, instead, lost = USED[path]
    name = path if path.startswith("ray.") else f"ray._private.{path}"
    if is_there:
        monkeypatch.setattr(name, object())
    else:
        monkeypatch.delattr(name)
    if path == "auto_init_hook":
        monkeypatch.setitem(sys.modules, "ray._private.auto_init_hook", None)
    assert [use(), use()] == [instead, instead]
    assert len(caplog.records) == len(names.absences().errors) == bool(lost)


def test_without_its_constant_a_local_cluster_gets_no_address(monkeypatch, caplog):
    monkeypatch.setattr(names, "_absent", {})
    with private.on_loopback(LOOPBACK) as options:
        assert options == {"_node_ip_address": LOOPBACK}
    monkeypatch.delattr("ray._private.ray_constants")
    with private.on_loopback(LOOPBACK) as options:
        assert options == {}
    assert "listens on an address of the machine" in caplog.text


@pytest.mark.usefixtures("ray_cluster")
def test_without_the_report_of_an_autoscaler_no_node_is_awaited(monkeypatch, caplog):
    monkeypatch.setattr(names, "_absent", {})
    assert private.nodes_to_come() == 0
    assert not caplog.records
    monkeypatch.delattr("ray.autoscaler.v2.sdk.get_cluster_status")
    assert private.nodes_to_come() == 0
    assert "nodes of an autoscaler are not awaited" in caplog.text


@pytest.mark.usefixtures("ray_cluster")
def test_the_actors_of_a_run_are_listed_or_said_not_to_be(tmp_path, monkeypatch):
    run_dir = RunDir(tmp_path)
    assert actor_lines(run_dir, ()) == ["aggregator  none"]
    monkeypatch.delattr(ray._private.state, "actors")
    assert actor_lines(run_dir, ()) == [
        "this version of Ray does not list its actors; ranks are listed by: distsummary status"
    ]
