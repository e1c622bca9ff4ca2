"""The deal: which ranks divide the recording of equal values among them, from which step on.

Parameters that are equal on several ranks are recorded by one of them. The first deal is among the whole
world, each rank with its own number of steps: a rank follows it without asking. The aggregator knows more:
the ranks that live, and one number of steps for all. It adds its deals to run.json, and each rank follows a
deal from the deal's first step on. A rank computes its shares of a deal by `collect/plan.py`, and reports
them (`rank_parts.py`).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from distsummary.rundir.timeouts import BEAT_S
from distsummary.rundir.topology import DATA_AXES

NOTICE_BEATS = 2  # a deal begins no earlier than the steps that the fastest rank makes in so many beats


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks that divide replicated values among themselves: how many there are, and this rank's index."""

    index: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Step 1, and the multiples of `every` below `stop` (None: no limit).

    With `doubling`, only the 1st, 2nd, 4th, 8th ... of the multiples.
    """

    every: int
    stop: int | None = None
    doubling: bool = False

    def count(self, step: int) -> int:
        """How many of these steps are <= `step`."""
        if step < 1:
            return 0
        multiples = self._multiples(step)
        # Step 1 is one of the multiples only if `every` is 1.
        return max(1, multiples) if self.every == 1 else 1 + multiples

    def after(self, step: int) -> float:
        """The first of these steps after `step`, infinity if there is none."""
        if step < 1:
            return 1
        # The number of multiples so far, without regard to `stop`.
        number = step // self.every
        following = self.every * (1 << number.bit_length() if self.doubling else number + 1)
        return following if self.stop is None or following < self.stop else math.inf

    def due(self, last: int | None, step: int) -> bool:
        """Whether one of these steps is after `last` and at most `step`; True if `last` is None."""
        return last is None or step >= self.after(last)

    def turn(self, step: int, group: Group) -> bool:
        """Whether it is this rank's turn: the ranks of `group` take these steps in turn.

        If `step` itself is not one of these steps, the last one before it decides: exactly one rank records.
        """
        return (self.count(step) - 1) % group.size == group.index

    def holds_multiple(self, step: int) -> bool:
        """Whether `step` itself is one of the multiples (step 1 only if `every` is 1)."""
        return step % self.every == 0 and self._multiples(step) > self._multiples(step - 1)

    def _multiples(self, step: int) -> int:
        last = step if self.stop is None else min(step, self.stop - 1)
        return (last // self.every).bit_length() if self.doubling else last // self.every


# The counters of `Heartbeat.spent_ms`: from the begin of the process to its registration; on recording; on
# checkpoints; on evaluations.
SPENT = START_MS, RECORDING_MS, CHECKPOINT_MS, EVALUATION_MS = (
    *("start_ms", "recording_ms", "checkpoint_ms", "evaluation_ms"),
)


class LongStep(NamedTuple):
    """Where a rank was in a step that took long: its phase, and the line of the user's code."""

    step: int
    phase: str
    line: str


class Heartbeat(NamedTuple):
    """What a rank reports about itself, every BEAT_S.

    `step`: the newest recorded one; 0 before the first. `phase`: what the process does, such as "training".
    `step_s`: seconds a step, the mean of the last 30 s; 0 if none was made. `total`: how many steps the
    training will have by its loader; None if unknown. `dropped`: how many values were dropped so far.
    `own_ms`, `wait_ms`: milliseconds a step that the rank worked by itself and that it waited for others, the
    means of the same steps as `step_s`; None if they are not measured. `spent_ms`: milliseconds of the
    attempt so far that its loop spent on other things than steps, by SPENT. `memory_gib`: the most memory
    that the process held so far. `seen`: where it was in its newest long steps.
    """

    step: int = 0
    phase: str = ""
    step_s: float = 0.0
    total: int | None = None
    dropped: int = 0
    spent_ms: Mapping[str, int] = {}
    own_ms: float | None = None
    wait_ms: float | None = None
    memory_gib: float = 0.0
    seen: Sequence[LongStep] = ()


