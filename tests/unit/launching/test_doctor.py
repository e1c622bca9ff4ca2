"""The doctor's checks: which planted fault of which host is named, with what to do."""

import copy
import fcntl
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from distsummary.errors import RunDirError
from distsummary.launching.doctor import ERROR, OK, WARNING, doctor, examine
from distsummary.launching.host_facts import Shown, exchange, host_facts
from distsummary.storage import left_behind
from distsummary.storage.place import SPOOL

GIB = 1 << 30


def host(name: str) -> dict[str, Any]:
    """A healthy host of a cluster; h0 is the head, and the home of the run."""
    return {
        "host": name,
        "is_head": name == "h0",
        "why_home": "the head of the cluster",
        "source": "abc",
        "spools": {
            "place": "/tmp/distsummary-0", "free": 9 * GIB, "arrived": {}, "unsent": {}, "removed": {},
        },
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
            "path": "/shared/runs", "failed": {}, "free": 90 * GIB, "type": "nfs4", "fsync_ms": 2.0,
            "clock_behind_s": 0.0, "beacon": {"seen": True, "stale_s": 0.12, "locked": True},
        },
    }  # fmt: skip


def test_a_healthy_cluster_has_no_complaint() -> None:
    checks = examine([host("h0"), host("h1"), host("h2")])
    assert {check.level for check in checks} == {OK}, checks
    assert len({check.name for check in checks}) == len(checks) == 9


# What differs on h1; then the level, the check, and words of its line.
FAULTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "version": ({"versions": {"torch": "2.12.1"}}, ERROR, "torch", "2.12.1 on h1"),
    "python": ({"python": "3.11.9"}, ERROR, "python", "3.11.9 on h1"),
    "no package": ({"versions": {"distsummary": None}}, ERROR, "distsummary", "not installed on h1"),
    "clock": ({"clock_ahead_s": -3600.0}, ERROR, "clocks", "h1 is 3600 s behind h0"),
    "source": ({"source": "abd"}, ERROR, "distsummary", "abd on h1"),
    "not mounted": ({"directory": {"missing": "ENOENT"}}, WARNING, "home", "h1 does not see it"),
    "another disk": ({"directory": {"beacon": {"seen": False}}}, WARNING, "home", "mount /shared/runs there"),
    "no room for a spool": (
        {"directory": {"beacon": {"seen": False}}, "spools": {"free": GIB // 4}},
        WARNING,
        "home",
        "0.2 GiB on h1",
    ),
    "spool left": (
        {"spools": {"left": {"a-1": 1 << 20}}},
        WARNING,
        "spools",
        "1.0 MiB in /tmp/distsummary-0/a-1 on h1",
    ),
    "no rename": (
        {"directory": {"failed": {"rename": "not supported"}}}, ERROR, "directory", "h1, /shared/runs",
    ),
    "full disk": (
        {"directory": {"failed": {"append": "No space left"}}}, ERROR, "directory", "free some space",
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
        {"ray_gpus": 0.0, "gpus": {"driver": 0}}, WARNING, "gpus", "torch sees 1, Ray offers 0",
    ),
    "no flight recorder": ({"flight_recorder": "0"}, WARNING, "hangs", "off on h1"),
}  # fmt: skip


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


def test_hosts_that_share_nothing_are_healthy() -> None:
    away = {"directory": {"beacon": {"seen": False}}}
    checks = examine([host("h0"), changed(host("h1"), away), changed(host("h2"), away)])
    assert {check.level for check in checks} == {OK}, checks
    found = next(check.found for check in checks if check.name == "home")
    assert found.startswith("h0, the head of the cluster. h1, h2 do not see it")


def test_a_network_directory_that_the_head_does_not_see_splits_the_run() -> None:
    here = changed(host("h1"), {"is_head": False})
    hosts = [here, changed(host("h0"), {"directory": {"missing": "ENOENT", "type": "ext4"}})]
    [wrong] = [check for check in examine(hosts) if check.level != OK]
    assert (wrong.level, wrong.name) == (ERROR, "home")
    assert "h0 does not see /shared/runs of h1" in wrong.found


def test_what_another_state_of_the_disk_lacks_has_the_file_system_as_its_remedy() -> None:
    refused = {"directory": {"failed": {"rename": "Operation not permitted"}}}
    [wrong] = [check for check in examine([changed(host("h0"), refused)]) if check.level != OK]
    assert wrong.remedy.startswith("use a file system that has")


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
    assert exchange("127.0.0.1", 1)["blocked"]


def test_the_way_to_a_home_is_measured(tmp_path: Path) -> None:
    with Shown(str(tmp_path), "127.0.0.1") as shown:
        found = exchange("127.0.0.1", shown.port)
        assert shown.beacon
        assert [str(path) for path in tmp_path.iterdir()] == [shown.beacon]
    assert found["blocked"] is None
    assert found["mb_per_s"] > 0 < found["round_trip_ms"]
    assert abs(found["clock_ahead_s"]) < 1
    assert list(tmp_path.iterdir()) == []
    assert exchange("127.0.0.1", shown.port)["blocked"]


def test_only_spools_that_no_training_writes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SPOOL, str(tmp_path))
    monkeypatch.setattr(left_behind, "QUIET_S", 0.0)
    for name in ("left-1", "locked-2"):
        path = tmp_path / name / "rank_00000" / "events.summary.1.h0.1_MS"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 100)
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        for clean, level in ((False, WARNING), (True, OK)):
            [found] = [check for check in doctor(None, clean=clean).checks if check.name == "spools"]
            assert found.level == level
            assert f"{tmp_path}/left-1 on " in found.found
            assert "locked-2" not in found.found
    assert [path.name for path in tmp_path.iterdir()] == ["locked-2"]
    # One in which a file was just written is left alone, too.
    monkeypatch.setattr(left_behind, "QUIET_S", 60.0)
    doctor(None, clean=True)
    assert [path.name for path in tmp_path.iterdir()] == ["locked-2"]
