"""Gradient accumulation: four batches make one step: `python examples/accumulate.py runs/accumulate`"""

import sys

import torch
from torch import nn

import distsummary as ds

ACCUMULATE = 4


def main(run_dir: str) -> None:
    """Fit a line; the optimizer steps once for every four batches, also for a shorter last group."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(30 * 16, 8)
    targets = inputs @ torch.linspace(-1, 1, 8)
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    with ds.init(run_dir, watch=model, optimizer=optimizer, histograms=".*") as run:
        for _ in run.epochs(2):
            loss_of_step, done = 0.0, 0
            for x, y in run.steps(batches, accumulate=ACCUMULATE):
                loss = nn.functional.mse_loss(model(x).squeeze(1), y) / ACCUMULATE
                loss.backward()
                loss_of_step, done = loss_of_step + loss.item(), done + 1
                run.log(loss=loss_of_step)  # the last value of a name in a step is recorded
                if done % ACCUMULATE == 0 or done == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()
                    loss_of_step = 0.0
    print(f"{run.step} steps of {2 * len(batches)} batches")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/accumulate")
