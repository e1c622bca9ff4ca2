"""Judge: verdicts on the ranks of a training, from what they recorded at each step.

It is given the same steps in the same order while a training runs and afterwards, and says the same.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.cost import StepTimes, places_of
from distsummary.diagnosis.host import SlowHosts
from distsummary.diagnosis.loader import SPARE
from distsummary.diagnosis.measured_steps import next_measured
from distsummary.diagnosis.sentence import seconds
from distsummary.diagnosis.slow import (
    FIRST,
    PHASES,
    SKIPPED,
    Slow,
    SlowRanks,
    median,
    median_of_those_there,
    references_of,
)
from distsummary.diagnosis.stalls import QUIET, Stalls, StepSpent
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.own_tags import LOADER_IDLE, PHASE_TAGS, WAIT_MS
from distsummary.rundir.topology import EQUAL_AXES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


_CPU, _BLOCKED, _QUEUE = range(3)  # the places in `OwnTimes.times`
_MEASURES = {"cpu_ms": _CPU, "blocked_ms": _BLOCKED, "queue_ms": _QUEUE}
# Phases in which the thread computes. It is blocked there now and then, by a lock that another thread holds
# while the host runs something else; what counts is the median of so many steps.
BLOCKED_STEPS = 10
# Where other processes run, ranks wait for a processor: the longer, the less the CPU time of a phase says
# about the rank. Beyond so many times their own time, over so many steps, nothing is said. Four ranks alone
# on two cores wait about as long as they compute.
BUSY, BUSY_STEPS = 10.0, 20
_DATA, _RECORDING = PHASES.index("data"), PHASES.index("recording")
_COMPUTING = [place for place, phase in enumerate(PHASES) if phase not in ("data", "checkpoint")]
# What is reported with the times: the columns after those of each measure and phase.
_EVERY, _QUEUED, _WAITED, _IDLE = range(len(_MEASURES) * len(PHASES), len(_MEASURES) * len(PHASES) + 4)
_WHAT = {  # what a phase does, where its name does not say it
    "data": "loading data",
    "optimizer": "the optimizer",
    "python": "garbage collection",
    "recording": "recording (callbacks, copies of arrays)",
    "checkpoint": "saving checkpoints",
    "rest": "what is outside of data, forward, backward and optimizer",
}


class OwnTimes(NamedTuple):
    """What R ranks did at a step: `times` (R, 3, P) are milliseconds in PHASES, of CPU time, blocked, and in
    the run queue.

    `ranks` (R,) rise. `every` (R,): of the next steps, the rank reports one in so many, see `measured_steps`.
    `queued`, `waited` (R,): all milliseconds in the run queue, and waiting for other ranks. `idle` (R,): how
    long the workers of its loader had nothing to do; infinite if it has none.
    """

    step: int
    ranks: Ints
    times: Floats
    every: Ints
    queued: Floats
    waited: Floats
    idle: Floats


def own_times(
    tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
) -> Iterator[OwnTimes]:
    """The ranks' own times at each step, in rising order, from N recorded scalars in any order.

    Args:
        tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
    """
    columns = np.array([_column(tag) for tag in tags], np.int64)
    mine = columns[which] >= 0 if len(tags) else np.zeros(0, np.bool_)
    # What ranks waited is recorded with their phases.
    if not mine.any() or not (columns < _EVERY)[columns >= 0].any():
        return
    columns, ranks, steps, values = columns[which[mine]], ranks[mine], steps[mine], values[mine]
    at, reported, place = places_of(steps, ranks)
    table = np.zeros((len(reported), _IDLE + 1))
    np.add.at(table, (place, columns), values)
    times = table[:, :_EVERY].reshape(len(reported), len(_MEASURES), len(PHASES))
    every = np.maximum(table[:, _EVERY].astype(np.int64), 1)
    queued = table[:, _QUEUED] + times[:, _QUEUE].sum(axis=1)
    idle = np.full(len(reported), np.inf)
    has_workers = place[columns == _IDLE]
    idle[has_workers] = table[has_workers, _IDLE]
    # The rows of a step follow each other.
    starts = np.flatnonzero(np.append(True, np.diff(at) != 0))
    for start, end in zip(starts, [*starts[1:], len(reported)], strict=True):
        rows = slice(start, end)
        yield OwnTimes(
            int(at[start]), reported[rows], times[rows], every[rows], queued[rows],
            table[rows, _WAITED], idle[rows],
        )  # fmt: skip


def _column(tag: str) -> int:
    """Where a tag belongs: a phase of a measure, one of the columns after these, or -1: nowhere."""
    if tag in (WAIT_MS, LOADER_IDLE):
        return _WAITED if tag == WAIT_MS else _IDLE
    if not tag.startswith(PHASE_TAGS):
        return -1
    phase, _, measure = tag.removeprefix(PHASE_TAGS).partition("/")
    if (phase, measure) == ("every", ""):
        return _EVERY
    if phase in PHASES and measure in _MEASURES:
        return _MEASURES[measure] * len(PHASES) + PHASES.index(phase)
    return _QUEUED if measure == "queue_ms" else -1


class Judge:
    """Judges the ranks of one attempt, step by step.

    Args:
        coordinates: of a rank: its coordinate on each axis of the mesh; empty if there is none. Only ranks
            that differ in nothing but EQUAL_AXES are compared.
        counted: of a step: the number by which it is chosen whether it is measured, see `measured_steps`.

    Attributes:
        steps: how many have been compared; abstained: of these, at how many the processors were too busy.
    """

    def __init__(
        self, coordinates: Callable[[int], Mapping[str, int]], counted: Callable[[int], int] = int
    ) -> None:
        self.steps = self.abstained = 0
        self._coordinates, self._counted = coordinates, counted
        self._known: frozenset[int] = frozenset()
        self._peers: list[_Peers] = []

    def add(self, reported: OwnTimes) -> list[Verdict]:
        """Judge a step, larger than those before; returns the verdicts that are new, and those that end."""
        if not self._known.issuperset(reported.ranks.tolist()):
            self._group(self._known.union(reported.ranks.tolist()))
        changed, counted = [], self._counted(reported.step)
        for peers in self._peers:
            changed += [_verdict(found, len(peers.ranks) - 1) for found in peers.add(reported, counted)]
        self.steps += any(peers.is_judged for peers in self._peers)
        self.abstained += any(peers.is_judged and peers.is_busy for peers in self._peers)
        return changed

    @property
    def is_partial(self) -> bool:
        """Whether a rank did not measure the newest step, as it measures fewer of them than its peers."""
        return any(not peers.is_judged for peers in self._peers)

    @property
    def lasting(self) -> list[Verdict]:
        """The verdicts on stalls that last, with the numbers of all stalls until now."""
        return [_verdict(one, len(peers.ranks) - 1) for peers in self._peers for one in peers.stalls.lasting]

    def counted(self, times: StepTimes) -> StepTimes:
        """The times of the newest step without what ranks waited for data as long as their peers would."""
        excused = {
            rank: ms
            for peers in self._peers
            if peers.is_judged and peers.excused_ms.any()
            for rank, ms in zip(peers.ranks.tolist(), peers.excused_ms.tolist(), strict=True)
        }
        # A starved rank holds up its peers while it waits for a processor.
        for peers in self._peers:
            excused |= {rank: -ms for rank, ms in peers.starved_ms.items() if peers.is_judged}
        if not excused:
            return times
        less = np.array([excused.get(rank, 0.0) for rank in times.ranks.tolist()])
        return times._replace(own_ms=np.maximum(times.own_ms - less, 0.0))

    def _group(self, ranks: frozenset[int]) -> None:
        """Divide the ranks into peers; what is known of those that were peers before stays."""
        groups = defaultdict[tuple[tuple[str, int], ...], list[int]](list)
        for rank in sorted(ranks):
            axes = self._coordinates(rank).items()
            groups[tuple(sorted(one for one in axes if one[0] not in EQUAL_AXES))].append(rank)
        old = {int(peers.ranks[0]): peers for peers in self._peers}
        self._peers = []
        # Peers that only become more keep what is known of them; divided groups begin from nothing.
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
        self.is_judged = self.is_busy = False  # at the newest step
        self.excused_ms = np.zeros(len(ranks))  # of it: waiting for data that no other rank would be spared
        self._slow, self.stalls, self._hosts = SlowRanks(ranks), Stalls(), SlowHosts()
        self.starved_ms: dict[int, float] = {}  # of ranks that are slow since they wait for a processor
        self._are_slow: set[int] = set()
        self._next = np.zeros(len(ranks), np.int64)  # of each rank, the step that it reports next
        self._skipped = np.zeros(len(ranks), np.int64)  # so many of its steps are not compared
        # of the newest steps: (W, computing phases); how long all waited for processors, and their own time
        self._blocked: deque[Floats] = deque(maxlen=BLOCKED_STEPS)
        self._loads: deque[tuple[float, float]] = deque(maxlen=BUSY_STEPS)

    def join(self, ranks: Sequence[int]) -> None:
        """Compare more ranks; `ranks` are all of them."""
        new = [index for index, rank in enumerate(ranks) if rank not in set(self.ranks.tolist())]
        # The first steps of a rank that joins are not typical, and are not compared.
        for index in new:
            self.ranks = np.insert(self.ranks, index, ranks[index])
            self._next = np.insert(self._next, index, 0)
            self._skipped = np.insert(self._skipped, index, SKIPPED + FIRST)
            blocked = (np.insert(row, index, np.nan, axis=0) for row in self._blocked)
            self._blocked = deque(blocked, BLOCKED_STEPS)
        if new:
            self._slow.join(ranks)

    def add(self, reported: OwnTimes, counted: int) -> list[Slow]:
        index = np.searchsorted(self.ranks, reported.ranks)
        is_peer = self.ranks[np.minimum(index, len(self.ranks) - 1)] == reported.ranks
        index, every = index[is_peer], reported.every[is_peer]
        # NaN marks a rank that does not report this step.
        times = np.full((len(self.ranks), len(_MEASURES), len(PHASES)), np.nan)
        idle_ms = np.full(len(self.ranks), np.inf)
        times[index] = reported.times[is_peer]
        took_ms = times[index, : _BLOCKED + 1].sum(axis=(1, 2)) + reported.waited[is_peer]
        mine = reported.idle[is_peer]
        idle_ms[index] = np.where(mine < SPARE * took_ms, 0.0, mine)
        for one in {*every.tolist()}:
            self._next[index[every == one]] = reported.step + next_measured(counted, one) - counted
        # The step is not judged if a rank has still to report it: what the others took at it says little. A
        # rank that reported nothing when it should have is not waited for.
        is_awaited = self._next > reported.step
        is_awaited[index] = False
        self.is_judged = not is_awaited.any()
        if not self.is_judged:
            return []
        times[self._skipped > 0] = np.nan
        self._skipped[index] = np.maximum(self._skipped[index] - 1, 0)
        present = ~np.isnan(times[:, 0, 0])
        self.excused_ms = _share_loaders(times, idle_ms, present)
        # A stall is at a single step, which the median below hides: these times are kept for `Stalls`.
        at_once = times[:, : _BLOCKED + 1].sum(axis=1)
        self._blocked.append(times[:, _BLOCKED, _COMPUTING])
        # Phases that compute count as blocked for the median of the newest steps, see BLOCKED_STEPS.
        blocked = np.array(self._blocked)
        times[:, _BLOCKED, _COMPUTING] = (
            median_of_those_there(blocked) if np.isnan(blocked).any() else median(blocked, 0)
        )
        own = times[:, : _BLOCKED + 1].sum(axis=1)
        queued = reported.queued[is_peer]
        self._loads.append((float(queued.sum()), float(own[present].sum())))
        queued_ms, own_ms = map(sum, zip(*self._loads, strict=True))
        self.is_busy, is_quiet = queued_ms > BUSY * own_ms, queued_ms < QUIET * own_ms
        # Where other processes run, the threads that write what is recorded lose their processor while they
        # hold Python's lock: the longer the loop's thread is blocked by them.
        if not is_quiet:
            own[:, _RECORDING] = times[:, _CPU, _RECORDING]
        found = self._slow.add(reported.step, own, times[:, _CPU], at_once=at_once, is_busy=self.is_busy)
        for slow in found:
            (self._are_slow.add if slow.until is None else self._are_slow.discard)(slow.rank)
        took_ms = np.where(present, at_once.sum(axis=1), 0.0)[index] + queued + reported.waited[is_peer]
        spent = StepSpent(
            own=own,
            at_once=at_once,
            queued=times[:, _QUEUE],
            wall_ms=float(took_ms.max()),
            is_quiet=is_quiet,
        )
        found += self.stalls.add(reported.step, self.ranks, spent, slow=self._are_slow, is_busy=self.is_busy)
        if present.all():
            found += self._hosts.add(
                reported.step, self.ranks, times[:, _CPU], queued, spent.wall_ms, slow=self._are_slow
            )
        self.starved_ms = {
            int(self.ranks[place]): float(ms)
            for place, ms in zip(index.tolist(), queued, strict=True)
            if int(self.ranks[place]) in self._hosts.starved
        }
        return found


def _share_loaders(times: Floats, idle_ms: Floats, present: NDArray[np.bool_]) -> Floats:
    """Limit what ranks (W, 3, P) waited for data to what their peers would not have waited by themselves.

    Returns by how many milliseconds it was more (W,).

    A peer with batches in advance waits for the slower rank, while its workers load the next ones: if these
    are hardly idle, it could go no faster either. So a rank counts as slower only by what they are idle.
    """
    excused = np.zeros(len(present))
    if present.sum() < 2 or not np.isfinite(idle_ms).any():
        return excused
    data = times[:, : _BLOCKED + 1, _DATA].sum(axis=1)
    usual = references_of(np.stack([data, idle_ms], axis=1)[present], len(present)).sum(axis=1)
    limited = np.maximum(usual - times[:, _CPU, _DATA], 0.0)
    excused = np.where(present & (data > usual), np.maximum(times[:, _BLOCKED, _DATA] - limited, 0.0), 0.0)
    times[:, _BLOCKED, _DATA] -= excused
    return excused


def _verdict(found: Slow, peers: int) -> Verdict:
    its_peers = "its peer" if peers == 1 else "its peers"
    evidence = (
        f"{_WHAT.get(found.phase, found.phase)} took {_time(found.own_ms)} {found.when}, on "
        f"{its_peers} {_time(found.peers_ms)}"
    )
    # What is so in all phases has words of its own.
    if found.when.startswith("it "):
        evidence = found.when
    return Verdict(
        rank=found.rank,
        cause="unknown" if found.phase == "rest" else found.phase,
        since_step=found.since,
        until_step=found.until,
        evidence=evidence,
        reported_step=found.reported,
    )


def _time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 999.5 else seconds(1e-3 * ms)
