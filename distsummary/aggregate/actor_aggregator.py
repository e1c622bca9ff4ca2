"""The aggregator as a named Ray actor, which is also the home of a run whose hosts share no directory."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distsummary.aggregate.aggregator import Aggregator
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.attempts import note_fields
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import Topology
from distsummary.storage.home import DirectoryHome, Entered, HostState, News, Seen
from distsummary.storage.place import home_node
from distsummary.storage.spool import Change

NAMESPACE = "distsummary"
# Ray's concurrency groups of the calls that are answered even during a merge, and of those from hosts that do
# not see the run dir.
ASIDE, AWAY = "aside", "away"


class _AggregatorActor(Aggregator):
    """An Aggregator that ends itself by `ray.kill`: Ray would restart an actor that merely exits."""

    def __init__(self, run_dir: str) -> None:
        self._home = DirectoryHome(RunDir(run_dir))
        super().__init__(run_dir, on_end=self._end)

    def _end(self) -> None:
        self._home.close()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator]  # of Ray
    def serves(self, launch_id: str) -> bool:
        """See Aggregator. A call cannot choose the group itself: Ray Client refuses that."""
        return super().serves(launch_id)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def claim(self, topology: Topology, attempt: int) -> None:
        """See DirectoryHome."""
        self._home.claim(topology, attempt)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def enter(self, directory: str, attempt: int) -> Entered:
        """See Home."""
        self.renew()
        return self._home.enter(directory, attempt)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def exchange(
        self, host: HostState, held: Mapping[str, int], changes: Sequence[Change], seen: Seen
    ) -> News:
        """See Home."""
        self.renew()
        return self._home.exchange(host, held, changes, seen)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def leave(self, directory: str) -> None:
        """See Home."""
        self._home.leave(directory)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def note(self, topology: Topology, attempt: int, fields: Mapping[str, object]) -> None:
        """See Coordinator."""
        note_fields(self._run_dir, (topology.role, attempt), fields)

    @ray.method(concurrency_group=AWAY)  # type: ignore[untyped-decorator]  # of Ray
    def report(self, attempt: int, verdict: Verdict) -> bool:
        """Report what a rank says, as `Alerts.report`."""
        return self._alerts.report(attempt, verdict)


def actor_name(run_dir: RunDir, kind: str = "aggregator", node: str = "") -> str:
    """The name of the run's aggregator, or of its ship on a node, in the namespace `distsummary`."""
    return f"{kind}-" + hashlib.blake2b(f"{run_dir.home}{node}".encode(), digest_size=12).hexdigest()


def start_aggregator(run_dir: RunDir) -> Any:
    """The run's aggregator, started if there is none; it is detached, because it must outlive each rank."""
    here = ray.get_runtime_context().get_node_id()
    # A rank that sees the run dir has its aggregator preferably on its own node.
    node = home_node(ray.nodes(), here, run_dir.home) if run_dir.is_away else here
    return start_on(
        node,
        not run_dir.is_away,
        ray.remote(concurrency_groups={ASIDE: 1, AWAY: 8})(_AggregatorActor),
        name=actor_name(run_dir),
        max_restarts=-1,
        max_concurrency=1,
    ).remote(str(run_dir.home))


def start_on(node: str, is_soft: bool, actor: Any, **options: Any) -> Any:
    """A detached actor of the run with these options, on a node, or on any other if that cannot take it."""
    options |= {
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        # It reserves no CPU: a cluster whose CPUs are all taken by ranks can still start it.
        "num_cpus": 0,
        "max_task_retries": 0,
    }
    try:
        others: dict[str, Any] = {"fallback_strategy": [{"label_selector": {}}]} if is_soft else {}
        return actor.options(**options, label_selector={"ray.io/node-id": node}, **others)
    except (TypeError, ValueError):
        # Ray has this option since 2.51; before, a soft preference does not keep it from any other node.
        strategy = NodeAffinitySchedulingStrategy(node, soft=is_soft)
        return actor.options(**options, scheduling_strategy=strategy)
