"""Ranks of one run that end in every way: each state says how, and the run names the first failure."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import distsummary as ds
from distsummary.rundir.states import RunState, read_run
from tests.patience import PATIENCE_S, wait_for

RANK = """
import os, signal, sys, time
from pathlib import Path
import distsummary as ds

place = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's `make test &` has it ignored
with ds.init(place / "run", system_metrics=False, aggregate=False) as run:
    for step in run.steps():
        run.log(loss=0.5)
        if step == 2:
            (place / f"up {run.rank}").touch()
            while not (place / f"go {run.rank}").exists():
                time.sleep(0.01)
            exec(sys.argv[2])
            break
"""
# code of the rank, or the signal that it gets -> its state, and what its error or reason says
ENDS: list[tuple[str | signal.Signals, str, str]] = [
    ("raise OSError('no data')", "failed", "OSError: no data"), ("sys.exit(3)", "failed", "SystemExit: 3"),
    ("sys.exit()", "finished", ""), ("os._exit(3)", "lost", "is gone"), (signal.SIGKILL, "lost", "is gone"),
    (signal.SIGSEGV, "lost", "is gone"), (signal.SIGTERM, "interrupted", "Terminated: SIGTERM"),
    (signal.SIGINT, "interrupted", "KeyboardInterrupt"), ("pass", "finished", ""),
]  # fmt: skip


def test_every_way_to_end_is_reported_right(tmp_path: Path) -> None:
    def state() -> RunState:
        return read_run(tmp_path / "run")

    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(len(ENDS))}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), end if isinstance(end, str) else "time.sleep(60)"],
            env=os.environ | slurm | {"SLURM_PROCID": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank, (end, _, _) in enumerate(ENDS)
    ]
    wait_for(lambda: all((tmp_path / f"up {rank}").exists() for rank in range(len(ENDS))))
    assert state().state == "running"
    assert {rank.state for rank in state().attempts[0].ranks} == {"running"}
    for rank in (8, 7, 6, 5, 4, 3, 2, 1, 0):  # the failures come last
        (tmp_path / f"go {rank}").touch()
        end = ENDS[rank][0]
        if isinstance(end, signal.Signals):
            ranks[rank].send_signal(end)
        ranks[rank].wait(PATIENCE_S)
        if rank == 3:  # lost and interrupted ones, but none that failed, while some run
            assert state().state == "interrupted"
    codes = [rank.returncode for rank in ranks]
    assert codes == [1, 3, 0, 3, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGTERM, codes[7], 0]
    assert codes[7] in (1, 130, -signal.SIGINT)  # as Python has it without a run

    found = state()
    [attempt] = found.attempts
    assert [(rank.rank, rank.state) for rank in attempt.ranks] == [(n, end[1]) for n, end in enumerate(ENDS)]
    for rank, (_, _, words) in zip(attempt.ranks, ENDS, strict=True):
        assert words in (rank.error or rank.reason), rank
    assert (found.state, attempt.missing) == ("failed", ())
    assert attempt.failure[:2] == (1, "SystemExit: 3")  # the first that said what was wrong


def test_what_is_given_after_the_run_dir_was_renamed_is_counted_as_dropped(tmp_path: Path) -> None:
    with ds.init(tmp_path / "run", system_metrics=False, quiet=True) as run:
        until = time.monotonic() + PATIENCE_S
        for _ in run.steps(range(1_000_000)):
            run.log(loss=0.5)
            if run.step > 5 and run.health().written.get("scalar"):
                with suppress(FileNotFoundError):  # it was done before
                    (tmp_path / "run").rename(tmp_path / "moved")
            if run.health().dropped or time.monotonic() > until:
                break
            time.sleep(0.01)
        lost_at = run.step
        for _ in run.steps(range(10)):
            run.log(loss=0.5)
    health = run.health()
    assert health.dropped["scalar"] >= 10
    assert sum(health.given.values()) == sum(health.written.values()) + sum(health.dropped.values())
    assert "was removed or renamed: nothing is recorded any more" in health.missing
    assert not (tmp_path / "run").exists()
    recorded = ds.open_run(tmp_path / "moved").scalars("loss")
    assert 0 < len(recorded) < lost_at
