"""How the ranks of ds.launch end: what the run says of each, and of ranks that could not report it."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.errors import RanksFailedError
from distsummary.rundir.states import read_run
from tests.conftest import ROOT
from tests.interrupts import sigint
from tests.patience import PATIENCE_S, wait_for

RANKS = 4


@pytest.fixture(autouse=True)
def _connected(ray_cluster: None, launch_times: Callable[..., None]) -> None:
    """Every test here needs the cluster; the ranks have the time that they need on a busy machine."""
    launch_times(GRACE_S=PATIENCE_S)


def train(place: Path, how: tuple[str, ...]) -> None:
    """Three steps in step with the other ranks, then the rank's own end."""
    with ds.init(place / "run", system_metrics=False, quiet=True) as run:
        for step in run.steps(range(4)):
            run.log(loss=0.5)
            if step == 2:
                (place / f"up {run.rank}").touch()
                while len(list(place.glob("up *"))) < RANKS:
                    time.sleep(0.01)
                exec(how[run.rank])


def test_the_run_says_how_each_rank_of_a_launch_ended(tmp_path: Path) -> None:
    later = "time.sleep(1); "
    how = (
        "pass",
        f"{later}raise OSError('no data')",
        "os._exit(3)",
        f"{later}os.kill(os.getpid(), signal.SIGKILL)",
    )
    with pytest.raises(RanksFailedError):
        ds.launch(functools.partial(train, tmp_path, how), ranks=RANKS, backend=None)
    found = read_run(tmp_path / "run")
    ranks = found.attempts[0].ranks
    assert [rank.state for rank in ranks] == ["finished", "failed", "lost", "lost"]
    assert ranks[1].error == "OSError: no data"
    assert "exit code 3" in ranks[2].reason
    assert "signal 9" in ranks[3].reason
    assert found.state == "failed"


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_interrupts_the_ranks_which_close_their_files(tmp_path, number, error):
    def interrupt() -> None:
        while len(list(tmp_path.glob("up *"))) < RANKS:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    how = ("time.sleep(60)",) * RANKS
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray's in a driver
    with sigint(signal.default_int_handler), pytest.raises(error):
        ds.launch(functools.partial(train, tmp_path, how), ranks=RANKS, backend=None)
    signal.signal(signal.SIGTERM, before)
    thread.join()
    found = read_run(tmp_path / "run")
    ranks = found.attempts[0].ranks
    assert [(rank.rank, rank.state, rank.reason) for rank in ranks if rank.state != "interrupted"] == []
    assert len(ranks) == RANKS
    assert (found.state, found.attempts[0].failure) == ("interrupted", None)
    assert all(rank.health["events"] for rank in found.attempts[0].ranks)


DRIVER = """
import os, signal, sys, time
import distsummary as ds

def train(place):
    with ds.init(place + "/run", system_metrics=False, quiet=True) as run:
        for step in run.steps(range(10_000)):
            run.log(loss=0.5)
            time.sleep(0.01)
            if step == 2:
                open(f"{place}/up {run.rank}", "w").close()

def slowly(place):
    try:
        train(place)
    finally:
        time.sleep(4)

ds.launch(slowly, sys.argv[1], ranks=2, backend=None, address="local")
"""


@pytest.mark.long
def test_a_launch_that_takes_long_to_end_after_sigterm_is_not_aborted(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=environment)
    try:
        wait_for(lambda: len([*tmp_path.glob("up *")]) == 2)
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(PATIENCE_S) == 1
    finally:
        driver.kill()
        driver.wait()
    found = read_run(tmp_path / "run")
    assert [rank.state for rank in found.attempts[0].ranks] == ["interrupted"] * 2
