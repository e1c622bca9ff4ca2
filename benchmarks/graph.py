"""What the graph of a model costs: the processor time that it adds to the first step, and to later ones.

`python -m benchmarks.graph` trains a transformer of 10 million parameters on one thread, without a graph and
with each way to draw it, in turns, and prints the medians. A step is forward, backward and the optimizer on a
batch of 16 tokens, so that the arithmetic does not hide the cost.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import distsummary as ds
from distsummary.collect.values.graph_source import graph_value, observe

WAYS = (None, "modules", "ops")


class Transformer(nn.Module):
    """Tokens (batch, length) -> logits (batch, length, 1000)."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        """One pass."""
        logits: Tensor = self.head(self.encoder(self.embedding(tokens)))
        return logits


def raising(error: Exception) -> None:
    """The observation must not fail."""
    raise error


def first_step(way: str | None, layers: int, width: int) -> tuple[float, float, int]:
    """Milliseconds of CPU of the observed step and of the fourth step, and the nodes of the graph."""
    torch.manual_seed(0)
    model = Transformer(layers, width)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    tokens = torch.randint(0, 1000, (1, 16))

    def step() -> None:
        model(tokens).float().logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(function: Callable[[], Any]) -> tuple[float, Any]:
        start = time.process_time()
        result = function()
        return 1000 * (time.process_time() - start), result

    def observed() -> int:
        observer = None if way is None else observe(model, way, raising, print)
        step()
        if observer is None:
            return 0
        graph = observer.graph()
        graph_value(graph)
        return len(graph.nodes)

    step()  # the first step of any training is slower: memory, threads
    cost, nodes = timed(observed)
    step()
    later = [timed(step)[0] for _ in range(3)]
    return cost, statistics.median(later), nodes


def run_cost(steps: int) -> None:
    """Print the time of plain steps of a Run with and without a graph: they must not differ."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(5):
        for has_graph in times:
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
            with (
                tempfile.TemporaryDirectory() as place,
                ds.init(f"{place}/run", watch=model, graph=has_graph and "modules", quiet=True) as run,
            ):
                x, number = torch.ones(4, 8), 0
                for number in run.steps(range(steps)):
                    if number == 5:
                        start = time.thread_time()
                    model(x)
                    run.log(loss=1.0)
                times[has_graph].append(1e6 * (time.thread_time() - start) / (steps - 5))
    for has_graph, found in times.items():
        print(f"graph={has_graph!s:5}  {statistics.median(found):8.1f} us for a later step of a small model")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = sum(p.numel() for p in Transformer(options.layers, options.width).parameters())
    print(
        f"{sizes / 1e6:.1f} million parameters, torch {torch.__version__}, {options.rounds} rounds in turns"
    )
    for way in WAYS:  # imports
        first_step(way, 1, 16)
    found: dict[str | None, list[tuple[float, float, int]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            found[way].append(first_step(way, options.layers, options.width))
    for way, costs in found.items():
        cost = statistics.median(cost for cost, _, _ in costs)
        pairs = zip(costs, found[None], strict=True)
        added = statistics.median(mine[0] - other[0] for mine, other in pairs)
        later = statistics.median(later for _, later, _ in costs)
        print(
            f"{way or 'none':8}  step {cost:8.1f} ms ({added:+8.1f})  later {later:8.1f} ms  "
            f"{costs[0][2]:5} nodes"
        )
    run_cost(2000)


if __name__ == "__main__":
    main()
