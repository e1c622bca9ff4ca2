"""Lists which processes and Ray actors record a run: ranks, their collectors and the aggregator, by node."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from distsummary.aggregate.actor_aggregator import actor_name
from distsummary.base.actor_private import actors
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import RankState

Actor = Mapping[str, Any]  # as Ray's table has it


def actor_lines(run_dir: RunDir, ranks: Sequence[RankState]) -> list[str]:
    """A line for each rank, with its collector, and one for the aggregator; also of those that have ended.

    `ranks` are those of a run in the cluster that this process is connected to.
    """
    listed = actors()
    if listed is None:
        return ["this version of Ray does not list its actors; ranks are listed by: distsummary status"]
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    return lines_of(ranks, listed, hosts, aggregator=actor_name(run_dir))


def lines_of(
    ranks: Iterable[RankState], actors: Sequence[Actor], hosts: Mapping[str, str], *, aggregator: str
) -> list[str]:
    """See `actor_lines`. `hosts`: node id -> its name; `aggregator`: the name of that actor."""

    def host_of(actor: Actor) -> str:
        return str(hosts.get(actor["Address"]["NodeID"], actor["Address"]["IPAddress"]))

    def said(actor: Actor) -> str:
        name = actor["Name"] or f"{actor['ActorClassName']} {actor['ActorID'][:12]}"
        return f"actor {name}, pid {actor['Pid']} on {host_of(actor)}"

    collectors = [actor for actor in actors if "Collector" in actor["ActorClassName"]]
    lines = []
    for rank in ranks:
        own = [actor for actor in actors if actor["Pid"] == rank.pid]
        # Processes of several nodes may have the same number; the names of a host may differ, too.
        own = [actor for actor in own if host_of(actor) == rank.host] or own
        # The collector that the rank itself owns or, without one, that of its node.
        serving = [
            actor for one in own for actor in collectors if actor["OwnerAddress"] == one["Address"]
        ] or [
            actor
            for one in own
            for actor in collectors
            if actor["IsDetached"] and actor["Address"]["NodeID"] == one["Address"]["NodeID"]
        ]
        collector = f"collector {said(serving[-1])}" if serving else "writes in its own process"
        lines.append(f"rank {rank.rank:<6} pid {rank.pid} on {rank.host}; {collector}")
    found = [actor for actor in actors if actor["Name"] == aggregator]
    lines.append(f"aggregator  {said(found[-1]) if found else 'none'}")
    return lines
