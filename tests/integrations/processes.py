"""Trainings of several processes that do not know of distsummary: `python processes.py OUT NAME`.

Each rank writes its losses as JSON.
"""

import json
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEPS = 8


class Data(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, place: int) -> Tensor:
        return torch.full((4,), place / 100)


def train(out: str, **loading: Any) -> list[float]:
    """Two epochs of half of the steps each."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    torch.manual_seed(rank)
    model: nn.Module = nn.Linear(4, 1)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for x in DataLoader(Data(), 8, **loading):
            loss = (model(x) - rank).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with open(f"{out}/losses.{rank}.json", "w") as file:
        json.dump(losses, file)
    return losses


def fork(out: str) -> None:
    train(out, num_workers=2, multiprocessing_context="fork")


def spawn(out: str) -> None:
    train(out, num_workers=2, multiprocessing_context="spawn")


def _rank(rank: int, out: str) -> None:
    store = torch.distributed.FileStore(f"{out}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    train(out)
    torch.distributed.destroy_process_group()


def spawned_ranks(out: str) -> None:
    """Ranks that no launcher names: torch.distributed alone knows them."""
    torch.multiprocessing.spawn(_rank, args=(out,), nprocs=2)


def launched(out: str) -> None:
    """Ranks of `ds.launch`, whose function knows nothing of a run."""
    import distsummary as ds

    ds.launch(train, out, ranks=2)


if __name__ == "__main__":
    globals()[sys.argv[2]](os.path.abspath(sys.argv[1]))
