"""Trainings in a Ray cluster of their own, recorded by the variable alone: `python ray_trainings.py OUT`.

A job (`ray job submit`), Ray Train with two workers, of which one fails once, and Ray Tune with two trials.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train, tune
from ray.job_submission import JobStatus, JobSubmissionClient
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 8
AGENT_S = 120.0  # on a busy machine
OUT = Path(sys.argv[1]).absolute()


def plain(lr: float, seed: int) -> list[tuple[float, float]]:
    """The loss and the gradient norm of each step."""
    torch.manual_seed(seed)
    net, rows = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(STEPS):
        x = torch.rand(2, 4)
        optimizer.zero_grad()
        loss = mse_loss(net(x), x.sum(1, keepdim=True))
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters()])
        optimizer.step()
        rows.append((loss.item(), norm.item()))
    return rows


def worker(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    rows = plain(0.05, seed=rank)
    torch.distributed.barrier()
    failed = Path(config["out"], "failed")
    if rank == 1 and not failed.exists():
        failed.touch()
        raise RuntimeError("once")
    Path(config["out"], f"train.{rank}.json").write_text(json.dumps(rows))


def trial(config: dict[str, Any]) -> None:
    rows = plain(config["lr"], seed=1)
    Path(config["out"], f"tune.{config['lr']}.json").write_text(json.dumps(rows))


def submit(dashboard: str) -> None:
    """Run `plain` as a job of the cluster."""
    client = JobSubmissionClient(f"http://{dashboard}")
    deadline = time.monotonic() + AGENT_S
    while True:
        try:
            job = client.submit_job(
                entrypoint=f"{sys.executable} {__file__} {OUT} job",
                runtime_env={"env_vars": {"DISTSUMMARY": str(OUT / "job")}},
            )
            break
        except RuntimeError as error:  # its agent starts after the cluster
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(1.0)
    while not client.get_job_status(job).is_terminal():
        time.sleep(0.2)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, client.get_job_logs(job)


def main() -> None:
    variables = {"DISTSUMMARY": str(OUT / "runs/{time}")}
    context = ray.init(
        runtime_env={"env_vars": variables}, num_cpus=4, include_dashboard=True, log_to_driver=False
    )
    submit(context.dashboard_url)
    TorchTrainer(
        worker,
        train_loop_config={"out": str(OUT)},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=str(OUT / "ray"), name="train", failure_config=train.FailureConfig(max_failures=1)
        ),
    ).fit()
    tune.Tuner(
        trial,
        param_space={"out": str(OUT), "lr": tune.grid_search([0.05, 0.1])},
        run_config=tune.RunConfig(storage_path=str(OUT / "ray"), name="tune"),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    if sys.argv[2:] == ["job"]:
        (OUT / "job.json").write_text(json.dumps(plain(0.05, seed=1)))
    else:
        main()
