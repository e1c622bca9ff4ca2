"""Judge: verdicts on the ranks of a training, from what they recorded at each step.

It is given the same steps in the same order while a training runs and afterwards, and says the same.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.slow import FIRST, PHASES, SKIPPED, Slow, SlowRanks
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.records import PHASE_TAGS
from distsummary.topology import EQUAL_AXES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


# The places in `OwnTimes.times`: CPU time, blocked, blocked where it may wait for other ranks, when its
# collectives were begun, see `training/arrivals.py`, and CPU time between backward and the optimizer.
_CPU, _BLOCKED, _SHARED, _ARRIVAL, _WAITING = range(5)
_MEASURES = {"cpu_ms": _CPU, "blocked_ms": _BLOCKED, "wait_ms": _SHARED, "arrival_ms": _ARRIVAL}
# Phases in which the thread computes. It is blocked there for long now and then, by a lock that another
# thread holds while the host runs something else; of so many steps, what counts is the least but LOWEST: now
# and then a thread seems to have slept less, and those that did not would look slow.
BLOCKED_STEPS, LOWEST = 20, 3
# Looks at which a rank must begin collectives late, and by how many median deviations of the ranks.
# What is less than LATE_SHARE of the time that a whole step takes holds up nobody for long.
LOOKS, SPREADS, LATE_SHARE = 2, 3.0, 0.03
_COMPUTING = [place for place, phase in enumerate(PHASES) if phase not in ("data", "checkpoint", "host")]
_DATA, _BACKWARD, _QUEUE = PHASES.index("data"), PHASES.index("backward"), PHASES.index("host")
# A thread that waits is woken now and then, which takes twice as long on a host that is busy meanwhile.
WAITING_FACTOR = 2.0
_EVERY, _ARRIVALS = len(PHASES), len(PHASES) + 1  # what is told besides times
_WHAT = {  # what a phase does, where its name does not say it
    "data": "loading data",
    "optimizer": "the optimizer",
    "python": "garbage collection",
    "recording": "recording (callbacks, copies of arrays)",
    "checkpoint": "saving checkpoints",
    "rest": "what is outside of data, forward, backward and optimizer",
}


class OwnTimes(NamedTuple):
    """What R ranks did at a step: `times` (R, 5, P) are milliseconds in PHASES.

    They are the CPU time, the blocked time, that in which the rank may have waited for others, how late it
    began its collectives, and, under "backward", the CPU time while it waited for gradients of others.
    Under "host" stands the time in the run queue. `ranks` (R,) rise. `every` (R,):
    the next step that the rank tells is the next multiple of this. `arrivals` (R,): of how many collectives
    it tells how late they were begun; 0: of none at this step.
    """

    step: int
    ranks: Ints
    times: Floats
    every: Ints
    arrivals: Ints


def own_times(
    tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
) -> Iterator[OwnTimes]:
    """The ranks' own times at each step, in rising order, from N recorded scalars in any order.

    Args:
        tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
    """
    columns = np.array([_column(tag) for tag in tags], np.int64).reshape(-1, 2)
    mine = columns[which, 1] >= 0
    if not mine.any():
        return
    columns, ranks, steps, values = columns[which[mine]], ranks[mine], steps[mine], values[mine]
    told, place = np.unique(np.stack([steps, ranks], axis=1), axis=0, return_inverse=True)
    place, is_time = place.reshape(-1), columns[:, 1] < len(PHASES)
    times = np.zeros((len(told), _WAITING + 1, len(PHASES)))
    np.add.at(times, (place[is_time], columns[is_time, 0], columns[is_time, 1]), values[is_time])
    every, arrivals = np.ones(len(told), np.int64), np.zeros(len(told), np.int64)
    is_every, is_arrivals = columns[:, 1] == _EVERY, columns[:, 1] == _ARRIVALS
    every[place[is_every]] = np.maximum(values[is_every], 1)
    arrivals[place[is_arrivals]] = values[is_arrivals]
    starts = np.flatnonzero(np.append(True, np.diff(told[:, 0]) != 0))
    for start, end in zip(starts, [*starts[1:], len(told)], strict=True):
        yield OwnTimes(
            int(told[start, 0]), told[start:end, 1], times[start:end], every[start:end], arrivals[start:end]
        )


def _column(tag: str) -> tuple[int, int]:
    """Where a tag belongs in `OwnTimes.times`; (0, _EVERY) and (0, _ARRIVALS): there; (-1, -1): nowhere."""
    phase, _, measure = tag.removeprefix(PHASE_TAGS).partition("/")
    if not tag.startswith(PHASE_TAGS):
        return -1, -1
    if (phase, measure) == ("every", ""):
        return 0, _EVERY
    if (phase, measure) == ("arrivals", ""):
        return 0, _ARRIVALS
    if measure == "queue_ms":
        return _CPU, PHASES.index("host")
    if phase == "wait":  # what the thread computes meanwhile is part of backward
        return (_WAITING, _BACKWARD) if measure == "cpu_ms" else (-1, -1)
    if phase not in PHASES or measure not in _MEASURES:
        return -1, -1
    return _MEASURES[measure], PHASES.index(phase)


class Judge:
    """Judges the ranks of one attempt, step by step.

    Args:
        coordinates: of a rank: its coordinate on each axis of the mesh; empty if there is none. Only ranks
            that differ in nothing but EQUAL_AXES are compared.
    """

    def __init__(self, coordinates: Callable[[int], Mapping[str, int]]) -> None:
        self._coordinates = coordinates
        self._known: frozenset[int] = frozenset()
        self._peers: list[_Peers] = []

    def add(self, told: OwnTimes) -> list[Verdict]:
        """Judge a step, larger than those before; returns the verdicts that are new, and those that end."""
        if not self._known.issuperset(told.ranks.tolist()):
            self._group(self._known.union(told.ranks.tolist()))
        changed = []
        for peers in self._peers:
            changed += [_verdict(found, len(peers.ranks) - 1) for found in peers.add(told)]
        return changed

    def _group(self, ranks: frozenset[int]) -> None:
        """Divide the ranks into peers; what is known of those that were peers before stays."""
        groups = defaultdict[tuple[tuple[str, int], ...], list[int]](list)
        for rank in sorted(ranks):
            axes = self._coordinates(rank).items()
            groups[tuple(sorted(one for one in axes if one[0] not in EQUAL_AXES))].append(rank)
        old = {int(peers.ranks[0]): peers for peers in self._peers}
        self._peers = []
        for group in groups.values():
            known = next((old[rank] for rank in group if rank in old), None)
            if known is not None and set(group).issuperset(known.ranks.tolist()):
                known.join(group)
                self._peers.append(known)
            elif len(group) > 1:
                self._peers.append(_Peers(group))
        self._known = ranks


class _Peers:
    """The ranks that are compared with each other."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = np.array(ranks)
        self._slow = SlowRanks(ranks)
        self._next = np.zeros(len(ranks), np.int64)  # of each rank, the step that it tells next
        self._skipped = np.zeros(len(ranks), np.int64)  # so many of its steps are not compared
        # by how much each begins its collectives later in the computing phases (W, P), of the newest looks
        self._late = deque([np.zeros((len(ranks), len(_COMPUTING)))], maxlen=LOOKS)
        # of the newest steps: (W, computing phases), and (W,) in the run queue
        self._blocked: deque[Floats] = deque(maxlen=BLOCKED_STEPS)
        self._queued: deque[Floats] = deque(maxlen=BLOCKED_STEPS)
        self._steps_ms: deque[float] = deque(maxlen=BLOCKED_STEPS)  # the wall time of each

    def join(self, ranks: Sequence[int]) -> None:
        """Compare more ranks; `ranks` are all of them."""
        new = [index for index, rank in enumerate(ranks) if rank not in set(self.ranks.tolist())]
        for index in new:
            self.ranks = np.insert(self.ranks, index, ranks[index])
            self._next = np.insert(self._next, index, 0)
            self._skipped = np.insert(self._skipped, index, SKIPPED + FIRST)
            self._late = deque((np.insert(row, index, 0.0, axis=0) for row in self._late), LOOKS)
            blocked = (np.insert(row, index, np.nan, axis=0) for row in self._blocked)
            self._blocked = deque(blocked, BLOCKED_STEPS)
            self._queued = deque((np.insert(row, index, np.nan) for row in self._queued), BLOCKED_STEPS)
        if new:
            self._slow.join(ranks)

    def add(self, told: OwnTimes) -> list[Slow]:
        index = np.searchsorted(self.ranks, told.ranks)
        is_peer = self.ranks[np.minimum(index, len(self.ranks) - 1)] == told.ranks
        index, every = index[is_peer], told.every[is_peer]
        times = np.full((len(self.ranks), _WAITING + 1, len(PHASES)), np.nan)
        times[index] = told.times[is_peer]
        self._next[index] = (told.step // every + 1) * every
        # Not if a rank does not tell the step: what the others took at it says little. One that told nothing
        # when it should have is not waited for.
        is_awaited = self._next > told.step
        is_awaited[index] = False
        if is_awaited.any():
            return []
        times[self._skipped > 0] = np.nan
        self._skipped[index] = np.maximum(self._skipped[index] - 1, 0)
        present = np.isfinite(times[:, 0, 0])
        self._steps_ms.append(float(np.median(told.times[:, [_CPU, _BLOCKED, _SHARED]].sum(axis=(1, 2)))))
        counts = told.arrivals[is_peer]
        if len(counts) > 1 and counts[0] and (counts == counts[0]).all():  # of the same steps
            self._compare(index, times[index][:, _ARRIVAL, _COMPUTING])
        blocked = times[:, _BLOCKED, _COMPUTING]
        if present.sum() == 2:  # one of two that is blocked may wait for the other one
            blocked = blocked * 0.0
        # where it may wait for others it is blocked by itself as long as they wait for it
        late = np.min(self._late, axis=0)
        self._blocked.append(blocked + np.minimum(late, times[:, _SHARED, _COMPUTING]))
        # 0 for a rank that has told only a few of these steps
        place = LOWEST * len(self._blocked) // BLOCKED_STEPS
        times[:, _BLOCKED, _COMPUTING] = np.nan_to_num(np.partition(self._blocked, place, axis=0)[place])
        waiting = times[:, _WAITING, _BACKWARD]
        usual = np.nanmedian(waiting) if present.any() else 0.0
        times[:, _CPU, _BACKWARD] += usual + np.maximum(waiting - WAITING_FACTOR * usual, 0.0)
        # Where threads wait for a processor, so do those that hold the locks for which this one is blocked.
        self._queued.append(times[:, _CPU, _QUEUE])
        queued = np.concatenate(self._queued)
        usual_ms = np.median(known) if (known := queued[~np.isnan(queued)]).size else 0.0
        times[:, _BLOCKED, _DATA] = np.maximum(times[:, _BLOCKED, _DATA] - usual_ms, 0.0)
        return self._slow.add(told.step, times[:, [_CPU, _BLOCKED]].sum(axis=1))

    def _compare(self, index: Ints, arrivals: Floats) -> None:
        """From now on, a rank is late that began its collectives later than the median of the others (N, P).

        What counts is by how much it did so beyond the spread of the ranks, at the last LOOKS looks.
        """
        later = arrivals - np.median(arrivals, axis=0)
        spread = np.median(np.abs(later), axis=0) if len(arrivals) > 2 else 0.0
        late = np.zeros((len(self.ranks), len(_COMPUTING)))
        late[index] = np.nan_to_num(np.maximum(later - SPREADS * spread, 0.0))
        late[late < LATE_SHARE * np.median(self._steps_ms)] = 0.0
        self._late.append(late)


def _verdict(found: Slow, peers: int) -> Verdict:
    its_peers = "its peer" if peers == 1 else "its peers"
    if found.phase == "host":
        evidence = (
            f"it waited {found.own_ms:.3g} ms a step for a processor that other processes used, {its_peers} "
            f"{found.peers_ms:.3g} ms"
        )
    else:
        evidence = (
            f"{_WHAT.get(found.phase, found.phase)} took {found.own_ms:.3g} ms a step, on {its_peers} "
            f"{found.peers_ms:.3g} ms"
        )
    return Verdict(
        rank=found.rank,
        cause="unknown" if found.phase == "rest" else found.phase,
        since_step=found.since,
        until_step=found.until,
        evidence=evidence,
        first_told_step=found.told,
    )
