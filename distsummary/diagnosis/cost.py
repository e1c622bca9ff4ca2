"""Costs: how many seconds of a run's wall clock slow ranks took, and `joined`: verdicts that are one."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsummary.diagnosis.verdict import SLOW, Interval, Verdict
from distsummary.format.own_tags import EVERY, OWN_MS, WAIT_MS
from distsummary.rundir.topology import EQUAL_AXES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Key = tuple[int, str, int]  # of a verdict: its rank, cause and first step

REMEMBERED = 320  # measured steps: a verdict is certain at most about so many after it began
# What a slow rank costs is little below so many seconds, or so large a share of the time, of the lower one of
# these, but not less than the last.
LEAST_S, LEAST_SHARE, SMALL_S = 1.0, 0.01, 0.3
UNSEEN = 4  # ends of gradient accumulation that may follow each other without being measured
WAITED_MS = 1e-9  # what is left of a time of waiting that was charged
NOTHING_S = 1e-9  # what a slow rank costs that no other waited for
LATELY = 16  # steps, over which it is averaged what the peers of a slow rank take
TURNS = 3  # so many times another rank is slow for the same cause: they hold up the run in turns
GROWTH, GROWTH_S = 2.0, 1.0  # a cost is reported again when it has grown by this factor, and so many seconds


class StepTimes(NamedTuple):
    """What R ranks did at a step: `ranks` (R,) rise; milliseconds (R,) that each worked by itself, and
    waited for others. `every`: the step stands for so many.
    """

    step: int
    ranks: Ints
    own_ms: Floats
    wait_ms: Floats
    every: int = 1

    @property
    def has_waited(self) -> bool:
        """Whether ranks waited for each other; one that made the step alone did not."""
        return len(self.ranks) > 1 and bool(self.wait_ms.any())


def step_times(
    tags: Sequence[str], which: Ints, ranks: Ints, steps: Ints, values: Floats
) -> Iterator[StepTimes]:
    """The times of the ranks at each step, in rising order, from N recorded scalars in any order.

    Args:
        tags: names, each once. which (N,): the index of each scalar's tag. ranks, steps, values: (N,).
    """
    columns = np.array([_column(tag) for tag in tags], np.int64)
    mine = columns[which] >= 0 if len(tags) else np.zeros(0, np.bool_)
    if not mine.any():
        return
    # A row of the table is a rank at a step, its columns are those of `_column`.
    at, reported, place = places_of(steps[mine], ranks[mine])
    table = np.zeros((len(at), 3))
    np.add.at(table, (place, columns[which[mine]]), values[mine])
    starts = np.flatnonzero(np.append(True, np.diff(at) != 0))
    for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
        own, wait, every = table[start:end].T
        yield StepTimes(int(at[start]), reported[start:end], own, wait, int(max(1, every.max())))


def places_of(steps: Ints, ranks: Ints) -> tuple[Ints, Ints, Ints]:
    """Each step of a rank once, sorted: their steps and ranks, and where each of N scalars belongs (N,)."""
    size = int(ranks.max(initial=0)) + 1
    found, place = np.unique(steps * size + ranks, return_inverse=True)
    return found // size, found % size, place.reshape(-1)


def _column(tag: str) -> int:
    return {OWN_MS: 0, WAIT_MS: 1, EVERY: 2}.get(tag, -1)


def excess_ms(times: StepTimes, rank: int, peers: Callable[[int], object]) -> float:
    """By how many milliseconds a rank took longer by itself than the median of its peers; below 0 if quicker.

    Args:
        peers: of a rank: equal for ranks that do the same work.
    """
    alike = np.array([peers(one) == peers(rank) for one in times.ranks.tolist()], np.bool_)
    mine = times.ranks[alike] == rank
    own_ms = times.own_ms[None, alike]
    return float(np.nan_to_num(own_ms - median_of_others(own_ms))[0, mine].sum())


def excess_of_all(own_ms: Floats) -> Floats:
    """The same of each of some peers at each step, (S, R); NaN in `own_ms` where a rank measured nothing."""
    return np.nan_to_num(np.maximum(own_ms - median_of_others(own_ms), 0.0))


def median_of_others(values: Floats) -> Floats:
    """Of each value (S, R), the median of the others in its row that are not NaN; NaN if there is none."""
    found = np.full_like(values, np.nan)
    counts = (~np.isnan(values)).sum(axis=1)
    for count in np.unique(counts[counts > 1]).tolist():
        rows = counts == count
        some = values[rows]
        low, high = (count - 2) // 2, (count - 1) // 2  # places of the median among the others
        ordered = np.sort(some, axis=1)
        # Without a value, those above it move down by one place.
        low_of, high_of = (
            np.where(some <= ordered[:, at, None], ordered[:, at + 1, None], ordered[:, at, None])
            for at in (low, high)
        )
        found[rows] = (low_of + high_of) / 2
    return found


def shared_ms(times: StepTimes, excess: Mapping[Key, float]) -> dict[Key, float]:
    """Milliseconds of a step's wall clock that were lost because of each slow rank.

    That is its excess, as far as the median of the other ranks waited meanwhile. If several ranks are slow at
    a time, they share what the rank waited that waited most.

    Args:
        excess: rank, cause and first step of a verdict -> milliseconds.
    """
    lost = {
        key: min(excess_of, float(np.median(waited)))
        for key, excess_of in excess.items()
        if (waited := times.wait_ms[times.ranks != key[0]]).size
    }
    total, most = sum(lost.values()), float(times.wait_ms.max(initial=0.0))
    share = most / total if total > most else 1.0
    return {key: share * found for key, found in lost.items()}


class Costs:
    """Adds up what the verdicts on slow ranks of an attempt cost, step by step.

    All verdicts together cost at most what the ranks waited. The others may wait for a rank only at the step
    after the one at which it took longer, such as for its optimizer.

    Args:
        coordinates: of a rank: its coordinate on each axis of the mesh; empty if there is none.
    """

    def __init__(self, coordinates: Callable[[int], Mapping[str, int]]) -> None:
        self._coordinates = coordinates
        self._places: dict[int, object] = {}  # of ranks: equal for those that do the same work
        self._recent: deque[StepTimes] = deque(maxlen=REMEMBERED)  # with what is left of their waiting
        self._of_peers: dict[int, float] = {}  # of slow ranks: the milliseconds that their peers take lately
        self._open: dict[Key, _Account] = {}
        self._is_known = False  # whether ranks record that they wait

    def add(self, times: StepTimes) -> None:
        """Look at a step, larger than those before."""
        self._is_known = self._is_known or times.has_waited
        self._recent.append(self._charge(times, self._open) if self._open else times)

    def note(self, verdict: Verdict) -> Verdict:
        """A verdict on a slow rank that begins or ends at the newest step, with what it cost so far."""
        key = _key(verdict)
        account = self._open.get(key)
        if account is None:
            account = self._open[key] = _Account()
            # A verdict is certain only some steps after it began: those are charged now.
            for place, times in enumerate(self._recent):
                if times.step >= verdict.since_step:
                    self._recent[place] = self._charge(times, {key: account})
        if verdict.until_step is not None:
            del self._open[key]
            return replace(verdict, lost_s=self._cost_s(account.until_s(verdict.until_step)))
        account.reported_s = account.lost_s
        return replace(verdict, lost_s=self._cost_s(account.lost_s))

    def _cost_s(self, lost_s: float) -> float:
        """A cost as verdicts have it, where 0 is one that is not known."""
        return max(lost_s, NOTHING_S) if self._is_known else lost_s

    def of(self, verdict: Verdict) -> Verdict:
        """A verdict with what it cost so far, if it lasts."""
        account = self._open.get(_key(verdict))
        return verdict if account is None else replace(verdict, lost_s=self._cost_s(account.lost_s))

    def has_grown(self, verdict: Verdict) -> bool:
        """Whether a verdict that lasts costs much more than what was noted of it last."""
        account = self._open.get(_key(verdict))
        if account is None:
            return False
        return account.lost_s > max(GROWTH * account.reported_s, account.reported_s + GROWTH_S)

    def _charge(self, times: StepTimes, accounts: "Mapping[Key, _Account]") -> StepTimes:
        """Charge some verdicts with a step; returns its times with what is left of the waiting."""
        # A step stands for those that were not measured, with all that its ranks took longer and waited.
        many = times.every
        excess = {key: many * self._excess_ms(times, key[0]) for key in accounts}
        behind = {key: max(0.0, accounts[key].left_ms + found) for key, found in excess.items()}
        has_waited = times.has_waited
        lost = shared_ms(times._replace(wait_ms=many * times.wait_ms), behind)
        if many > 1 and not has_waited:
            lost = {key: min(found, accounts[key].spare_ms) for key, found in behind.items()}
        unclaimed_ms = max(0.0, many * float(times.wait_ms.max(initial=0.0)) - sum(lost.values()))
        for key, account in accounts.items():
            found = lost.get(key, 0.0)
            spare_ms = unclaimed_ms / len(accounts) if has_waited else account.spare_ms - found
            account.add(times, found, excess[key], spare_ms=spare_ms)
        if not has_waited:
            return times
        # That the ranks have waited is still to be seen.
        waited = np.maximum(times.wait_ms - sum(lost.values()) / many, np.minimum(times.wait_ms, WAITED_MS))
        return times._replace(wait_ms=waited)

    def _excess_ms(self, times: StepTimes, rank: int) -> float:
        """By how much a rank took longer than its peers, or than they do lately if it made the step alone.

        That is so where its epoch is longer; the others wait for it when that ends.
        """
        own_ms = float(times.own_ms[times.ranks == rank].sum())
        if len(times.ranks) == 1 and rank in self._of_peers:
            return own_ms - self._of_peers[rank]
        found = excess_ms(times, rank, self._place)
        usual = self._of_peers.get(rank, own_ms - found)
        self._of_peers[rank] = usual + (own_ms - found - usual) / LATELY
        return found

    def _place(self, rank: int) -> object:
        if rank not in self._places:
            self._places[rank] = work_of(self._coordinates(rank))
        return self._places[rank]


def work_of(coordinates: Mapping[str, int]) -> object:
    """Equal for ranks that do the same work, by their coordinates on each axis of the mesh."""
    return tuple(sorted(one for one in coordinates.items() if one[0] not in EQUAL_AXES))


class _Account:
    """What a verdict cost: in all, and at the newest steps.

    `left_ms`: by which its rank is behind. `spare_ms`: that others waited, at a step that stands for several
    and of which it was not behind by as much, as some that were not measured had made it so.
    """

    def __init__(self) -> None:
        self.lost_s = self.reported_s = self.left_ms = self.spare_ms = 0.0
        self._newest: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def add(self, times: StepTimes, lost: float, excess: float, *, spare_ms: float) -> None:
        """Charge a step with the milliseconds that were lost, of those that the rank took longer."""
        # The rank falls back until the others wait for it, such as at the end of gradient accumulation. What
        # they do not wait for then may be waited for at the next step, up to the excess of one, or at the
        # next of these ends that is measured, if not all are.
        most = max(excess, UNSEEN * lost * (times.every > 1)) if times.has_waited else math.inf
        self.left_ms, self.spare_ms = max(0.0, min(most, self.left_ms + excess - lost)), spare_ms
        self.lost_s += 1e-3 * lost
        self._newest.append((times.step, 1e-3 * lost))

    def until_s(self, step: int) -> float:
        """Without the steps after the one after this."""
        return max(0.0, self.lost_s - sum(lost for at, lost in self._newest if at > step + 1))


def _key(verdict: Verdict) -> Key:
    return verdict.rank, verdict.cause, verdict.since_step


def is_small(cause: str, lost_s: float, of_s: float) -> bool:
    """Whether a slow rank has cost little of `of_s`; not where no rank recorded waiting: that is unknown."""
    return cause in SLOW and 0.0 < lost_s < min(LEAST_S, max(SMALL_S, LEAST_SHARE * of_s))


def joined(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts of one attempt, those on a rank that is slow for the same cause as one, with its intervals.

    It has the first step of the first interval and the last one of the last, the evidence of what cost most,
    and the cost of all. So have ranks that are slow for the same cause in turns. They come in the order of
    the first of each.
    """
    parts: dict[object, list[Verdict]] = defaultdict(list)
    for number, verdict in enumerate(verdicts):
        is_slow = verdict.cause in SLOW
        parts[(verdict.rank, verdict.cause) if is_slow else number].append(verdict)
    found = [_join(part) if len(part) > 1 else part[0] for part in parts.values()]
    for cause in SLOW:
        slow = [one for one in found if one.cause == cause]
        if len(slow) > 1 and _take_turns(slow):
            place = found.index(slow[0])
            found = [one for one in found if one.cause != cause]
            found.insert(place, _in_turns(slow))
    return found


