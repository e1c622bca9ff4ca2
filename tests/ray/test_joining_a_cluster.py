"""ds.launch joins the cluster that `ray start` has started on this machine, or says why not."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import distsummary as ds
from distsummary.launching.launcher import MAX_HOSTS, RankPlace, describe_places
from distsummary.rundir.states import read_run
from tests.conftest import ROOT
from tests.patience import PATIENCE_S, wait_for

JOINING = """
import ray
from distsummary import launch
from distsummary.launching.launcher import connected

def node():
    return ray.get_runtime_context().gcs_address

print(*launch(node, ranks=2, backend=None))
init = ray.init
ray.init = lambda address, **how: print(address) if address == "local" else init(address=address, **how)
with connected(4, {"CPU": 1.0}):
    pass
with connected(1, {"CPU": 1.0}, "local"):
    pass
ray.__version__ = "2.59.0"
with connected(1, {"CPU": 1.0}):
    pass
"""

BY_CLIENT = """
import sys
import ray
import distsummary as ds

def train(run_dir):
    with ds.init(run_dir) as run:
        for _ in run.steps(range(20)):
            run.log(loss=1.0)
    return run.rank

for attempt in range(5):
    try:  # Ray's proxy starts a server for each client, which now and then dies as it starts
        ray.init(sys.argv[1])
        break
    except ConnectionError as error:
        print(error, file=sys.stderr)
print(ds.launch(train, sys.argv[2] + "/launched", ranks=2, backend=None))
with ds.init(sys.argv[2] + "/driver") as run:
    for _ in run.steps(range(20)):
        run.log(loss=1.0)
print(run.health().dropped)
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
    how = {"compute": ds.Compute(engine="row", workers=workers, address=address), "plane": ds.Plane(size=15)}
    grid = ds.landscape(model, batches=batches, batch_loss=loss_fn, directions="random", **how)
    return grid, time.monotonic() - began

class Holder:
    def begin(self):
        pass

if sys.argv[2:] == ["held"]:  # from within a task that holds the last CPU
    ray.init()
    others = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(2)]
    ray.get([other.begin.remote() for other in others])
    grid, took = ray.get(ray.remote(num_cpus=1)(draw).remote("auto"))
else:
    grid, took = draw("auto", *sys.argv[2:])
alone, took_alone = draw(0)
assert grid.z.tobytes() == alone.z.tobytes()
print(len(grid.worker_seconds), f"{took:.1f} s on the cluster, {took_alone:.1f} s alone")
"""


class Cluster:
    """A cluster by `ray start`, whose files are in a short path, since Ray puts sockets under it."""

    def __init__(self, place: Path) -> None:
        self.environment = {
            **os.environ,
            "RAY_TMPDIR": str(place),
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(ROOT),
        }
        self.environment.pop("RAY_ADDRESS", None)
        self._address = place / "ray" / "ray_current_cluster"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.client_port = probe.getsockname()[1]
        self._nodes: list[psutil.Popen] = []

    @property
    def address(self) -> str:
        """As Ray wrote it."""
        return self._address.read_text().strip()

    def add_node(self, cpus: int) -> None:
        """Start a node; the first is the head."""
        role = (
            [f"--address={self.address}"]
            if self._nodes
            else ["--head", "--port=0", f"--ray-client-server-port={self.client_port}"]
        )
        options = [*role, f"--num-cpus={cpus}", "--num-gpus=0", "--block", "--disable-usage-stats"]
        ray = str(Path(sys.executable).parent / "ray")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._nodes.append(psutil.Popen([ray, "start", *options], env=self.environment, **quiet))
        wait_for(self._address.exists)

    def stop(self) -> None:
        """End all nodes."""
        alive = [node for node in self._nodes if node.poll() is None]
        children = [child for node in alive for child in node.children(recursive=True)]
        for node in reversed(alive):
            node.send_signal(signal.SIGTERM)
        for left in psutil.wait_procs([*self._nodes, *children], timeout=30)[1]:
            left.kill()
        self._nodes = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node of two CPUs, in which a launch fits, and one of one CPU, which may join a little later."""
    place = Path(tempfile.mkdtemp(prefix="dsjoin", dir="/tmp"))
    found = Cluster(place)
    try:
        found.add_node(2)
        found.add_node(1)
        yield found
    finally:
        found.stop()
        shutil.rmtree(place, ignore_errors=True)


