"""One rank of a training of the zoo: `torchrun --nproc-per-node 4 -m benchmarks.zoo.rank PLAN.json`.

Run without torchrun it starts the ranks with `ds.launch`. The plan, a JSON object, has "training", "run_dir",
"size", "steps", "seed", "episodes" and "ranks". What each rank measured of itself is written beside the run:
RUN-rank0.json has "own_ms", "wall_ms" (medians of a step, in milliseconds) and "done".
"""

import json
import os
import random
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

import distsummary as ds
from benchmarks.zoo.faults import Faults
from benchmarks.zoo.trainings import TRAININGS, Job


def train(plan: dict[str, Any]) -> None:
    """What each rank does."""
    rank = torch.distributed.get_rank()
    random.seed(plan["seed"])
    torch.manual_seed(plan["seed"])
    faults = Faults(plan["episodes"], rank)
    job = Job(plan["run_dir"], plan["size"], plan["steps"], faults)
    TRAININGS[plan["training"]](job)
    reported = {
        "own_ms": statistics.median(faults.own_ms),
        "wall_ms": statistics.median(faults.wall_ms),
        "done": faults.done,
    }
    Path(f"{plan['run_dir']}-rank{rank}.json").write_text(json.dumps(reported))
    torch.distributed.barrier()


def main() -> None:
    """A rank of torchrun, or the driver of Ray."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        train(plan)
        torch.distributed.destroy_process_group()
    else:
        ds.launch(partial(train, plan), ranks=plan["ranks"], address="local")


if __name__ == "__main__":
    main()
