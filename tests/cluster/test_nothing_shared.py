"""Trainings on hosts that share nothing are recorded as one run, on the node that is its home."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distsummary.rundir.timeouts import FAR_S
from tests.cluster.hosts import SHARED, Hosts, can_make_hosts
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root and namespaces"),
    pytest.mark.timeout(1200),
]

RUN = "/home/user/runs/a"

# Without collectives; prints how long the longest step of a rank took.
TRAIN = """
import sys, time, ray
import distsummary as ds

def train(run_dir, steps):
    longest, at = 0.0, time.perf_counter()
    with ds.init(run_dir, config={"lr": 0.1}) as run:
        for step in run.steps(range(steps)):
            run.log(loss=1.0 / (step + 1))
            time.sleep(0.005)
            now = time.perf_counter()
            longest, at = max(longest, now - at if step else 0.0), now
        run.alert("the user has a word")
    return longest

run_dir, ranks, steps, node = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
ray.init(address="auto")
needs = {"CPU": 1, **{f"node:{address}": 0.01 for address in node}}
print("longest", max(ds.launch(train, run_dir, steps, ranks=ranks, backend=None, resources_per_rank=needs)))
"""

TRAINER = f"""{TRAIN.rpartition("needs =")[0]}
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

placed = dict(
    scaling_config=ScalingConfig(num_workers=ranks), run_config=RunConfig(storage_path="/home/user/train")
)
TorchTrainer(lambda config: train(run_dir, steps), train_loop_config=dict(), **placed).fit()
"""

COLLECTED = TRAIN.replace(
    """ds.init(run_dir, config={"lr": 0.1})""",
    """ds.Run(callbacks=ds.SummaryCollector(run_dir, config={"lr": 0.1}))""",
)

READ = """
import json, sys
import distsummary as ds
run = ds.open_run(sys.argv[1])
steps = [run.scalars("loss", rank=rank)["step"].tolist() for rank in range(run.world_size)]
alerts = map(json.loads, open(f"{sys.argv[1]}/alerts.jsonl"))
print(json.dumps({"state": run.state, "steps": steps, "config": run.config,
    "messages": [one["evidence"] for one in alerts if one["cause"] == "message"]}))
"""

# Without a line of ours; the first rank is on another host than the driver.
ZERO = """
import os, sys, ray, torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

def train(config):
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

ray.init(address="auto", runtime_env={"env_vars": {"DISTSUMMARY": sys.argv[1]}})
run_config = RunConfig(storage_path="/home/user/train")
scaling = ScalingConfig(num_workers=4)
TorchTrainer(train, train_loop_config={}, scaling_config=scaling, run_config=run_config).fit()
"""

# With a collective in each step; starts again at step 0 in the same run.
TOGETHER = TRAIN.replace("import sys, time, ray", "import sys, time, ray, torch").replace(
    "backend=None", "backend='gloo'"
)
TOGETHER = TOGETHER.replace(
    "time.sleep(0.005)", "torch.distributed.all_reduce(torch.ones(1)); time.sleep(0.005)"
)
AGAIN = TRAIN.replace("config=", "on_existing='attempt', config=")

# The second rank ends itself by a signal.
KILLED = """
import os, signal, sys, time, ray
import distsummary as ds

def train(run_dir, name):
    with ds.init(run_dir) as run:
        for step in run.steps(range(200)):
            run.log(loss=1.0)
            time.sleep(0.005)
            if step == 99 and run.rank == 1:
                os.kill(os.getpid(), getattr(signal, name))

run_dir, address, name = sys.argv[1:]
ray.init(address="auto")
needs = {"CPU": 1, f"node:{address}": 0.01}
ds.launch(train, run_dir, name, ranks=2, backend=None, resources_per_rank=needs)
"""

# A rank writes checkpoints, on the host that is named; then the landscape is drawn at home.
TRAJECTORY = """
import sys, ray, torch
import distsummary as ds

def train(run_dir, most):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep = {"landscape_size": 4, "unit": "step", "intervals": [[10, 20, 30, 40]]}
    record = ds.Record(collect_landscape=keep, ship_bytes=most)
    with ds.init(run_dir, watch=model, optimizer=optimizer, record=record) as run:
        for step in run.steps(range(40)):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    torch.distributed.barrier()

run_dir, address, most = sys.argv[1:]
ray.init(address="auto")
ds.launch(train, run_dir, int(most), ranks=2, resources_per_rank={"CPU": 1, f"node:{address}": 0.01})
"""

DRAW = """
import sys, torch
import distsummary as ds

