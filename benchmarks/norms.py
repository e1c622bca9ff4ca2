"""What the norms of every parameter at every step cost, and how exact they are: `python -m benchmarks.norms`.

CPU time of the whole process with all its threads, of which torch has one; what is compared takes turns in
one run, ROUNDS times BLOCK steps of each, and the cost is the median over the rounds of the difference to the
same steps without recording. The model is a transformer of 10.9 million parameters in 78 tensors, with fixed
gradients; nothing is counted but optimizer.step() and what is added to it. One JSON line for each command:

- `cost`: milliseconds per million parameters and step of `ds.init(norms=True)`, of the files too; and of the
  loop `writer.add_scalar(name, p.grad.norm(), step)` of torch's SummaryWriter for gradients, for gradients
  and weights, and for these with the number of elements that are not finite, which are the values that
  norms=True records, except updates. "bare" is one call of torch._foreach_norm for all weights and gradients,
  which records nothing: it says how fast the machine reads them at the time.
- `ranks`: on four gloo ranks with FSDP2, the sum over ranks in milliseconds a step, and how many collective
  operations torch's flight recorder has counted, against `p.grad.full_tensor().norm()` of every parameter,
  and the same for weights too.
- `exact`: the largest relative error of the merged norms against those of `full_tensor().double()`, on four
  gloo ranks with DDP, FSDP2, HSDP and TP.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import distsummary as ds
from benchmarks.record.overhead import Transformer
from distsummary.events.reader import read_directory

ROUNDS, BLOCK = 9, 10
DRAIN_S = 0.3  # the writer's thread has written everything by then; sleeping takes no CPU
RANKS = 4
KINDS = ("ddp", "fsdp2", "hsdp", "tp")


class Training:
    """A model with fixed gradients, whose optimizer steps."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        torch.manual_seed(int(os.environ.get("RANK", 0)))
        for one in model.parameters():
            one.grad = torch.randn_like(one)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    @property
    def millions(self) -> float:
        """Millions of parameters."""
        return sum(one.numel() for one in self.model.parameters()) / 1e6

    def recorded(self, directory: str) -> tuple[ds.Run, Callable[[int], None]]:
        """A run with norms, and what makes steps of it."""
        run = ds.init(
            directory,
            watch=self.model,
            norms=True,
            system_metrics=False,
            aggregate=False,
            quiet=True,
        )

        def steps(count: int) -> None:
            for _ in run.steps(range(count)):
                self.optimizer.step()

        return run, steps

    def plain(self, count: int) -> None:
        """Steps without recording."""
        for _ in range(count):
            self.optimizer.step()


def cpu_ms(steps: Callable[[int], None]) -> float:
    """Milliseconds of CPU per step, of all threads."""
    begun = time.process_time()
    steps(BLOCK)
    time.sleep(DRAIN_S)
    return 1e3 * (time.process_time() - begun) / BLOCK


