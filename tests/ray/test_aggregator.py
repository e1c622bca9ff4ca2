"""The aggregator actor: attempts, lineage, and the merged run at the end."""

import contextlib
import os
import shutil
import signal
import time

import psutil
import pytest
import ray
from ray.exceptions import ActorUnavailableError

import distsummary as ds
from distsummary import Topology
from distsummary.aggregate.actor import AggregatorClient, settle
from distsummary.aggregate.actor_aggregator import ASIDE, NAMESPACE, actor_name
from distsummary.errors import RunDirError, WorldMismatchError
from distsummary.events.reader import read_directory
from distsummary.format.records import Event, Value
from distsummary.rundir import admission
from distsummary.rundir.run_dir import RunDir
from tests.event_files import write_events
from tests.manifests import whole_manifest
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _connected(ray_cluster):
    """Every test here needs the cluster."""


@pytest.fixture
def run_dir(tmp_path):
    """A run dir whose aggregator, if a test leaves one, is ended."""
    found = RunDir(tmp_path / "run").create()
    yield found
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(actor_name(found), namespace=NAMESPACE), no_restart=True)


def place(rank: int, incarnation: str = "launch-1", world_size: int = 2) -> Topology:
    return Topology(rank=rank, world_size=world_size, incarnation=incarnation)


def record(run_dir: RunDir, rank: int, registration, steps: range) -> None:
    events = [Event(step, float(step), [Value("scalar", "loss", step + 10.0 * rank)]) for step in steps]
    write_events(
        run_dir.writer_dir("train", rank, 2),
        events,
        run_id=registration.run_id,
        attempt=registration.attempt,
        rank=rank,
    )


def losses(run_dir: RunDir) -> list[tuple[int, float]]:
    return [(e.step, v.data) for e in read_directory(run_dir.base) for v in e.values if v.tag == "loss"]


def aggregator_pid(run_dir: RunDir) -> int:
    def pid(aggregator) -> int:
        return os.getpid()

    actor = ray.get_actor(actor_name(run_dir), namespace=NAMESPACE)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ray.get(actor.__ray_call__.remote(pid))
        except ActorUnavailableError:  # it restarts
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_merge_by_hand_waits_for_the_aggregator_even_after_that_was_killed(run_dir):
    clients = [AggregatorClient(run_dir) for _ in range(2)]
    for rank, client in enumerate(clients):
        record(run_dir, rank, client.register(place(rank)), range(1, 4))
    os.kill(aggregator_pid(run_dir), signal.SIGKILL)
    clients[0].finish(place(0), 0, {})
    with pytest.raises(RunDirError, match=rf"process {aggregator_pid(run_dir)} on .*wait for that"):
        ds.merge_run(run_dir)
    clients[1].finish(place(1), 0, {})
    assert ds.merge_run(run_dir).steps == 3


def test_ranks_that_disagree_on_the_world_size_are_named(run_dir):
    client = AggregatorClient(run_dir)
    client.register(place(0))
    with pytest.raises(WorldMismatchError, match=r"rank 1 says world_size 3 .* rank\(s\) 0 said 2"):
        client.register(place(1, world_size=3))


def test_a_killed_aggregator_continues_from_the_manifest(run_dir):
    clients = [AggregatorClient(run_dir, merge_s=PATIENCE_S) for _ in range(2)]
    registrations = [client.register(place(rank)) for rank, client in enumerate(clients)]
    record(run_dir, 0, registrations[0], range(1, 3))
    clients[0].finish(place(0), 0, {})
    os.kill(aggregator_pid(run_dir), signal.SIGKILL)
    record(run_dir, 1, registrations[1], range(1, 3))
    clients[1].finish(place(1), 0, {})
    assert losses(run_dir) == [(1, 6.0), (2, 7.0)]


def test_a_launch_that_ended_is_lost_with_its_lost_ranks_and_what_is_there_merged(run_dir):
    client = AggregatorClient(run_dir)
    registration = client.register(place(0))
    client.register(place(1))
    record(run_dir, 0, registration, range(1, 3))
    client.finish(place(0), 0, {})
    settle("another-launch")
    assert losses(run_dir) == []
    settle("launch-1")
    assert losses(run_dir) == [(1, 1.0), (2, 2.0)]
    manifest = run_dir.read_manifest()
    assert manifest["state"] == "lost"
    assert manifest["attempts"][0]["merged"] == {"finished": 1, "running": 1}


