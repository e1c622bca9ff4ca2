"""All that touches a GPU, right and how fast, in one table: `make gpu-check`.

Each row compares what we compute on the device with the same on the host, in float64 or bit for bit, and its
time with a peer's, in turns (medians of the wall clock; the device is waited for):

    a copy                                with tensor.cpu()
    a histogram                           with torch.histc
    norms                                 with torch.nn.utils.get_total_norm
    a step that records everything        with the same step alone
    a point of a landscape, by engine     with the loop that everyone writes, and losscape if it is installed

At most 8 minutes on one GPU; `--device cpu` runs the same functions on small sizes. The exit code is 1 if a
row is wrong.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import distsummary as ds
from benchmarks.landscape.peers import Losscape, Naive, Ours
from benchmarks.landscape.tasks import SIZE, Problem, ResNet, exact_losses, write_task
from distsummary.format.histogram import count_histogram
from distsummary.format.own_tags import GPU_MEMORY
from distsummary.frameworks import torch_histogram
from distsummary.frameworks.base import framework_of
from distsummary.frameworks.torch_squares import device_sums

ROUNDS = 7
EVERYTHING: dict[str, Any] = {
    "histograms": ".*",
    "gradients": ".*",
    "tensors": ".*bias",
    "norms": True,
    "graph": "modules",
}
ENGINES = ("row", "graph", "graph+x26", "graph+cuda_graph", "graph+compile", "")  # "": the planner's choice


class Row(NamedTuple):
    """One line of the table; `peer_ms` is None without a peer, `fault` says what is wrong."""

    what: str
    size: str
    ours_ms: float
    peer: str = ""
    peer_ms: float | None = None
    fault: str = ""


class Sizes(NamedTuple):
    """Elements of a copy, blocks, rows and steps of a training, a task of landscapes and its engines."""

    elements: int
    blocks: int
    rows: int
    steps: int
    task: str
    engines: tuple[str, ...]


ON_GPU = Sizes(1 << 26, 9, 128, 60, "resnet56n256", ENGINES)
ON_HOST = Sizes(1 << 16, 1, 4, 6, "mlp32", ("row", "graph+x26", ""))


def timed(device: str, *calls: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """Median milliseconds of each call, in turns, after one that counts nowhere."""
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for call, times in zip(calls, found, strict=True):
            synchronize(device)
            begin = time.perf_counter()
            call()
            synchronize(device)
            times += [1e3 * (time.perf_counter() - begin)] * (number > 0)
    return [statistics.median(times) for times in found]


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def copies(device: str, sizes: Sizes) -> Iterator[Row]:
    """A copy to the host that does not hold up the training; it is what the tensor was when asked for."""
    tensor = torch.randn(sizes.elements, device=device)
    snapshot = framework_of(tensor).snapshot
    before = tensor.cpu().numpy().copy()
    copy = snapshot(tensor)
    tensor.add_(1)
    fault = "" if np.array_equal(copy.result(), before) else "the copy is not what the tensor was"
    asked: list[float] = []

    def ask() -> None:
        begin = time.perf_counter()
        pending = snapshot(tensor)
        asked.append(1e3 * (time.perf_counter() - begin))
        pending.result()

    whole, peer = timed(device, ask, tensor.cpu)
    size = f"{sizes.elements * 4 >> 20} MiB"
    yield Row("copy, until it is there", size, whole, "tensor.cpu()", peer, fault)
    yield Row(
        "copy, in the thread of the loop", size, statistics.median(asked[1:]), "tensor.cpu()", peer, fault
    )


def histograms(device: str, sizes: Sizes) -> Iterator[Row]:
    """Counted on the device, with NaN and infinities; equal to the count of the host."""
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.randn(sizes.elements // 4, device=device).to(dtype)
        tensor[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")], device=device)
        yield histogram(device, tensor)


def histogram(device: str, tensor: torch.Tensor) -> Row:
    """One tensor's."""
    counted = torch_histogram.count(tensor).cpu().numpy()
    ours = torch_histogram.unpacked(tensor.numel(), tensor.dtype, counted)
    host = count_histogram(tensor.float().cpu().numpy())
    same = np.array_equal(ours.counts, host.counts) and (ours.min, ours.max) == (host.min, host.max)
    finite = tensor[3:].float()
    took, peer = timed(device, lambda: torch_histogram.count(tensor), lambda: torch.histc(finite, 100))
    fault = "" if same else f"counts {ours.counts.sum()} of {host.counts.sum()}, or other bins"
    return Row(f"histogram, {tensor.dtype}", f"{tensor.numel():,}", took, "torch.histc", peer, fault)


