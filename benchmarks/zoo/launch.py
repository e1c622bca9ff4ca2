"""Starts the ranks of a training, under torchrun or Ray."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

LAUNCHERS = ("torchrun", "ray")
PATIENCE_S = 1800.0


def command(launcher: str, ranks: int, module: str, *arguments: str) -> list[str]:
    """What runs a module that is a rank under torchrun, and starts its ranks with `ds.launch` without it."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *(torchrun if launcher == "torchrun" else []), "-m", module, *arguments]


def environ() -> dict[str, str]:
    """The environment of a training: one thread a rank, this tree of files."""
    found = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    root = str(Path(__file__).parents[2])
    found |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    # Ray's workers hardly move beside busy processes at the niceness of 15 that they have by default
    return {**found, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}


def run(
    module: str,
    plan: dict[str, Any],
    launcher: str,
    *,
    patience_s: float = PATIENCE_S,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a module on its ranks to its end; what they print goes to RUN.log.

    Args:
        plan: an object for JSON with "run_dir" and "ranks"; the module's argument is a file with it.
        variables: further ones of the ranks' environment.

    Raises RuntimeError with the end of that log if a rank failed, subprocess.TimeoutExpired if it takes too
    long.
    """
    path, log = Path(f"{plan['run_dir']}.json"), Path(f"{plan['run_dir']}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan))
    words = command(launcher, plan["ranks"], module, str(path))
    with log.open("wb") as file:
        ended = subprocess.run(
            words, stdout=file, stderr=file, env=environ() | {**variables}, timeout=patience_s, check=False
        )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{log.read_text()[-3000:]}")
