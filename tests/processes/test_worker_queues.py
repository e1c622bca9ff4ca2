"""WorkerQueues: how long processes of multiprocessing and their threads waited for a processor."""

import multiprocessing
import os
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from distsummary.training.timing.worker_queues import WorkerQueues
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no statistics of run queues"
)


def compute(begun: Event, over: Event) -> None:
    """Two threads that compute until `over`; with only one processor, each waits for the other."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def turn() -> None:
        while not over.wait(0):
            os.urandom(1 << 16)  # without the lock of the interpreter

    threads = [threading.Thread(target=turn) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()


def test_the_threads_of_a_worker_are_added_up_until_it_ends() -> None:
    context, queues = multiprocessing.get_context("fork"), WorkerQueues()
    before = len(os.listdir("/proc/self/fd"))
    assert queues.take() == {}
    begun, over = context.Event(), context.Event()
    worker = context.Process(target=compute, args=(begun, over))
    worker.start()
    assert begun.wait(PATIENCE_S)
    queues.take()
    waited_s = 0.0
    while waited_s < 0.05:  # the limit of a test ends it otherwise
        over.wait(0.05)
        found = queues.take()
        assert found.keys() == {worker.pid}
        assert found[worker.pid] >= 0.0
        waited_s += found[worker.pid]
    over.set()
    worker.join()
    worker.close()
    assert queues.take() == {}
    assert len(os.listdir("/proc/self/fd")) <= before
    queues.close()
