"""A rank of a training in which one of three does another collective.

In step AT the odd rank, instead of an `all_reduce` of the loss:

- skip: proceeds to the next step. block: waits for something of its own.
- size: gives a tensor of another size. op: calls another operation.
- root: all broadcast, and it expects the data from another rank.
- uneven: its loop ends, and it waits in a barrier after its run.
"""

import os
import queue
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds

RANKS, AT, STEPS = 3, 30, 60


def share(rank: int, mode: str, odd: int, loss: Tensor) -> None:
    """The collective of step AT, in which a rank is odd."""
    is_odd = rank == odd
    if mode == "root":
        dist.broadcast(loss, (odd + 1) % RANKS if is_odd else odd)  # HERE: root
    elif is_odd and mode == "block":
        queue.Queue[int]().get()  # HERE: block
    elif is_odd and mode == "op":
        dist.broadcast(loss, (odd + 1) % RANKS)  # HERE: op
    elif is_odd and mode == "size":
        dist.all_reduce(torch.zeros(9))  # HERE: size
    elif not (is_odd and mode == "skip"):
        dist.all_reduce(loss)  # HERE: others


def batches(count: int) -> Iterator[Tensor]:
    """Random batches."""
    for _ in range(count):
        time.sleep(0.02)
        yield torch.randn(4, 64)


def main(run_dir: str, mode: str, odd: int) -> None:
    """Train in the mode until that rank is odd."""
    torch.set_num_threads(1)
    rank, store = int(os.environ["RANK"]), f"file://{run_dir}.store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    count = AT if mode == "uneven" and rank == odd else STEPS
    with ds.init(run_dir, watch=model, system_metrics=False, quiet=True) as run:
        for step, batch in enumerate(run.steps(batches(count)), 1):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()  # HERE: skip
            optimizer.step()
            if step == AT and mode != "uneven":
                share(rank, mode, odd, loss.detach().clone().reshape(1))
            run.log(loss=loss)
    dist.barrier()  # HERE: uneven
