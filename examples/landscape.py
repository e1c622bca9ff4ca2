"""Keep the path of a training, then draw the loss around it: `python examples/landscape.py runs/path`"""

import sys
from pathlib import Path

import torch
from torch import nn

import distsummary as ds


def main(run_dir: str) -> None:
    """Fit a sine, then plot the loss around the path of the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.linspace(-3, 3, 256).unsqueeze(1)
    batches = [(x, torch.sin(2 * x))]
    path = {"intervals": [[1, *range(10, 101, 10)]], "unit": "step"}
    record = ds.Record(collect_landscape=path)
    with ds.init(run_dir, watch=model, optimizer=optimizer, record=record) as run:
        for inputs, targets in run.steps(batches * 100):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    grid = ds.landscape(
        model, nn.MSELoss(), batches, around=run_dir, plane=ds.Plane(size=25), run_dir=run_dir
    )
    grid.plot(Path(run_dir) / "valley.png")
    print("share of the path's variance in the plane:", grid.explained_variance.round(3))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/path")
