"""The recipe of `ray up` for machines by ssh, with this place's addresses, ends with a run of four ranks."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.cluster.hosts import QUIET, SHARED, Hosts, can_make_hosts
from tests.conftest import ROOT

PROGRAMS = ("/usr/sbin/sshd", "ssh", "rsync")
MISSING = ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
START_S = 300.0

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}"),
    pytest.mark.timeout(1800),
]

RECIPE = ROOT / "cluster" / "ray-up" / "local.yaml"
CLUSTER = f"{SHARED}/local.yaml"

# A machine with an environment in ~/venv, and one key for all; the home of root is that of the host.
SSHD = f"""
set -e
sed 's,:/root:,:/home/user:,' /etc/passwd > /tmp/passwd; mount --bind /tmp/passwd /etc/passwd
mkdir -p /run/sshd /home/user/.ssh; ln -s {sys.prefix} /home/user/venv
cp {SHARED}/key /home/user/.ssh/id_ed25519; cp {SHARED}/key.pub /home/user/.ssh/authorized_keys
printf '%s' "$VARIABLES" > /home/user/.ssh/environment
chmod 700 /home/user/.ssh; chmod 600 /home/user/.ssh/*
ssh-keygen -q -t ed25519 -N '' -f /tmp/hostkey
/usr/sbin/sshd -o StrictModes=no -o HostKey=/tmp/hostkey -o PermitRootLogin=yes -o PermitUserEnvironment=yes
"""


NODES = """
import ray
ray.init(address="auto", logging_level="error")
print(sum(node["Alive"] for node in ray.nodes()))
"""


def test_machines_by_ssh_become_a_cluster_that_records_a_run(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2, is_shared=True) as hosts:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "shared" / "key"], check=True
        )
        variables = {name: value for name, value in QUIET.items() if name != "HOME"} | {
            "PYTHONPATH": str(ROOT)
        }
        environment = {"VARIABLES": "".join(f"{name}={value}\n" for name, value in variables.items())}
        for number in (0, 1):
            done = hosts.run(number, "bash", "-c", SSHD, environment=environment)
            assert done.returncode == 0, done.stderr
        recipe = yaml.safe_load(RECIPE.read_text())
        recipe["provider"] |= {"head_ip": hosts.address(0), "worker_ips": [hosts.address(1)]}
        recipe["auth"]["ssh_user"] = "root"
        hosts.write(CLUSTER, yaml.safe_dump(recipe))
        done = hosts.run(0, "ray", "up", "-y", "--no-config-cache", CLUSTER, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        until = time.monotonic() + START_S
        while (nodes := hosts.run(0, "python", "-c", NODES).stdout).strip() != "2":
            assert time.monotonic() < until, nodes
            time.sleep(2)
        train = str(ROOT / "cluster" / "train.py")
        done = hosts.run(0, "ray", "submit", "--no-config-cache", CLUSTER, train, "runs/a", "4", timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        done = hosts.run(0, "python", "-m", "distsummary", "status", "--json", "/home/user/runs/a")
        ranks = json.loads(done.stdout)["attempts"][-1]["ranks"]
        assert [rank["state"] for rank in ranks] == ["finished"] * 4
        draw = "distsummary landscape runs/a train:parts --size 11"
        done = hosts.run(0, "ray", "exec", "--no-config-cache", CLUSTER, draw, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert hosts.run(0, "sh", "-c", "ls /home/user/runs/a/landscape/*.npz").stdout
        hosts.run(0, "ray", "down", "-y", CLUSTER, timeout=600)
