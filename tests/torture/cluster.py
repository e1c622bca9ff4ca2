"""The Ray of L1 and L2: a cluster whose nodes are processes of this machine, and the processes on it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from tests.torture.judge import ROOT

RANKS = 4


def prepare_environment() -> None:
    """Set what the jobs of this process inherit."""
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_BACKEND_LOG_LEVEL": "error",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }


@contextmanager
def ray_cluster() -> Iterator["RayCluster"]:
    """A cluster that ends with the context."""
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="dsl2-", dir="/tmp")  # short: sockets lie below it
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(os.environ.pop("RAY_TMPDIR"), ignore_errors=True)


class RayCluster:
    """A cluster whose nodes are processes of this machine; jobs connect to it by its address."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 4, "num_gpus": 0, "resources": {"whole": RANKS, "half": RANKS // 2},
                "include_dashboard": False, "object_store_memory": 100 << 20,
            },
        )  # fmt: skip
        self.address = self._cluster.address
        self._doomed: Any = None

    def add_doomed(self) -> None:
        """A second node, for half of the ranks."""
        self._doomed = self._cluster.add_node(
            num_cpus=2, num_gpus=0, resources={"half": RANKS // 2}, object_store_memory=100 << 20
        )

    def kill_raylet(self) -> None:
        """The end of the second node: of its raylet and of what runs on it, which Ray would leave alive."""
        [raylet] = [psutil.Process(info.process.pid) for info in self._doomed.all_processes["raylet"]]
        for process in [raylet, *raylet.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def remove_doomed(self) -> None:
        """What is left of it."""
        if self._doomed is not None:
            self._cluster.remove_node(self._doomed, allow_graceful=False)
            self._doomed = None

    def end(self) -> None:
        """Stop all."""
        self._cluster.shutdown()


def own_processes() -> list[psutil.Process]:
    """The processes below this one."""
    return psutil.Process().children(recursive=True)


def title(process: psutil.Process) -> str:
    """Its command line; empty if it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def collectors(processes: list[psutil.Process]) -> list[int]:
    """The pids of those that are collectors' actors."""
    return [process.pid for process in processes if title(process).startswith("ray::CollectorActor")]


def is_alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not, whoever should have waited for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
