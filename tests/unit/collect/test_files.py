"""Files next to the events: exported tensors, and the thread that writes them."""

import logging
import re
import sys
import threading

import numpy as np
import pytest

from distsummary.base.health import Health
from distsummary.collect import background as background_module
from distsummary.collect.background import Background
from distsummary.collect.file_export import export_npy, file_name
from distsummary.errors import ClosedError, WriteError
from tests.patience import PATIENCE_S

HOSTILE = ["a", "..", "../../etc/x", "/etc/x", "a/b c%", ".hidden", "a\0b", "x\ud800", "雪" * 80, "x" * 1024]


@pytest.mark.parametrize("tag", HOSTILE)
def test_exported_arrays_lie_in_the_directory_whatever_the_tag(nasty_tmp_path, tag):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    path = export_npy(nasty_tmp_path / "out", tag, -3, array)
    assert path.parent == nasty_tmp_path / "out"
    assert path.name.endswith("_-3.npy")
    assert not path.name.startswith(".")
    read = np.load(path, allow_pickle=False)
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


def test_every_tag_has_a_file_name_of_its_own_that_a_long_one_cannot_take():
    tags = [*HOSTILE, *("x" * 500 + end for end in "ab"), file_name("x" * 300), file_name("é" * 512)]
    names = [file_name(tag) for tag in tags]
    assert len(set(names)) == len(tags)
    assert all(name.isascii() and name.isprintable() and len(name) <= 200 for name in names)


def test_jobs_run_in_order_and_a_failure_costs_itself_alone(caplog):
    health, done = Health(), []
    background = Background(health)
    background.submit("one", lambda: done.append(1))
    for _ in range(2):
        background.submit("two", lambda: done.append(1 / 0))
    background.submit("three", lambda: done.append(3))
    background.flush()
    assert done == [1, 3]
    assert health.errors == {"two: ZeroDivisionError: division by zero": 2}
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    background.close()
    background.close()


def test_a_job_that_ends_its_thread_costs_itself_alone():
    health, done = Health(), []
    background = Background(health)
    background.submit("one", lambda: sys.exit(1))  # as a call of Ray while that is shut down
    background.submit("two", lambda: done.append(2))
    background.flush()
    assert done == [2]
    assert health.errors == {"one: SystemExit: 1": 1}
    background.close()


def test_without_a_job_there_is_no_thread_and_the_next_job_starts_one():
    background, done = Background(Health(), idle_s=0.0), []
    for number in range(2):
        background.submit("job", lambda number=number: done.append((number, threading.current_thread())))
        background.flush()
        done[-1][1].join(PATIENCE_S)
        assert not done[-1][1].is_alive()
    background.close()
    assert [number for number, _ in done] == [0, 1]


@pytest.fixture
def go():
    """Lets the jobs of a test end."""
    event = threading.Event()
    yield event
    event.set()


def occupied(go, health, **options):
    """A thread whose one job runs until `go`."""
    background, is_running = Background(health, **options), threading.Event()
    background.submit("first", lambda: is_running.set() or go.wait())
    assert is_running.wait(PATIENCE_S)
    return background


def test_two_jobs_wait_whatever_they_hold_and_others_are_dropped_and_counted(go):
    health, done = Health(), []
    background = occupied(go, health, budget_bytes=10)
    for number in range(4):
        background.submit("job", lambda number=number: done.append(number), nbytes=1000)
    go.set()
    background.close()
    assert done == [0, 1]
    assert health.errors == {"job: dropped, because 2 older jobs wait; is the disk slow?": 2}


def test_as_many_jobs_wait_as_the_budget_holds(go):
    health, done = Health(), []
    background = occupied(go, health, budget_bytes=100)
    for number in range(30):
        background.submit("job", lambda number=number: done.append(number), nbytes=10)
    go.set()
    background.flush()
    assert done == list(range(10))
    for number in range(10):  # what was held is free again
        background.submit("job", lambda number=number: done.append(number), nbytes=10)
    background.close()
    assert len(done) == 20


def test_a_caller_waits_for_room_if_it_says_so(go):
    health, done, submitted = Health(), [], threading.Event()
    background = occupied(go, health, budget_bytes=0)

    def submit():
        for number in range(4):
            background.submit("job", lambda number=number: done.append(number), nbytes=1, wait_s=60)
        submitted.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert not submitted.wait(0.05)
    go.set()
    thread.join()
    background.close()
    assert (done, health.errors) == ([0, 1, 2, 3], {})


def test_a_caller_waits_once_for_a_job_that_hangs(go):
    health = Health()
    background = occupied(go, health, budget_bytes=0)
    for wait_s in (0, 0, 0.01, 3600, 3600):  # the test ends, so the last two did not wait
        background.submit("job", lambda: None, nbytes=1, wait_s=wait_s)
    assert sum(health.errors.values()) == 3
    go.set()
    background.close()


def test_closing_does_not_wait_longer_than_said_for_a_job_that_hangs(go):
    health = Health()
    background = occupied(go, health, close_s=0.01)
    for _ in range(2):
        background.submit("job", lambda: None)
    background.close()
    (error,) = health.errors
    assert re.match(r"files: 3 jobs were not done [\d.]+ s after the end; first is at test_files.py:", error)
    assert " < background.py:" in error


def test_a_failure_is_raised_once_if_that_was_asked_for():
    background = Background(Health(), raise_exception=True)
    background.submit("job", lambda: 1 / 0)
    with pytest.raises(WriteError, match="job: ZeroDivisionError"):
        background.flush()
    background.submit("job", lambda: 1 / 0)
    with pytest.raises(WriteError, match="job: ZeroDivisionError"):
        background.close()
    background.close()
    with pytest.raises(ClosedError, match="closed"):
        background.submit("job", lambda: None)


def test_a_forked_process_leaves_the_thread_to_its_parent(monkeypatch):
    done = []
    background = Background(Health())
    background.submit("job", lambda: done.append(1))
    with monkeypatch.context() as child:
        child.setattr(background_module.os, "getpid", lambda: -1)
        background.close()
        with pytest.raises(ClosedError, match="fork"):
            background.submit("job", lambda: None)
    background.submit("job", lambda: done.append(2))
    background.close()
    assert done == [1, 2]
