"""The tutorial's fourth way: SummaryRecord in a loop: `python examples/summary_record.py runs/record`

MindSpore's tutorial collects by SummaryCollector, by summary operators, by a callback and, last, like this.
"""

import sys

import torch
from torch import nn

import distsummary as ds


def main(run_dir: str) -> None:
    """Fit a line and record each step by name, in one process, without a Run."""
    torch.manual_seed(0)
    network = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs = torch.randn(320, 8)
    targets = inputs @ torch.linspace(-1, 1, 8)
    batches = list(zip(inputs.split(32), targets.split(32), strict=True))
    with ds.SummaryRecord(run_dir) as summary_record:
        for epoch in range(2):
            for number, (x, y) in enumerate(batches, start=1):
                loss = nn.functional.mse_loss(network(x).squeeze(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                current_step = epoch * len(batches) + number
                summary_record.add_value("scalar", "loss", loss)
                if current_step % 5 == 0:
                    summary_record.add_value("tensor", "weight", network.weight)
                    summary_record.add_value("histogram", "weight", network.weight)
                    summary_record.add_value("image", "inputs", x.reshape(32, 1, 2, 4))
                summary_record.record(current_step)
                summary_record.flush()  # as in the tutorial; without it, a step is on disk within a second
    print("recorded in", summary_record.log_dir)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/record")
