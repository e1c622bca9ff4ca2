"""Ranks started on Ray."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from distsummary import launch
from distsummary.base import actor_calls
from distsummary.errors import InvalidTypeError, InvalidValueError, RanksFailedError
from distsummary.launching import launcher
from distsummary.launching.launcher import RankPlace, chosen_backend, plan_environments
from distsummary.rundir import topology
from tests.interrupts import Dropping, sigint
from tests.programs import run_python

MODULE = launcher


@pytest.fixture(autouse=True)
def _connected(ray_cluster):
    """Every test here needs the cluster."""


def test_results_come_in_rank_order_and_every_rank_knows_its_place():
    def train(one, two):
        found = topology.detect()
        if found.rank == 2:
            raise SystemExit(0)  # which is success
        place = found.rank, found.world_size, found.local_rank
        return *place, one + two, found.incarnation, os.environ["MASTER_PORT"]

    *places, left = launch(train, 1, 2, ranks=3, backend=None)
    assert [place[:4] for place in places] == [(0, 3, 0, 3), (1, 3, 1, 3)]
    assert len({place[4:] for place in places}) == 1
    assert left is None
    assert ray.is_initialized()  # the caller's cluster stays connected


def test_a_script_finds_its_own_arguments_on_every_rank(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    assert launch(lambda: sys.argv, ranks=2, backend=None) == [["train.py", "--lr", "0.1"]] * 2


def test_ranks_get_the_variables_of_zero_lines(monkeypatch):
    monkeypatch.setenv("DISTSUMMARY", "runs/{time}")
    monkeypatch.setenv("DISTSUMMARY_OPTIONS", "{}")
    names = ("DISTSUMMARY", "DISTSUMMARY_OPTIONS")
    found = launch(lambda: [os.environ.get(name) for name in names], ranks=1, backend=None)
    assert found == [[os.path.abspath("runs/{time}"), "{}"]]
    assert launcher.zero_lines({"DISTSUMMARY": "s3://bucket/run"}) == {"DISTSUMMARY": "s3://bucket/run"}


def test_gloo_is_initialised_and_sums_over_the_ranks():
    def train():
        import torch
        import torch.distributed as dist

        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        if dist.get_rank():
            dist.destroy_process_group()  # as scripts for torchrun do
        return total.item()

    assert launch(train, ranks=2) == [3.0, 3.0]


def test_equal_errors_of_ranks_are_one_line_that_names_them():
    def train():
        rank = int(os.environ["RANK"])
        if rank != 1:
            raise ValueError(f"no data in shard {rank}")
        return rank

    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=3, backend=None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("[ranks 0,2] ValueError: no data in shard 0")


def test_an_interrupt_that_python_drops_ends_the_ranks_too(monkeypatch):
    def drop(*arguments):
        Dropping()
        return plan_environments(*arguments)

    monkeypatch.setattr(MODULE, "plan_environments", drop)
    with sigint(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        launch(lambda: time.sleep(3600), ranks=1, backend=None)


def test_ranks_that_hang_after_a_failure_are_stopped(launch_times):
    launch_times(GRACE_S=0.5)

    def train():
        if os.environ["RANK"] == "1":
            raise RuntimeError("the first to fall")
        time.sleep(3600)

    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=2, backend=None)
    assert "[rank 1] RuntimeError: the first to fall" in str(caught.value)
    assert "[rank 0] stopped" in str(caught.value)
    assert str(caught.value).startswith("[rank 1]")


def test_every_kind_of_end_has_a_line_of_its_own():
    def train():
        rank = int(os.environ["RANK"])
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            os._exit(7)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        sys.exit(3)

    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=4, backend=None)
    reported = dict(line.split("] ") for line in str(caught.value).splitlines())
    assert reported["[rank 0"].startswith("killed by signal 9 (SIGKILL)")
    assert reported["[rank 1"] == "exit code 7 (os._exit)"
    assert re.fullmatch(
        r'killed by signal 11 \(SIGSEGV\) \(File ".*test_launch.py", .*\)', reported["[rank 2"]
    )
    assert reported["[rank 3"].startswith("exit code 3 (sys.exit(3)) (File ")


def test_a_module_that_only_the_driver_finds_is_named_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def train(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    train = importlib.import_module("only_here").train
    with pytest.raises(RanksFailedError) as caught:
        launch(train, ranks=2, backend=None)
    reported = str(caught.value)
    assert reported.startswith(
        "[ranks 0-1] ModuleNotFoundError: No module named 'only_here'; this process finds it"
    )
    assert f"PYTHONPATH={tmp_path}," in reported
    assert f"runtime_env={{'working_dir': {str(tmp_path)!r}}}" in reported


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> "subprocess.CompletedProcess[str]":
    """A job on a cluster of its own, whose start takes long."""
    place = tmp_path_factory.mktemp("job")
    script = place / "job.py"
    script.write_text(JOB)
    return run_python(script, place / "printed", RAY_COLOR_PREFIX="0")


@pytest.fixture
def printed(job) -> str:
    return job.stdout


def test_a_start_that_takes_long_says_what_it_waits_for_and_its_end(job):
    before, _, after = job.stderr.partition("distsummary: the training begins (")
    assert re.search(r"^distsummary launch: starting Ray, \d+ s so far$", before, re.MULTILINE)
    assert after
    assert "so far" not in after


def test_the_lines_of_ranks_are_printed_with_their_rank(printed):
    lines = re.findall(r"^\(rank (\d) pid=\d+\) (step \w)", printed, re.MULTILINE)
    assert sorted(lines) == [("0", "step a"), ("0", "step b"), ("1", "step a"), ("1", "step b")]
    assert printed.endswith("returned\n")


def test_a_cluster_of_its_own_listens_on_loopback_alone(printed):
    found = json.loads(printed.splitlines()[-2])
    assert {"raylet", "gcs_server"} <= found.keys()
    assert {ip.removeprefix("::ffff:") for ips in found.values() for ip in ips} == {"127.0.0.1"}


JOB = """
import functools
import json
import os
import pathlib
import sys
import time
import psutil
import distsummary as ds
from distsummary.launching import launcher

