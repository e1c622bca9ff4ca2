"""The training of one rank, of which one hangs, for `benchmarks.culprit_hangs`.

`torchrun --nproc-per-node 4 -m benchmarks.hanging_rank RUN KIND CULPRIT AT`: a small model under
DistributedDataParallel, of which rank CULPRIT hangs at step AT in the way of KIND, one of KINDS. Before that,
at step QUIET, rank 0 alone evaluates for longer than a step may take, which is no hang.
"""

import ctypes
import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds

KINDS = ("sleep", "loader", "order", "exit", "stop", "native")
RANKS, QUIET, STEPS = 4, 20, 400
FOREVER_S, EVALUATION_S = 3600, 4.0


def begun_at(run_dir: str) -> Path:
    """The file that the culprit makes when it hangs."""
    return Path(run_dir + ".begun")


def batches(kind: str, culprit: int, rank: int, at: int) -> Iterator[Tensor]:
    """Random batches; in the loader's deadlock, the culprit's never comes."""
    missing: queue.Queue[Tensor] = queue.Queue()
    for step in range(1, STEPS + 1):
        if kind == "loader" and rank == culprit and step == at:
            yield missing.get()  # HERE: loader
        time.sleep(0.002)
        yield torch.randn(16, 32)


def hang(kind: str) -> None:
    """What the culprit does instead of a step."""
    if kind == "sleep":
        time.sleep(FOREVER_S)  # HERE: sleep
    if kind == "order":
        torch.distributed.broadcast(torch.zeros(4), 0)  # HERE: order
    if kind == "exit":
        os._exit(0)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "native":
        ctypes.PyDLL(None).sleep(FOREVER_S)  # PyDLL keeps the interpreter lock


def train(run_dir: str, kind: str, culprit: int, at: int) -> None:
    """Train, until one rank hangs."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    begun = begun_at(run_dir)
    with ds.init(run_dir, watch=model, histograms=False, system_metrics=False, quiet=True) as run:
        for step, batch in enumerate(run.steps(batches(kind, culprit, rank, at)), 1):
            if rank == culprit and step == at - (kind == "loader"):
                begun.touch()
            if rank == culprit and step == at:
                hang(kind)
            if step == at and kind == "order" and rank != culprit:
                torch.distributed.all_reduce(torch.zeros(4))
            if step == QUIET and rank == 0:
                with run.eval() as evaluation:
                    time.sleep(EVALUATION_S)
                    evaluation.log(accuracy=0.5)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