def output_of(script: str, environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    """What the script prints, and its standard error."""
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
def test_a_launch_joins_the_cluster_of_this_machine_or_gives_the_reason(cluster: Cluster) -> None:
    stdout, stderr = output_of(JOINING, cluster.environment)
    address = cluster.address
    printed = [line for line in stdout.splitlines() if not line.startswith("(rank ")]
    assert printed == [f"{address} {address}", "local", "local", "local"]
    assert stderr.count(f"distsummary: joins the Ray cluster at {address}") == 1
    assert "distsummary: ranks 0-1 on " in stderr
    too_many, old = [line for line in stderr.splitlines() if "is not used" in line]
    assert f"the Ray cluster at {address} is not used, a local one is started: 4 ranks of" in too_many
    assert "RAY_ADDRESS=auto" in too_many
    assert "2.59.0" in old


def test_ranks_are_listed_by_host() -> None:
    places = [
        RankPlace(f"node{rank // 4}", f"h{rank // 4}", f"10.0.0.{rank // 4}", 29500, "", 0, 100 + rank)
        for rank in range(4 * (MAX_HOSTS + 2))
    ]
    lines = describe_places(places, {"CPU": 1, "GPU": 0.5})
    assert lines[0] == f"{len(places)} ranks on {MAX_HOSTS + 2} nodes, 4 each; a rank has 1 CPU, 0.5 GPU"
    assert lines[2] == "ranks 4-7 on h1 (10.0.0.1), pid 104, 105, 106, 107"
    assert lines[-1] == "... and 2 more hosts"
    assert describe_places(places[:5], {"CPU": 1})[0] == "5 ranks on 2 nodes, 1 to 4; a rank has 1 CPU"
    assert describe_places(places[:1], {"CPU": 1}) == ["rank 0 on h0 (10.0.0.0), pid 100"]


@pytest.mark.long
def test_a_landscape_in_a_task_that_holds_the_last_cpu_is_drawn(cluster: Cluster, tmp_path: Path) -> None:
    in_job = cluster.environment | {"RAY_ADDRESS": cluster.address}
    stdout, _ = output_of(LANDSCAPE, in_job, str(tmp_path), "held")
    assert "on the cluster" in stdout


@pytest.mark.long
def test_a_landscape_in_a_job_uses_every_node_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    stdout, _ = output_of(LANDSCAPE, cluster.environment | {"RAY_ADDRESS": cluster.address}, str(tmp_path))
    assert stdout.startswith("3 "), stdout
    assert len([*tmp_path.iterdir()]) == 2
    stdout, _ = output_of(LANDSCAPE, cluster.environment, str(tmp_path), cluster.address)
    assert stdout.startswith("3 "), stdout


@pytest.mark.long
def test_a_driver_that_is_connected_by_ray_client_launches_and_records(cluster: Cluster, tmp_path: Path):
    address = f"ray://127.0.0.1:{cluster.client_port}"
    stdout, stderr = output_of(BY_CLIENT, cluster.environment, address, str(tmp_path))
    assert [line for line in stdout.splitlines() if line[:1] in "[{"] == ["[0, 1]", "{}"]
    assert "may be missing" not in stderr
    assert "it is connected by Ray Client" in stderr
    launched, driver = (read_run(tmp_path / name) for name in ("launched", "driver"))
    assert [rank.state for run in (launched, driver) for rank in run.attempts[0].ranks] == 3 * ["finished"]
    assert len(ds.open_run(tmp_path / "launched").merged.scalars("loss")) == 20


@pytest.mark.long
def test_the_address_of_a_cluster_that_has_ended_is_not_used(cluster: Cluster) -> None:
    cluster.stop()  # its address is still in the file
    stdout, stderr = output_of(JOINING.replace("ranks=2", "ranks=1"), cluster.environment)
    assert cluster.address not in stdout
    assert "does not answer" in stderr
