"""Files beside the events: exported tensors, and the thread that writes them."""

import logging
import threading

import numpy as np
import pytest

from distsummary.collect.background import Background
from distsummary.collect.export import export_npy
from distsummary.events.records import Health


@pytest.mark.parametrize("tag", ["a", "../../etc/x", "a/b c%", ".hidden", "雪" * 80, "x" * 1024])
def test_exported_arrays_lie_in_the_directory_whatever_the_tag(nasty_tmp_path, tag):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    path = export_npy(nasty_tmp_path / "out", tag, -3, array)
    assert path.parent == nasty_tmp_path / "out"
    assert path.name.endswith("_-3.npy")
    assert not path.name.startswith(".")
    read = np.load(path, allow_pickle=False)
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


def test_long_tags_with_a_common_beginning_have_files_of_their_own(tmp_path):
    names = {export_npy(tmp_path, "x" * 500 + end, 1, np.zeros(1)).name for end in "ab"}
    assert len(names) == 2


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


def test_only_so_many_jobs_wait():
    background = Background(Health(), max_waiting=1)
    go, submitted = threading.Event(), threading.Event()

    def submit():
        for _ in range(3):  # one runs, one waits, the third has no place
            background.submit("job", go.wait)
        submitted.set()

    thread = threading.Thread(target=submit)
    thread.start()
    assert not submitted.wait(0.05)
    go.set()
    assert submitted.wait(10)
    thread.join()
    background.close()
