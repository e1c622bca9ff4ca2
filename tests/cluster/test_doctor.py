"""The doctor of a real Ray cluster of three hosts names what was planted there, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import PORT, SHARED, Hosts, can_make_hosts

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(1200),
]


def doctor(hosts: Hosts, *arguments: str, **environment: str) -> tuple[dict[str, dict[str, Any]], int]:
    """The checks that are not "ok" or notes, by name, and the exit code; asked on host 0."""
    address = f"{hosts.address(0)}:{PORT}"
    command = ["python", "-m", "distsummary", "doctor", "--json", "--wait", "120", "--address", address]
    done = hosts.run(0, *command, *arguments, environment=environment)
    assert done.stdout, done.stderr
    checks = json.loads(done.stdout)["checks"]
    wrong = {check["name"]: check for check in checks if check["level"] not in ("ok", "note")}
    wrong.pop("network", None)  # of a busy machine, it may be slow
    return wrong, done.returncode


def test_planted_faults_are_named(tmp_path: Path) -> None:
    with Hosts(tmp_path, 3, is_shared=True) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        assert doctor(hosts, f"{SHARED}/runs") == ({}, 0)

        hosts.start_ray(2, "--num-gpus=1")
        wrong, code = doctor(hosts, "/home/user/runs")
        assert (code, {*wrong}) == (1, {"gpus", "shared", "directory"})
        assert wrong["gpus"]["found"] == "h2: Ray offers 1, torch sees 0"
        assert wrong["shared"]["found"] == "h1, h2 do not see /home/user of h0"
        assert "0.3 GiB free" in wrong["directory"]["found"]

        hosts.run(0, "mkdir", f"{SHARED}/full")
        hosts.run(0, "mount", "-t", "tmpfs", "-o", "size=4k", "full", f"{SHARED}/full")
        wrong, code = doctor(hosts, f"{SHARED}/full")
        assert code == 1
        assert "No space left on device" in wrong["directory"]["found"]

        hosts.kill(2)
        wrong, code = doctor(hosts, f"{SHARED}/runs")
        assert (code, {*wrong}) == (1, {"nodes"})
        assert wrong["nodes"]["found"].startswith("h2: ")


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
