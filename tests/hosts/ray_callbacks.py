"""Trainings of Ray Train with its callbacks, in a cluster of their own: `python ray_callbacks.py OUT`.

In the first, a worker is killed once; in the second, one raises and there is no restart; the third has the
callback of the public API alone; in the fourth, RAY_TRAIN_CALLBACKS is wrong.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer
from torch import nn

import distsummary as ds
from distsummary.integrations.ray_train import DistSummaryCallback, DistSummaryUserCallback

STEPS, FAILS_AT = 8, 4
OUT = Path(sys.argv[1]).absolute()


def worker(config: dict[str, Any]) -> None:
    """Train; rank 1 fails once as `config` says, while rank 0 waits for it."""
    rank = train.get_context().get_world_rank()
    once = Path(config["out"], f"{config['name']}.failed")
    fails = config["fails"] is not None and not once.exists()
    run = ds.init(config["run_dir"], rank=0, world_size=1) if config["run_dir"] else None
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        if run is not None:
            run.log(loss=loss)
        if step == FAILS_AT and fails:
            time.sleep(2)  # until all is written
            if rank == train.get_context().get_world_size() - 1:
                once.touch()
                if config["fails"] == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("as arranged")
            time.sleep(600)  # until Ray ends it


def fit(
    name: str, fails: str | None, *, workers: int = 2, restarts: int = 0, run_dir: str = "", **named: Any
) -> str:
    """What `fit` raises, if anything."""
    trainer = TorchTrainer(
        worker,
        train_loop_config={"out": str(OUT), "name": name, "fails": fails, "run_dir": run_dir},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name=name,
            storage_path=str(OUT / "ray"),
            failure_config=train.FailureConfig(max_failures=restarts),
            **named,
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    raised = {
        "killed": fit(
            "killed", "killed", restarts=1, callbacks=[DistSummaryCallback(OUT / "killed", norms=True)]
        )
    }
    os.environ["RAY_TRAIN_CALLBACKS"] = "distsummary.integrations.ray_train.DistSummaryCallback"
    os.environ["DISTSUMMARY"] = str(OUT / "runs/{time}")  # of the driver alone
    raised["raises"] = fit("raises", "raises")
    del os.environ["RAY_TRAIN_CALLBACKS"], os.environ["DISTSUMMARY"]
    path = str(OUT / "public")
    callbacks = [DistSummaryUserCallback(path)]
    raised["public"] = fit("public", "killed", workers=1, run_dir=path, callbacks=callbacks)
    os.environ["RAY_TRAIN_CALLBACKS"] = "distsummary.integrations.ray_train.Wrong"
    raised["wrong"] = fit("wrong", None)
    (OUT / "raised.json").write_text(json.dumps(raised))
    ray.shutdown()


if __name__ == "__main__":
    main()
