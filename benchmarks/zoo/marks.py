"""What measuring the phases of each step costs: CPU time of one process that is rank 0 of two.

Two runs of the same training in one process, by turns with and without marks, so many steps each; of each,
the quickest quarter counts, at its upper end, since other work on the host only adds time.
"""

import contextlib
import statistics
import tempfile
import threading
import time
import unittest.mock
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import distsummary as ds
from benchmarks.zoo.data import Images
from benchmarks.zoo.nets import ResNet
from distsummary.training.run import Run

STEPS_MS = (10, 20, 40)  # CPU time of a step
SECONDS = 40.0  # of steps, half of them with marks
BLOCK, SETTLE_S = 10, 1.0  # steps in a row; the writer's thread has written them after that


def measure(step_ms: int, directory: Path) -> dict[str, Any]:
    """What marks add to a step of so many milliseconds, in microseconds: of its thread, and of our others."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)  # for DDP, with its broadcasts
    try:
        return _measure(_size(step_ms), round(1e3 * SECONDS / step_ms / 2 / BLOCK))
    finally:
        dist.destroy_process_group()


def _size(step_ms: int) -> int:
    """The samples of a batch for which a step takes so long."""
    took = {}
    for size in (16, 64):
        model = DistributedDataParallel(ResNet())
        x, y = torch.randn(size, 3, 16, 16), torch.zeros(size, dtype=torch.long)
        each = []
        for _ in range(20):
            begun_s = time.thread_time()
            functional.cross_entropy(model(x), y).backward()
            each.append(1e3 * (time.thread_time() - begun_s))
        took[size] = statistics.median(each)
    return max(1, round(16 + (step_ms - took[16]) * 48 / (took[64] - took[16])))


def _measure(size: int, blocks: int) -> dict[str, Any]:
    measure_phases = Run._measure_phases
    took = defaultdict[bool, list[float]](list)
    threads = dict[bool, set[int]]()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        steps = {}
        for is_marked in (False, True):
            before = {thread.ident for thread in threading.enumerate()}
            with unittest.mock.patch.object(
                Run, "_measure_phases", measure_phases if is_marked else lambda run: None
            ):
                trained = training(f"{directory}/{is_marked}", size)
                steps[is_marked] = stack.enter_context(contextlib.closing(trained))
                for _ in range(40):
                    next(steps[is_marked])
            started = {thread.ident for thread in threading.enumerate()} - before
            threads[is_marked] = {ident for ident in started if ident is not None}
        time.sleep(SETTLE_S)
        others_s = {which: threads_s(threads[which]) for which in threads}
        for number in range(2 * blocks):
            is_marked = bool(number % 2)
            begun_s = time.thread_time()
            for _ in range(BLOCK):
                next(steps[is_marked])
            took[is_marked].append((time.thread_time() - begun_s) / BLOCK)
        time.sleep(SETTLE_S)
        others = {which: (threads_s(threads[which]) - others_s[which]) / blocks / BLOCK for which in threads}
    without, marked = (statistics.quantiles(took[which], n=4)[0] for which in (False, True))
    return {
        "step_us": round(1e6 * without),
        "thread_us": round(1e6 * (marked - without), 1),
        "others_us": round(1e6 * (others[True] - others[False]), 1),
        "share": (marked - without + others[True] - others[False]) / without,
    }


def threads_s(idents: Iterable[int]) -> float:
    """CPU seconds of threads of this process that live."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)


def training(directory: str, size: int) -> Iterator[None]:
    """A CNN with BatchNorm under DDP, step by step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(ResNet())
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Images(100 * size), batch_size=size)
    given = {"rank": 0, "world_size": 2, "aggregate": False, "system_metrics": False, "histograms": False}
    with ds.init(directory, watch=model, optimizer=optimizer, quiet=True, **given) as run:
        while True:
            for x, y in run.steps(loader):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                yield
