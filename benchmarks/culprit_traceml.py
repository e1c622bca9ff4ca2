"""The training of one rank of `benchmarks.culprit --traceml`: an episode, with TraceML to tell of it.

`traceml run benchmarks/culprit_traceml.py --nproc-per-node 4 --args PLAN`. Only the steps of the episode are
traced, since TraceML judges all traced steps of a training at once. Needs TraceML and torch, nothing else.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import traceml_ai as traceml
from torch import Tensor, nn

from benchmarks.slow_rank import Injector, batches, network, slow_adam


def train(plan: dict[str, Any]) -> None:
    """Train as the ranks of `benchmarks.culprit` do."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    injector = Injector(plan["episodes"], rank)
    model = network(injector, plan["model"], plan["width"])
    optimizer = slow_adam(injector, model)
    loader = batches(injector, plan["steps"], plan["batch"])

    def step(batch: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        injector.at("body")

    untraced = plan["episodes"][0]["start"] - 1
    for _ in range(untraced):
        step(*next(loader))
    traceml.init(mode="auto")
    traced: Iterator[tuple[Tensor, Tensor]] = traceml.wrap_dataloader_fetch(loader)
    for batch, target in traced:
        with traceml.trace_step(model):
            step(batch, target)
    injector.close()
    Path(plan["directory"], f"own_{rank}.json").write_text(json.dumps(injector.own_ms))
    torch.distributed.barrier()


if __name__ == "__main__":
    train(json.loads(Path(sys.argv[1]).read_text()))
    torch.distributed.destroy_process_group()  # after the model: DistributedDataParallel may hang without it
