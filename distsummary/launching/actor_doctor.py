"""The doctor of a Ray cluster: an actor without CPUs on each node takes the facts of its host."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distsummary.base.cluster import check_reachable
from distsummary.errors import InvalidValueError
from distsummary.launching import host_facts
from distsummary.launching.doctor import (
    ERROR,
    NOTE,
    OK,
    WATCH_S,
    Check,
    Diagnosis,
    Facts,
    examine,
    not_a_directory,
)
from distsummary.storage.place import HEAD, HOME, home_node

NO_ANSWER = "no answer in time (--wait)"
ANSWER_S = 18.0  # how long everything may take
EXCHANGE_S = 4.0  # how much of it is left for the exchanges with the home
TORCH_AHEAD_S = 1.0  # by how much earlier torch must have listed its GPUs
AT_ONCE = 4  # exchanges with the home, which share its link


def doctor_of_cluster(
    run_dir: str | os.PathLike[str] | None, address: str, *, answer_s: float = ANSWER_S, clean: bool = False
) -> Diagnosis:
    """Examine all nodes of the cluster at `address`, as in `ray.init`, for a run in `run_dir`.

    Args:
        answer_s: how many seconds the nodes may take, together. clean: see `doctor.doctor`.

    Raises ClusterError if nothing answers at the address, RunDirError if `run_dir` is a file.
    """
    until = time.monotonic() + answer_s
    check_reachable(address, "--address", "correct the address")
    try:
        context = ray.init(address=address, logging_level="error", log_to_driver=False)
    except Exception as error:
        # A wrong token, or another version of Ray or Python: Ray's message names which.
        return Diagnosis(
            [Check("cluster", ERROR, *_refused(f"{error} {error.__cause__ or ''}", address))], []
        )
    try:
        # Ray prints the death of a node, and stdout is the answer's.
        with redirect_stdout(sys.stderr):
            nodes = sorted(ray.nodes(), key=lambda node: node["NodeManagerHostname"])
            here = ray.get_runtime_context().get_node_id()
            path = None if run_dir is None else os.path.abspath(os.path.expanduser(run_dir))
            checks = [_reached(address, nodes, getattr(context, "dashboard_url", "") or "")]
            try:
                home = here if path is None else home_node(nodes, here, Path(path))
            except InvalidValueError as error:
                checks.append(Check("home", ERROR, str(error), f"correct {HOME}, or unset it"))
                home = here
            hosts, silent = _ask(nodes, home, path, until, clean)
        return Diagnosis([*checks, *examine(hosts, silent)], hosts)
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


def _reached(address: str, nodes: Sequence[Mapping[str, Any]], dashboard: str) -> Check:
    """How the cluster is reached, without any secret."""
    alive = sum(node["Alive"] for node in nodes)
    mode = os.environ.get("RAY_AUTH_MODE", "Ray's default")
    found = f"{address}, {alive} living node{'s' * (alive != 1)}, authentication: {mode}"
    if dashboard:
        return Check("cluster", OK, f"{found}, dashboard and job server: {dashboard}")
    return Check(
        "cluster", NOTE, f"{found}, no dashboard", "cluster/job.sh needs it: install ray[default] there"
    )


def _ask(
    nodes: Sequence[Mapping[str, Any]], home: str, path: str | None, until: float, clean: bool
) -> tuple[list[Facts], dict[str, str]]:
    """The facts of all nodes, the home first, and why nodes have none.

    `until`: when this is over, by the monotonic clock.
    """
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: node["NodeID"] != home)
    name = {node["NodeID"]: str(node["NodeManagerHostname"]) for node in nodes}
    silent = {name[node["NodeID"]]: "the node is dead" for node in nodes if not node["Alive"]}
    for node in alive:
        silent.pop(name[node["NodeID"]], None)  # it has come again
    actors = _probes([node["NodeID"] for node in alive])
    address = alive[0]["NodeManagerAddress"]
    hosts: list[Facts] = []
    try:
        directory, beacon, port = None, None, 0
        try:
            directory, beacon, port = ray.get(
                actors[home].show.remote(path, address), timeout=_left(until) / 2
            )
        except NotADirectoryError as error:
            raise not_a_directory(error.cause if isinstance(error, RayTaskError) else error) from None
        except RayError as error:
            silent[name[home]] = _short(error)
        facts = {
            actors[node["NodeID"]].facts.remote(
                directory,
                beacon,
                watch_s=WATCH_S if beacon else 0.0,
                answer_s=_left(until) - EXCHANGE_S - TORCH_AHEAD_S,
                gpus=node["Resources"].get("GPU", 0.0),
                clean=clean,
            ): node
            for node in alive
        }
        found = _answers(facts, until - EXCHANGE_S, silent, name)
        others = {one: actors[one] for one in found if one != home}
        ways = _exchanges(others, address, port, until) if port else {}
        for node in alive:
            if (one := node["NodeID"]) in found:
                offered = node["Resources"]
                more = {"node_id": one, "ray_gpus": offered.get("GPU", 0.0), "is_head": HEAD in offered}
                more |= {"why_home": _why_home(node)} if one == home else {}
                # Without the home, no directory can be compared with its one.
                more |= {"directory": None} if home not in found else {}
                hosts.append(found[one] | ways.get(one, {}) | more)
    finally:
        with suppress(RayError):
            ray.get(actors[home].hide.remote(), timeout=1.0)
        for actor in actors.values():
            ray.kill(actor)
    return hosts, silent


def _left(until: float) -> float:
    return max(0.1, until - time.monotonic())


def _short(error: Exception) -> str:
    return NO_ANSWER if isinstance(error, GetTimeoutError) else " ".join(str(error).split())[:200]


def _why_home(node: Mapping[str, Any]) -> str:
    if os.environ.get(HOME):
        return f"which {HOME} names"
    return "the head of the cluster" if HEAD in node["Resources"] else "where this ran"


def _probes(nodes: Sequence[str]) -> dict[str, Any]:
    """An actor on each node, which is sent by value: our package may be missing there."""
    cloudpickle.register_pickle_by_value(host_facts)
    try:
        # The home answers calls while it takes its own facts.
        kind = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(host_facts.Probe)
        return {
            node: kind.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
            for node in nodes
        }
    finally:
        cloudpickle.unregister_pickle_by_value(host_facts)


def _answers(
    asked: Mapping[Any, Mapping[str, Any]], until: float, silent: dict[str, str], name: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The facts by node; `silent` gets the others."""
    done, late = ray.wait([*asked], num_returns=len(asked), timeout=_left(until))
    found = {}
    for one in late:
        silent[name[asked[one]["NodeID"]]] = NO_ANSWER
    for one in done:
        node = asked[one]["NodeID"]
        try:
            found[node] = ray.get(one, timeout=_left(until))
        except RayError as error:
            silent[name[node]] = _short(error)
    return found


def _exchanges(actors: Mapping[str, Any], address: str, port: int, until: float) -> dict[str, dict[str, Any]]:
    """The way of each node to the home, a few at once; those for which there was time."""
    waiting, running, found = list(actors), dict[Any, str](), dict[str, dict[str, Any]]()
    while (waiting or running) and time.monotonic() < until:
        while waiting and len(running) < AT_ONCE:
            node = waiting.pop(0)
            running[actors[node].exchange.remote(address, port)] = node
        for one in ray.wait([*running], num_returns=1, timeout=_left(until))[0]:
            node = running.pop(one)
            with suppress(RayError):
                found[node] = ray.get(one)
    return found
