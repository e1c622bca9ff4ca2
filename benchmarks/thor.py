"""THOR next to SGD, and its refreshes on several ranks: `python -m benchmarks.thor {epochs,step,ranks,kfac}`.

All on one thread of torch. The network of `epochs` and `step` is the digits CNN of the demo, in batches of 32
of 1,500 images.

- `epochs`: both optimizers are tuned by a grid of learning rates, THOR with three dampings, on seed 0, by the
  epoch at which they first reach the best accuracy of SGD on 297 test images; then both train on `--seeds`
  further seeds. Printed: epochs to SGD's best accuracy with that seed, and each one's best accuracy.
- `step`: CPU of a training step with frequency 100, mean of 50 steps times `--rounds`, in turns with SGD.
- `ranks`: the CPU by which a step with a refresh of 8 Linear layers of width x width exceeds one without, in
  one process with a batch of `rows`, and in the busiest of 4 gloo ranks with a quarter of the rows each:
  medians of `--rounds`, for each of `--sizes` (width x rows).
- `kfac`: how THOR's factors follow from those of curvlinops, see `thor_kfac`; `--golden` writes theirs down.
  Install it by `pip install --no-deps curvlinops-for-pytorch==3.0.1 backpack-for-pytorch einconv einops
  linear_operator unfoldNd tqdm jaxtyping opt-einsum`, since its dependencies replace torch.
"""

import argparse
import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks import thor_kfac
from distsummary.demo import DigitsNet, digits
from distsummary.thor import THOR

BATCH, EPOCHS, FREQUENCY = 32, 20, 100
RATES, DAMPINGS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.03, 0.3, 3.0)
DAMPING = 0.03  # where it does not matter
LAYERS, RANKS = 8, 4
SIZES = "512x1024,512x2048,512x4096,512x8192,256x4096,1024x4096"  # width x rows

TRAIN, TEST = (part.tensors for part in digits())
Make = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(rate: float) -> Make:
    """Momentum SGD."""
    return lambda net: torch.optim.SGD(net.parameters(), rate, 0.9, foreach=True)


def thor(rate: float, **others: object) -> Make:
    """THOR with the same momentum."""
    given = {"damping": DAMPING, "momentum": 0.9, "batch_size": BATCH, "frequency": FREQUENCY} | others
    return lambda net: THOR(net, rate, **given)  # type: ignore[arg-type]


