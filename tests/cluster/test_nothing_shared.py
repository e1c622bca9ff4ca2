"""Trainings on hosts that share nothing are recorded as one run, on the node that is its home."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Hosts, can_make_hosts

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(1200),
]

TRAIN = """
import sys, time, ray
import distsummary as ds

def train(steps):
    with ds.init("/home/user/runs/a", config={"lr": 0.1}) as run:
        for step in run.steps(range(steps)):
            run.log(loss=1.0 / (step + 1))
            time.sleep(0.005)
        run.alert("the user has a word")

ray.init(address="auto", log_to_driver=True)
ds.launch(train, int(sys.argv[2]), ranks=int(sys.argv[1]), backend=None)
"""

READ = """
import json
import distsummary as ds
run = ds.open_run("/home/user/runs/a")
steps = [run.scalars("loss", rank=rank)["step"].tolist() for rank in range(run.world_size)]
alerts = map(json.loads, open("/home/user/runs/a/alerts.jsonl"))
print(json.dumps({"state": run.state, "steps": steps, "config": run.config,
    "messages": [one["evidence"] for one in alerts if one["cause"] == "message"]}))
"""

# Without collectives: how long the longest step of a rank took is its result.
LOOP = """
import sys, time, ray
import distsummary as ds

def train(steps):
    longest, at = 0.0, time.perf_counter()
    with ds.init("/home/user/runs/a", config={"lr": 0.1}) as run:
        for step in run.steps(range(steps)):
            run.log(loss=1.0 / (step + 1))
            time.sleep(0.005)
            now = time.perf_counter()
            longest, at = max(longest, now - at if step else 0.0), now
        run.alert("the user has a word")
    return longest

ray.init(address="auto")
print("longest", max(ds.launch(train, int(sys.argv[2]), ranks=int(sys.argv[1]), backend=None)))
"""

# Kills the actors of a kind, again and again.
KILL = """
import subprocess, sys, time
for _ in range(int(sys.argv[3])):
    time.sleep(float(sys.argv[2]))
    subprocess.run(["pkill", "-KILL", "-f", sys.argv[1]])
"""


def train(hosts: Hosts, ranks: int, steps: int) -> None:
    done = hosts.run(0, "python", "-c", TRAIN, str(ranks), str(steps))
    assert done.returncode == 0, done.stdout + done.stderr


def check(hosts: Hosts, ranks: int, steps: int) -> None:
    """The run at home has each step of each rank once, and its files are whole."""
    done = hosts.run(0, "python", "-c", READ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["state"] == "finished"
    assert found["steps"] == [[*range(1, steps + 1)]] * ranks
    assert found["config"] == {"lr": 0.1}
    assert found["messages"] == ["the user has a word"] * ranks
    checked = hosts.run(0, "python", "-m", "distsummary", "fsck", "/home/user/runs/a")
    assert checked.returncode == 0, checked.stdout
    # The path of the user is not made on a host that is not the home.
    assert hosts.run(1, "ls", "/home/user/runs").returncode != 0


def test_a_launch_is_one_run_at_home(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        train(hosts, 4, 300)
        check(hosts, 4, 300)
        spools = "cd /tmp/distsummary-*/*/ && find . -name '*events*' -type f | sort | xargs sha256sum"
        sent = hosts.run(1, "sh", "-c", spools).stdout
        assert len(sent.splitlines()) >= 2
        at_home = f"cd /home/user/runs/a && echo '{sent}' | sha256sum -c --quiet"
        assert hosts.run(0, "sh", "-c", at_home).returncode == 0


@pytest.mark.parametrize(
    ("host", "kind", "every_s"), [(1, "_Ship[A]ctor", 3.0), (0, "_Aggregator[A]ctor", 5.0)]
)
def test_what_is_killed_costs_no_step(tmp_path: Path, host: int, kind: str, every_s: float) -> None:
    with Hosts(tmp_path, 2) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        with ThreadPoolExecutor() as pool:
            killing = pool.submit(hosts.run, host, "python", "-c", KILL, kind, str(every_s), "6")
            train(hosts, 4, 3000)
            assert killing.result().returncode == 0
        check(hosts, 4, 3000)


def test_while_a_cable_is_cut_the_loop_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts, ThreadPoolExecutor() as pool:
        for number in (0, 1):
            hosts.start_ray(number)
        training = pool.submit(hosts.run, 0, "python", "-c", LOOP, "4", "6000")
        time.sleep(15)
        hosts.cut(1)
        time.sleep(15)
        hosts.mend(1)
        done = training.result()
        assert done.returncode == 0, done.stdout + done.stderr
        check(hosts, 4, 6000)
        assert float(done.stdout.split()[-1]) < 1.0  # a wait for the home would be one of 5 s


def test_a_host_that_dies_is_named_and_what_it_sent_is_in_the_run(tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts, ThreadPoolExecutor() as pool:
        for number in (0, 1):
            hosts.start_ray(number)
        training = pool.submit(hosts.run, 0, "python", "-c", TRAIN, "4", "100000")
        time.sleep(30)
        hosts.kill(1)
        done = training.result()
        assert done.returncode != 0
        found = hosts.run(0, "python", "-m", "distsummary", "status", "/home/user/runs/a").stdout
        assert "first failure: rank 0, its node 10.78.0.11 does not answer" in found
        steps = [int(line.split()[2]) for line in found.splitlines() if line.split()[1:2] == ["lost"]]
        assert len(steps) == 4
        assert min(steps) > 100
