"""A launch waits for the nodes that an autoscaler starts, and not for those that it will not start."""

import json
from pathlib import Path

import pytest

from tests.cluster.hosts import SHARED, Hosts, can_make_hosts

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(600),
]

HEAD_ID = "f" * 28 + "00000000"
CONFIG = {
    "cluster_name": "late", "max_workers": 4, "idle_timeout_minutes": 10, "upscaling_speed": 100,
    "provider": {
        "type": "external", "module": "tests.cluster.late_nodes.LateNodes", "head_node_id": HEAD_ID,
        "disable_launch_config_check": True,
    },
    **{name: {} for name in ("auth", "docker", "file_mounts", "head_node", "worker_nodes")},
    **{f"{name}_commands": [] for name in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{name}_start_ray_commands": [] for name in ("head", "worker")},
    **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    "file_mounts_sync_continuously": False,
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
        "two": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 1},
    },
}  # fmt: skip
# A rank each CPU; a launch that is not patient with nodes gives up long before they come.
TRAIN = """
import sys
import distsummary as ds
from distsummary.base import actor_calls

actor_calls.BEGIN_S = float(sys.argv[2])
ds.launch(lambda: None, ranks=int(sys.argv[1]), address="auto", backend=None)
print("trained")
"""
V2 = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
}


@pytest.mark.parametrize("version", [{}, V2], ids=["v1", "v2"])
def test_a_launch_waits_for_nodes_of_an_autoscaler(tmp_path: Path, version: dict[str, str]) -> None:
    with Hosts(tmp_path, 1, is_shared=True) as hosts:
        config = CONFIG | {"provider": CONFIG["provider"] | ({"launch_multiple": True} if version else {})}
        hosts.write(f"{SHARED}/late.json", json.dumps(config))
        scaled = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "LATE_S": "45", **version}
        hosts.start_ray(0, "--num-cpus=0", f"--autoscaling-config={SHARED}/late.json", environment=scaled)
        done = hosts.run(0, "python", "-c", TRAIN, "2", "25")
        assert "trained\n" in done.stdout, done.stdout + done.stderr
        if version:  # version 1 takes a node that has the head's address for one that never comes
            done = hosts.run(0, "python", "-c", TRAIN, "64", "25")
            assert "64 ranks of {'CPU': 1} did not fit within 25 s" in done.stderr