class Counted:
    def __init__(self, stream, printed):
        self.stream, self.printed, self.text = stream, printed, ""

    def write(self, text):
        self.text += text
        if self.text.count("step") == 4:
            self.printed.touch()
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)

def train(printed):
    for letter in "ab":
        print("step", letter, "of rank", "first second".split()[int(os.environ["RANK"])])
    until = time.monotonic() + 120
    while not printed.exists() and time.monotonic() < until:  # Ray sends the lines every half second
        time.sleep(0.05)
    driver = psutil.Process().parent().parent()
    found = [(one.name(), one.net_connections("inet")) for one in driver.children(recursive=True)]
    return {name: [one.laddr.ip for one in all if one.status == "LISTEN"] for name, all in found}

if __name__ == "__main__":
    launcher.QUIET_S = 0.6
    printed = pathlib.Path(sys.argv[1])
    sys.stdout = Counted(sys.stdout, printed)
    listening = ds.launch(functools.partial(train, printed), ranks=2, backend=None, address="local")
    print(json.dumps(listening[0]))
    print("returned")
"""


def test_the_exit_handlers_of_ranks_run_while_actors_can_be_reached(tmp_path):
    def train():
        import atexit

        rank = int(os.environ["RANK"])
        atexit.register(lambda: (tmp_path / str(rank)).write_text(ray.get(ray.put("reached"))))
        if rank == 1:
            sys.exit("no data")

    with pytest.raises(RanksFailedError, match=r"sys.exit\('no data'\)"):
        launch(train, ranks=2, backend=None)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["reached", "reached"]


def test_a_rank_whose_exit_handlers_hang_is_killed(launch_times, caplog):
    launch_times(LEAVE_S=0.5)

    def train():
        import atexit

        atexit.register(time.sleep, 600)
        return 1

    assert launch(train, ranks=1, backend=None) == [1]
    assert "1 rank(s) did not end within 0.5 s" in caplog.text


def test_a_request_beyond_the_cluster_says_what_there_is(monkeypatch):
    monkeypatch.setattr(actor_calls, "BEGIN_S", 1.0)
    with pytest.raises(RanksFailedError, match=r"did not fit.*the cluster has"):
        launch(lambda: None, ranks=64, backend=None)
    with pytest.raises(RanksFailedError, match=r"on 2 nodes, 1 each, did not fit.*and 1 nodes: ask for less"):
        launch(lambda: None, ranks=2, backend=None, nodes=2)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(InvalidValueError, match="ranks must be >= 1, got 0"):
        launch(print, ranks=0)
    with pytest.raises(InvalidValueError, match="backend must be one of"):
        launch(print, ranks=1, backend="mpi")
    with pytest.raises(InvalidValueError, match="ranks must be a multiple of nodes, got ranks=3, nodes=2"):
        launch(print, ranks=3, nodes=2)
    with pytest.raises(InvalidValueError, match="nodes must be >= 1, got 0"):
        launch(print, ranks=3, nodes=0)
    with pytest.raises(InvalidValueError, match="placement must be one of"):
        launch(print, ranks=3, placement="strict")
    with pytest.raises(InvalidTypeError, match="train_fn"):
        launch("train", ranks=1)


@pytest.mark.parametrize(
    ("resources", "gpus", "backend"),
    [
        (None, 0, "gloo"), (None, 3, "gloo"), (None, 4, "nccl"), ({"CPU": 2}, 8, "gloo"),
        ({"GPU": 0.5}, 0, "nccl"),
    ],
)  # fmt: skip
def test_the_backend_is_nccl_if_each_rank_gets_a_gpu(resources, gpus, backend):
    assert chosen_backend(resources, 4, gpus) == backend


def test_local_ranks_count_within_each_node():
    hosts = [("n1", "h1", "10.0.0.1", 5001), ("n2", "h2", "10.0.0.2", 5002), ("n1", "h1", "10.0.0.1", 5003)]
    places = [RankPlace(*host, stderr="", memory_kills=0, pid=0) for host in hosts]
    environments = plan_environments(places, "id")
    keys = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    assert [tuple(e[k] for k in keys) for e in environments] == [
        ("0", "0", "2", "0"),
        ("1", "0", "1", "1"),
        ("2", "1", "2", "0"),
    ]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"], e["WORLD_SIZE"]) for e in environments} == {
        ("10.0.0.1", "5001", "3")
    }


@pytest.mark.parametrize("resources", [{"CPU": "x"}, {"CPU": -1}, {"CPU": 0}, {}])
def test_resources_that_ray_cannot_reserve_are_refused_by_name(resources):
    with pytest.raises((InvalidTypeError, InvalidValueError), match="resources_per_rank"):
        launch(print, ranks=1, resources_per_rank=resources)


NO_PROCESS = """
import threading, time
from pathlib import Path
import ray, distsummary as ds
from distsummary.base import actor_calls

def end_soon():
    log = Path(ray._private.worker._global_node.get_logs_dir_path(), "raylet.err")
    while not (log.exists() and "No such file" in log.read_text()):
        time.sleep(0.1)
    actor_calls.SETUP_S = 0.1

env = {"py_executable": "/no such/python"}
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=env)
threading.Thread(target=end_soon, daemon=True).start()
ds.launch(print, ranks=2, backend=None)
"""


def test_a_launch_of_which_no_process_can_start_ends_with_what_ray_says(tmp_path: Path) -> None:
    failed = run_python("-c", NO_PROCESS, cwd=tmp_path, RAY_AUTH_MODE="disabled", code=1)
    assert re.search(
        r"RanksFailedError: 2 of 2 ranks have no process, and none began within .* s: of each, it needs 1 "
        r"CPU \(.*\); .*raylet.err ends with: .*No such file or directory",
        failed.stderr,
    )
