"""A rank that trains with THOR next to others, and prints what it found as JSON."""

import copy
import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from distsummary.errors import InvalidValueError
from distsummary.thor import THOR

BATCH, STEPS = 16, 20


class Mixed(nn.Module):
    """A layer of each kind that THOR has factors for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.words, self.norm = nn.Conv2d(2, 6, 3), nn.Embedding(9, 6), nn.LayerNorm(6)
        self.wide, self.deep, self.out = nn.Linear(96, 140), nn.Linear(96, 140), nn.Linear(146, 3)

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        seen = self.deep(self.conv(images).tanh().flatten(1)).tanh()
        return self.out(torch.cat([seen, self.norm(self.words(ids)).mean(1)], 1))


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH, 2, 6, 6, generator=generator, dtype=torch.float64),
            torch.randint(0, 9, (BATCH, 4), generator=generator),
            torch.randint(0, 3, (BATCH,), generator=generator),
        )
        for _ in range(count)
    ]


def make(net: nn.Module, **others: Any) -> THOR:
    given = {"lr": 0.05, "damping": 0.05, "batch_size": BATCH // dist.get_world_size(), "frequency": 4}
    return THOR(net, weight_decay=0.01, **(given | others))


def train(net: nn.Module, optimizer: THOR, part: slice, steps: int = STEPS, pieces: int = 1) -> None:
    """Train on a part of each batch; in several pieces, DDP adds up the ranks' gradients in the last one."""
    for batch in batches(steps):
        optimizer.zero_grad()
        divided = zip(*(one[part].chunk(pieces) for one in batch), strict=True)
        for left, (images, ids, labels) in zip(reversed(range(pieces)), divided, strict=True):
            with net.no_sync() if left else nullcontext():
                (nn.functional.cross_entropy(net(images, ids), labels) / pieces).backward()
        optimizer.step()


def own_part() -> slice:
    size = BATCH // dist.get_world_size()
    return slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float(((a - b).abs() / (a.abs() + 1e-3)).max()) for a, b in pairs)


def alone() -> dist.ProcessGroup | None:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def equals_one_rank(pieces: int = 1) -> Any:
    """How far the parameters are from those of a rank that has the whole batch, and whether some moved."""
    torch.manual_seed(0)
    inner = Mixed().double()
    start, single = copy.deepcopy(inner), copy.deepcopy(inner)
    net = DistributedDataParallel(inner, find_unused_parameters=True)
    shared = make(net)
    train(net, shared, own_part(), pieces=pieces)
    train(single, make(single, batch_size=BATCH, process_group=alone()), slice(None))
    return largest_difference(inner, single), largest_difference(inner, start), len(shared._layers)


def averages_inverses() -> Any:
    """How far an inverse is from the mean of the ranks' own inverses."""
    torch.manual_seed(0)
    inner = Mixed().double()
    single = copy.deepcopy(inner)
    net = DistributedDataParallel(inner, find_unused_parameters=True)
    optimizer, own = make(net, average="inverses"), make(single, process_group=alone())
    train(net, optimizer, own_part(), 1)
    train(single, own, own_part(), 1)
    found = []
    for name in ("inverse_a", "inverse_g"):
        mean = own.state[single.conv.weight][name].clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        found.append(float((optimizer.state[inner.conv.weight][name] - mean).abs().max() / mean.abs().max()))
    return found


def odd_ranks() -> Any:
    """The layers that all ranks skip, though one rank alone has no input, NaN, or images of another size."""
    torch.manual_seed(0)
    found = []

    def one(call: Callable[[Mixed, int], Tensor]) -> None:
        net = Mixed().double()
        optimizer = make(net)
        call(net, dist.get_rank()).backward()
        optimizer.step()
        has = sorted(
            layer.name
            for weight, layer in optimizer._layers.items()
            if "inverse_a" in optimizer.state[weight]
        )
        found.append([has, sorted(optimizer.curvature().skipped)])

    images, ids, _ = batches(1)[0]
    one(
        lambda net, rank: (
            net.deep(images.flatten(1)[:, :48].repeat(1, 2)).sum() if rank else net.words(ids).sum()
        )
    )
    one(lambda net, rank: net.conv(images * (math.nan if rank == 1 else 1)).mean())
    one(lambda net, rank: net.conv(images[:, :, : 5 + (rank == 1)]).mean())
    return found


def shards_a_norm() -> Any:
    """What THOR says of layers that FSDP2 and FSDP shard, and whether it trains with a norm of FSDP2."""
    torch.manual_seed(0)
    messages = []
    for shard in (fully_shard, lambda net: FullyShardedDataParallel(net, device_id=torch.device("cpu"))):
        try:
            make(shard(Mixed().double()))
        except InvalidValueError as error:
            messages.append(str(error))
    net = Mixed().double()
    fully_shard(net.norm)
    before = net.norm.weight.full_tensor().clone()
    images, ids, labels = batches(1)[0]
    optimizer = make(net)
    nn.functional.cross_entropy(net(images, ids), labels).backward()
    optimizer.step()
    return *messages, bool((net.norm.weight.full_tensor() != before).any())


def main(case: str, world: int, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    result = {
        "equals": equals_one_rank, "accumulates": lambda: equals_one_rank(pieces=2),
        "inverses": averages_inverses, "odd": odd_ranks, "fsdp": shards_a_norm,
    }[case]()  # fmt: skip
    dist.destroy_process_group()
    print(json.dumps(result), flush=True)
    os._exit(0)  # at the interpreter's end, a thread of torch that waits for the GIL may abort the process
