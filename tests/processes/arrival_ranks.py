"""A rank that trains split models, in which rank LATE is blocked in forward, and rank LAST in the optimizer.

`RANK=... python -m tests.processes.arrival_ranks DIR KIND...`: four ranks; a KIND of
`benchmarks.slow_rank.network`, fsdp2 or tp, is recorded in DIR/KIND.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group

import distsummary as ds
from benchmarks.slow_rank import RANKS, Injector, network
from distsummary.training.arrivals import FIRST

LATE, LAST, SLEEP_S = 2, 1, 0.03


def main(directory: str, *kinds: str) -> None:
    """Train each kind."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{directory}/store", RANKS)
    init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    for kind in kinds:
        model = network(Injector([], rank), kind, 32)
        layers = dict(model.named_children())

        def sleep(module: nn.Module, args: Any, output: Tensor) -> None:
            if rank == LATE:
                time.sleep(SLEEP_S)

        layers["5"].register_forward_hook(sleep)  # collectives follow in forward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: time.sleep(SLEEP_S) if rank == LAST else None)
        run_dir = Path(directory, kind)
        with ds.init(run_dir, watch=model, optimizer=optimizer, collectors="process", quiet=True) as run:
            for _ in run.steps(range(FIRST + 2)):
                loss = model(torch.ones(4, 64)).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