def compare(ways: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """What each way adds to "plain", in milliseconds a step: the median over rounds, the ways in turns."""
    rounds = [{name: cpu_ms(steps) for name, steps in ways.items()} for _ in range(ROUNDS + 1)][1:]
    others = [name for name in ways if name != "plain"]
    return {name: statistics.median(one[name] - one["plain"] for one in rounds) for name in others}


def cost() -> dict[str, Any]:
    """The command `cost`."""
    from torch.utils.tensorboard import SummaryWriter

    # the hooks of the run see every step of its model, so other ways have a model of their own
    training, bare = Training(Transformer()), Training(Transformer())
    named = list(bare.model.named_parameters())

    def finite(one: Tensor) -> Tensor:
        return one.isfinite().logical_not().sum()

    with tempfile.TemporaryDirectory() as place:
        writer = SummaryWriter(f"{place}/loop")  # type: ignore[no-untyped-call]

        def loop(*values: Callable[[Tensor], Tensor]) -> Callable[[int], None]:
            def steps(count: int) -> None:
                for step in range(count):
                    bare.optimizer.step()
                    for name, one in named:
                        for number, value in enumerate(values):
                            writer.add_scalar(f"{name}/{number}", value(one), step)  # type: ignore[no-untyped-call]
                writer.flush()  # type: ignore[no-untyped-call]

            return steps

        def gradient(one: Tensor) -> Tensor:
            assert one.grad is not None
            return one.grad.norm()

        def gradient_count(one: Tensor) -> Tensor:
            assert one.grad is not None
            return finite(one.grad)

        def weight(one: Tensor) -> Tensor:
            return one.detach().norm()

        def foreach(count: int) -> None:
            for _ in range(count):
                bare.optimizer.step()
                torch._foreach_norm([tensor.detach() for _, one in named for tensor in (one, one.grad)])

        run, recorded = training.recorded(f"{place}/norms")
        loops = {
            "bare": foreach,
            "loop_gradient": loop(gradient),
            "loop_gradient_weight": loop(gradient, weight),
            "loop_all": loop(gradient, weight, gradient_count, lambda one: finite(one.detach())),
        }
        with run:
            found = compare({"plain": bare.plain, "norms": recorded, **loops})
        writer.close()  # type: ignore[no-untyped-call]
    per_million = {name: round(ms / training.millions, 3) for name, ms in found.items()}
    return {
        "parameters": round(training.millions * 1e6),
        "tensors": len(named),
        "ms_per_million": per_million,
    }


def distributed(kind: str) -> nn.Module:
    """The transformer, distributed over four ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = Transformer()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "tp":
        plan = {"layers.layers.*.linear1": ColwiseParallel(), "layers.layers.*.linear2": RowwiseParallel()}
        return parallelize_module(model, init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), plan)
    shape, names = ((4,), ("dp_shard",)) if kind == "fsdp2" else ((2, 2), ("dp_replicate", "dp_shard"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def collectives() -> int:
    """How many collective operations this rank has begun."""
    entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))["entries"]
    return entries[-1]["record_id"] + 1 if entries else 0


def rank_of_cost(place: Path) -> dict[str, Any]:
    """One rank of the command `ranks`."""
    training, bare = Training(distributed("fsdp2")), Training(distributed("fsdp2"))
    parameters = list(bare.model.parameters())

    def loop(*values: Callable[[Any], Tensor]) -> Callable[[int], None]:
        def steps(count: int) -> None:
            for _ in range(count):
                bare.optimizer.step()
                for one in parameters:
                    for value in values:
                        float(value(one).norm())

        return steps

    def gradient(one: Any) -> Tensor:
        whole: Tensor = one.grad.full_tensor()
        return whole

    def weight(one: Any) -> Tensor:
        whole: Tensor = one.detach().full_tensor()
        return whole

    run, recorded = training.recorded(str(place / "fsdp2"))
    ways = {"plain": bare.plain, "norms": recorded, "gradient": loop(gradient)}
    counted: dict[str, int] = {}
    with run:
        for name, steps in ways.items():
            begun = collectives()
            steps(3)
            counted[name] = collectives() - begun
        found = compare({**ways, "gradient_weight": loop(gradient, weight)})
    return {"ms": found, "collectives": counted}


def rank_of_exact(place: Path, rank: int) -> dict[str, Any]:
    """One rank of the command `exact`: the expected norms of each step, by run."""
    reported: dict[str, Any] = {}
    for kind in KINDS:
        training = Training(distributed(kind))
        if kind in ("ddp", "tp"):  # the gradients are equal on all ranks, or drawn by torch as such
            torch.manual_seed(1)
            for one in training.model.parameters():
                one.grad = torch.randn_like(one)
        run, _ = training.recorded(str(place / kind))
        expected: list[list[list[float]]] = []
        plain = getattr(training.model, "module", training.model)
        with run:
            for _ in run.steps(range(3)):
                training.optimizer.step()
                norms = []
                for one in plain.parameters():
                    pair = [getattr(t, "full_tensor", lambda t=t: t)() for t in (one.detach(), one.grad)]
                    norms.append([float(whole.double().norm()) for whole in pair])
                expected.append(norms)
        reported[kind] = expected
    return reported if rank == 0 else {}


def on_ranks(command: str, place: Path) -> list[dict[str, Any]]:
    """What the ranks of a command report."""
    base = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    arguments = [sys.executable, "-m", "benchmarks.norms", command, "--place", str(place)]
    ranks = [
        subprocess.Popen(arguments, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    return [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]


def ranks() -> dict[str, Any]:
    """The command `ranks`."""
    with tempfile.TemporaryDirectory() as place:
        reported = on_ranks("ranks", Path(place))
    totals = {name: round(sum(one["ms"][name] for one in reported), 2) for name in reported[0]["ms"]}
    return {"ms_all_ranks": totals, "collectives_in_3_steps": reported[0]["collectives"]}


def exact() -> dict[str, Any]:
    """The command `exact`."""
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        reported = on_ranks("exact", Path(place))[0]
        for name, expected in reported.items():
            ds.merge_run(f"{place}/{name}")
            events = read_directory(Path(place, name))
            merged = [v.data for event in events for v in event.values if v.plugin == "norms"]
            assert len(merged) == len(expected)
            found = [np.sqrt([norms.weight_sums, norms.gradient_sums]).T for norms in merged]
            worst[name] = float(np.max(np.abs(np.array(found) / np.array(expected) - 1)))
    return {"largest_relative_error": worst}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("cost", "ranks", "exact"))
    parser.add_argument("--place", type=Path, help="internal: the directory of the ranks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.place is not None:
        rank = int(os.environ["RANK"])
        store = f"file://{given.place}/store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
        reported = rank_of_cost(given.place) if given.command == "ranks" else rank_of_exact(given.place, rank)
        torch.distributed.destroy_process_group()
    else:
        reported = {"cost": cost, "ranks": ranks, "exact": exact}[given.command]()
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
