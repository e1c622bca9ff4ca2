"""The doctor's checks: which planted fault of which host is named, with what to do."""

import copy
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from distsummary.errors import RunDirError
from distsummary.launching.doctor import ERROR, OK, WARNING, doctor, examine
from distsummary.launching.host_facts import connect, host_facts

GIB = 1 << 30


def host(name: str) -> dict[str, Any]:
    """A healthy host of a cluster."""
    return {
        "host": name,
        "python": "3.12.4",
        "versions": {"distsummary": "0.1.0", "ray": "2.60.0", "torch": "2.13.0", "numpy": "2.4.0"},
        "open_files": 65536,
        "shared_memory": 8 * GIB,
        "gpus": {"driver": 1, "torch": 1, "cuda": "12.8", "nccl": "2.27.3"},
        "flight_recorder": None,
        "ray_gpus": 1.0,
        "round_trip_ms": 0.4,
        "clock_ahead_s": 0.0,
        "mb_per_s": 400.0,
        "blocked": None,
        "directory": {
            "path": "/shared/runs",
            "failed": {},
            "free": 90 * GIB,
            "type": "nfs4",
            "fsync_ms": 2.0,
            "clock_behind_s": 0.0,
            "beacon": {"seen": True, "stale_s": 0.12, "locked": True},
        },
    }


def test_a_healthy_cluster_has_no_complaint() -> None:
    checks = examine([host("h0"), host("h1"), host("h2")])
    assert {check.level for check in checks} == {OK}, checks
    assert len({check.name for check in checks}) == len(checks) == 8


# What differs on h1; then the level, the check, and words of its line.
FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "version": ({"versions": {"torch": "2.12.1"}}, ERROR, "torch", "2.12.1 on h1"),
    "python": ({"python": "3.11.9"}, ERROR, "python", "3.11.9 on h1"),
    "no package": ({"versions": {"distsummary": None}}, ERROR, "distsummary", "not installed on h1"),
    "clock": ({"clock_ahead_s": -3600.0}, ERROR, "clocks", "h1 is 3600 s behind h0"),
    "not mounted": ({"directory": {"missing": "ENOENT"}}, ERROR, "shared", "h1 does not see /shared/runs"),
    "another disk": (
        {"directory": {"beacon": {"seen": False}}},
        ERROR,
        "shared",
        "h1 does not see /shared/runs",
    ),
    "no rename": (
        {"directory": {"failed": {"rename": "not supported"}}},
        ERROR,
        "directory",
        "h1, /shared/runs",
    ),
    "full disk": (
        {"directory": {"failed": {"append": "No space left"}}},
        ERROR,
        "directory",
        "free some space",
    ),
    "nearly full": ({"directory": {"free": GIB // 2}}, WARNING, "directory", "0.5 GiB free"),
    "no locks": ({"directory": {"beacon": {"locked": False}}}, ERROR, "shared", "not seen on h1"),
    "cached": ({"directory": {"beacon": {"stale_s": 2.9}}}, WARNING, "shared", "seen late: h1 2.9 s"),
    "open files": ({"open_files": 1024}, WARNING, "open files", "1,024 on h1"),
    "shared memory": ({"shared_memory": 64 << 20}, WARNING, "shared memory", "0.1 GiB on h1"),
    "blocked port": ({"blocked": "No route"}, ERROR, "network", "h1 cannot connect to h0: No route"),
    "slow network": ({"round_trip_ms": 80.0}, WARNING, "network", "h1 80.0 ms"),
    "no CUDA": ({"gpus": {"torch": 0, "cuda": "None"}}, ERROR, "gpus", "h1: Ray offers 1, torch sees 0"),
    "unoffered GPU": (
        {"ray_gpus": 0.0, "gpus": {"driver": 0}},
        WARNING,
        "gpus",
        "torch sees 1, Ray offers 0",
    ),
    "no flight recorder": ({"flight_recorder": "0"}, WARNING, "hangs", "off on h1"),
}


def changed(facts: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    facts = copy.deepcopy(facts)
    for name, value in change.items():
        facts[name] = changed(facts[name], value) if isinstance(facts.get(name), dict) else value
    return facts


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_host_is_named_and_nothing_else_is(fault: str) -> None:
    change, level, name, words = FAULTS[fault]
    checks = examine([host("h0"), changed(host("h1"), change), host("h2")])
    wrong = [check for check in checks if check.level != OK]
    assert [(check.level, check.name) for check in wrong] == [(level, name)], checks
    assert words in wrong[0].as_line()
    assert wrong[0].remedy


def test_nodes_without_an_answer_are_grouped_by_reason() -> None:
    silent = {"h7": "no answer within 15 s", "h8": "no answer within 15 s", "h9": "the node is dead"}
    first = examine([host("h0")], silent)[0]
    assert first.level == ERROR
    assert "no answer within 15 s" in first.found
    assert "h9: the node is dead" in first.found


def test_this_host_is_examined_in_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = doctor(tmp_path / "a" / "b")
    assert found.exit_code == 0, found.checks
    directory = next(check for check in found.checks if check.name == "directory")
    assert str(tmp_path) in directory.found
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="is a file"):
        doctor(tmp_path / "file" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    found = doctor(tmp_path / "run")
    assert found.exit_code == 1
    assert any("Permission denied" in check.found for check in found.checks)


def test_few_open_files_are_seen_as_they_are() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        assert host_facts(None, None)["open_files"] == 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_closed_port_has_a_reason() -> None:
    assert connect("127.0.0.1", 1) is not None
