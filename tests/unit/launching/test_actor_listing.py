"""The lines about who records a run, from the table of actors that Ray keeps."""

from distsummary.launching.actor_listing import lines_of
from distsummary.rundir.states import RankState

HOSTS = {"n0": "alpha", "n1": "beta"}


def actor(kind: str, pid: int, *, node: str = "n0", owner: int = 1, name: str = "") -> dict:
    def place(pid: int) -> dict:
        return {"IPAddress": "10.0.0.1", "Port": 40_000 + pid, "NodeID": node}

    return {
        "ActorID": f"{pid:032x}", "ActorClassName": kind, "Name": name, "IsDetached": bool(name),
        "Address": place(pid), "OwnerAddress": place(owner), "Pid": pid,
    }  # fmt: skip


def test_each_rank_is_listed_with_its_collector_by_name_and_node() -> None:
    ranks = [
        RankState(role="train", rank=number, attempt=0, state="finished", host=host, pid=pid)
        for number, (host, pid) in enumerate([("alpha", 10), ("alpha", 11), ("beta", 12), ("beta", 13)])
    ]
    actors = [
        actor("_Rank", 10),
        actor("_Rank", 11),
        actor("_Rank", 12, node="n1"),
        actor("_Rank", 13, node="n1"),
        actor("RankCollector", 20, owner=10),
        actor("RankCollector", 21, owner=10),  # the next one, after the first had died
        actor("CollectorActor", 30, node="n1", owner=12, name="collector-n1"),  # of all ranks of the node
        actor("_AggregatorActor", 40, owner=10, name="aggregator-ab"),
        actor("_AggregatorActor", 41, owner=10, name="aggregator-of-another-run"),
    ]
    assert lines_of(ranks, actors, HOSTS, aggregator="aggregator-ab") == [
        "rank 0      pid 10 on alpha; collector actor RankCollector 000000000000, pid 21 on alpha",
        "rank 1      pid 11 on alpha; writes in its own process",
        "rank 2      pid 12 on beta; collector actor collector-n1, pid 30 on beta",
        "rank 3      pid 13 on beta; collector actor collector-n1, pid 30 on beta",
        "aggregator  actor aggregator-ab, pid 40 on alpha",
    ]
    assert lines_of([], actors, HOSTS, aggregator="aggregator-cd") == ["aggregator  none"]


def test_processes_of_two_nodes_may_have_the_same_number() -> None:
    ranks = [
        RankState(role="train", rank=number, attempt=0, state="finished", host=host, pid=10)
        for number, host in enumerate(["alpha", "beta"])
    ]
    actors = [
        actor("_Rank", 10),
        actor("_Rank", 10, node="n1"),
        actor("CollectorActor", 30, name="collector-n0"),
        actor("CollectorActor", 31, node="n1", name="collector-n1"),
    ]
    assert [line.split(";")[1] for line in lines_of(ranks, actors, HOSTS, aggregator="")[:2]] == [
        " collector actor collector-n0, pid 30 on alpha",
        " collector actor collector-n1, pid 31 on beta",
    ]
