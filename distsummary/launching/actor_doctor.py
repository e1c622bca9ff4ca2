"""The doctor of a Ray cluster: an actor without CPUs on each node takes the facts of its host."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distsummary.base.cluster import check_reachable
from distsummary.launching import host_facts
from distsummary.launching.doctor import (
    ERROR,
    OK,
    WATCH_S,
    Check,
    Diagnosis,
    Facts,
    beacon_in,
    examine,
)

ANSWER_S = 18.0  # how long the nodes may take, together
TORCH_AHEAD_S = 3.0  # by how much earlier torch must have listed its GPUs
ECHO_S = 3.0
SENT = 4 << 20  # bytes of the exchange that measures throughput


def doctor_of_cluster(
    run_dir: str | os.PathLike[str] | None, address: str, *, answer_s: float = ANSWER_S
) -> Diagnosis:
    """Examine all nodes of the cluster at `address`, as in `ray.init`, for a run in `run_dir`.

    `answer_s`: how many seconds the nodes may take, together.

    Raises ClusterError if nothing answers at the address.
    """
    check_reachable(address, "--address", "correct the address")
    try:
        ray.init(address=address, logging_level="error", log_to_driver=False)
    except Exception as error:
        # A wrong token, or another version of Ray or Python: Ray's message names which.
        return Diagnosis(
            [Check("cluster", ERROR, *_refused(f"{error} {error.__cause__ or ''}", address))], []
        )
    try:
        # Ray prints the death of a node, and stdout is the answer's.
        with redirect_stdout(sys.stderr), beacon_in(run_dir) as (directory, beacon):
            hosts, silent = _ask(directory, beacon, answer_s)
        return Diagnosis([_reached(address, len(hosts)), *examine(hosts, silent)], hosts)
    finally:
        ray.shutdown()


def _refused(message: str, address: str) -> tuple[str, str]:
    """Why Ray did not connect, in one line, and what to do."""
    reason = " ".join(message.split())
    lowered = reason.lower()
    if "authenticationerror" in lowered or "invalidauthtoken" in lowered:
        return (
            f"the cluster at {address} refuses the token",
            "set RAY_AUTH_MODE and RAY_AUTH_TOKEN as the cluster has them",
        )
    if "version" in lowered and "mismatch" in lowered:
        return reason, "install the versions of the cluster here"
    return f"no connection to {address}: {reason[:300]}", "look at the log of the head node"


def _reached(address: str, nodes: int) -> Check:
    """How the cluster is reached, without any secret."""
    mode = os.environ.get("RAY_AUTH_MODE", "Ray's default")
    return Check("cluster", OK, f"{address}, {nodes} nodes answer, authentication: {mode}")


def _ask(directory: str | None, beacon: str | None, answer_s: float) -> tuple[list[Facts], dict[str, str]]:
    """The facts of all nodes, this one first, and why nodes have none."""
    here = ray.get_runtime_context().get_node_id()
    nodes = sorted(ray.nodes(), key=lambda node: (node["NodeID"] != here, node["NodeManagerHostname"]))
    silent = {node["NodeManagerHostname"]: "the node is dead" for node in nodes if not node["Alive"]}
    alive = [node for node in nodes if node["Alive"]]
    for node in alive:
        silent.pop(node["NodeManagerHostname"], None)  # it has come again
    cloudpickle.register_pickle_by_value(host_facts)
    try:
        kind = ray.remote(num_cpus=0, max_restarts=0)(host_facts.Probe)
        actors = {
            node["NodeID"]: kind.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote()
            for node in alive
        }
        asked = {
            actors[node["NodeID"]].facts.remote(
                directory,
                beacon,
                watch_s=WATCH_S if beacon else 0.0,
                answer_s=answer_s - TORCH_AHEAD_S,
                gpus=node["Resources"].get("GPU", 0.0),
            ): node
            for node in alive
        }
    finally:
        cloudpickle.unregister_pickle_by_value(host_facts)
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=answer_s)
    for one in late:
        silent[asked[one]["NodeManagerHostname"]] = f"no answer within {answer_s:g} s"
    hosts: list[Facts] = []
    with _listening() as (address, port):
        for one in sorted(done, key=list(asked).index):
            node = asked[one]
            try:
                facts = ray.get(one, timeout=ECHO_S)
                facts |= _measured(actors[node["NodeID"]], address, port)
            except RayError as error:
                silent[node["NodeManagerHostname"]] = " ".join(str(error).split())[:200]
                continue
            hosts.append(facts | {"node_id": node["NodeID"], "ray_gpus": node["Resources"].get("GPU", 0.0)})
    for actor in actors.values():
        ray.kill(actor)
    return hosts, silent


def _measured(actor: Any, address: str, port: int) -> dict[str, Any]:
    """Round trip, clock and throughput of a node that has answered, and whether it reaches `port` here."""
    round_trip = min(_echo(actor, b"") for _ in range(3))
    seconds = _echo(actor, bytes(SENT))[0]
    return {
        "round_trip_ms": round_trip[0] * 1e3,
        "clock_ahead_s": round_trip[1],
        "mb_per_s": SENT / 1e6 / seconds,
        "blocked": ray.get(actor.connect.remote(address, port), timeout=ECHO_S + 2),
    }


def _echo(actor: Any, data: bytes) -> tuple[float, float]:
    """The seconds of one exchange, and by how much the node's clock is ahead of ours."""
    begun, sent = time.monotonic(), time.time()
    there, _ = ray.get(actor.echo.remote(data), timeout=ECHO_S)
    return time.monotonic() - begun, there - (sent + time.time()) / 2


@contextmanager
def _listening() -> Iterator[tuple[str, int]]:
    """A port of this node that accepts connections during the block, with its address."""
    address = ray.util.get_node_ip_address()
    with socket.create_server((address, 0)) as server:
        yield address, server.getsockname()[1]
