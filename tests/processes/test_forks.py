"""A process that is forked from the training's records nothing, says so once, and the training counts it."""

import logging
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest

import distsummary as ds
from distsummary.base import processes
from distsummary.errors import ClosedError, UsageError
from distsummary.events.reader import read_directory
from distsummary.training.forks import FORKED
from tests.manifests import whole_manifest
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(function):
    """Run the function in a forked child; returns its exit code."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


@pytest.fixture
def log(tmp_path_factory):
    """The file that the log of this process and its children is written to."""
    path = tmp_path_factory.mktemp("log") / "log"
    handler = logging.FileHandler(path)
    logging.getLogger("distsummary").addHandler(handler)
    yield path
    logging.getLogger("distsummary").removeHandler(handler)
    handler.close()


def test_what_a_forked_child_gives_is_counted_by_the_training(tmp_path, log):
    with ds.init(tmp_path) as run:

        def give():
            run.log(loss=1.0, nested={"a": 1})
            run.image("i", np.zeros((4, 4)))
            run.figure("f", None)
            run.histogram("h", [1.0])
            run.add_value("text", "t", "x")
            run.log({"loss": 2.0}, step=1)
            assert run.dir == tmp_path.resolve()

        for number in run.steps(range(2)):
            run.log(loss=float(number))
            assert in_child(give) == 0
        health = run.health()
        assert health.dropped == {"scalar": 6, "image": 4, "histogram": 2, "text": 2}
        assert health.errors == {FORKED: 14}
        assert run.health() == health  # not counted again
        assert in_child(lambda: run.log(loss=1.0)) == 0
    assert run.health().errors == {FORKED: 15}
    [rank] = whole_manifest(tmp_path)["attempts"][0]["ranks"].values()
    assert rank["health"]["dropped"] == 15
    found = [(e.step, v.data) for e in read_directory(tmp_path) for v in e.values if v.tag == "loss"]
    assert found == [(1, 0.0), (2, 1.0)]
    assert log.read_text().count(FORKED) == 1


def test_a_loop_continues_in_a_forked_child_and_is_recorded_by_the_training_alone(tmp_path):
    run = ds.init(tmp_path)
    seen = []
    for number in run.steps(range(3)):
        run.log(loss=0.5)
        seen.append(number)
        if number == 1 and (child := os.fork()) == 0:
            try:
                for _ in run.epochs(2):
                    for _ in run.steps([1, 2]):
                        run.log(loss=0.25)
                run.next_step()
                with run.eval() as evaluation:
                    evaluation.log(accuracy=0.5)
                run.close()
            finally:
                os._exit(run.step)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4  # it counts its own steps
    assert (seen, run.step) == ([0, 1, 2], 3)
    run.close()
    assert run.health().dropped == {"scalar": 3}
    found = [(e.step, v.data) for e in read_directory(tmp_path) for v in e.values if v.tag == "loss"]
    assert found == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_fork_while_another_thread_logs_does_not_hang(tmp_path):
    run, is_over = ds.init(tmp_path), threading.Event()

    def log():
        while not is_over.is_set():
            run.log(busy=1.0)

    thread = threading.Thread(target=log)
    for _ in run.steps([1]):
        thread.start()
        for _ in range(20):
            assert in_child(lambda: run.log(loss=1.0)) == 0
        is_over.set()
        thread.join()
    run.close()
    assert run.health().dropped == {"scalar": 20}


def test_a_strict_run_raises_in_a_forked_child(tmp_path):
    with ds.init(tmp_path, strict=True) as run:

        def give():
            with pytest.raises(ClosedError, match="return them with the batch"):
                run.log(loss=1.0)

        assert in_child(give) == 0
        assert run.health().dropped == {"scalar": 1}


# The child would keep the pipe by which the process says that it runs, and its starter would wait for ever.
def test_a_fork_waits_for_a_process_that_another_thread_starts(monkeypatch):
    monkeypatch.setattr(processes, "FORK_WAIT_S", PATIENCE_S)
    begun, goes, order = threading.Event(), threading.Event(), []

    def start():
        with processes.no_fork():
            begun.set()
            goes.wait(PATIENCE_S)
            order.append("started")

    starter, timer = threading.Thread(target=start), threading.Timer(0.05, goes.set)
    starter.start()
    begun.wait(PATIENCE_S)
    timer.start()
    if (pid := os.fork()) == 0:
        with processes.no_fork():
            os._exit(7)
    order.append("forked")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    starter.join()
    assert order == ["started", "forked"]
    # A process that takes long to start stops no fork.
    monkeypatch.setattr(processes, "FORK_WAIT_S", 0.0)
    begun.clear()
    goes.clear()
    starter = threading.Thread(target=start)
    starter.start()
    begun.wait(PATIENCE_S)
    if (pid := os.fork()) == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    goes.set()
    starter.join()


def test_a_run_says_that_it_stays_in_its_process(tmp_path):
    with ds.init(tmp_path, quiet=True) as run, pytest.raises(UsageError, match="make one in each"):
        pickle.dumps(run)


def test_a_summary_writer_of_the_parent_refuses_what_a_child_adds(tmp_path):
    integrations = pytest.importorskip("distsummary.integrations", exc_type=ImportError)
    writer = integrations.SummaryWriter(str(tmp_path))

    def add():
        for _ in range(2):
            with pytest.raises(ClosedError, match="open one in each process after a fork"):
                writer.add_scalar("child", 1.0, 1)

    # Some wait while the child is forked: they are the parent's.
    for step in range(100):
        writer.add_scalar("parent", float(step), step)
    assert in_child(add) == 0
    writer.close()
    rows = [(row.step, row.tag) for row in ds.open_run(tmp_path).scalars()]
    assert rows == [(step, "parent") for step in range(100)]
