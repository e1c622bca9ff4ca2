"""A rank that trains and hangs.

Rank 1 sleeps in step 30 until the file RUN.go exists, and in step 60 native code holds its interpreter lock
for an hour.
"""

import ctypes
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds

RANKS, CULPRIT, SLEEPS, HOLDS = 3, 1, 30, 60


def main(run_dir: str) -> None:
    """Train and hang."""
    init_process_group(
        "gloo", init_method=f"file://{run_dir}.store", rank=int(os.environ["RANK"]), world_size=RANKS
    )
    model = DistributedDataParallel(nn.Linear(4, 2))
    go = Path(run_dir + ".go")
    with ds.init(run_dir, watch=model, system_metrics=False, quiet=True) as run:
        for step, batch in enumerate(run.steps(torch.ones(4) for _ in range(100)), 1):
            time.sleep(0.02)
            while run.rank == CULPRIT and step == SLEEPS and not go.exists():
                time.sleep(0.1)  # HERE
            if run.rank == CULPRIT and step == HOLDS:
                ctypes.PyDLL(None).sleep(3600)
            model(batch).sum().backward()
            run.log(loss=0.0)
