"""A training for each recipe: a rank of torchrun or of Slurm trains; otherwise Ray starts the ranks.

`python cluster/train.py RUN_DIR RANKS`; then, in this folder, `distsummary landscape RUN_DIR train:parts`.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distsummary as ds


def parts():
    """What a point of the landscape takes: model, loss function, data."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 256).unsqueeze(1)
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)), nn.MSELoss(), [(x, torch.sin(2 * x))]


def train(run_dir):
    """What each rank runs; `ds.init` finds the rank."""
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus) if gpus else torch.device("cpu")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if gpus else "gloo")
    model, loss_fn, [(x, y)] = parts()
    model, x, y = DistributedDataParallel(model.to(device)), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    record = ds.Record(collect_landscape={"intervals": [[1, *range(10, 101, 10)]], "unit": "step"})
    with ds.init(run_dir, watch=model, optimizer=optimizer, record=record) as run:
        for _ in run.steps(range(100)):
            loss = loss_fn(model(x[mine]), y[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(sys.argv[1])
    else:
        ds.launch(train, sys.argv[1], ranks=int(sys.argv[2]))
