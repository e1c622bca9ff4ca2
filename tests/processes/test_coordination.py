"""Processes that register at the same time, or register and are gone."""

import subprocess
import sys
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.errors import RunDirError
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from tests.patience import PATIENCE_S
from tests.programs import run_python
from tests.unit.rundir.test_coordination import PORT, rank

REGISTER_MANY = """
import sys
from distsummary.rundir.coordination import (LocalCoordinator)
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
coordinator = LocalCoordinator(RunDir(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for n in range(20):
    # not train: a training in use by a living process is refused
    own = coordinator.register(Topology(role="landscape", incarnation=f"{sys.argv[2]}-{n}"))
    shared = coordinator.register(
        Topology(
            rank=int(sys.argv[2]), world_size=2, role="eval", incarnation=f"both-{n}",
            is_incarnation_unique=True,
        )
    )
    print(own.run_id, own.attempt, shared.attempt, flush=True)
"""


def test_two_processes_at_once_get_every_attempt_once_and_one_run_id(nasty_tmp_path: Path) -> None:
    run = RunDir(nasty_tmp_path / "run").create()
    command = [sys.executable, "-c", REGISTER_MANY, str(run.base)]
    processes = [
        subprocess.Popen([*command, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in "01"
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=PATIENCE_S)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(set(answers[0][0::3] + answers[1][0::3])) == 1
    assert sorted(map(int, answers[0][1::3] + answers[1][1::3])) == list(range(40))
    assert answers[0][2::3] == answers[1][2::3]  # ranks of one incarnation share its attempt
    assert sorted(map(int, answers[0][2::3])) == list(range(20))


def test_an_attempt_of_processes_that_were_killed_is_not_joined(nasty_tmp_path: Path) -> None:
    run = RunDir(nasty_tmp_path / "run").create()
    script = (
        "import sys\nfrom distsummary.rundir.coordination import LocalCoordinator, RunDir, Topology\n"
        "t = Topology(rank=0, world_size=2, incarnation='127.0.0.1:29500+0')\n"
        "print(LocalCoordinator(RunDir(sys.argv[1])).register(t).attempt)"
    )
    run_python("-c", script, run.base)
    register = LocalCoordinator(run).register
    assert register(rank(1, incarnation=PORT)).attempt == 1
    assert register(rank(0, incarnation=PORT)).attempt == 1


TRAIN = """
import sys
import distsummary as ds
with ds.init(sys.argv[1], rank=0, world_size=1) as run:
    for _ in run.steps(range(2)):
        if run.step == 1:
            print("training", flush=True)
            sys.stdin.readline()
"""


def test_a_run_in_use_by_a_living_process_is_refused_at_once(nasty_tmp_path: Path) -> None:
    path = str(nasty_tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "training\n"
        message = rf'in use: rank 0 of attempt 0 runs as process {training.pid} on .*role="eval"'
        for on_existing in ("auto", "attempt", "error"):
            with pytest.raises(RunDirError, match=message):
                ds.init(path, on_existing=on_existing, rank=0, world_size=1)
        with ds.init(path, role="eval", rank=0, world_size=1) as run, run.eval() as evaluation:
            evaluation.log(accuracy=0.5)
        other = ds.init(path, on_existing="new", rank=0, world_size=1)
        training.kill()
    list(other.steps(range(2)))
    other.close()
    assert RunDir(f"{path}-2").read_manifest()["state"] == "finished"
    with ds.init(path, rank=0, world_size=1) as run:  # the killed one left no process behind
        list(run.steps(range(2)))
    attempts = [(entry["role"], entry["attempt"]) for entry in RunDir(path).read_manifest()["attempts"]]
    assert attempts == [("train", 0), ("eval", 0), ("train", 1)]
