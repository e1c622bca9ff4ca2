"""Trains the ranks of a run one after the other in this process, each on its own data; one has a fault."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import distsummary as ds

FEATURES = 6
# called with rank, step and model before the optimizer's step and after it
Fault = Callable[[int, int, nn.Module, str], None]
BEFORE, AFTER = "before", "after"


def network(rank: int, *, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A network with a frozen layer, and a buffer that differs between ranks."""
    torch.manual_seed(7)
    layers = nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 3), nn.Linear(3, 1)
    model = nn.Sequential(*layers).to(dtype)
    model[1].running_mean.uniform_(generator=torch.Generator().manual_seed(rank))
    model[3].requires_grad_(False)
    return model


def samples(count: int = 96) -> Dataset[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, FEATURES, generator=generator), torch.zeros(count, 1))


def train(
    place: Path,
    ranks: int = 4,
    *,
    fault: Fault = lambda rank, step, model, moment: None,
    data: Callable[[int], tuple[int, int]] | None = None,
    seed: Callable[[int], int] = lambda rank: 100 + rank,
    config: Callable[[int], dict[str, Any]] = lambda rank: {"lr": 0.1},
    loss: Callable[[int, int], float] = lambda rank, step: 1.0,
    dtype: torch.dtype = torch.float32,
    count: int = 96,
    batch: int = 4,
    epochs: int = 2,
    accumulate: int = 1,
    mesh: Callable[[int], dict[str, tuple[int, int]]] | None = None,
    **options: Any,
) -> None:
    """Train `ranks` ranks. The gradients are the same on all, as those that DDP has added up.

    Args:
        data: of a rank: which part of the samples it is given, and of how many parts.
        seed: of a rank: that of torch, Python and NumPy while it trains.
        loss: of a rank and a step: what it logs.
        options: more arguments of ds.init.
    """
    for rank in range(ranks):
        model = network(rank, dtype=dtype)
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.05)
        part, parts = (rank, ranks) if data is None else data(rank)
        sampler = DistributedSampler(samples(count), parts, part, seed=3)
        loader = DataLoader(samples(count), batch_size=batch, sampler=sampler)
        for seeded in (torch.manual_seed, random.seed, np.random.seed):
            seeded(seed(rank))
        run = ds.init(
            place, watch=model, rank=rank, world_size=ranks, config=config(rank), histograms=False,
            mesh=None if mesh is None else mesh(rank), system_metrics=False, aggregate=False, quiet=True,
            record=ds.Record(formats=("mindspore",)), **options,
        )  # fmt: skip
        for epoch in run.epochs(epochs):
            sampler.set_epoch(epoch)
            for number, (inputs, _) in enumerate(run.steps(loader, accumulate=accumulate), 1):
                if len(inputs) > 1:  # else BatchNorm1d refuses it
                    model(inputs.to(dtype))
                if number % accumulate:
                    continue
                step = run.step
                generator = torch.Generator().manual_seed(step)
                for one in model.parameters():
                    if one.requires_grad:
                        one.grad = torch.randn(one.shape, generator=generator).to(dtype)
                fault(rank, step, model, BEFORE)
                optimizer.step()
                fault(rank, step, model, AFTER)
                run.log(loss=loss(rank, step))
        run.close()


def flip_lowest_bit(parameter: Tensor, place: int) -> None:
    """Flip the lowest bit of an element's mantissa."""
    integer = {2: torch.int16, 4: torch.int32}[parameter.element_size()]
    with torch.no_grad():
        parameter.view(-1)[place : place + 1].view(integer).bitwise_xor_(1)