def shuffled(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of an epoch after the other, without end."""
    images, labels = TRAIN
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for part in order.split(BATCH):
            if len(part) == BATCH:
                yield images[part], labels[part]


def step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    """One step of a training."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()


def accuracies(make: Make, seed: int) -> list[float]:
    """The accuracy on the test images after each epoch."""
    torch.manual_seed(seed)
    net = DigitsNet()
    optimizer, batches = make(net), shuffled(seed)
    images, labels = TEST
    found = []
    for _ in range(EPOCHS):
        net.train()
        for _ in range(len(TRAIN[0]) // BATCH):
            step(net, optimizer, next(batches))
        net.eval()
        with torch.no_grad():
            found.append(float((net(images).argmax(1) == labels).float().mean()))
    return found


def first_epoch(found: list[float], wanted: float) -> int:
    """The epoch, from 1, that reaches an accuracy; EPOCHS + 1 if none does."""
    return next((epoch for epoch, one in enumerate(found, 1) if one >= wanted), EPOCHS + 1)


def epochs(seeds: int) -> None:
    """Print epochs to SGD's best accuracy."""
    logging.getLogger("distsummary").setLevel(logging.ERROR)  # some of the grid diverge
    makers: dict[str, dict[str, Make]] = {
        "SGD": {f"{rate:g}": sgd(rate) for rate in RATES},
        "THOR": {
            f"{rate:g}, {damping:g}": thor(rate, damping=damping) for rate in RATES for damping in DAMPINGS
        },
    }
    grid = {name: {at: accuracies(make, 0) for at, make in of.items()} for name, of in makers.items()}
    best = max(max(found) for found in grid["SGD"].values())
    tuned: dict[str, tuple[str, list[list[float]]]] = {}
    for name, of in makers.items():
        at = min(of, key=lambda at: (first_epoch(grid[name][at], best), -max(grid[name][at])))
        tuned[name] = at, [accuracies(of[at], seed) for seed in range(1, seeds + 1)]
    print(
        "| optimizer | learning rate, damping | epochs to SGD's best: mean | least | most | best accuracy |"
    )
    print("|---|---|---|---|---|---|")
    wanted = [max(found) for found in tuned["SGD"][1]]
    for name, (at, runs) in tuned.items():
        counts = [first_epoch(found, one) for found, one in zip(runs, wanted, strict=True)]
        tops = [max(found) for found in runs]
        print(
            f"| {name} | {at} | {statistics.mean(counts):.1f} | {min(counts)} | {max(counts)} "
            f"| {statistics.mean(tops):.2%} |"
        )
    print(f"({seeds} seeds; {EPOCHS + 1} epochs: not reached in {EPOCHS})")


def steps(rounds: int) -> None:
    """Print the CPU of a step of both."""
    torch.manual_seed(0)
    first = DigitsNet()
    nets = {name: copy.deepcopy(first) for name in ("SGD", "THOR", "THOR without refreshes")}
    makes = {"SGD": sgd(0.01), "THOR": thor(0.01), "THOR without refreshes": thor(0.01, frequency=10**9)}
    optimizers = {name: makes[name](net) for name, net in nets.items()}
    batches = [batch for batch, _ in zip(shuffled(0), range(46), strict=False)]
    spent: dict[str, list[float]] = {name: [] for name in nets}
    for name in nets:
        for batch in batches[:5]:
            step(nets[name], optimizers[name], batch)
    at = 0
    for _ in range(rounds):
        for name, net in nets.items():
            begun = time.process_time()
            for number in range(50):
                step(net, optimizers[name], batches[(at + number) % len(batches)])
            spent[name].append((time.process_time() - begun) / 50 * 1e3)
        at += 50
    means = {name: statistics.mean(found) for name, found in spent.items()}
    print("| optimizer | CPU of a step, ms | times SGD's |\n|---|---|---|")
    for name, mean in means.items():
        print(f"| {name} | {mean:.3f} | {mean / means['SGD']:.2f} |")


def refreshes(rank: int, world: int, store: str, size: str, rounds: int) -> None:
    """Print, as one rank, by how many CPU seconds each step with a refresh exceeds one without."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(0)
    width, rows = (int(number) for number in size.split("x"))
    net = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)])
    rows //= world
    optimizer = THOR(net, 1e-6, DAMPING, batch_size=rows, frequency=2)
    spent: tuple[list[float], list[float]] = ([], [])  # of steps that refresh, and of others
    for number in range(2 * rounds):
        x = torch.randn(rows, width)
        if world > 1:
            dist.barrier()
        begun = time.process_time()
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        spent[number % 2].append(time.process_time() - begun)
    found = [one - statistics.median(spent[1]) for one in spent[0]]
    print(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()


def busiest(world: int, size: str, rounds: int) -> float:
    """The milliseconds of CPU of a refresh, of the busiest of several ranks."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "benchmarks.thor", "rank", "--sizes", size, "--rounds", str(rounds)]
        command += ["--world", str(world), "--store", str(Path(place) / "store"), "--rank"]
        environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        started = [
            subprocess.Popen([*command, str(rank)], env=environ, stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        outputs = [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]
    return max(statistics.median(one[1:]) for one in outputs) * 1e3


def ranks(sizes: str, rounds: int) -> None:
    """Print the CPU of a refresh alone and shared."""
    print("| width | rows | one process, ms | busiest of 4 ranks, ms | share |\n|---|---|---|---|---|")
    for size in sizes.split(","):
        alone, shared = (busiest(world, size, rounds) for world in (1, RANKS))
        width, rows = size.split("x")
        print(f"| {width} | {rows} | {alone:.1f} | {shared:.1f} | {shared / alone:.2f} |", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("what", choices=("epochs", "step", "ranks", "kfac", "rank"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20, help="turns of 50 steps, or refreshes")
    parser.add_argument("--sizes", default=SIZES, help="of `ranks`: width x rows, several with commas")
    parser.add_argument("--golden", type=Path, help="of `kfac`: the .npz to write curvlinops' factors to")
    for name in ("--rank", "--world"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "rank":
        refreshes(given.rank, given.world, given.store, given.sizes, given.rounds)
    elif given.what == "epochs":
        epochs(given.seeds)
    elif given.what == "step":
        steps(given.rounds)
    elif given.what == "kfac":
        thor_kfac.compare(given.golden)
    else:
        ranks(given.sizes, given.rounds)


if __name__ == "__main__":
    main()
