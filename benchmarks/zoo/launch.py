"""Starts the ranks of a training of the zoo, under torchrun or Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LAUNCHERS = ("torchrun", "ray")
PATIENCE_S = 1800.0


def started(plan: dict[str, Any], launcher: str, *, patience_s: float = PATIENCE_S) -> None:
    """Run a training to its end; what its ranks print goes to RUN.log.

    Args:
        plan: what `benchmarks.zoo.rank` takes.

    Raises RuntimeError with the end of that log if a rank failed, or if it takes too long.
    """
    path, log = Path(f"{plan['run_dir']}.json"), Path(f"{plan['run_dir']}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(plan["ranks"])]
    how = torchrun if launcher == "torchrun" else []
    command = [sys.executable, *how, "-m", "benchmarks.zoo.rank", str(path)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    environ.pop("RAY_ADDRESS", None)  # a cluster of its own
    with log.open("wb") as file:
        ended = subprocess.run(
            command, stdout=file, stderr=file, env=environ, timeout=patience_s, check=False
        )
    if ended.returncode:
        raise RuntimeError(f"{plan['training']} under {launcher} failed:\n{log.read_text()[-3000:]}")
