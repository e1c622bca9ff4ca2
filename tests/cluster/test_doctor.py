"""The doctor of a real Ray cluster of three hosts names what was planted there, and nothing else."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import PORT, SHARED, Hosts, can_make_hosts
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(1200),
]

# A clock cannot be set for one namespace: this one is an hour ahead for Python alone.
AHEAD = """
import time
now = time.time
time.time = lambda: now() + 3600
"""
PORTS = ["--node-manager-port=7000", "--object-manager-port=7001", "--min-worker-port=11000"]
PORTS += ["--max-worker-port=11999"]


def doctor(
    hosts: Hosts, *arguments: str, network: bool = False, **environment: str
) -> tuple[dict[str, dict[str, Any]], int]:
    """The checks that are not "ok" or notes, by name, and the exit code; asked on host 0."""
    address = f"{hosts.address(0)}:{PORT}"
    command = ["python", "-m", "distsummary", "doctor", "--json", "--wait", "120", "--address", address]
    done = hosts.run(0, *command, *arguments, environment=environment)
    assert done.stdout, done.stderr
    checks = json.loads(done.stdout)["checks"]
    wrong = {check["name"]: check for check in checks if check["level"] not in ("ok", "note")}
    if not network:
        wrong.pop("network", None)  # of a busy machine, it may be slow
    return wrong, done.returncode


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts with a directory that they share, of which h0 and h1 are a cluster without a fault."""
    with Hosts(tmp_path_factory.mktemp("hosts"), 3, is_shared=True) as hosts:
        for number in (0, 1):
            hosts.start_ray(number, *PORTS)
        yield hosts


def test_a_healthy_cluster_has_no_fault(healthy: Hosts) -> None:
    assert doctor(healthy, f"{SHARED}/runs") == ({}, 0)
    # One whose hosts share nothing is healthy, too.
    wrong, code = doctor(healthy, "/tmp/runs")
    assert (wrong, code) == ({}, 0)


def test_a_port_that_is_blocked(healthy: Hosts) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    rule = ["INPUT", "-p", "tcp", "--syn", "-s", healthy.address(1), "--dport", "32768:60999", "-j", "DROP"]
    assert healthy.run(0, "iptables", "-A", *rule).returncode == 0
    wrong, code = doctor(healthy, f"{SHARED}/runs", network=True)
    healthy.run(0, "iptables", "-D", *rule)
    assert (code, {*wrong}) == (1, {"network"})
    assert wrong["network"]["found"] == "h1 cannot connect to h0: timed out"


def test_a_mount_without_rename(healthy: Hosts) -> None:
    if shutil.which("bindfs") is None:
        pytest.skip("needs bindfs")
    healthy.run(0, "mkdir", "/home/user/plain", "/home/user/mount")
    assert healthy.run(0, "bindfs", "--rename-deny", "/home/user/plain", "/home/user/mount").returncode == 0
    wrong, code = doctor(healthy, "/home/user/mount/runs")
    healthy.run(0, "umount", "/home/user/mount")
    assert (code, {*wrong}) == (1, {"directory"})
    assert "rename: Operation not permitted" in wrong["directory"]["found"]


def test_a_disk_that_is_full(healthy: Hosts) -> None:
    healthy.run(0, "mkdir", f"{SHARED}/full")
    healthy.run(0, "mount", "-t", "tmpfs", "-o", "size=4k", "full", f"{SHARED}/full")
    wrong, code = doctor(healthy, f"{SHARED}/full")
    healthy.run(0, "umount", f"{SHARED}/full")
    assert code == 1
    assert "No space left on device" in wrong["directory"]["found"]


def test_what_is_wrong_on_one_host(healthy: Hosts, tmp_path: Path) -> None:
    """Another version, a clock that is ahead, few open files, no shared directory, a GPU that torch lacks."""
    installed = tmp_path / "torch-2.12.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1\n")
    (tmp_path / "sitecustomize.py").write_text(AHEAD)
    healthy.copy(2, tmp_path, "/tmp/site")
    healthy.run(2, "umount", SHARED)
    path = {"PYTHONPATH": f"/tmp/site:{ROOT}"}
    healthy.start_ray(2, *PORTS, "--num-gpus=1", environment=path, open_files=1024)
    wrong, code = doctor(healthy, f"{SHARED}/runs")
    assert (code, {*wrong}) == (1, {"torch", "clocks", "open files", "home", "gpus"})
    assert "2.12.1 on h2" in wrong["torch"]["found"]
    assert wrong["clocks"]["found"] == "h2 is 3600 s ahead of h0"
    assert wrong["open files"]["found"].startswith("1,024 on h2")
    assert "h2 does not see it" in wrong["home"]["found"]
    assert wrong["gpus"]["found"] == "h2: Ray offers 1, torch sees 0"


def test_nodes_that_do_not_answer(healthy: Hosts) -> None:
    """The cable of one is cut, another one is dead."""
    healthy.cut(1)
    healthy.kill(2)
    wrong, code = doctor(healthy, f"{SHARED}/runs", "--wait", "18")
    assert (code, {*wrong}) == (1, {"nodes"})
    assert "h1" in wrong["nodes"]["found"]
    assert "h2" in wrong["nodes"]["found"]
    wrong, _ = doctor(healthy, f"{SHARED}/runs", "--wait", "0.5")
    assert re.search(r"h0[^.;]*: no answer in time \(--wait\)", wrong["nodes"]["found"]), wrong


def test_a_wrong_token_is_named_and_not_printed(tmp_path: Path) -> None:
    def token(secret: str) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret}

    with Hosts(tmp_path, 1) as hosts:
        hosts.start_ray(0, environment=token("a" * 64))
        wrong, code = doctor(hosts, **token("b" * 64))
        assert (code, {*wrong}) == (1, {"cluster"})
        assert "refuses the token" in wrong["cluster"]["found"]
        assert "bbbb" not in json.dumps(wrong)
        assert doctor(hosts, **token("a" * 64)) == ({}, 0)
