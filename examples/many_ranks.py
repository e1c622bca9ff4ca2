"""DDP on several ranks of a Ray cluster, or of this machine: `python examples/many_ranks.py runs/ranks 4`"""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds


def train(run_dir: str, steps: int) -> float:
    """The function that each rank runs; `ds.init` finds its rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truth = torch.linspace(-1, 1, 16)
    data = torch.Generator().manual_seed(100 + torch.distributed.get_rank())  # different on each rank
    with ds.init(run_dir, watch=model, optimizer=optimizer, histograms=".*", collect_freq=5) as run:
        for _ in run.steps(range(steps)):
            x = torch.randn(32, 16, generator=data)
            loss = nn.functional.mse_loss(model(x).squeeze(1), x @ truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss, lr=0.05)
    return loss.item()


if __name__ == "__main__":
    run_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/ranks"
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    losses = ds.launch(train, run_dir, 40, ranks=ranks)
    print("last loss of each rank:", *(f"{loss:.4f}" for loss in losses))
