"""`python elastic.py RUN RESTARTS SCRIPT ...`: two ranks by torchrun's own agent, which forks them.

Torchrun starts an interpreter for each rank instead, which needs seconds to import torch.
"""

import os
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests import forked


def rank(run: str, script: str, *arguments: str) -> None:
    os.environ["DISTSUMMARY"] = run
    forked.interpret(Path(script), arguments)


def main(run: str, restarts: str, script: str, *arguments: str) -> None:
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=int(restarts), start_method="fork",
    )  # fmt: skip
    elastic_launch(config, rank)(run, script, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
