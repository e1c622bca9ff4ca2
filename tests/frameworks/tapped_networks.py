"""Networks tapped by operators in every way to run them, and whether each value arrives exactly once."""

import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import distsummary as ds
from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect.values import operators
from distsummary.collect.values.checked_values import checked_value

logger = logging.getLogger(__name__)

STEPS = 3
KINDS = ("scalar", "tensor", "image", "histogram", "gradient", "gradient histogram")
RANKS = 2


class Block(nn.Module):
    """A layer whose output is tapped in the given kinds; `kinds=()` is the same layer without taps."""

    def __init__(self, kinds: tuple[str, ...], prefix: str = "") -> None:
        super().__init__()
        self.layer, self.kinds, self.prefix = nn.Linear(8, 8), kinds, prefix
        self.scalar, self.tensor = ds.ScalarSummary(), ds.TensorSummary()
        self.image, self.histogram = ds.ImageSummary(), ds.HistogramSummary()

    def forward(self, x: Tensor) -> Tensor:
        """Taps what the layer gives, and returns its rectified values."""
        x = self.layer(x)
        if "scalar" in self.kinds:
            self.scalar(f"{self.prefix}scalar", x.mean())
        if "tensor" in self.kinds:
            self.tensor(f"{self.prefix}tensor", x)
        if "image" in self.kinds:
            self.image(f"{self.prefix}image", x)
        if "histogram" in self.kinds:
            self.histogram(f"{self.prefix}histogram", x)
        if "gradient" in self.kinds:
            x = ds.summary.gradient(f"{self.prefix}gradient", x)
        if "gradient histogram" in self.kinds:
            x = ds.summary.gradient(f"{self.prefix}gradient histogram", x, "histogram")
        return x.relu()


class Net(nn.Module):
    """Two layers around a Block; `around` says how the block is called."""

    def __init__(self, kinds: tuple[str, ...], around: str = "") -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), Block(kinds), nn.Linear(8, 1)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        """The loss of a batch (4, 8)."""
        x = self.first(x)
        if self.around == "checkpoint":
            x = checkpoint(self.block, x, use_reentrant=False)
        elif self.around == "reentrant":
            x = checkpoint(self.block, x, use_reentrant=True)
        else:
            x = self.block(x)
            if self.around == "twice":
                x = self.block(x)
        return self.last(x).square().mean()


class Way(NamedTuple):
    """A way to run a network.

    Attributes:
        around: see Net. compiled: "": not; "network", "block" (the block alone), "fullgraph".
        context: around the forward pass. wrapped: "ddp" or "fsdp", on RANKS gloo ranks.
    """

    around: str = ""
    compiled: str = ""
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    wrapped: str = ""


def amp() -> contextlib.AbstractContextManager[Any]:
    """Mixed precision."""
    return torch.autocast("cpu", torch.bfloat16)


WAYS = {
    "eager": Way(),
    "compile": Way(compiled="network"),
    "fullgraph": Way(compiled="fullgraph"),
    "checkpoint": Way("checkpoint"),
    "checkpoint, reentrant": Way("reentrant"),
    "checkpoint, compile": Way("checkpoint", "network"),
    "checkpoint of a compiled block": Way("checkpoint", "block"),
    "no_grad": Way(context=torch.no_grad),
    "no_grad, compile": Way(compiled="network", context=torch.no_grad),
    "inference_mode": Way(context=torch.inference_mode),
    "inference_mode, compile": Way(compiled="network", context=torch.inference_mode),
    "AMP": Way(context=amp),
    "AMP, compile": Way(compiled="network", context=amp),
    "two calls in a step": Way("twice"),
    "two calls in a step, compile": Way("twice", "network"),
}
WAYS_OF_RANKS = {
    "DDP": Way(wrapped="ddp"),
    "DDP, compile": Way(compiled="network", wrapped="ddp"),
    "FSDP2": Way(wrapped="fsdp"),
    "FSDP2, compile": Way(compiled="network", wrapped="fsdp"),
    "FSDP2, checkpoint": Way("checkpoint", wrapped="fsdp"),
    "FSDP2, checkpoint, compile": Way("checkpoint", "network", wrapped="fsdp"),
}


class Counting(operators.TapListener):
    """Counts how often each value is reported, and keeps the last one."""

    def __init__(self) -> None:
        self.health = Health()
        failures = Failures(self.health, logger)
        super().__init__(checked_value, lambda: failures)
        self.times: Counter[str] = Counter()

    def receive_number(self, name: str, number: float) -> None:
        """A number of eager code."""
        self.times[name] += 1
        super().receive_number(name, number)

    def receive(self, plugin: str, name: str, value: object, *, is_parameter: bool) -> None:
        """Another value."""
        self.times[name] += 1
        super().receive(plugin, name, value, is_parameter=is_parameter)

    def add_read(self, numbers: Any, late: Any) -> None:
        """The numbers of compiled code."""
        self.times.update(dict.fromkeys(numbers, 1))
        super().add_read(numbers, late)


