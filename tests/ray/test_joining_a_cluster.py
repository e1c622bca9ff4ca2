"""ds.launch joins the cluster that `ray start` has started on this machine, or says why not."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distsummary.launcher import MAX_HOSTS, Place, describe_places
from tests.conftest import ROOT

SCRIPT = """
import sys, os, ray
if "old" in sys.argv[2:]:
    ray.__version__ = "2.59.0"
from distsummary import launch

def node():
    return ray.get_runtime_context().gcs_address

print(launch(node, ranks=int(sys.argv[1]), backend=None, address="local" if "local" in sys.argv else None))
"""


@contextmanager
def started(place: Path) -> Iterator[dict[str, str]]:
    """A cluster of two CPUs, started by `ray start`; yields the environment of its user."""
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(place),
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("RAY_ADDRESS", None)
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2", "--port=0"]
    process = subprocess.Popen(
        [*map(str, command), "--include-dashboard=false", "--disable-usage-stats"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 120
        while not (place / "ray" / "ray_current_cluster").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        children = psutil.Process(process.pid).children(recursive=True)
        yield environment
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in psutil.wait_procs(children, timeout=30)[1]:
            child.kill()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short path, since Ray puts sockets under it."""
    found = Path(tempfile.mkdtemp(prefix="dsjoin", dir="/tmp"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


def launched(environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_launch_joins_the_cluster_of_this_machine_or_gives_the_reason(place: Path) -> None:
    with started(place) as environment:
        address = (place / "ray" / "ray_current_cluster").read_text().strip()
        stdout, stderr = launched(environment, "2")
        assert stdout.count(address) == 2
        assert f"distsummary: joins the Ray cluster at {address}" in stderr
        assert "distsummary: ranks 0-1 on " in stderr

        stdout, stderr = launched(environment, "3")
        assert address not in stdout
        assert f"the Ray cluster at {address} is not used, a local one is started: 3 ranks of" in stderr
        assert "RAY_ADDRESS=auto" in stderr

        stdout, stderr = launched(environment, "1", "old")
        assert address not in stdout
        assert "is not used, a local one is started" in stderr
        assert "2.59.0" in stderr

        stdout, stderr = launched(environment, "1", "local")
        assert address not in stdout
        assert "Ray cluster" not in stderr
    stdout, stderr = launched(environment, "1")  # it has ended, and its address is still in the file
    assert "does not answer" in stderr


def test_ranks_are_listed_by_host() -> None:
    places = [
        Place(f"node{rank // 4}", f"h{rank // 4}", f"10.0.0.{rank // 4}", 29500, "", 0, 100 + rank)
        for rank in range(4 * (MAX_HOSTS + 2))
    ]
    lines = describe_places(places)
    assert lines[1] == "ranks 4-7 on h1 (10.0.0.1), pid 104, 105, 106, 107"
    assert lines[-1] == "... and 2 more hosts"
    assert describe_places(places[:1]) == ["rank 0 on h0 (10.0.0.0), pid 100"]