def _take_turns(slow: Iterable[Verdict]) -> bool:
    """Whether ranks follow each other several times, of which hardly two are slow at the same steps.

    One follows if it comes no later after the other's end than the longer of the two lasted.
    """
    times = sorted((since, until, one.rank) for one in slow for since, until in _bounded(one))
    pairs = [(one, other) for one, other in pairwise(times) if one[2] != other[2]]
    turns = sum(other[0] - one[1] <= max(one[1] - one[0], other[1] - other[0]) + 1 for one, other in pairs)
    both = sum(other[0] < one[1] for one, other in pairs)
    return turns >= TURNS and 2 * both <= turns


def _bounded(verdict: Verdict) -> Iterator[tuple[int, float]]:
    return ((since, math.inf if until is None else until) for since, until in intervals_of(verdict))


def _in_turns(slow: Sequence[Verdict]) -> Verdict:
    parts = ", ".join(f"rank {one.rank} {one.lost_s:.1f} s" for one in slow)
    whole = _join(slow)
    return replace(
        whole,
        rank=slow[0].rank,
        ranks=tuple(sorted(one.rank for one in slow)),
        evidence=f"in turns ({parts}); {whole.evidence}",
    )


def _join(parts: Collection[Verdict]) -> Verdict:
    ordered = sorted(parts, key=lambda one: one.since_step)
    intervals = union(each for one in ordered for each in intervals_of(one))
    dearest = max(ordered, key=lambda one: one.lost_s)
    return replace(
        ordered[0],
        until_step=intervals[-1][1],
        evidence=dearest.evidence,
        lost_s=sum(one.lost_s for one in ordered),
        intervals=intervals if len(intervals) > 1 else (),
    )


def intervals_of(verdict: Verdict) -> tuple[Interval, ...]:
    """When it was so: one interval, or several."""
    return verdict.intervals or ((verdict.since_step, verdict.until_step),)


def union(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Intervals in rising order, those that overlap as one; (since, until), until None: it lasts."""
    found: list[Interval] = []
    for since, until in sorted(intervals, key=lambda one: one[0]):
        if found and (found[-1][1] is None or since <= found[-1][1]):
            last = found[-1][1]
            found[-1] = found[-1][0], None if last is None or until is None else max(last, until)
        else:
            found.append((since, until))
    return tuple(found)
