"""ds.launch joins the cluster that `ray start` has started on this machine, or says why not."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from distsummary.launcher import MAX_HOSTS, Place, describe_places
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

SCRIPT = """
import sys, os, ray
if "old" in sys.argv[2:]:
    ray.__version__ = "2.59.0"
from distsummary import launch

def node():
    return ray.get_runtime_context().gcs_address

print(launch(node, ranks=int(sys.argv[1]), backend=None, address="local" if "local" in sys.argv else None))
"""

LANDSCAPE = """
import sys, time
from pathlib import Path
import ray, torch
import distsummary as ds

place = sys.argv[1]

def loss_fn(model, batch):
    if ray.is_initialized():
        Path(place, ray.get_runtime_context().get_node_id()).touch()
    time.sleep(0.02)
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
batches = [(torch.randn(32, 8), torch.randint(0, 3, (32,)))]

def draw(workers, address=None):
    began = time.monotonic()
    how = {"size": 15, "directions": "random", "engine": "row", "workers": workers, "address": address}
    grid = ds.landscape(model, batches=batches, batch_loss=loss_fn, **how)
    return grid, time.monotonic() - began

if len(sys.argv) > 3:
    grid, took = draw("auto", sys.argv[3])
elif len(sys.argv) > 2:  # from within an actor that holds the only CPU
    ray.init()
    [(grid, took)] = ray.get([ray.remote(num_cpus=int(sys.argv[2]))(draw).remote("auto")])
else:
    grid, took = draw("auto")
alone, took_alone = draw(0)
assert grid.z.tobytes() == alone.z.tobytes()
print(len(grid.worker_seconds), f"{took:.1f} s on the cluster, {took_alone:.1f} s alone")
"""


@contextmanager
def started(place: Path, nodes: Sequence[int]) -> Iterator[dict[str, str]]:
    """A cluster by `ray start`, a node for each number of CPUs; yields the environment of its user."""
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(place),
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("RAY_ADDRESS", None)
    address = place / "ray" / "ray_current_cluster"
    address.unlink(missing_ok=True)
    processes: list[psutil.Popen] = []
    try:
        for cpus in nodes:
            role = [f"--address={address.read_text()}"] if processes else ["--head", "--port=0"]
            options = [*role, f"--num-cpus={cpus}", "--num-gpus=0", "--block", "--disable-usage-stats"]
            processes.append(
                psutil.Popen(
                    [str(Path(sys.executable).parent / "ray"), "start", *options],
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            deadline = time.monotonic() + PATIENCE_S
            while not address.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        yield environment
    finally:
        children = [child for one in processes for child in one.children(recursive=True)]
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for left in psutil.wait_procs([*processes, *children], timeout=30)[1]:
            left.kill()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A short path, since Ray puts sockets under it."""
    found = Path(tempfile.mkdtemp(prefix="dsjoin", dir="/tmp"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


def launched(environment: dict[str, str], *arguments: str, script: str = SCRIPT) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_launch_joins_the_cluster_of_this_machine_or_gives_the_reason(place: Path) -> None:
    with started(place, [2]) as environment:
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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_landscape_in_a_job_uses_every_node_of_the_cluster(place: Path, tmp_path: Path) -> None:
    with started(place, [1, 1]) as environment:
        in_job = environment | {"RAY_ADDRESS": (place / "ray" / "ray_current_cluster").read_text().strip()}
        used = tmp_path / "nodes"
        used.mkdir()
        stdout, _ = launched(in_job, str(used), script=LANDSCAPE)
        assert stdout.startswith("2 "), stdout
        assert len([*used.iterdir()]) == 2
        stdout, _ = launched(environment, str(used), "", in_job["RAY_ADDRESS"], script=LANDSCAPE)
        assert stdout.startswith("2 "), stdout


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_landscape_in_a_task_that_holds_the_only_cpu_is_drawn(place: Path, tmp_path: Path) -> None:
    with started(place, [1]) as environment:
        in_job = environment | {"RAY_ADDRESS": (place / "ray" / "ray_current_cluster").read_text().strip()}
        stdout, _ = launched(in_job, str(tmp_path), "1", script=LANDSCAPE)
        assert "on the cluster" in stdout