torch.manual_seed(1)
batches = [(torch.randn(8, 4), torch.zeros(8, 1)) for _ in range(4)]
plane = ds.Plane(size=4, seed=1)
grid = ds.landscape(torch.nn.Linear(4, 1), torch.nn.MSELoss(), batches, around=sys.argv[1], plane=plane)
print(grid.z.tobytes().hex())
"""

# Kills the actors of a kind, again and again.
KILL = """
import subprocess, sys, time
for _ in range(int(sys.argv[3])):
    time.sleep(float(sys.argv[2]))
    subprocess.run(["pkill", "-KILL", "-f", sys.argv[1]])
"""


@contextmanager
def cluster(directory: Path, *, is_shared: bool = False) -> Iterator[Hosts]:
    """A Ray cluster of two hosts."""
    with Hosts(directory, 2, is_shared=is_shared) as hosts:
        for number in (0, 1):
            hosts.start_ray(number)
        yield hosts


def train(hosts: Hosts, ranks: int, steps: int, *node: str, run_dir: str = RUN, script: str = TRAIN) -> str:
    """Train; returns what is printed."""
    done = hosts.run(0, "python", "-c", script, run_dir, str(ranks), str(steps), *node)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def check(
    hosts: Hosts, ranks: int, steps: int, *, run_dir: str = RUN, host: int = 0, messages: int | None = None
) -> None:
    """The run on a host has each step of each rank once, and its files are whole."""
    done = hosts.run(host, "python", "-c", READ, run_dir)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["state"] == "finished"
    assert found["steps"] == [[*range(1, steps + 1)]] * ranks
    assert found["config"] == {"lr": 0.1}
    assert found["messages"] == ["the user has a word"] * (messages or ranks)
    checked = hosts.run(host, "python", "-m", "distsummary", "fsck", run_dir)
    assert checked.returncode == 0, checked.stdout


def has_no_spool(hosts: Hosts, host: int) -> bool:
    """Whether a ship has removed what it sent; it stays for some seconds."""
    look = "for i in $(seq 60); do rmdir /tmp/distsummary-* && exit 0; sleep 1; done; exit 1"
    return hosts.run(host, "sh", "-c", look).returncode == 0


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(TRAIN, id="launch", marks=pytest.mark.smoke),
        pytest.param(TRAINER, id="Ray Train"),
        pytest.param(COLLECTED, id="SummaryCollector"),
    ],
)
def test_a_training_is_one_run_at_home(tmp_path: Path, script: str) -> None:
    with cluster(tmp_path) as hosts:
        train(hosts, 4, 300, script=script)
        check(hosts, 4, 300)
        # Nothing is written to the path of the user on a host that is not the home.
        assert hosts.run(1, "find", "/home/user/runs", "-type", "f").stdout == ""
        assert has_no_spool(hosts, 1)


def test_nothing_is_sent_where_it_need_not_be(tmp_path: Path) -> None:
    with cluster(tmp_path, is_shared=True) as hosts:
        train(hosts, 4, 100, run_dir=f"{SHARED}/a")
        check(hosts, 4, 100, run_dir=f"{SHARED}/a")
        # A run of one rank is on the host of the rank.
        train(hosts, 1, 100, hosts.address(1))
        check(hosts, 1, 100, host=1)
        assert hosts.run(1, "sh", "-c", "ls -d /tmp/distsummary-*").returncode != 0


@pytest.mark.parametrize(
    ("host", "kind", "every_s"), [(1, "_Ship[A]ctor", 3.0), (0, "_Aggregator[A]ctor", 5.0)]
)
def test_what_is_killed_costs_no_step(tmp_path: Path, host: int, kind: str, every_s: float) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        killing = pool.submit(hosts.run, host, "python", "-c", KILL, kind, str(every_s), "6")
        train(hosts, 4, 3000)
        assert killing.result().returncode == 0
        check(hosts, 4, 3000)


def test_while_a_cable_is_cut_the_loop_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        training = pool.submit(train, hosts, 4, 6000)
        begun = f"until [ $(ls {RUN}/rank_*/*events* | wc -l) -ge 4 ]; do sleep 1; done; sleep 5"
        assert hosts.run(0, "sh", "-c", begun).returncode == 0
        hosts.cut(1)
        time.sleep(15)
        found = hosts.run(0, "python", "-m", "distsummary", "status", RUN).stdout
        hosts.mend(1)
        assert "host h1 is not reached since" in " ".join(found.split()), found
        longest = re.search(r"^longest (.+)$", training.result(), re.MULTILINE)
        assert longest
        assert float(longest[1]) < 1.0  # a wait for the home would be one of 5 s
        check(hosts, 4, 6000)


def test_ranks_whose_ship_is_late_run(tmp_path: Path) -> None:
    """As on a busy host: those of the other host have ended before it sends anything."""
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        stop = "until pkill -STOP -f _Ship[A]ctor; do sleep 0.1; done"
        stopping = pool.submit(hosts.run, 1, "sh", "-c", stop)
        training = pool.submit(train, hosts, 4, 300)
        assert stopping.result().returncode == 0
        ended = f"until [ $(grep -l finished {RUN}/rank_*/manifest.json | wc -l) -ge 2 ]; do sleep 1; done"
        assert hosts.run(0, "sh", "-c", ended).returncode == 0
        found = hosts.run(0, "python", "-m", "distsummary", "status", RUN).stdout
        assert "never registered" not in found, found
        assert found.count(" running ") == 2, found
        other = f"import distsummary as ds; ds.init({RUN!r})"
        refused = pool.submit(hosts.run, 0, "python", "-c", other)
        time.sleep(FAR_S + 4.0)  # a rank on a shared disk would have shown that it lives
        hosts.run(1, "pkill", "-CONT", "-f", "_Ship[A]ctor")
        assert "is in use: rank" in refused.result().stderr, refused.result()
        training.result()
        check(hosts, 4, 300)


@pytest.mark.parametrize("host", [0, 1])
def test_of_a_host_that_dies_the_other_has_a_run(tmp_path: Path, host: int) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        training = pool.submit(train, hosts, 4, 100000)
        time.sleep(30)
        hosts.kill(host)
        assert training.exception()
        if host:
            found = hosts.run(0, "python", "-m", "distsummary", "status", RUN).stdout
            assert re.search(r"first failure: rank \d, its node 10\.78\.0\.11 does not answer", found), found
        else:
            time.sleep(40)  # until its ranks have ended, with Ray, or are silent
            merge = (
                "cd /tmp/distsummary-*/*/ && python -m distsummary merge . && python -m distsummary status ."
            )
            done = hosts.run(1, "sh", "-c", merge)
            assert done.returncode == 0, done.stdout + done.stderr
            found = done.stdout
        lines = [line.split() for line in found.splitlines()]
        steps = {
            int(one[0]): int(one[2])
            for one in lines
            if len(one) > 4 and one[0].isdigit() and one[2].isdigit()
        }
        assert len(steps) == (4 if host else 2), found
        assert min(steps.values()) > 100


def test_a_training_without_a_line_of_ours_is_one_run_at_home(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts:
        done = hosts.run(0, "python", "-c", ZERO, RUN)
        assert done.returncode == 0, done.stdout + done.stderr
        found = hosts.run(0, "python", "-m", "distsummary", "status", RUN, "--json")
        status = json.loads(found.stdout)
        assert (status["state"], status["step"], status["merged_ranks"]) == ("finished", 200, 4), found.stdout


def test_a_landscape_of_checkpoints_of_another_host_is_as_on_one(tmp_path: Path) -> None:
    drawn = []
    with cluster(tmp_path) as hosts:
        for host in (0, 1):
            done = hosts.run(0, "python", "-c", TRAJECTORY, f"{RUN}{host}", hosts.address(host), str(1 << 30))
            assert done.returncode == 0, done.stdout + done.stderr
            done = hosts.run(0, "python", "-c", DRAW, f"{RUN}{host}")
            assert done.returncode == 0, done.stdout + done.stderr
            drawn.append(done.stdout.split()[-1])
    assert drawn[0] == drawn[1]


def test_checkpoints_that_are_too_large_stay_on_their_host_and_are_named(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts:
        done = hosts.run(0, "python", "-c", TRAJECTORY, RUN, hosts.address(1), "150")
        assert done.returncode == 0, done.stdout + done.stderr
        written = [f"Linear_{step}_step.ckpt" for step in (10, 20, 30, 40)]  # of 70 bytes each
        found = hosts.run(0, "ls", f"{RUN}/ckpt_dir").stdout.split()
        assert found == [*written[:2], "train_metadata.json"]
        found = hosts.run(1, "sh", "-c", "ls /tmp/distsummary-*/*/ckpt_dir").stdout.split()
        assert found == [*written, "train_metadata.json"]
        status = " ".join(hosts.run(0, "python", "-m", "distsummary", "status", RUN).stdout.split())
        assert "on host h1 (see ds.Record(ship_bytes=)): /tmp/distsummary-" in status, status


def test_of_ranks_that_change_hosts_each_attempt_is_whole(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts:
        places = [1, 0, 1, 1, 0, 1]
        for host in places:
            train(hosts, 2, 100, hosts.address(host), script=AGAIN)
        check(hosts, 2, 100, messages=2 * len(places))
        for rank in (0, 1):
            text = hosts.run(0, "cat", f"{RUN}/rank_{rank:05d}/manifest.json").stdout
            attempts = json.loads(text)["attempts"]
            seen = [(one["host"], one["state"], one["health"]["step"]) for one in attempts]
            assert seen == [(f"h{host}", "finished", 100) for host in places]


def test_a_hang_because_of_a_cut_cable_names_the_host(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        training = pool.submit(train, hosts, 4, 100000, script=TOGETHER)
        begun = f"until [ $(ls {RUN}/rank_*/*events* | wc -l) -ge 4 ]; do sleep 1; done; sleep 10"
        assert hosts.run(0, "sh", "-c", begun).returncode == 0
        hosts.cut(1)
        look = "for i in $(seq 60); do grep -q 'h1 is not reached since' alerts.jsonl && break; sleep 1; done"
        found = hosts.run(0, "sh", "-c", f"cd {RUN}; {look}; sleep 5; cat alerts.jsonl").stdout
        hosts.kill(1)
        assert training.exception()
        alerts = [alert for alert in map(json.loads, found.splitlines()) if alert["level"] == "error"]
        assert {alert["cause"] for alert in alerts} <= {"hang", "lost"}, found
        assert all("host h1 is not reached since" in alert["evidence"] for alert in alerts), found
        assert {rank for alert in alerts for rank in alert["ranks"]} in ({0, 1}, {2, 3}), found


def test_what_the_home_refuses_names_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "distsummary", site / "distsummary", ignore=shutil.ignore_patterns("__pycache__"))
    module = site / "distsummary" / "rundir" / "attempts.py"
    module.write_text(f"{module.read_text()}\nPROTOCOL += 1\n")
    other = {"PYTHONPATH": f"/tmp/site:{ROOT}"}  # another version on one host
    script = TRAIN.replace('"auto"', f'"auto", runtime_env={{"env_vars": {other}}}')
    with cluster(tmp_path / "hosts") as hosts:
        hosts.copy(1, site, "/tmp/site")
        done = hosts.run(1, "python", "-c", script, RUN, "2", "10", hosts.address(1), environment=other)
        assert "h0, the home of the run, and h1 have different versions of distsummary" in done.stderr
        hosts.run(0, "touch", "/home/user/runs")
        done = hosts.run(0, "python", "-c", TRAIN, RUN, "2", "10", hosts.address(1))
        assert f"at the home of the run, h0: {RUN} must be a directory" in done.stderr


def test_while_the_disk_of_the_home_is_full_nothing_is_lost(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        training = pool.submit(train, hosts, 2, 6000, hosts.address(1))
        begun = f"until [ $(ls {RUN}/rank_*/*events* | wc -l) -ge 2 ]; do sleep 1; done"
        assert hosts.run(0, "sh", "-c", begun).returncode == 0
        fill = "dd if=/dev/zero of=full bs=1M; df --output=avail . | tail -1; sleep 30; rm full"
        assert int(hosts.run(0, "sh", "-c", fill).stdout) == 0
        training.result()
        check(hosts, 2, 6000)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_rank_that_ends_on_another_host_is_the_first_failure(tmp_path: Path, name: str) -> None:
    with cluster(tmp_path) as hosts:
        done = hosts.run(0, "python", "-c", KILLED, RUN, hosts.address(1), name)
        assert done.returncode != 0
        found = hosts.run(0, "python", "-m", "distsummary", "status", RUN).stdout
        # A busy node may not say in time which signal it was.
        assert re.search(rf"first failure: rank 1, (killed by signal \d+ \({name}\)|died)", found), found


def test_what_a_ship_that_was_ended_has_not_sent_is_fetched(tmp_path: Path) -> None:
    with cluster(tmp_path) as hosts, ThreadPoolExecutor() as pool:
        training = pool.submit(train, hosts, 4, 100000)
        wait = "until pgrep -f ray::_[S]hip; do sleep 1; done; sleep 5"
        assert hosts.run(1, "sh", "-c", wait).returncode == 0
        hosts.run(1, "pkill", "-KILL", "-f", "ray::(_[S]hip|_?[R]ank|.*[C]ollector)")
        assert training.exception()
        hosts.run(1, "ray", "stop", "--force")
        hosts.start_ray(1)
        assert not has_no_spool(hosts, 1)
        done = hosts.run(0, "python", "-m", "distsummary", "sync", RUN)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "host h1: all that 2 of its ranks wrote is at home" in done.stdout
        assert has_no_spool(hosts, 1)