class Share(NamedTuple):
    """What one rank records of values that the ranks divide, all of one kind.

    `values`: "histogram", "tensor" or "gradient". `parameters`: their names. `steps`: when they are due.
    `turn`: the ranks that take these steps in turn, one all parameters of a step; None: the rank records its
    parameters at all of them.
    """

    values: str
    parameters: tuple[str, ...]
    steps: Steps
    turn: Group | None = None

    def between(self, since: int, until: int, *, is_first: bool) -> list[int]:
        """The steps from `since` to `until` at which the rank records them.

        `is_first`: `since` is the first step that the rank recorded, at which everything is due.
        """
        found = [since] if is_first else []
        step = self.steps.after(since if is_first else since - 1)
        while step <= until:
            found.append(int(step))
            step = self.steps.after(int(step))
        return [step for step in found if self.turn is None or self.steps.turn(step, self.turn)]

    def as_json(self) -> dict[str, Any]:
        """For the file of the rank and for run.json; what is None or False is left out."""
        steps = {name: value for name, value in asdict(self.steps).items() if value}
        turn = {} if self.turn is None else {"turn": asdict(self.turn)}
        return {"values": self.values, "parameters": [*self.parameters], "steps": steps, **turn}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned; raises as `Deal.from_json`."""
        turn, steps = stored.get("turn"), stored["steps"]
        return cls(
            str(stored["values"]),
            tuple(map(str, stored["parameters"])),
            Steps(every=steps["every"], stop=steps.get("stop"), doubling=steps.get("doubling", False)),
            None if turn is None else Group(index=turn["index"], size=turn["size"]),
        )


class Part(NamedTuple):
    """One rank's part in a deal, as it was in force from step `since` on: until the rank's next one.

    `deal` is the version of the deal; `total` the steps of the training by which the steps were planned.
    """

    deal: int
    since: int
    total: int | None
    shares: tuple[Share, ...]

    def as_json(self) -> dict[str, Any]:
        """For the file of the rank."""
        return self._asdict() | {"shares": [share.as_json() for share in self.shares]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What `as_json` returned; raises as `Deal.from_json`."""
        total = stored["total"]
        return cls(
            int(stored["deal"]),
            int(stored["since"]),
            None if total is None else int(total),
            tuple(map(Share.from_json, stored["shares"])),
        )


class Deal(NamedTuple):
    """How ranks divide values that are equal on them.

    `version` counts the deals of an attempt from 1. `total`: steps of the training for all ranks; None if no
    rank has reported them, in the first deal also if the ranks differ. `groups`: the ranks of each group have
    the same values and divide them; every living rank is in one group. `since`: the first step at which the
    deal holds.
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
        return self._asdict() | {"groups": [[*group] for group in self.groups]}

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


def deals_in(entry: Mapping[str, Any]) -> tuple[Deal, ...]:
    """The deals in an attempt's entry of run.json; raises as `Deal.from_json`."""
    return tuple(map(Deal.from_json, entry.get("deals", ())))


FIRST = 1  # the version of the first deal


def first_deal(
    world_size: int, meshes: Mapping[int, Mapping[str, tuple[int, int]]], totals: Collection[int | None]
) -> Deal:
    """The deal that holds from the first step on: among all ranks, also those that are not there yet.

    Args:
        meshes: rank -> its mesh, of the ranks that are there. totals: of these, the steps of their trainings.
    """
    groups = dealing_groups({rank: meshes.get(rank, {}) for rank in range(world_size)})
    return Deal(FIRST, next(iter(totals)) if len({*totals}) == 1 else None, groups, 1)


def next_deal(
    previous: Deal,
    meshes: Mapping[int, Mapping[str, tuple[int, int]]],
    heartbeats: Mapping[int, Heartbeat],
) -> Deal | None:
    """The deal among the living ranks; None if the previous one still holds.

    It begins late enough for every rank to learn of it before: NOTICE_BEATS heartbeats after the newest step,
    at the pace of the fastest rank. The total is the smallest that a rank reports.

    Args:
        meshes: rank -> its mesh, of the living ranks.
        heartbeats: rank -> its newest, of the living ranks.
    """
    groups = dealing_groups(meshes)
    totals = [beat.total for beat in heartbeats.values() if beat.total is not None]
    total = min(totals, default=None)
    if not groups or (previous.groups, previous.total) == (groups, total):
        return None
    newest = max((beat.step for beat in heartbeats.values()), default=0)
    paces = [beat.step_s for beat in heartbeats.values() if beat.step_s > 0]
    notice = math.ceil(NOTICE_BEATS * BEAT_S / min(paces)) if paces else 0
    since = max(newest + notice + 1, previous.since)
    return Deal(previous.version + 1, total, groups, since)


LISTED = 1024  # names of parameters in run.json, which all ranks read at each heartbeat
RULE = (
    "the largest parameter first, each to the rank of the group that has the fewest bytes; the names are in "
    "the parts.json of each rank"
)


def with_parts(
    deals: Sequence[Deal], parts: Mapping[int, Sequence[Part]], *, is_over: bool
) -> list[dict[str, Any]]:
    """The deals for run.json: each with the parts of the ranks in it, as they were in force.

    A deal that no rank has followed is left out if the training is over. With more than LISTED names, their
    number and the rule stand for them.

    Args:
        parts: rank -> its parts in all deals, in their order.
    """
    named = sum(len(share.parameters) for of in parts.values() for part in of for share in part.shares)
    found = []
    for deal in deals:
        ranks = {rank: [part for part in of if part.deal == deal.version] for rank, of in parts.items()}
        stored: dict[str, Any] = deal.as_json() | {
            "ranks": {str(rank): [_in_short(part, named) for part in of] for rank, of in ranks.items() if of}
        }
        if named > LISTED:
            stored["rule"] = RULE
        if stored["ranks"] or not is_over:
            found.append(stored)
    return found


def _in_short(part: Part, named: int) -> dict[str, Any]:
    shares = [share.as_json() for share in part.shares if share.parameters]
    if named > LISTED:
        shares = [share | {"parameters": len(share["parameters"])} for share in shares]
    return {"since": part.since, "total": part.total, "shares": shares}
