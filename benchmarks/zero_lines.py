"""What the zero-line door costs above `ds.init`: `python -m benchmarks.zero_lines`.

One process trains the same small net in a bare DDP loop (gloo, one rank) again and again: without us, with
`ds.init` and `run.steps`, and unmodified through the door. The three take turns, so that what else the
machine does meets all alike. CPU is the thread time of the loop, a step, from the 50th step of each training
on; given are medians over the trainings, and the smallest and largest of them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import distsummary as ds
from distsummary.integrations.followed_run import open_runs
from distsummary.integrations.follower import stop_following
from distsummary.integrations.zero_lines import arm

FIRST = 50  # step that is measured


def train(steps: int, *, clips: bool, own_run: Path | None = None) -> float:
    """CPU of a step, in us."""
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches: Iterable[Any] = DataLoader(TensorDataset(torch.rand(steps * 4, 32)), 4)
    run = ds.init(own_run, watch=net, optimizer=optimizer, quiet=True) if own_run is not None else None
    if run is not None:
        batches = run.steps(batches)
    begun_s = 0.0
    for number, (x,) in enumerate(batches):
        if number == FIRST:
            begun_s = time.thread_time()
        loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        if clips:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if run is not None:
                run.log(grad_norm=norm)
        optimizer.step()
        if run is not None:
            run.log(loss=loss)
        if number == steps - 1:
            spent_us = 1e6 * (time.thread_time() - begun_s)
    if run is not None:
        run.close()
    return spent_us / (steps - FIRST)


def measure(directory: Path, steps: int, *, clips: bool, place: int) -> dict[str, float]:
    """CPU of a step in us of one training of each kind."""
    found = {"without": train(steps, clips=clips)}
    found["ds.init"] = train(steps, clips=clips, own_run=directory / f"init{place}")
    arm(str(directory / f"door{place}"), '{"quiet": true, "config": {}}')
    found["zero lines"] = train(steps, clips=clips)
    [run] = open_runs()  # before the follower ends, which may hold it alone: then it would close in a thread
    stop_following()
    run.close()
    assert run.step == steps
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    arm("unused", "")  # before the first optimizer, as at the end of torch's import: its class is followed
    torch.optim.SGD(nn.Linear(1, 1).parameters())
    stop_following()
    for clips in (False, True):
        with tempfile.TemporaryDirectory() as name:
            rounds = [
                measure(Path(name), chosen.steps, clips=clips, place=place) for place in range(chosen.rounds)
            ]
        print("the script clips" if clips else "the script does not clip")
        for kind in rounds[0]:
            row = [each[kind] for each in rounds]
            print(f"  {kind:12} {statistics.median(row):7.1f} us a step ({min(row):.1f} to {max(row):.1f})")
        more = [each["zero lines"] - each["ds.init"] for each in rounds]
        print(f"  zero lines above ds.init: {statistics.median(more):.1f} us")


if __name__ == "__main__":
    main()
