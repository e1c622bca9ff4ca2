"""A rank of ordinary trainings in which the ranks wait for each other inside of phases.

Each kind of `KINDS` is recorded in a directory of its name.
In all of them rank LATE sleeps in data, and rank SLEEPY in forward, which comes between two collectives.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds

RANKS, STEPS = 3, 24
LATE, SLEEPY = 0, 1
LATE_S, SLEEPY_S = 0.03, 0.05


class Sleeps(nn.Module):
    """Blocks one rank in each forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if dist.get_rank() == SLEEPY:
            time.sleep(SLEEPY_S)
        return x


class SyncNorm(nn.Module):
    """Subtracts the mean over all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return x - mean / RANKS


def layers(*more: nn.Module) -> nn.Sequential:
    """A small net in which one rank sleeps."""
    return nn.Sequential(nn.Linear(16, 16), Sleeps(), nn.ReLU(), nn.Linear(16, 16), *more)


def batchnorm() -> nn.Module:
    return DistributedDataParallel(layers(nn.BatchNorm1d(16)))


def syncnorm() -> nn.Module:
    return DistributedDataParallel(layers(SyncNorm()))


def fsdp2() -> nn.Module:
    net, mesh = layers(), init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for each in (net[0], net[3]):
        fully_shard(each, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def tp() -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    net = nn.Sequential(nn.Linear(16, 15), nn.ReLU(), nn.Linear(15, 16), Sleeps(), nn.Linear(16, 1))
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


KINDS = {make.__name__: make for make in (batchnorm, syncnorm, fsdp2, tp)}


def batches() -> Iterator[Tensor]:
    for _ in range(STEPS):
        if dist.get_rank() == LATE:
            time.sleep(LATE_S)
        yield torch.randn(8, 16)


def main(directory: str) -> None:
    """Train each kind."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{directory}/store", RANKS)
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=RANKS, store=store)
    for kind in KINDS:
        torch.manual_seed(0)
        model: Any = KINDS[kind]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with ds.init(Path(directory, kind), watch=model, optimizer=optimizer, quiet=True) as run:
            for x in run.steps(batches()):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                gradient = next(model.parameters()).grad
                square = getattr(gradient, "full_tensor", gradient.clone)().square().sum()
                dist.all_reduce(square)  # as to clip by the norm over all ranks
                optimizer.step()
                counts = [None] * RANKS
                dist.all_gather_object(counts, {"samples": len(x)})
                run.log(loss=float(loss))
    dist.destroy_process_group()
