"""Sends what hosts still have of a run to its home: for ranks whose ship was ended before it had sent all."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distsummary.aggregate.actor_ship import start_ship
from distsummary.base.failures import error_line
from distsummary.rundir.run_dir import RunDir
from distsummary.storage.place import home_node, spool_path

ANSWER_S = 60.0  # for a host to say whether it has something
SEND_S = 3600.0


class Synced(NamedTuple):
    """What is known of a host: how many ranks it has sent that no ship of it served, or why it has not."""

    host: str
    ranks: int = 0
    error: str = ""

    def as_text(self) -> str:
        """For the console."""
        if self.error:
            return f"host {self.host}: {self.error}"
        which = f"{self.ranks} of its ranks" if self.ranks else "its ranks"
        return f"host {self.host}: all that {which} wrote is at home"


def sync(path: str) -> Iterator[Synced]:
    """Have each host of the cluster that this process is connected to send its part of a run.

    Hosts that have nothing are left out. Raises InvalidValueError as `home_node`.

    Args:
        path: where the run is on the node that is its home.
    """
    home = Path(os.path.abspath(os.path.expanduser(path)))
    nodes = ray.nodes()
    home_id = home_node(nodes, ray.get_runtime_context().get_node_id(), home)
    asked, alive = {}, {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    for node in nodes:
        host = str(node["NodeManagerHostname"])
        if not node["Alive"]:
            # A host on which Ray was started again is there twice.
            if node["NodeManagerAddress"] in alive:
                continue
            yield Synced(
                host, error=f"it is dead; what it has not sent is in {spool_path(home, home_id)} there"
            )
        elif node["NodeID"] != home_id:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(_spool_here).options(num_cpus=0, scheduling_strategy=where)
            asked[task.remote(str(home), home_id)] = node
    for reference, node in asked.items():
        host = str(node["NodeManagerHostname"])
        try:
            spool = ray.get(reference, timeout=ANSWER_S)
            if spool:
                ship = start_ship(RunDir(spool, home=home), node["NodeID"])
                yield Synced(host, ray.get(ship.sync.remote(), timeout=SEND_S))
        except RayError as error:
            # Ray's own error has the traceback of the other host.
            cause = error.cause if isinstance(error, RayTaskError) else None
            yield Synced(host, error=f"it sends nothing: {error_line(cause or error)}")


def _spool_here(home: str, node: str) -> str:
    found = spool_path(Path(home), node)
    return str(found) if found.is_dir() else ""
