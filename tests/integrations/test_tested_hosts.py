"""Which versions of hosts are named, and that the range is that of the tests."""

from pathlib import Path

import pytest

from distsummary.integrations import tested_hosts
from distsummary.integrations.tested_hosts import TESTED, HostVersions, is_tested, name_untested
from tests.conftest import ROOT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages, of a process that has named no host yet."""
    monkeypatch.setattr(tested_hosts, "_seen", set())
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(packages: Path, host: str, version: str) -> None:
    metadata = packages / f"{host}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {host}\nVersion: {version}\n")


def test_hosts_outside_the_tested_range_are_named_in_one_line_and_once(
    installed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(installed, "keras", "2.15.0")
    install(installed, "trl", "99.0")
    install(installed, "accelerate", f"{TESTED['accelerate'].first}.7")
    modules = {"keras", "trl.trainer", "accelerate", "deepspeed"}  # the last one is no installed package
    name_untested(modules)
    name_untested(modules)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("distsummary: not tested with keras 2.15.0 (tested: ")
    assert ", trl 99.0 (tested: " in said
    assert f"pip install 'keras=={TESTED['keras'].last}.*' 'trl=={TESTED['trl'].last}.*'" in said
    assert "accelerate" not in said


def test_a_host_that_trains_nothing_here_is_not_named(
    installed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(installed, "transformers", "1.0")
    name_untested({"transformers"})  # its models alone, in a loop of the user's
    assert capfd.readouterr().err == ""


def test_damaged_metadata_is_no_exception(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = installed / "keras-3.15.1.dist-info"
    damaged.mkdir()
    (damaged / "METADATA").write_bytes(b"Name: keras\nVersion: \xff\xfe\n")
    name_untested({"keras"})
    assert "versions of hosts" in caplog.text


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.5.6", True), ("2.6", True), ("2.6.0.dev1", True), ("2.10.1", False), ("1.9.5", False), ("x", False)],
)
def test_a_range_is_of_minor_versions(version: str, expected: bool) -> None:
    assert is_tested(version, HostVersions((), "2.5", "2.6")) is expected


def test_the_versions_that_the_tests_install_are_tested() -> None:
    lines = (ROOT / "tests/tools/requirements-hosts.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines)
    names = {name.partition("[")[0]: version for name, version in pinned.items()}
    for host in TESTED.keys() - {"pytorch-lightning", "torchtitan"}:
        minor = names[host].rpartition(".")[0]
        assert (minor, is_tested(names[host], TESTED[host])) == (TESTED[host].last, True), host
