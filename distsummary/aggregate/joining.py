"""How a rank joins its run: by Ray's aggregator, with an aggregator process, or by the manifest alone."""

from distsummary.aggregate.alone import LoneRank
from distsummary.aggregate.registrar import first_free_attempt
from distsummary.base.processes import in_ray
from distsummary.rundir.coordination import Coordinator, LocalCoordinator
from distsummary.rundir.run_dir import SHIP_BYTES, RunDir
from distsummary.rundir.topology import Topology


def coordinator(
    run_dir: RunDir,
    topology: Topology,
    *,
    aggregate: bool = True,
    waits_at_exit: bool = False,
    ship_bytes: int = SHIP_BYTES,
) -> Coordinator:
    """The coordinator of a rank.

    With `aggregate`, this is under Ray a client of the run's aggregator, elsewhere for several ranks one that
    starts the aggregator as a child process of rank 0; otherwise the ranks use only the manifest. A training
    of one rank is judged in its own process.

    `waits_at_exit`: see `ProcessCoordinator`. `ship_bytes`: see `Record`.
    """
    found: Coordinator = LocalCoordinator(run_dir, lambda role: first_free_attempt(run_dir, role))
    if aggregate and in_ray():
        # Imported only here, because it imports Ray.
        from distsummary.aggregate.actor import AggregatorClient

        found = AggregatorClient(run_dir, ship_bytes=ship_bytes)
    elif aggregate and topology.world_size > 1:
        from distsummary.aggregate.process import ProcessCoordinator

        found = ProcessCoordinator(run_dir, waits_at_exit=waits_at_exit)
    is_judged_here = topology.world_size == 1 and topology.role == "train"
    return LoneRank(found, run_dir) if is_judged_here else found
