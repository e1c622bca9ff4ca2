"""The aggregator that rank 0 starts without Ray: it merges, outlives whatever dies, and ends with the run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from distsummary.base.processes import is_alive
from distsummary.events.reader import read_directory
from distsummary.rundir.run_dir import RunDir
from tests.patience import PATIENCE_S, wait_for

# Logs a step for each line that it reads.
RANK = """
import sys
import distsummary as ds

aggregate = "alone" not in sys.argv
with ds.init(sys.argv[1], aggregate=aggregate, system_metrics=False) as run:
    for step in run.steps():
        run.log(loss=float(run.rank))
        print("step", flush=True)
        if not sys.stdin.readline():
            break
"""


class Rank:
    """A process of a job of two ranks, at its first step."""

    def __init__(self, path: Path, rank: int, job: str, *options: str, stderr: IO[bytes] | None = None):
        slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(path), *options],
            env=os.environ | slurm,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if stderr is None else stderr,
            start_new_session=True,  # as a terminal would: a signal for its group does not reach the test
        )
        self.await_step()

    def await_step(self) -> None:
        assert self.process.stdout.readline() == b"step\n"

    def step(self) -> None:
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        self.await_step()

    def finish(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)
        self.process.wait(PATIENCE_S)


@contextmanager
def job(path: Path, *options: str, name: str = "1", stderr: IO[bytes] | None = None) -> Iterator[list[Rank]]:
    ranks = []
    try:
        for rank in range(2):
            ranks.append(Rank(path, rank, name, *options, stderr=stderr))
        yield ranks
    finally:
        for one in ranks:
            with one.process:  # closes its pipes and waits for it
                one.process.kill()


def aggregator(path: Path, other_than: int = 0) -> psutil.Process:
    """The run's aggregator, once it has noted its place in the manifest."""

    def pid() -> int:
        found = int(RunDir(path).read_manifest().get("aggregator", {}).get("pid", 0))
        return 0 if found == other_than else found

    wait_for(pid)
    return psutil.Process(pid())


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def losses(path: Path) -> dict[int, float]:
    return {e.step: v.data for e in read_directory(path) for v in e.values if v.tag == "loss"}


def test_the_last_rank_finds_the_merged_run_and_the_aggregator_ends_with_it(nasty_tmp_path: Path) -> None:
    path = nasty_tmp_path / "run"
    with open(nasty_tmp_path / "stderr", "wb") as stderr, job(path, stderr=stderr) as ranks:
        child = aggregator(path)
        assert child.ppid() == ranks[0].process.pid
        assert os.getsid(child.pid) == child.pid
        for rank in ranks:
            rank.step()
            rank.finish()
        assert losses(path) == {1: 0.5, 2: 0.5}
        wait_for(lambda: gone(child))
    reported = (nasty_tmp_path / "stderr").read_text()
    assert reported.count("\n") == 1
    assert "distsummary merge" not in reported


def test_without_an_aggregator_the_user_is_reported_to_merge(nasty_tmp_path: Path) -> None:
    path = nasty_tmp_path / "run"
    with open(nasty_tmp_path / "stderr", "wb") as stderr, job(path, "alone", stderr=stderr) as ranks:
        children = psutil.Process(ranks[0].process.pid).children()
        for rank in ranks:
            rank.finish()
    assert "; after the training: distsummary merge " in (nasty_tmp_path / "stderr").read_text()
    assert (children, losses(path)) == ([], {})
    assert "aggregator" not in RunDir(path).read_manifest()


def test_ctrl_c_ends_the_ranks_and_the_aggregator_merges_what_they_recorded(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        child = aggregator(tmp_path)
        for rank in ranks:
            rank.signal(signal.SIGINT)
        wait_for(lambda: gone(child))
    assert losses(tmp_path) == {1: 0.5}
    assert RunDir(tmp_path).read_manifest()["state"] == "interrupted"


def test_when_rank_0_is_killed_the_aggregator_continues_until_the_others_have_ended(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        child = aggregator(tmp_path)
        ranks[0].signal(signal.SIGKILL)
        ranks[1].step()
        assert not gone(child)
        ranks[1].finish()
        wait_for(lambda: gone(child))
    assert list(losses(tmp_path)) == [1, 2]  # of rank 0, step 1 may not have been written


def test_an_aggregator_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        first = aggregator(tmp_path)
        first.kill()
        second = aggregator(tmp_path, other_than=first.pid)
        for rank in ranks:
            rank.finish()
        wait_for(lambda: gone(second))
    assert losses(tmp_path) == {1: 0.5}


def test_a_second_aggregator_waits_until_the_first_has_ended_and_continues(tmp_path: Path) -> None:
    with job(tmp_path) as ranks:
        child = aggregator(tmp_path)
        second = subprocess.Popen([sys.executable, "-m", "distsummary.aggregate.follow", str(tmp_path)])
        try:
            ranks[1].step()
            assert aggregator(tmp_path).pid == child.pid
            child.parent().suspend()  # type: ignore[union-attr]  # it would start the next one itself
            child.kill()
            assert aggregator(tmp_path, other_than=child.pid).pid == second.pid
            os.kill(ranks[0].process.pid, signal.SIGCONT)
            for rank in ranks:
                rank.finish()
            assert second.wait(PATIENCE_S) == 0
        finally:
            second.kill()
            second.wait()
    assert losses(tmp_path) == {1: 0.5, 2: 1.0}


UNTIL_STOPPED = """
import os, sys, time
from pathlib import Path
import distsummary as ds

stop = Path(sys.argv[1]) / "stop"
stop.with_name("up" + os.environ["RANK"]).touch()
while len([*stop.parent.glob("up*")]) < 4:  # a rank that begins much later is not waited for
    time.sleep(0.01)
with ds.init(Path(sys.argv[1]) / "run", system_metrics=False) as run:
    for step in run.steps():
        run.log(loss=float(run.rank))
        time.sleep(0.05)
        if stop.exists():
            break
"""


def test_under_torchrun_the_merged_run_of_four_ranks_is_read_while_they_train(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(UNTIL_STOPPED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    training = subprocess.Popen(
        [*command, str(script), str(tmp_path)], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_for(lambda: run.is_dir() and len(losses(run)) >= 20)
        assert training.poll() is None
        early = losses(run)
        assert set(early.values()) == {1.5}
        assert list(early) == list(range(1, len(early) + 1))
        child = aggregator(run)
        (tmp_path / "stop").touch()
        assert training.wait(PATIENCE_S) == 0
    finally:
        training.terminate()  # it ends its ranks first
        training.wait(PATIENCE_S)
    late = losses(run)
    assert early.items() <= late.items()
    assert max(late) > max(early)
    wait_for(lambda: gone(child))


@pytest.mark.long
def test_an_aggregator_that_was_stopped_ends_when_rank_0_is_gone(tmp_path: Path) -> None:
    program = (
        "import sys, time, distsummary as ds\n"
        "run = ds.init(sys.argv[1], rank=0, world_size=2, quiet=True)\n"
        "for step in run.steps(): run.log(loss=1.0); time.sleep(0.1)\n"
    )
    run_dir = RunDir(tmp_path / "run")
    rank_0 = subprocess.Popen(
        [sys.executable, "-c", program, str(run_dir.base)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    wait_for(lambda: bool(run_dir.read_manifest().get("aggregator")))
    wait_for(lambda: bool(run_dir.rank_dirs()))
    aggregator = run_dir.read_manifest()["aggregator"]
    os.kill(aggregator["pid"], signal.SIGSTOP)
    rank_0.kill()
    rank_0.wait()
    wait_for(lambda: is_alive(aggregator) is False)