def test_the_aggregator_ends_itself_and_a_later_rank_starts_the_next(run_dir):
    client = AggregatorClient(run_dir)
    client.register(Topology(incarnation="one"))
    client.finish(Topology(incarnation="one"), 0, {})
    psutil.Process(aggregator_pid(run_dir)).wait(timeout=PATIENCE_S)
    second = AggregatorClient(run_dir)
    assert second.register(Topology(incarnation="two")).attempt == 1
    second.finish(Topology(incarnation="two"), 1, {})


def test_after_a_shutdown_of_ray_a_rank_leaves_by_the_run_dir_and_starts_no_cluster(
    run_dir, monkeypatch, caplog
):
    client = AggregatorClient(run_dir)
    client.register(place(0))
    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(client, "_handle", None)  # whatever asks it raises
        client.finish(place(0), 0, {})
    assert whole_manifest(run_dir)["attempts"][0]["ranks"]["0"]["state"] == "finished"
    assert "Ray was shut down before the run was closed" in caplog.text
    assert f"distsummary merge {run_dir.base}" in caplog.text


def test_an_aggregator_that_does_not_answer_keeps_no_rank_waiting(run_dir, caplog):
    clients = [AggregatorClient(run_dir, register_s=0.5, merge_s=0.5) for _ in range(2)]
    clients[0].register(place(0))
    pid = aggregator_pid(run_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert clients[1].register(place(1)).attempt == 0
        clients[1].finish(place(1), 0, {})
        assert whole_manifest(run_dir)["attempts"][0]["ranks"]["1"]["state"] == "finished"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "no answer from the aggregator (GetTimeoutError" in caplog.text
    assert "has not answered for 0.5 s; the cluster may be full" in caplog.text


class Hangs:
    """An aggregator of another job that answers nothing."""

    def serves(self, launch_id: str) -> bool:
        import time

        time.sleep(600)
        return True


def test_a_launch_is_settled_in_spite_of_other_jobs_aggregators(run_dir, caplog):
    client = AggregatorClient(run_dir)
    client.register(place(0))
    shutil.rmtree(run_dir.base)  # this one's run is gone
    options = {"name": "aggregator-hangs", "namespace": NAMESPACE, "num_cpus": 0}
    hangs = ray.remote(concurrency_groups={ASIDE: 1})(Hangs).options(**options).remote()
    try:
        settle("launch-1", serves_s=2.0)
    finally:
        ray.kill(hangs)
    assert "1 aggregator(s) did not answer within 2 s" in caplog.text


def test_an_aggregator_that_ends_meanwhile_keeps_no_other_from_settling(run_dir, monkeypatch):
    client = AggregatorClient(run_dir)
    record(run_dir, 0, client.register(place(0)), range(1, 3))
    named = ray.util.list_named_actors(all_namespaces=True)
    gone = {"name": "aggregator-gone", "namespace": NAMESPACE}
    monkeypatch.setattr(ray.util, "list_named_actors", lambda all_namespaces: [gone, *named])
    settle("launch-1")
    assert losses(run_dir) == [(1, 1.0), (2, 2.0)]


def test_a_launch_ends_although_the_merge_of_its_run_fails(run_dir, caplog):
    """The user's own event files are in the run dir before the aggregator has merged anything."""
    mine = ds.SummaryRecord(str(run_dir.base))
    mine.add_value("scalar", "mine", 1.0)
    mine.record(1)
    mine.close()
    record(run_dir, 0, AggregatorClient(run_dir).register(place(0)), range(1, 3))
    settle("launch-1")
    assert "an aggregator failed" in caplog.text
    assert "no merge wrote" in caplog.text


def test_an_aggregator_of_another_version_is_refused_with_its_host(run_dir, monkeypatch):
    here = admission.PROTOCOL + 1  # and not in the actor
    monkeypatch.setattr(admission, "PROTOCOL", here)
    client = AggregatorClient(run_dir)
    said = f"another version of distsummary .* its protocol is {here - 1}, here {here}"
    with pytest.raises(RunDirError, match=said):
        client.register(place(0))


class Cpus:
    def taken(self) -> None:
        """Answers once the actor has its processors."""


def test_an_aggregator_waits_for_no_processor_of_a_full_cluster(run_dir, caplog):
    taker = ray.remote(num_cpus=ray.available_resources()["CPU"])(Cpus).remote()
    try:
        ray.get(taker.taken.remote())
        client = AggregatorClient(run_dir)
        assert client.register(place(0)).attempt == 0
    finally:
        ray.kill(taker)
    assert "without the aggregator" not in caplog.text
