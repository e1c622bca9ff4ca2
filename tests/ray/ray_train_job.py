"""A job as users of Ray Train write it: ray_train_job.py ADDRESS PLACE; one of two trainings fails once."""

import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

STEPS = 6
RESUMED_FROM = 2


def train_with_ddp(config):
    import ray.train.torch
    import torch

    import distsummary as ds

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"histograms": ".*", "graph": "modules", "collect_freq": 2}
    with ds.init(Path(config["place"], "run"), watch=model, optimizer=optimizer, **options) as run:
        for batch in run.steps([torch.ones(8, 4)] * STEPS):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=run.step + run.rank, lr=0.1)


def train_failing_once(config):
    import distsummary as ds

    mark = Path(config["place"], "failed")
    is_first = not mark.exists()
    done = 0 if is_first else RESUMED_FROM
    with ds.init(Path(config["place"], "restarted"), initial_step=done) as run:
        for _ in run.steps(range(STEPS - done)):
            run.log(loss=run.step + (100 if is_first else 0))
            if is_first and run.rank == 1 and run.step == 3:
                mark.touch()
                raise ValueError("this shard is broken")


def main(address: str, place: str) -> None:
    ray.init(address=address, namespace="ray-train", log_to_driver=False, logging_level="ERROR")
    try:
        for train in (train_with_ddp, train_failing_once):
            TorchTrainer(
                train,
                train_loop_config={"place": place},
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(
                    name=train.__name__,
                    storage_path=str(Path(place, "storage")),
                    failure_config=FailureConfig(max_failures=1),
                ),
            ).fit()
    finally:  # Ray Train leaves this one to the cluster
        ray.kill(ray.get_actor("AutoscalingCoordinator", "AutoscalingCoordinator"))


if __name__ == "__main__":
    main(*sys.argv[1:])