def norms(device: str, sizes: Sizes) -> Iterator[Row]:
    """Sums of squares of all parameters, in float64 on the device."""
    tensors = [torch.randn(n, device=device) for n in (sizes.elements // 8, 4096, 1)]
    found = device_sums(tensors, range(3)).cpu().numpy()[:3]
    exact = np.array([np.sum(one.cpu().numpy().astype(np.float64) ** 2) for one in tensors])
    off = float(np.max(np.abs(found / exact - 1)))
    took, peer = timed(
        device, lambda: device_sums(tensors, range(3)), lambda: nn.utils.get_total_norm(tensors)
    )
    yield Row(
        "norms", f"{sizes.elements // 8:,}", took, "get_total_norm", peer, f"off by {off:.1e}" * (off > 1e-12)
    )


def training(device: str, sizes: Sizes) -> Iterator[Row]:
    """A training that records everything, samples of its GPU too, next to the same that records nothing."""
    torch.manual_seed(0)
    x = torch.randn(sizes.rows, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (sizes.rows,), device=device)

    def steps(count: int, run_dir: Path | None = None) -> tuple[float, ds.Run | None]:
        torch.manual_seed(1)
        model = ResNet(sizes.blocks).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        run = None
        if run_dir is not None:
            run = ds.init(run_dir, watch=model, optimizer=optimizer, quiet=True, **EVERYTHING)
        begin = time.perf_counter()
        for _ in range(count) if run is None else run.steps(range(count)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run is not None:
                run.log(loss=loss)
        synchronize(device)
        return 1e3 * (time.perf_counter() - begin) / count, run

    steps(3)
    alone, _ = steps(sizes.steps)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        run_dir = Path(directory, "run")
        took, run = steps(sizes.steps, run_dir)
        assert run is not None
        run.close()
        fault = faults_of(run_dir, run, device)
    yield Row("step, all recorded", f"{sizes.steps} steps", took, "the step alone", alone, fault)


def faults_of(run_dir: Path, run: ds.Run, device: str) -> str:
    """What the run misses that it must have."""
    recorded = ds.open_run(run_dir)
    tags = set(recorded.scalars().tags)
    wanted = {"loss"} | ({GPU_MEMORY} if device == "cuda" else set())
    found = [f"no {tag}" for tag in sorted(wanted - tags)]
    if run.health().dropped:
        found.append(f"dropped {run.health().dropped}")
    if not np.all(np.isfinite(recorded.scalars("loss")["value"])):
        found.append("the loss is not finite")
    return "; ".join(found)


def landscapes(device: str, sizes: Sizes) -> Iterator[Row]:
    """A point by each engine, next to the loop that everyone writes and losscape; and a whole map."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = write_task(sizes.task, Path(directory))
        problem = Problem(path)
        row = np.linspace(-1.0, 1.0, SIZE)
        naive = on(Naive(str(path)), device)
        [peer] = timed(device, lambda: [naive.at(float(x), 0.3) for x in row[:5]])
        for name in sizes.engines:
            try:
                ours = Ours(str(path), name, device)
            except ds.DistSummaryError as error:  # an engine that cannot run here
                yield Row(f"landscape, {name}: {error}"[:60], sizes.task, float("nan"))
                continue
            checked = ours.check()
            exact = exact_losses(problem, [tuple(point) for point in checked["points"]])
            off = float(np.max(np.abs(checked["losses"] / exact - 1)))
            [took] = timed(device, lambda inner=ours.inner: inner.row_values(0.3, row))  # type: ignore[misc]
            yield Row(
                f"landscape's point, {name or 'auto'}: {ours.engine}"[:60], sizes.task, took / SIZE,
                "naive loop", peer / 5, f"off by {off:.1e}" * (off > 1e-4),
            )  # fmt: skip
            ours.inner.close()
        try:
            other = on(Losscape(str(path)), device)
        except ImportError:
            other = None
        if other is not None:
            [took] = timed(device, lambda: [other.at(float(x), 0.3) for x in row[:5]])
            yield Row("landscape's point, losscape", sizes.task, took / 5, "naive loop", peer / 5)
        model, batch = problem.torch_parts()
        begin = time.perf_counter()
        grid: Any = ds.landscape(
            model.to(device),
            nn.CrossEntropyLoss(),
            [batch],
            plane=ds.Plane(size=SIZE if device == "cuda" else 5),
        )
        took = 1e3 * (time.perf_counter() - begin)
        points = int(grid.computed.sum())
        yield Row(f"whole map, {grid.engine}"[:60], f"{points} points", took, "naive loop", peer / 5 * points)


def on(peer: Any, device: str) -> Any:
    """A peer's model, batch, centre and directions on the device."""
    peer.model.to(device)
    peer.batch = tuple(one.to(device) for one in peer.batch)
    peer.axes = tuple([one.to(device) for one in axis] for axis in peer.axes)
    peer.prepare()
    return peer


PARTS = {
    "copies": copies,
    "histograms": histograms,
    "norms": norms,
    "training": training,
    "landscapes": landscapes,
}


def main() -> None:
    """Parse the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here; --device cpu runs the same functions on small sizes")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "the host, small sizes"
    print(f"torch {torch.__version__} on {name}\n")
    print("| what | size | ms | peer | its ms | ratio | right |")
    print("|---" * 7 + "|")
    faults = 0
    for part in asked.parts.split(","):
        for row in PARTS[part](asked.device, ON_GPU if asked.device == "cuda" else ON_HOST):
            its = (
                ["", ""]
                if row.peer_ms is None
                else [f"{row.peer_ms:.3g}", f"{row.ours_ms / row.peer_ms:.2f}"]
            )
            cells = [row.what, row.size, f"{row.ours_ms:.3g}", row.peer, *its, row.fault or "yes"]
            print(f"| {' | '.join(cells)} |", flush=True)
            faults += bool(row.fault)
    sys.exit(min(faults, 1))


if __name__ == "__main__":
    main()
