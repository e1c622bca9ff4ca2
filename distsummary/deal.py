"""The deal: which ranks divide the recording of equal values among them, from which step on.

Parameters that are equal on several ranks are recorded by one of them. Before a deal, each rank works out
its share by itself, from the whole world and its own number of steps. The aggregator knows more: the ranks
that live, and one number of steps for all. It writes a deal into run.json, and each rank follows it from the
deal's first step on. Its own share of a deal, a rank computes by `collect/plan.py`, as before.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from distsummary.topology import DATA_AXES

BEAT_S = 5.0  # seconds between two heartbeats of a rank
NOTICE_BEATS = 2  # a deal begins no earlier than the steps that the fastest rank makes in so many beats
WORLD_S = 10.0  # the first deal waits this long for ranks that have not registered


class Heartbeat(NamedTuple):
    """What a rank tells about itself, every BEAT_S.

    `step`: the newest recorded one; 0 before the first. `phase`: what the process does, such as "training".
    `step_s`: seconds a step, the mean of the last 30 s; 0 if none was made. `total`: how many steps the
    training will have by its loader; None if unknown. `dropped`: how many values were dropped so far.
    `own_ms`, `wait_ms`: milliseconds a step that the rank worked by itself and that it waited for others, the
    means of the same steps as `step_s`; None if they are not measured.
    """

    step: int = 0
    phase: str = ""
    step_s: float = 0.0
    total: int | None = None
    dropped: int = 0
    own_ms: float | None = None
    wait_ms: float | None = None


class Deal(NamedTuple):
    """How ranks divide values that are equal on them.

    `version` counts the deals of an attempt from 1. `total`: steps of the training for all ranks; None if no
    rank knows. `groups`: the ranks of each group have the same values and divide them; every living rank is
    in one group. `since`: the first step at which the deal holds.
    """

    version: int
    total: int | None
    groups: tuple[tuple[int, ...], ...]
    since: int

    def place(self, rank: int) -> tuple[int, int] | None:
        """The rank's index in its group and the size of the group; None if it is in no group."""
        for group in self.groups:
            if rank in group:
                return group.index(rank), len(group)
        return None

    def as_json(self) -> dict[str, Any]:
        """For run.json."""
        return self._asdict()

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned, after a way through JSON; raises KeyError, TypeError or ValueError."""
        groups = tuple(tuple(int(rank) for rank in group) for group in stored["groups"])
        total = stored["total"]
        return cls(
            int(stored["version"]), None if total is None else int(total), groups, int(stored["since"])
        )


def dealing_groups(meshes: Mapping[int, Mapping[str, tuple[int, int]]]) -> tuple[tuple[int, ...], ...]:
    """The ranks that have the same replicated values, as rising tuples.

    Without a mesh, these are all ranks; with a mesh, those whose coordinates differ only along data axes.

    Args:
        meshes: rank -> its mesh; see Topology.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for rank, mesh in sorted(meshes.items()):
        others = sorted((axis, place[0]) for axis, place in mesh.items() if axis not in DATA_AXES)
        groups[tuple(others)].append(rank)
    return tuple(sorted(map(tuple, groups.values())))


def next_deal(
    previous: Deal | None,
    meshes: Mapping[int, Mapping[str, tuple[int, int]]],
    heartbeats: Mapping[int, Heartbeat],
) -> Deal | None:
    """The deal among the living ranks; None if the previous one still holds.

    It begins late enough for every rank to learn of it before: NOTICE_BEATS heartbeats after the newest step,
    at the pace of the fastest rank. The total is the smallest that a rank tells.

    Args:
        meshes: rank -> its mesh, of the living ranks.
        heartbeats: rank -> its newest, of the living ranks.
    """
    groups = dealing_groups(meshes)
    totals = [beat.total for beat in heartbeats.values() if beat.total is not None]
    total = min(totals, default=None)
    if not groups or (previous is not None and (previous.groups, previous.total) == (groups, total)):
        return None
    newest = max((beat.step for beat in heartbeats.values()), default=0)
    paces = [beat.step_s for beat in heartbeats.values() if beat.step_s > 0]
    notice = math.ceil(NOTICE_BEATS * BEAT_S / min(paces)) if paces else 0
    since = max(newest + notice + 1, previous.since if previous else 1)
    return Deal(previous.version + 1 if previous else 1, total, groups, since)