class Result(NamedTuple):
    """What STEPS steps gave: the numbers of each step, how often it reported each name, losses, breaks."""

    numbers: list[dict[str, float]]
    times: list[dict[str, int]]
    losses: list[float]
    gradients: list[Tensor]
    graph_breaks: int
    dropped: dict[str, int]


def run_way(way: Way, kinds: tuple[str, ...], backend: str) -> Result:
    """Run STEPS steps of a network whose block is tapped."""
    torch.manual_seed(0)
    net = Net(kinds, way.around)
    called: Any = net
    if way.wrapped == "fsdp":
        fully_shard(net.block)
        called = fully_shard(net)
    elif way.wrapped == "ddp":
        called = DistributedDataParallel(net)
    torch._dynamo.reset()
    counters.clear()
    if way.compiled == "block":
        net.block.compile(backend=backend)
    elif way.compiled:
        called = torch.compile(called, backend=backend, fullgraph=way.compiled == "fullgraph")
    listener = Counting()
    operators.listen(listener)
    result = Result([], [], [], [], 0, listener.health.dropped)
    for step in range(STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        listener.times.clear()
        with way.context():
            loss = called(x)
        if loss.requires_grad:
            loss.backward()
        result.numbers.append(listener.take(step).numbers)
        result.times.append(dict(listener.times))
        result.losses.append(loss.item())
    operators.stop_listening(listener)
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    result.gradients.extend(getattr(one, "_local_tensor", one).clone() for one in gradients)
    return result._replace(graph_breaks=sum(counters["graph_break"].values()))


def faults(way: Way, kinds: tuple[str, ...], backend: str, plain: Result | None = None) -> dict[str, str]:
    """Kind -> what is wrong, "" if nothing is; `plain`: the result without taps, if it is known."""
    plain = plain or run_way(way, (), backend)
    eager = run_way(way._replace(compiled=""), kinds, backend) if way.compiled else None
    tapped = run_way(way, kinds, backend)
    tolerance = 1e-6 if way.compiled else 0.0
    common = []
    if any(abs(a - b) > tolerance for a, b in zip(tapped.losses, plain.losses, strict=True)):
        common.append(f"loss {tapped.losses} instead of {plain.losses}")
    pairs = zip(tapped.gradients, plain.gradients, strict=True)
    if not all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in pairs):
        common.append("other gradients")
    if tapped.graph_breaks > plain.graph_breaks:  # DDP and FSDP2 have some of their own
        common.append(f"{tapped.graph_breaks - plain.graph_breaks} graph breaks")
    if tapped.dropped:
        common.append(f"dropped {tapped.dropped}")
    found = {}
    for kind in kinds:
        wanted = 0 if "gradient" in kind and way.context in (torch.no_grad, torch.inference_mode) else 1
        is_twice = way.around == "twice" and not (way.compiled and kind in ("scalar", "gradient"))
        times = [step.get(kind, 0) for step in tapped.times]
        mine = list(common)
        if times != [wanted * (1 + is_twice)] * STEPS:  # a buffer holds the last value of a name
            mine.append(f"reported {times} times")
        if eager is not None and kind in ("scalar", "gradient"):
            for step, (a, b) in enumerate(zip(tapped.numbers, eager.numbers, strict=True)):
                if abs(a.get(kind, 0.0) - b.get(kind, 0.0)) > 1e-2 * (way.context is amp) + 1e-6:
                    mine.append(f"{a.get(kind)} instead of {b.get(kind)} at step {step}")
        found[kind] = "; ".join(mine)
    return found


def faults_of_rank(
    rank: int, folder: str, names: tuple[str, ...], kinds: tuple[str, ...], backend: str
) -> None:
    """Run ways of WAYS_OF_RANKS as one of RANKS processes; leave what is wrong in a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    found = {name: faults(WAYS_OF_RANKS[name], kinds, backend) for name in names}
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def faults_of_ranks(
    names: tuple[str, ...], kinds: tuple[str, ...], backend: str, *, start_method: str = "spawn"
) -> dict[str, dict[str, str]]:
    """Way -> kind -> what is wrong on any rank."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, names, kinds, backend)
        torch.multiprocessing.start_processes(faults_of_rank, arguments, RANKS, start_method=start_method)
        ranks = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(RANKS)]
    return {
        name: {kind: "; ".join(filter(None, (rank[name][kind] for rank in ranks))) for kind in kinds}
        for name in names
    }
