"""A landscape in a job on two nodes of Ray and in one process: `python -m benchmarks.landscape_cluster`.

The nodes are raylets of this machine with half of its cores each; the model is a ResNet-20 with random
weights and data. Prints one JSON line: how many nodes and workers computed, the seconds of both by the wall
clock (on the cluster with the start of the workers), the seconds of each worker, and whether all losses are
equal bit by bit. A first landscape warms this process up.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from ray.cluster_utils import Cluster
from torch import nn

import distsummary as ds
from benchmarks.landscape_tasks import ResNet
from distsummary.landscapes.output.grid import Grid


def draw(size: int, rows: int, seen: Path, workers: int | str) -> tuple[Grid, float]:
    """The grid, and the seconds that it took; a file in `seen` for each node that computed."""

    def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        import ray

        if ray.is_initialized():
            (seen / ray.get_runtime_context().get_node_id()).touch()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(0)
    model = ResNet(3).eval()
    batches = [(torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,)))]
    began = time.monotonic()
    grid = ds.landscape(
        model,
        batches=batches,
        batch_loss=loss_of,
        plane=ds.Plane(size=size),
        directions="random",
        compute=ds.Compute(engine="row", workers=workers),
    )
    return grid, time.monotonic() - began


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=15, help="points on each side")
    parser.add_argument("--rows", type=int, default=64, help="images in the batch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cores = max(1, (os.cpu_count() or 2) // 2)
    node = {"num_cpus": cores, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        with tempfile.TemporaryDirectory() as place:
            draw(5, given.rows, Path(place), 0)
            alone, alone_s = draw(given.size, given.rows, Path(place), 0)
            os.environ["RAY_ADDRESS"] = cluster.address  # as `ray job submit` does
            grid, cluster_s = draw(given.size, given.rows, Path(place), "auto")
            nodes = len([*Path(place).iterdir()])
    finally:
        cluster.shutdown()
    workers = [round(seconds, 1) for seconds in grid.worker_seconds.values()]
    print(
        json.dumps(
            {"points": given.size**2, "nodes": nodes, "workers": len(workers), "worker_s": workers}
            | {"cluster_s": round(cluster_s, 1), "alone_s": round(alone_s, 1)}
            | {"is_equal": grid.z.tobytes() == alone.z.tobytes()}
        )
    )


if __name__ == "__main__":
    main()
