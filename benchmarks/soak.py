"""Memory and compile caches over many steps of a compiled training with everything on.

    python -m benchmarks.soak --steps 100000

Taps of every kind, gradients, norms, histograms, whole tensors and the graph are recorded. The program prints
one line for each tenth of the steps: the resident memory of the process in MiB, how many frames torch.compile
has compiled and the entries in its caches; and, at the end, what was dropped.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import distsummary as ds


class Net(nn.Module):
    """A small network that records values of every kind from within."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, 16) -> logits (N, 4)."""
        hidden = torch.relu(self.first(x))
        hidden = ds.summary.gradient("hidden/gradient", hidden)
        ds.summary.scalar("hidden/mean", hidden.mean())
        ds.summary.histogram("hidden", hidden)
        ds.summary.tensor("hidden/values", hidden[0])
        ds.summary.image("hidden/image", hidden[:, None, None, :].clamp(0, 1))
        return self.last(hidden)


def resident_mib() -> float:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    """Run the training and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net()
    model = torch.compile(net, fullgraph=True)
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    counters = torch._dynamo.utils.counters
    with tempfile.TemporaryDirectory() as directory:
        run = ds.init(
            Path(directory) / "run", watch=model, optimizer=optimizer, histograms=".*", gradients=".*",
            tensors=".*", norms=True, collect_freq=100, quiet=True,
        )  # fmt: skip
        with run:
            for _ in run.steps(range(steps)):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                if run.step % (steps // 10) == 0:
                    frames = counters["stats"]["unique_graphs"]
                    caches = sum(counters["frames"].values())
                    print(f"step {run.step:>7,}: {resident_mib():7.1f} MiB, {frames} graphs, {caches} frames")
        print("dropped:", run.health().dropped or "nothing")


if __name__ == "__main__":
    main()
