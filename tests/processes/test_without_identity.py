"""A run without identity: none of its files names host, user, boot, command, directory or commit."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.cli.fsck import fsck
from distsummary.errors import RunDirError
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import GONE, read_run
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

HOST, USER, PROJECT, ARGUMENT = "zebra-host-77", "zuzanna", "secret-project", "--needle-of-argv"

JOB = """
import os, sys, time
import numpy as np
import distsummary as ds


class Model:
    def __init__(self):
        self.parameters = {"w": np.ones((2, 2), np.float32)}


class Data:
    root = os.getcwd() + "/data"

    def __len__(self):
        return 4


class Loader:
    dataset, batch_size = Data(), 1

    def __iter__(self):
        return iter([(np.ones((1, 3, 4, 4), np.float32), 0)] * 4)


run_dir, has_identity, rank, world_size, end = sys.argv[1:6]
record = ds.Record(identity=bool(int(has_identity)), collect_landscape={"sketch": 1})
with ds.init(run_dir, watch=Model(), rank=int(rank), world_size=int(world_size), record=record,
             histograms=".*", config={"lr": 0.1}) as run:
    for _ in run.steps(Loader()):
        run.log(loss=1.0)
    if end == "wait":
        print("waiting", flush=True)
        time.sleep(600)
    if end == "fail":
        open(os.getcwd() + "/is not there")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a project: below a user's, with a commit."""
    directory = tmp_path / USER / PROJECT
    directory.mkdir(parents=True)
    (directory / "job.py").write_text(JOB)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "job.py"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], cwd=directory, check=True)
    return directory


def can_name_hosts() -> bool:
    command = ["unshare", "--user", "--uts", "--map-root-user", "hostname", HOST]
    return shutil.which("unshare") is not None and not subprocess.run(command, capture_output=True).returncode


def start(
    place: Path, run: Path, *, identity: bool, ranks: int = 1, end: str = "ok"
) -> list[subprocess.Popen[str]]:
    """The processes of the ranks, on a host of their own name if this machine allows it."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "HOME": str(place.parent), "MASTER_ADDR": HOST,
        "MASTER_PORT": "29511",
    }  # fmt: skip
    named = ["unshare", "--user", "--uts", "--map-root-user", "sh", "-c", f'hostname {HOST}; exec "$@"', "sh"]
    return [
        subprocess.Popen(
            [*(named if can_name_hosts() else ()), sys.executable, "job.py", run, str(int(identity)),
             str(rank), str(ranks), end, ARGUMENT],
            cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def found(place: Path, run: Path) -> set[str]:
    """What the names and bytes of a run's files reveal about the user and the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=place, capture_output=True, text=True, check=True
    ).stdout.strip()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    needles = {
        "host": HOST, "user": USER, "cwd": PROJECT, "argv": ARGUMENT, "commit": commit, "boot": boot,
        "platform": os.uname().release, "real host": f".{os.uname().nodename}.",
    }  # fmt: skip
    texts = [str(path.relative_to(run)).encode() for path in run.rglob("*")]
    texts += [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    return {what for what, needle in needles.items() if any(needle.encode() in text for text in texts)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_file_of_a_run_names_user_or_machine(tmp_path: Path, place: Path, ranks: int) -> None:
    run = tmp_path / "run"
    for process in started(start(place, run, identity=False, ranks=ranks)):
        assert process.returncode == 0
    if ranks > 1:
        ds.merge_run(run)
    assert found(place, run) == set()
    assert read_run(run).state == "finished"
    hosts = {one.host for one in read_run(run).attempts[0].ranks}
    assert len(hosts) == 1
    assert hosts.pop().startswith("host-")
    assert ds.open_run(run).provenance.keys() == {"python", "versions"}


def started(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for process in processes:
        process.communicate(timeout=PATIENCE_S)
    return processes


def test_the_same_search_finds_all_of_it_in_a_run_with_identity(tmp_path: Path, place: Path) -> None:
    run = tmp_path / "run"
    started(start(place, run, identity=True))
    expected = {"user", "cwd", "argv", "commit", "boot", "platform"}
    assert found(place, run) - {"real host"} == expected | ({"host"} if can_name_hosts() else set())


def test_a_rank_that_fails_reports_no_directory(tmp_path: Path, place: Path) -> None:
    run = tmp_path / "run"
    [process] = started(start(place, run, identity=False, end="fail"))
    assert process.returncode == 1
    assert found(place, run) == set()
    [rank] = read_run(run).attempts[0].ranks
    assert (rank.state, rank.error[:19]) == ("failed", "FileNotFoundError: ")


def test_a_masked_process_is_known_to_live_and_to_be_gone(tmp_path: Path, place: Path) -> None:
    run = tmp_path / "run"
    [process] = start(place, run, identity=False, end="wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    assert read_run(run).state == "running"
    with pytest.raises(RunDirError, match="is in use: rank 0 of attempt 0 runs as process"):
        ds.init(run)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    [rank] = read_run(run).attempts[0].ranks
    assert (rank.state, rank.reason.startswith(f"{GONE} host-")) == ("lost", True)
    (run / "run.json").write_text("{")  # rebuilt, it says so again
    fsck(run, repair=True)
    assert RunDir(run).read_manifest()["identity"] is False
    with ds.init(run, quiet=True, system_metrics=False) as resumed:  # without asking for it again
        for _ in resumed.steps(range(2)):
            resumed.log(loss=1.0)
    assert found(place, run) == set()
