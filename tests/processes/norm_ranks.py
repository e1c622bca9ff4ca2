"""A rank that trains a small network in several distributions with norms, and reports what they should be.

There are four ranks; a run, such as ddp, is recorded in the directory of this name. Each rank prints
one line of JSON, which has for each run

- "steps" (of rank 0 only): for each step, by parameter, the sums of squares of weight, gradient and update
  and the largest change, in float64 from `full_tensor`;
- "collectives": how many the rank began in as many steps without and with norms;
- "errors", "dropped": what the run counted.
"""

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds

RANKS, STEPS = 4, 8


def network() -> nn.Sequential:
    """Parameters that four ranks cannot share evenly, and one that has less than four rows."""
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(10), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def distributed(kind: str) -> nn.Module:
    """The network, distributed over four ranks."""
    model: nn.Module = network()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp2":
        return fully_shard(model, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",)))
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        return fully_shard(model, mesh=mesh)
    plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    if kind == "tp":
        return parallelize_module(model, init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), plan)
    if kind == "sequence":  # the gradient of its first layer is a pending sum
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "3": RowwiseParallel()}
        return parallelize_module(model, mesh, plan)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return fully_shard(parallelize_module(model, both["tp"], plan), mesh=both["dp"])


def collectives() -> int:
    """How many collective operations this rank has begun, from torch's flight recorder."""
    entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))["entries"]
    return entries[-1]["record_id"] + 1 if entries else 0


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor in float64; a collective operation for a sharded one."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.double()


def train(kind: str, place: Path, rank: int) -> dict[str, Any]:
    model = distributed(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    kept: list[list[tuple[str, Tensor, Tensor | None, Tensor]]] = []
    plain = getattr(model, "module", model)

    def steps(numbers: Iterable[int], *, keeps: bool) -> int:
        begun = collectives()
        for number in numbers:
            torch.manual_seed(number if kind in ("tp", "sequence") else 10 * number + rank)
            inputs = torch.randn(2, 8, 10)
            if kind == "sequence":
                inputs = distribute_tensor(
                    inputs, init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), [Shard(1)]
                )
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            old = [one.detach().clone() for one in model.parameters()]
            gradients = [
                None if one.grad is None else one.grad.detach().clone() for one in model.parameters()
            ]
            optimizer.step()
            if keeps:
                named = plain.named_parameters()
                kept.append(
                    [
                        (name, one.detach().clone(), gradient, one.detach() - before)
                        for (name, one), gradient, before in zip(named, gradients, old, strict=True)
                    ]
                )
        return collectives() - begun

    steps(range(3), keeps=False)  # DDP rebuilds its buckets in the first steps
    without = steps(range(STEPS), keeps=False)
    run = ds.init(
        place, watch=model, norms=True, graph="modules", system_metrics=False, aggregate=False, quiet=True
    )
    with run:
        found = steps(run.steps(range(STEPS)), keeps=True)
    expected = [
        {
            name: [
                float(whole(weight).square().sum()),
                None if gradient is None else float(whole(gradient).square().sum()),
                float(whole(change).square().sum()),
                float(whole(change).abs().max()),
            ]
            for name, weight, gradient, change in step
        }
        for step in kept
    ]
    return {
        "steps": expected if rank == 0 else [],
        "collectives": [without, found],
        "errors": run.health().errors,
        "dropped": run.health().dropped,
    }


def main(directory: str, *runs: str) -> None:
    """Train each run."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    reported = {run: train(run, Path(directory, run), rank) for run in runs}
    destroy_process_group()
    print(json.dumps(reported))
