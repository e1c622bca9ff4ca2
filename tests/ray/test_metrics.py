"""The gauges of ranks in Ray's metrics, from what their heartbeats report."""

import contextlib
import time
import urllib.request
from importlib.util import find_spec

import pytest
import ray
from ray.util.metrics import Gauge

from distsummary import Topology
from distsummary.aggregate.actor import AggregatorClient
from distsummary.aggregate.actor_aggregator import NAMESPACE, actor_name
from distsummary.rundir.deal import Heartbeat
from distsummary.rundir.run_dir import RunDir
from tests.patience import PATIENCE_S

BEAT = Heartbeat(step=7, own_ms=12.5, wait_ms=0.25)


@pytest.fixture
def client(ray_cluster, tmp_path):
    found = AggregatorClient(RunDir(tmp_path / "run").create())
    yield found
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(actor_name(RunDir(tmp_path / "run")), namespace=NAMESPACE), no_restart=True)


def test_each_heartbeat_sets_three_gauges_with_the_run_and_the_rank(client, tmp_path, monkeypatch, caplog):
    reported, set_really = [], Gauge.set

    def set_and_note(gauge, value, tags):
        set_really(gauge, value, tags)
        reported.append((gauge.info["name"], value, tags))

    monkeypatch.setattr(Gauge, "set", set_and_note)
    topology = Topology(rank=1, world_size=2, incarnation="launch-1")
    attempt = client.register(topology).attempt
    client.beat(topology, attempt, BEAT)
    tags = {"run": str(tmp_path / "run"), "rank": "1"}
    assert reported == [
        ("distsummary_step", 7, tags),
        ("distsummary_own_ms", 12.5, tags),
        ("distsummary_waiting_ms", 0.25, tags),
    ]

    def fail(gauge, value, tags):
        raise RuntimeError("Ray's own trouble")

    monkeypatch.setattr(Gauge, "set", fail)
    client.beat(topology, attempt, BEAT)
    client.beat(topology, attempt, BEAT)
    assert caplog.text.count("no metrics of Ray are set any more: RuntimeError: Ray's own trouble") == 1
    client.finish(topology, attempt, {})


@pytest.mark.skipif(find_spec("opencensus") is None, reason="Ray exports metrics with ray[default] only")
def test_prometheus_reads_the_gauges_from_the_node(client, tmp_path):
    topology = Topology(rank=1, world_size=2, incarnation="launch-1")
    attempt = client.register(topology).attempt
    client.beat(topology, attempt, BEAT)
    node = ray.nodes()[0]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    until = time.monotonic() + PATIENCE_S
    found: dict[str, float] = {}
    while len(found) < 3:
        assert time.monotonic() < until, found
        time.sleep(0.5)
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(url, timeout=5).read().decode()
            mine = [
                line for line in text.splitlines() if f'run="{tmp_path}/run"' in line and 'rank="1"' in line
            ]
            found = {line.partition("{")[0]: float(line.split()[-1]) for line in mine}
    assert found == {
        "ray_distsummary_step": 7.0,
        "ray_distsummary_own_ms": 12.5,
        "ray_distsummary_waiting_ms": 0.25,
    }
    client.finish(topology, attempt, {})
