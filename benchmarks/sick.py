"""Which rank is sick, and with what: episodes of known rank, cause and step against the verdicts.

- `python -m benchmarks.sick`: four gloo ranks (DDP) by torchrun. `flip`: the lowest bit of one element of a
  parameter is flipped on one rank after a step, and back before the next one; `nan`: a batch or a gradient on
  one rank has a NaN; `config`, `seed`, `shard`: one rank has another setting, another seed, or the data of
  another rank; `clean`: nothing is wrong. One JSON line an episode that was not told right, then one a kind.
  `--count flip=300 nan=100 ...` says how many of each, `--fsdp` replaces DDP by FSDP2 in two replicas. With
  `--ray` the ranks are those of `ds.launch`, and what was told while they trained must be the same. `memory`,
  which has no episodes by default: one rank takes 1.5 GiB more for a minute.
- `python -m benchmarks.sick --cost`: the CPU time of the training thread that the checks take of a step of
  the digits CNN, on one of four ranks.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distsummary as ds
from distsummary.aggregate.judging import judge_files
from distsummary.demo import DigitsNet, digits
from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.run_dir import RunDir

RANKS = 4
COUNTS = {"flip": 300, "nan": 100, "config": 20, "seed": 20, "shard": 20, "clean": 20, "memory": 0}
A_RUN = 100  # flips of one training
STEPS = 16  # of a training with one fault
HELD_BYTES, HELD_STEPS, PAUSE_S = 3 << 29, 900, 0.05  # the system is sampled every 10 s
Plan = dict[str, Any]


def plans(counts: dict[str, int], seed: int) -> Iterator[Plan]:
    """The trainings; each has a `kind`, its `steps`, and by step the rank and what is wrong."""
    chance = random.Random(seed)
    left = counts["flip"]
    while left > 0:
        here = min(left, A_RUN)
        steps = range(2, 2 + 2 * here, 2)
        faults = {step: (chance.randrange(RANKS), chance.randrange(6), chance.random()) for step in steps}
        dtype = "bfloat16" if left % (2 * A_RUN) < A_RUN else "float32"
        yield {"kind": "flip", "steps": steps[-1] + 2, "faults": faults, "dtype": dtype}
        left -= here
    for kind in ("nan", "config", "seed", "shard", "clean", "memory"):
        for number in range(counts[kind]):
            step, rank = chance.randint(2, STEPS - 3), chance.randrange(RANKS)
            what = chance.randrange(6) if kind != "shard" else (rank + chance.randint(1, 3)) % RANKS
            fault = {step: (rank, what, chance.random())}
            length = HELD_STEPS if kind == "memory" else STEPS
            yield {"kind": kind, "steps": length, "faults": fault, "dtype": "float32", "number": number}


def train(plan: Plan, place: Path, rank: int, *, fsdp: bool, aggregate: bool) -> None:
    """One training on one rank."""
    kind, number = plan["kind"], plan.get("number", 0)
    faults = {int(step): fault for step, fault in plan["faults"].items()}
    sick_step, (sick, what, part) = next(iter(faults.items()))
    is_sick = rank == sick
    torch.manual_seed(0)
    net = nn.Sequential(DigitsNet(), nn.Dropout(0.1)).to(getattr(torch, plan["dtype"]))
    model: nn.Module
    if fsdp:
        model = fully_shard(
            net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        )
    else:
        model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = digits()[0]
    given = what if kind == "shard" and is_sick else rank
    sampler: DistributedSampler[Any] = DistributedSampler(samples, RANKS, given, seed=number)
    loader = DataLoader(samples, batch_size=16, sampler=sampler)
    torch.manual_seed(1 + is_sick if kind == "seed" else 10 * number + rank)
    accumulate = 2 if kind == "clean" and number % 2 else 1
    names = [name for name, _ in net.named_parameters()]
    run = ds.init(
        place, watch=model, norms=kind == "nan", on_nan="ignore", checksums=1, histograms=False, graph=False,
        config={"lr": 0.1 + (kind == "config" and is_sick), "rank": rank, "nested": {"momentum": 0.9}},
        system_metrics=kind == "memory", aggregate=aggregate, quiet=True,
    )  # fmt: skip
    batches = endless(loader, sampler) if kind in ("flip", "memory") else loader
    held: list[Tensor] = []

    def flip(step: int) -> None:
        at, parameter, share = faults.get(step, (-1, 0, 0.0))
        if at == rank:
            one = dict(net.named_parameters())[names[parameter]]
            local = one.to_local() if hasattr(one, "to_local") else one.detach()
            if local.numel():
                integer = torch.int16 if local.element_size() == 2 else torch.int32
                local.view(-1).view(integer)[int(share * local.numel())] ^= 1

    for x, y in run.steps(batches, accumulate=accumulate):
        step = run.step
        x = x.to(next(net.parameters()).dtype)
        if kind == "memory":
            time.sleep(PAUSE_S)
            if is_sick and step == sick_step:
                held.append(torch.ones(HELD_BYTES // 4))
        is_now = kind == "nan" and is_sick and step in faults
        if is_now and part < 0.5:
            x[0, 0, 0, 0] = float("nan")
        loss = nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        if is_now and part >= 0.5:
            gradient = list(net.parameters())[what].grad
            assert gradient is not None
            gradient.view(-1)[:1] = float("nan")
        if kind == "flip":
            flip(step - 1)
        optimizer.step()
        if kind == "flip":
            flip(step)
        run.log(loss=loss.item())
        if step >= plan["steps"]:
            break
    run.close()


def endless(loader: Any, sampler: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one epoch after the other."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def faults_told(plan: Plan, told: list[Verdict], names: list[str], *, fsdp: bool) -> list[str]:
    """What is wrong with the verdicts on a training; empty if they are right."""
    wrong = []
    kind = plan["kind"]
    expected: set[tuple[tuple[int, ...], str, int]] = set()
    for step, (rank, what, part) in plan["faults"].items():
        cause = {"flip": "drift", "seed": "config"}.get(kind, kind)
        since = step if kind in ("flip", "nan") else 1
        sick: tuple[int, ...] = () if kind == "clean" else (rank, what) if kind == "shard" else (rank,)
        if fsdp and kind == "flip":
            sick = rank, (rank + 2) % RANKS  # of two replicas, both are named
        if sick:
            expected.add((tuple(sorted(sick)), cause, since))
        if kind == "nan" and part >= 0.5:  # its weights are no longer those of the others, either
            expected.add(((rank,), "drift", step))
        for verdict in told:
            if kind == "flip" and verdict.since_step == step and repr(names[what]) not in verdict.evidence:
                wrong.append(f"no {names[what]!r}: {verdict.evidence}")
            if kind == "nan" and part >= 0.5 and repr(names[what]) not in verdict.evidence:
                wrong.append(f"no {names[what]!r}: {verdict.evidence}")
            if (
                kind in ("config", "seed")
                and {"config": "lr", "seed": "seed torch"}[kind] not in verdict.evidence
            ):
                wrong.append(verdict.evidence)
    found = {(one.ranks or (one.rank,), one.cause, one.since_step) for one in told}
    if kind == "memory":  # a sample within a step has the number of the one before
        [(step, (rank, _, _))] = plan["faults"].items()
        is_right = [(one.rank, one.cause, one.since_step >= step - 1) for one in told] == [(rank, kind, True)]
        return [] if is_right else [f"told: {one}" for one in told] or ["not told"]
    return (
        wrong
        + [f"not told: {one}" for one in expected - found]
        + [f"false: {one}" for one in found - expected]
    )


def rank_main(given: argparse.Namespace) -> None:
    """The life of one rank: all trainings, one after the other."""
    torch.set_num_threads(1)
    if not given.ray:
        torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    names = [name for name, _ in nn.Sequential(DigitsNet()).named_parameters()]
    right: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    directory = Path(given.dir)
    for number, plan in enumerate(plans(counts_of(given), given.seed)):
        place = directory / str(number)
        train(plan, place, rank, fsdp=given.fsdp, aggregate=given.ray)
        torch.distributed.barrier()
        if rank == 0:
            told = judge_files(RunDir(place))
            wrong = faults_told(plan, told, names, fsdp=given.fsdp)
            if given.ray:
                live = {where(Verdict.from_json(alert)) for alert in read_alerts(RunDir(place))}
                differing = live ^ {where(verdict) for verdict in told}
                wrong += [f"told only while it trained, or only afterwards: {one}" for one in differing]
            size = len(plan["faults"]) if plan["kind"] == "flip" else 1
            kind = f"{plan['kind']} {plan['dtype']}" if plan["kind"] == "flip" else plan["kind"]
            right[kind] += size - min(size, len(wrong))
            total[kind] += size
            if wrong:
                print(json.dumps({"training": number, "plan": plan, "wrong": wrong}), flush=True)
    if rank == 0:
        for kind in total:
            print(json.dumps({"kind": kind, "right": right[kind], "of": total[kind]}), flush=True)
    if not given.ray:
        torch.distributed.destroy_process_group()


def where(verdict: Verdict) -> tuple[object, ...]:
    """A verdict without its words."""
    return (
        verdict.rank, verdict.cause, verdict.since_step, verdict.until_step, verdict.first_told_step
    )  # fmt: skip


def counts_of(given: argparse.Namespace) -> dict[str, int]:
    """How many episodes of each kind."""
    if not given.count:
        return COUNTS
    told = dict(one.split("=") for one in given.count)
    return {kind: int(told.get(kind, 0)) for kind in COUNTS}


def cost(steps: int) -> None:
    """Print what a step costs with and without checks."""
    torch.set_num_threads(1)
    samples = digits()[0]
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(5):
        for checksums in (False, True, 1):
            with tempfile.TemporaryDirectory() as directory:
                found[str(checksums)].append(step_us(Path(directory) / "run", checksums, samples, steps))
    without = statistics.median(found["False"])
    for name, told in found.items():
        line = {"checksums": name, "us a step": round(statistics.median(told), 1)}
        print(json.dumps(line | {"more": round(statistics.median(told) - without, 1)}), flush=True)


def step_us(place: Path, checksums: bool | int, samples: TensorDataset, steps: int) -> float:
    """The mean CPU time of our calls in a step, in microseconds."""
    model = DigitsNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = samples.tensors[0][:64], samples.tensors[1][:64]
    run = ds.init(
        place, watch=model, rank=1, world_size=RANKS, checksums=checksums, histograms=False,
        aggregate=False, quiet=True, system_metrics=False,
    )  # fmt: skip
    took = []
    ended = time.thread_time()
    for step in run.steps():
        took.append(time.thread_time() - ended)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss.item())
        if step >= steps:
            break
        ended = time.thread_time()
    run.close()
    return 1e6 * statistics.fmean(took[100:])


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", nargs="*", metavar="KIND=N")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--ray", action="store_true", help="under ds.launch in place of torchrun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--steps", type=int, default=600, help="of a training with --cost")
    parser.add_argument("--dir", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cost:
        cost(given.steps)
    elif given.dir:
        rank_main(given)
    else:
        with tempfile.TemporaryDirectory() as directory:
            if given.ray:
                given.dir = directory
                ds.launch(partial(rank_main, given), ranks=RANKS)
                return
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
            command = [sys.executable, *torchrun, "-m", "benchmarks.sick", *sys.argv[1:], "--dir", directory]
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            sys.exit(subprocess.run(command, env=environ, check=False).returncode)


if __name__ == "__main__":
    main()
