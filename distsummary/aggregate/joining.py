"""How a rank is admitted to its run and joins it: by an aggregator, or by the manifest alone."""

import os
from collections.abc import Callable

from distsummary.aggregate.alone import LoneRank
from distsummary.aggregate.registrar import first_free_attempt
from distsummary.base.processes import in_ray
from distsummary.rundir.admission import Admission, admit
from distsummary.rundir.coordination import Coordinator, LocalCoordinator
from distsummary.rundir.run_dir import SHIP_BYTES, RunDir
from distsummary.rundir.topology import Topology


def admitted(
    run_dir: str | os.PathLike[str],
    topology: Topology,
    make: Callable[[str | os.PathLike[str], Topology], RunDir],
    *,
    on_existing: str,
    resumes: bool,
    door: str,
    is_private: bool,
    aggregate: bool = True,
) -> Admission:
    """Where a rank records: decided at the home of the run, which under Ray may be another node.

    Raises what `make` and `admit` raise.

    Args:
        run_dir: what the user named. make: makes it.
        on_existing, resumes, door: see `admit`. is_private: its owner alone may read it.
    """
    found = None
    if aggregate and topology.world_size > 1 and in_ray():
        # Imported only here, because it imports Ray.
        from distsummary.aggregate.actor_arrival import arrive

        found = arrive(
            run_dir,
            topology,
            make,
            on_existing=on_existing,
            resumes=resumes,
            door=door,
            is_private=is_private,
        )
    return found or admit(
        make(run_dir, topology), topology, on_existing=on_existing, resumes=resumes, door=door
    )


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
