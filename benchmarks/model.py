"""What `Model.train` adds to a loop of one's own: `python -m benchmarks.model`.

The digits CNN of the demo in batches of 16, one thread of torch's. The CPU of the training thread is counted
from the call of `Model.train` to its return, and the time inside of what a loop of one's own would call too
(the loader, the network, the loss function, backward, the optimizer) is taken off. What remains is the loop,
the callbacks, the collector, and reading the clock. A loop of one's own, timed in the same way, has such a
rest too, most of it the clock: "ours" is the difference of the two rests, each the median of several
trainings taken in turn. "threads" is the CPU of the threads that the package starts. All are parts of the CPU
of the training.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import distsummary as ds
from benchmarks.overhead import Meter
from distsummary.demo import DigitsNet, digits

BATCH = 16


class OfUser:
    """Adds up the CPU of what a loop of one's own would call, too."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as the user's."""

        def call(*args: Any, **named: Any) -> Any:
            begun_s = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                self.seconds += time.thread_time() - begun_s

        return call

    def batches(self, loader: DataLoader[Any]) -> Any:
        """The loader, with its length, whose time counts as the user's."""
        user = self

        class Timed:
            def __len__(self) -> int:
                return len(loader)

            def __iter__(self) -> Iterator[Any]:
                following = user.timed(next)
                source = iter(loader)
                while (batch := following(source, None)) is not None:
                    yield batch

        return Timed()


def own_loop(epochs: int, loader: Any, network: Any, loss_fn: Any, optimizer: Any) -> None:
    """What a user would write."""
    for _ in range(epochs):
        for inputs, labels in loader:
            loss = loss_fn(network(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()


def measure(epochs: int, callbacks: list[ds.Callback] | None) -> tuple[float, float, float]:
    """Trains, by a loop of one's own if there are no callbacks to give (None).

    Returns the CPU seconds for each step: the rest (see above), those of our threads, all of the thread.
    """
    torch.manual_seed(0)
    user = OfUser()

    class Net(DigitsNet):
        __call__ = user.timed(nn.Module.__call__)

    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for method in ("step", "zero_grad"):
        setattr(optimizer, method, user.timed(getattr(optimizer, method)))
    loss_fn = user.timed(nn.CrossEntropyLoss())
    model = ds.Model(network, loss_fn, optimizer)
    loader = DataLoader(digits()[0], batch_size=BATCH, shuffle=True)
    own_loop(1, [batch for _, batch in zip(range(3), loader, strict=False)], network, loss_fn, optimizer)
    backward, meter = torch.autograd.backward, Meter()
    meter.watch_threads()
    torch.autograd.backward = user.timed(backward)  # type: ignore[assignment]
    user.seconds, begun_s = 0.0, time.thread_time()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if callbacks is None:
                own_loop(epochs, user.batches(loader), network, loss_fn, optimizer)
            else:
                model.train(epochs, user.batches(loader), callbacks)
        spent_s = time.thread_time() - begun_s
    finally:
        torch.autograd.backward = backward
        meter.unwatch_threads()
    steps = epochs * len(loader)
    return (spent_s - user.seconds) / steps, meter.threads_s() / steps, user.seconds / steps


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| callbacks | step | ours | ours | threads |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        cases: dict[str, Callable[[int], list[ds.Callback] | None]] = {
            "own loop": lambda _: None,
            "none": lambda _: [],
            "LossMonitor": lambda _: [ds.LossMonitor(100)],
            "SummaryCollector": lambda turn: [ds.SummaryCollector(f"{directory}/{turn}")],
        }
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
        for turn in range(options.repeats):
            for name, make in cases.items():
                found[name].append(measure(options.epochs, make(turn)))
    middle = {name: [median(each) for each in zip(*turns, strict=True)] for name, turns in found.items()}
    bare_s = middle.pop("own loop")[0]
    for name, (rest_s, threads_s, user_s) in middle.items():
        ours_s = rest_s - bare_s
        step_s = user_s + ours_s + threads_s
        print(
            f"| {name} | {1e3 * step_s:.2f} ms | {1e6 * ours_s:.1f} us | {ours_s / step_s:.2%} "
            f"| {threads_s / step_s:.2%} |"
        )
    print(f"the rest of a loop of one's own: {1e6 * bare_s:.1f} us a step")


if __name__ == "__main__":
    main()
