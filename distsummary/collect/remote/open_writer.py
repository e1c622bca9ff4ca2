"""Opens the writer of a training thread: through a collector actor on Ray, or in this process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from distsummary.base.checks import check_choice
from distsummary.base.guard import guarded_log
from distsummary.base.processes import in_ray
from distsummary.base.publish import check_writable
from distsummary.errors import InvalidValueError
from distsummary.events.async_writer import AsyncWriter
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.rundir import topology as topologies

logger = guarded_log(__name__)

RANK, NODE, PROCESS = COLLECTORS = ("rank", "node", "process")
# The time between calls of a collector, because a call costs the rank as much as 20 written steps.
INTERVAL_S = 0.3
MANY = 8  # ranks on a node, which share a collector by default


def check_collectors(collectors: str | None) -> str | None:
    """`collectors`; raises InvalidValueError if it, or DISTSUMMARY_COLLECTORS, is no choice."""
    if collectors is not None:
        check_choice("collectors", collectors, COLLECTORS)
    if wanted := topologies.wanted_collectors():
        check_choice(f"the environment variable {topologies.COLLECTORS}", wanted, COLLECTORS)
    return collectors


def refuse_unconnected(collectors: str | None) -> None:
    """Raise InvalidValueError for a collector on Ray in a process that is not connected to it."""
    if collectors in (RANK, NODE) and not in_ray():
        raise InvalidValueError(
            f"collectors={collectors!r} needs Ray, but this process is not connected to it; start the ranks "
            "by ds.launch, call ray.init() first, or leave collectors out"
        )


def chosen_collectors(collectors: str | None, ranks: int) -> str:
    """Which of COLLECTORS serves a process that is connected to Ray and one of so many ranks on its node."""
    return collectors or topologies.wanted_collectors() or (RANK if ranks < MANY else NODE)


def open_writer(
    spec: WriterSpec,
    collectors: str | None,
    *,
    ranks: int = 1,
    is_timed: bool = False,
) -> tuple[AsyncWriter, Callable[[str], Path]]:
    """Opens the writer that a rank's training thread uses.

    collectors: who writes the files under Ray: "rank": an actor of this process, on the same node; "node":
        one actor for all ranks of the node; "process": this process does. None: the environment variable
        DISTSUMMARY_COLLECTORS has one of these values, or it is "rank", and "node" with MANY ranks or more.
        Without Ray, this process does.
    ranks: how many ranks this node has. is_timed: see AsyncWriter.

    Returns the writer, and a function that returns the newest file of a dialect, see `RankWriter.path`.

    Raises RunDirError if the directory cannot be made or written, InvalidValueError for "rank" or "node"
    without Ray.
    """
    refuse_unconnected(collectors)
    place = chosen_collectors(collectors, ranks) if in_ray() else PROCESS
    if place != PROCESS:
        # Ray is imported only where it is used.
        from distsummary.collect.remote.actor import missing_room

        if reason := missing_room():
            logger.warning("rank=%d writes its files in its own process: %s", spec.rank, reason)
            place = PROCESS
    if place == PROCESS:
        own = RankWriter(spec)
        return AsyncWriter(own, spec, is_timed=is_timed), own.path
    from distsummary.collect.remote.actor_writer import RemoteWriter

    # The collector opens the files later; a directory that cannot be written is refused now.
    check_writable(Path(spec.directory))
    spec = replace(spec, interval_s=INTERVAL_S)
    remote = RemoteWriter(spec, scope=place)
    return AsyncWriter(remote, spec, is_timed=is_timed), remote.path
