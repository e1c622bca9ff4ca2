"""Signals that end a training: the run reports it, and the process dies of the signal as without a run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distsummary.base.termination import on_termination
from distsummary.events.reader import read_directory
from distsummary.rundir.states import read_run
from tests.manifests import whole_manifest
from tests.patience import PATIENCE_S

TRAINING = """
import asyncio, ctypes, os, signal, sys, threading, time
import distsummary as ds

mine = []
exec(sys.argv[2])
run = ds.init(sys.argv[1], rank=0, world_size=1, system_metrics=False)
for step in run.steps(range(1000)):
    run.log(loss=0.5)
    if step == 3:
        print("up", flush=True)
        exec(sys.argv[3])
"""
KILL = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)"


def train(place: Path, before: str, during: str, number: int | None = None) -> tuple[int, str, str]:
    """Exit status, state of the rank and its error."""
    command = [sys.executable, "-W", "ignore", "-c", TRAINING, str(place), before, during]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n", process.stderr.read()
        if number is not None:
            process.send_signal(number)
        status, said = process.wait(PATIENCE_S), process.stderr.read()
    assert "Traceback" not in said, said
    [rank] = whole_manifest(place)["attempts"][0]["ranks"].values()
    return status, rank["state"], rank.get("health", {}).get("error", "")


REPORTED = (-signal.SIGTERM, "interrupted", "Terminated: SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_reported_and_ends_the_process(tmp_path: Path, number: signal.Signals) -> None:
    expected = (-number, "interrupted", f"Terminated: {number.name}")
    assert train(tmp_path, "", "time.sleep(60)", number) == expected


def test_what_was_given_before_the_first_step_is_recorded(tmp_path: Path) -> None:
    before = "run = ds.init(sys.argv[1], rank=0, world_size=1); run.log(accuracy=0.9); run.text('a', 'b')"
    assert (
        train(tmp_path, f"{before}; print('up', flush=True); time.sleep(60)", "", signal.SIGTERM) == REPORTED
    )
    values = {value.tag: value.data for event in read_directory(tmp_path) for value in event.values}
    assert values["accuracy"] == pytest.approx(0.9)
    assert values["a"] == "b"


def test_a_signal_is_reported_while_the_training_continues_recording(tmp_path: Path) -> None:
    assert (
        train(tmp_path, "", "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: run.log(loss=1)") == REPORTED
    )


def test_what_the_loop_records_until_the_files_are_closed_is_in_them(tmp_path: Path) -> None:
    slow = "from distsummary.diagnosis.reporting import Alerts; Alerts.write = lambda alerts: time.sleep(0.3)"
    paced = "log = run.log; run.log = lambda **numbers: (time.sleep(0.01), log(**numbers))"
    assert train(tmp_path, slow, f"os.kill(os.getpid(), signal.SIGTERM); {paced}") == REPORTED
    found = read_run(tmp_path).attempts[0].ranks[0]
    steps = [event.step for event in read_directory(tmp_path) if any(v.tag == "loss" for v in event.values)]
    assert len(steps) > 10
    assert steps[-1] - int(found.health["recorded_step"]) in (0, 1)  # the loop may be in the middle of a step
    assert found.health["step"] == found.health["recorded_step"]


@pytest.mark.parametrize(
    ("before", "during", "expected"),
    [
        # the main thread hangs in a system call that signals do not end: a lock that it holds itself
        ("libc = ctypes.CDLL(None); lock = (ctypes.c_char * 64)()",
         "threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start(); "
         "libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)", REPORTED),
        # a handler of the user's, before and after, decides alone
        ("signal.signal(signal.SIGTERM, lambda *_: os._exit(7))", KILL, (7, "running", "")),
        ("", f"signal.signal(signal.SIGTERM, lambda *_: os._exit(7)); {KILL}", (7, "running", "")),
        # one that passes the signal on to the handler that it found
        ("", f"before = signal.signal(signal.SIGTERM, lambda *of: before(*of)); {KILL}", REPORTED),
        # an event loop has Python's wakeup descriptor
        ("loop = asyncio.new_event_loop(); loop.add_signal_handler(signal.SIGUSR1, print)", KILL, REPORTED),
        # a signal that is ignored stays so
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)",
         "os.kill(os.getpid(), signal.SIGTERM); run.close(); sys.exit(3)", (3, "finished", "")),
        # after the run
        ("", f"run.close(); assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL; {KILL}",
         (-signal.SIGTERM, "finished", "")),
    ],
    ids=["hangs", "handler before", "handler later", "passed on", "event loop", "ignored", "closed"],
)  # fmt: skip
def test_a_signal_does_what_it_did_without_a_run(tmp_path, before, during, expected):
    assert train(tmp_path, before, during) == expected


def test_a_signal_to_a_forked_child_is_not_the_parents(tmp_path: Path) -> None:
    child = (
        "pid = os.fork()\n"
        "if pid == 0: time.sleep(60)\n"
        "os.kill(pid, signal.SIGTERM)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM\n"
        "time.sleep(0.2); run.close(); sys.exit(3)"
    )
    assert train(tmp_path, "", child) == (3, "finished", "")


def test_nothing_stays_after_the_last_run_of_a_process() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's, perhaps
    try:
        files = len(os.listdir("/proc/self/fd"))
        stops = [on_termination(print) for _ in range(2)]
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        for stop in stops:
            stop()
            stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
        assert len(os.listdir("/proc/self/fd")) == files
    finally:
        signal.signal(signal.SIGTERM, before)
