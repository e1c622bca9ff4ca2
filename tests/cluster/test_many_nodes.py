"""Ranks are placed as asked on the nodes of a cluster, and its workers share a landscape though they die."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import Hosts, can_make_hosts

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(1200),
]

PLACES = """
import json, os, socket, sys, time
import ray
import distsummary as ds

def where():
    return socket.gethostname(), int(os.environ["LOCAL_RANK"]), int(os.environ["NODE_RANK"])

ray.init(address="auto")
for options in json.loads(sys.argv[1]):
    while ray.available_resources().get("CPU") != 4:
        time.sleep(0.1)  # those of the launch before return a little later
    print("places", json.dumps(ds.launch(where, backend=None, **options)))
"""

# The losses of a landscape on the cluster. After each so many points, the newest worker here is killed.
LANDSCAPE = """
import hashlib, subprocess, sys
import ray, torch
from torch import nn
import distsummary as ds

def parts():
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 4096).unsqueeze(1)
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), x

run_dir, every, killed = sys.argv[1], int(sys.argv[2]), 0

def look(progress):
    global killed
    print("nodes", *sorted(progress.by_node), flush=True)
    if progress.fresh // every > killed:
        killed += 1
        subprocess.run(["pkill", "-KILL", "-n", "-f", "ray::[W]orkerProcess"])

ray.init(address="auto")
model, x = parts()
grid = ds.landscape(
    model, nn.MSELoss(), [(x, torch.sin(2 * x))], directions="random", progress=look,
    plane=ds.Plane(size=25), compute=ds.Compute(engine="row", workers="auto"),
    run_dir=run_dir,
)
print("losses", hashlib.sha256(grid.z.tobytes()).hexdigest(), grid.lost_points)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts of two CPUs that share nothing."""
    with Hosts(tmp_path_factory.mktemp("hosts"), 2) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        yield hosts


def test_ranks_are_placed_as_asked_and_the_console_says_how(cluster: Hosts) -> None:
    asked = [
        {"ranks": 4, "nodes": 2},
        {"ranks": 2, "placement": "packed"},
        {"ranks": 2, "placement": "spread"},
    ]
    done = cluster.run(0, "python", "-c", PLACES, json.dumps(asked))
    assert done.returncode == 0, done.stderr
    even, packed, spread = (
        json.loads(line) for line in re.findall(r"^places (.+)$", done.stdout, re.MULTILINE)
    )
    assert [rank[1:] for rank in even] == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert even[0][0] == even[1][0] != even[2][0] == even[3][0]
    assert packed[0][0] == packed[1][0]
    assert {rank[0] for rank in spread} == {"h0", "h1"}
    assert "4 ranks on 2 nodes, 2 each; a rank has 1 CPU" in done.stderr


def landscape(hosts: Hosts, run_dir: str, every: int) -> tuple[str, set[str], str]:
    """A digest of the losses, with how many were lost; the nodes that computed; what was said."""
    done = hosts.run(0, "python", "-c", LANDSCAPE, run_dir, str(every), timeout=900)
    assert done.returncode == 0, done.stderr
    [losses] = re.findall(r"^losses (.+)$", done.stdout, re.MULTILINE)
    nodes = set(" ".join(re.findall(r"^nodes (.+)$", done.stdout, re.MULTILINE)).split())
    return losses, nodes, done.stderr


def test_a_landscape_whose_workers_are_killed_is_bit_equal(cluster: Hosts) -> None:
    quiet, nodes, _ = landscape(cluster, "/home/user/quiet", 10_000)
    assert nodes == {"h0", "h1"}
    killed, _, said = landscape(cluster, "/home/user/killed", 150)
    assert killed == quiet
    assert killed.endswith(" 0")
    assert "died" in said
