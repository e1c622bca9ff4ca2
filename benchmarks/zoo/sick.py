"""Sick ranks: a flipped bit, a NaN, another setting, seed or part of the data on one of four ranks.

`python -m benchmarks.zoo.sick PLAN.json`, under torchrun or, without it, by `ds.launch`: the trainings of a
plan, one after the other. A flip is that of the lowest bit of one element of a parameter after a step, and
back before the next one; of flips, one training has many.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import distsummary as ds
from benchmarks.zoo.data import Images
from benchmarks.zoo.launch import LAUNCHERS, run
from benchmarks.zoo.verdicts import Alert, reported

RANKS, STEPS = 4, 16
HELD_BYTES, HELD_STEPS, PAUSE_S = 3 << 29, 900, 0.05  # the system is sampled every 10 s
SIZE = 192  # samples of a batch, for steps of at least 12 ms
NAMES = [f"{layer}.{kind}" for layer in (1, 3, 6) for kind in ("weight", "bias")]
Plan = dict[str, Any]


def plans() -> Iterator[tuple[str, Plan, float]]:
    """The name of each cell, its plan, and about how many minutes it takes."""
    for number, dtype in enumerate(("float32", "bfloat16")):
        yield f"flip/{dtype}", {"kind": "flip", "count": 50, "dtype": dtype, "launcher": number}, 0.5
    yield "flip/hsdp", {"kind": "flip", "count": 50, "dtype": "float32", "launcher": 0, "is_fsdp": True}, 0.7
    for number in range(4):
        yield f"nan/{number}", {"kind": "nan", "count": 25, "seed": number, "launcher": number % 2}, 1.2
    for number, kind in enumerate(("config", "seed", "shard", "healthy")):
        yield f"{kind}/0", {"kind": kind, "count": 10, "launcher": number % 2}, 0.6
    yield "memory/0", {"kind": "memory", "count": 1, "launcher": 1}, 1.5


def trainings(plan: Plan) -> list[Plan]:
    """What is wrong in each training: "steps", and "faults" as (step, rank, which, part of it)."""
    kind, count = plan["kind"], plan["count"]
    chance = random.Random(f"{kind} {plan.get('seed', 0)}")
    if kind == "flip":
        faults = [
            (2 + 2 * each, chance.randrange(RANKS), chance.randrange(6), chance.random())
            for each in range(count)
        ]
        return [{"number": 0, "steps": 2 * count + 2, "faults": faults}]
    found = []
    for number in range(count):
        step, rank = chance.randint(2, STEPS - 3), chance.randrange(RANKS)
        which = (rank + chance.randint(1, 3)) % RANKS if kind == "shard" else chance.randrange(6)
        faults = [] if kind == "healthy" else [(step, rank, which, chance.random())]
        steps = HELD_STEPS if kind == "memory" else STEPS
        found.append({"number": number, "steps": steps, "faults": faults})
    return found


def train(plan: Plan, one: Plan, run_dir: str) -> None:
    """One training on one rank."""
    kind, number, rank = plan["kind"], one["number"], dist.get_rank()
    faults = {step: fault for step, *fault in one["faults"]}
    sick, which, part = next(iter(faults.values()), (-1, 0, 0.0))
    is_sick = rank == sick
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(768, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(128, 10),
    ).to(getattr(torch, plan.get("dtype", "float32")))  # fmt: skip
    model: nn.Module
    if plan.get("is_fsdp"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        model = fully_shard(net, mesh=mesh)
    else:
        model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = Images(SIZE * RANKS * one["steps"])
    given = which if kind == "shard" and is_sick else rank
    loader = DataLoader(samples, SIZE, sampler=DistributedSampler(samples, RANKS, given, seed=number))
    torch.manual_seed(1 + is_sick if kind == "seed" else 10 * number + rank)
    accumulate = 2 if kind == "healthy" and number % 2 else 1
    held: list[Tensor] = []
    with ds.init(
        run_dir,
        watch=model,
        norms=kind == "nan",
        checksums=1,
        config={"lr": 0.1 + (kind == "config" and is_sick), "nested": {"momentum": 0.9}},
    ) as run:
        for x, y in run.steps(loader, accumulate=accumulate):
            step = run.step
            is_now = is_sick and step in faults
            x = x.to(next(net.parameters()).dtype)
            if kind == "memory":
                time.sleep(PAUSE_S)
                if is_now:
                    held.append(torch.ones(HELD_BYTES // 4))
            if kind == "nan" and is_now and part < 0.5:
                x[0, 0, 0, 0] = float("nan")
            loss = nn.functional.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            if kind == "nan" and is_now and part >= 0.5:
                dict(net.named_parameters())[NAMES[which]].grad.view(-1)[:1] = float("nan")
            if kind == "flip":
                flip(net, rank, faults.get(step - 1))
            optimizer.step()
            if kind == "flip":
                flip(net, rank, faults.get(step))
            run.log(loss=loss)


def flip(net: nn.Module, rank: int, fault: Any) -> None:
    """Flip the lowest bit of an element, if the fault is one of this rank."""
    if fault is None or fault[0] != rank:
        return
    one = dict(net.named_parameters())[NAMES[fault[1]]]
    local = one.to_local() if hasattr(one, "to_local") else one.detach()
    if local.numel():
        integer = torch.int16 if local.element_size() == 2 else torch.int32
        local.view(-1).view(integer)[int(fault[2] * local.numel())] ^= 1


# --- what is said of it -------------------------------------------------------------------------------------


def measure(plan: Plan, directory: Path) -> dict[str, Any]:
    """Run the trainings of a plan; returns how many faults were reported right, and what is wrong."""
    launcher = LAUNCHERS[plan["launcher"]]
    plan = plan | {"run_dir": str(directory / "run"), "ranks": RANKS}
    run("benchmarks.zoo.sick", plan, launcher)
    right, wrong = 0, []
    made = trainings(plan)
    for one in made:
        alerts = reported(f"{plan['run_dir']}-{one['number']}")
        errors = mistakes(plan, one, alerts)
        size = max(1, len(one["faults"]))
        right += size - min(size, len(errors))
        wrong += [{"training": one["number"], "faults": one["faults"][:3], "errors": errors}] * bool(errors)
    count = sum(max(1, len(one["faults"])) for one in made)
    return {"launcher": launcher, "count": count, "right": right, "wrong": wrong}


def mistakes(plan: Plan, one: Plan, alerts: list[Alert]) -> list[str]:
    """What is wrong with the alerts of a training; empty if they are right."""
    kind, found = plan["kind"], []
    left = [*alerts]
    for step, rank, which, part in one["faults"]:
        cause = {"flip": "drift", "seed": "config"}.get(kind, kind)
        ranks = {rank}
        if kind == "shard":
            ranks = {rank, which}
        if kind == "flip" and plan.get("is_fsdp"):
            ranks = {rank, (rank + 2) % RANKS}  # of two replicas, both are named
        since = step if kind in ("flip", "nan") else None
        word = {
            "flip": NAMES[which],
            "nan": NAMES[which] if part >= 0.5 else "loss",
            "config": "lr",
            "seed": "seed",
        }.get(kind, "")
        mine = [
            alert
            for alert in left
            if alert["cause"] == cause
            and ranks.intersection(ranks_of(alert))
            and since in (None, alert["since_step"])
        ]
        named = {each for alert in mine for each in ranks_of(alert)}
        if named != ranks:
            found.append(f"{cause} of ranks {sorted(ranks)} at step {step}: named were {sorted(named)}")
        elif not all(word in alert["evidence"] for alert in mine):
            found.append(f"no {word!r} in {[alert['evidence'] for alert in mine]}")
        left = [alert for alert in left if alert not in mine]
        if kind == "nan":  # its weights are no longer those of the others, either
            left = [alert for alert in left if alert["rank"] != rank or alert["cause"] != "drift"]
    return found + [f"false: {alert}" for alert in left]


def ranks_of(alert: Alert) -> list[int]:
    """The ranks that an alert is about."""
    return alert.get("ranks") or [alert["rank"]]


def train_all(plan: Plan) -> None:
    """What each rank does."""
    for one in trainings(plan):
        train(plan, one, f"{plan['run_dir']}-{one['number']}")
        dist.barrier()


def main() -> None:
    """A rank of torchrun, or the driver of Ray."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train_all(plan)
        dist.destroy_process_group()
    else:
        ds.launch(partial(train_all, plan), ranks=RANKS, address="local")


if __name__ == "__main__":
    main()
