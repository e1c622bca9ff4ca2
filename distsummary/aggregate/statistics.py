"""The merged scalars of each step: statistics over the ranks, and which tags get them, a rule of the past.

What a step shows depends on that step and on earlier ones, never on later ones. So a merge that follows a
running training and a merge of its finished files write the same.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from distsummary.aggregate.across import across_ranks
from distsummary.aggregate.rank_columns import Bools, Floats, Ints, RecordedScalars
from distsummary.base.guard import guarded_log
from distsummary.format.definitions import MEAN, WEIGHTED, Definitions
from distsummary.format.own_tags import (
    CHECK_TAGS,
    DATA_WAIT_MS,
    GPU_MEMORY,
    GPU_UTILIZATION,
    LEARNING_RATE_TAG,
    LOSS_TAG,
    OWN_MS,
    PHASE_TAGS,
    PROCESS_CPU,
    PROCESS_MEMORY,
    RANKS_TAG,
    STEP_MS,
    SYSTEM_TAGS,
    WAIT_MS,
    statistics_of,
)
from distsummary.format.records import Value

KEY_TAGS = frozenset(
    (
        "loss",
        "lr",
        "learning_rate",
        LOSS_TAG,
        LEARNING_RATE_TAG,
        STEP_MS,
        DATA_WAIT_MS,
        OWN_MS,
        WAIT_MS,
        PROCESS_CPU,
        PROCESS_MEMORY,
        GPU_MEMORY,
        GPU_UTILIZATION,
    )
)
MAX_DIFFERING = 256  # tags that get statistics because ranks differ
_ALWAYS, _NEVER = float("-inf"), float("inf")  # as steps
_MAX_TABLE = 1 << 22  # points x ranks of a sampled tag at once

logger = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistics:
    """Statistics over the ranks that recorded a tag, at each of S points (a tag at a step); arrays are (S,).

    `points` int64, rising; `mean`, `min`, `median`, `max` float64; `argmax_rank` int64. A NaN of a rank makes
    the mean NaN, is left out of min, median and max, and its rank is the `argmax_rank`: it names the rank to
    look at. See `over_ranks`.
    """

    points: Ints
    mean: Floats
    min: Floats
    median: Floats
    max: Floats
    argmax_rank: Ints
    differ: Bools


def over_ranks(ranks: Ints, points: Ints, values: Floats) -> RankStatistics:
    """Mean, min, median, max and the rank of the maximum at each point, over the ranks with a value.

    If any rank has a NaN, the mean is NaN and `argmax_rank` is the lowest rank with a NaN, while min, median
    and max are taken over the other ranks (NaN if there are none). Infinities count as numbers. If several
    ranks have the maximum, `argmax_rank` is the lowest of them. The ranks differ at a point if its min is not
    its max, or if some of its ranks have a NaN and some do not. The order of the values makes no difference.

    Args:
        ranks, points: int64 (N,); no pair occurs twice.
        values: float64 (N,).
    """
    # Sorted by point, value (NaN last), then falling rank: the last entry of a point has its argmax_rank.
    order = np.lexsort((-ranks, values, points))
    ranks, points, values = ranks[order], points[order], values[order]
    if not len(points):
        empty, unique = np.empty(0), np.empty(0, np.int64)
        return RankStatistics(
            points=unique, mean=empty, min=empty, median=empty, max=empty,
            argmax_rank=unique.copy(), differ=np.empty(0, np.bool_),
        )  # fmt: skip
    starts = np.flatnonzero(np.append(True, np.diff(points) != 0))
    ends = np.append(starts[1:], len(points))
    unique, counts = points[starts], ends - starts
    numbers = counts - np.add.reduceat(np.isnan(values), starts, dtype=np.int64)
    # The index of each point's maximum; that of a NaN if all its values are NaN.
    highest = starts + np.maximum(numbers - 1, 0)
    # A sum may be infinite or NaN.
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = values[starts + (highest - starts) // 2], values[starts + numbers // 2]
        # Halved before they are added, so that two large numbers do not overflow.
        median = np.where(low == high, low, low / 2 + high / 2)
        mean = np.add.reduceat(values, starts) / counts
    agree = values[starts] == values[highest]
    # Where all ranks agree the mean is their value, to the last bit.
    mean = np.where((numbers == counts) & agree, values[starts], mean)
    return RankStatistics(
        points=unique,
        mean=mean,
        min=values[starts],
        median=median,
        max=values[highest],
        argmax_rank=ranks[ends - 1],
        differ=(numbers > 0) & ~(agree & (numbers == counts)),
    )


class MergedStep(NamedTuple):
    """The merged scalars of one step, sorted by tag; the statistics of a tag follow its mean."""

    step: int
    values: list[Value]


class StatisticsRule:
    """Makes the merged scalars of rising steps; the same steps give the same values however they are divided.

    At each step:

    - A tag has its mean over the ranks that recorded it there, or what its definition says (`across`, see
      `across_ranks`); none where no rank has a weight. If a rank recorded it twice, the last counts.
    - Its statistics (see `over_ranks` and `statistics_of`) are there for the declared tags, which are
      KEY_TAGS and `key_tags`, and for each other tag from the first step on at which its ranks differ; for at
      most MAX_DIFFERING others, in the order in which they began to (by step, then by tag).
    - A tag that begins with SYSTEM_TAGS, which ranks sample at steps of their own, is there at the steps
      of the lowest rank among those that have recorded it up to this step; the others have the newest value
      that they recorded up to this step.
    - RANKS_TAG is the number of ranks that recorded a scalar, of any tag, at this very step. It is at each
      step that has a merged scalar.
    - A name made here is left out from the first step on at which a rank recorded a scalar of this name.
    - Tags that begin with PHASE_TAGS or CHECK_TAGS are left out.

    Values count as the files hold them: as float32.

    Attributes:
        inexact: how often the merged values are not those that a rule gives which has the definitions from
            the first step on, and the weights of late values with them.
    """

    def __init__(self, key_tags: Collection[str] = (), definitions: Definitions | None = None) -> None:
        self.inexact = 0
        self._definitions = definitions or Definitions({})
        self._unweighted: set[str] = set()  # tags of which ranks without a weight were named
        self._declared = KEY_TAGS | set(key_tags)
        self._recorded: dict[str, int] = {}  # tag -> its first step
        self._begun: dict[str, int] = {}  # tag -> the first step at which the ranks differ
        self._sampled: dict[str, _Newest] = {}
        self._last: int | None = None
        self._is_full = False

    def define(self, definitions: Definitions) -> None:
        """Use these definitions from the next step on."""
        before, self._definitions = self._definitions, definitions
        self.inexact += sum(_across(before, tag) != _across(definitions, tag) for tag in self._recorded)

    def add(self, rows: RecordedScalars) -> list[MergedStep]:
        """The merged scalars of some steps, in rising order.

        Args:
            rows: all ranks' scalars of these steps. Every step must exceed all those given earlier; otherwise
                ValueError is raised.
        """
        if len(rows.steps):
            first = int(rows.steps.min())
            if self._last is not None and first <= self._last:
                raise ValueError(f"steps must rise, but {first} was given after {self._last}")
            self._last = int(rows.steps.max())
        return self._add(rows)

    def add_late(self, rows: RecordedScalars) -> list[MergedStep]:
        """The merged scalars of tags whose scalars came when their steps had been added without them.

        RANKS_TAG is not among them.

        Args:
            rows: all ranks' scalars of some tags. The steps of each tag must exceed all that were given with
                this tag before.
        """
        found = [
            MergedStep(step, [value for value in values if value.tag != RANKS_TAG or value.tag in rows.tags])
            for step, values in self._add(rows, is_late=True)
        ]
        return [merged for merged in found if merged.values]

    def _add(self, rows: RecordedScalars, *, is_late: bool = False) -> list[MergedStep]:
        rows = _without_phases(rows)
        if not len(rows.steps):
            return []
        steps, at = distinct(rows.steps)
        tags = sorted(rows.tags)
        place = {tag: number for number, tag in enumerate(tags)}
        # A step and a tag make one number, a point, by which everything below is sorted and grouped.
        points = at * len(tags) + np.array([place[tag] for tag in rows.tags])[rows.which]
        ranks = rows.ranks
        with np.errstate(over="ignore"):
            values = rows.values.astype(np.float32).astype(np.float64)
        keep = last_recorded(ranks, points)
        if keep is not None:
            ranks, points, values, at = ranks[keep], points[keep], values[keep], at[keep]
        width = int(ranks.max()) + 1
        # Of each step, how many ranks recorded any tag: each pair of step and rank counts once.
        counts = np.bincount(distinct(at * width + ranks)[0] // width, minlength=len(steps))
        # From its first step on, a tag that a rank recorded takes the place of a statistic of this name.
        first = np.full(len(tags), len(steps))
        np.minimum.at(first, points % len(tags), at)
        for tag, index in zip(tags, first.tolist(), strict=True):
            if index < len(steps):
                self._recorded.setdefault(tag, int(steps[index]))
        held = self._held(tags, ranks, points, values)
        statistics = over_ranks(*held)
        hows = {at: how for at, tag in enumerate(tags) if (how := _across(self._definitions, tag)) != MEAN}
        across = across_ranks(hows, place, held, statistics.points, statistics.mean)
        short = statistics.points[across.is_short]
        if is_late:
            self.inexact += len(short)
        else:
            self._name_unweighted({tags[at % len(tags)]: int(steps[at // len(tags)]) for at in short[::-1]})
        statistics = replace(statistics, mean=across.merged)
        return list(self._merged(steps.tolist(), tags, statistics, across.is_there, counts.tolist()))

    def _name_unweighted(self, first: Mapping[str, int]) -> None:
        """Name each tag once with a rank that was left out since it has no weight, and the step."""
        for tag in sorted(first.keys() - self._unweighted):
            self._unweighted.add(tag)
            weights = _across(self._definitions, tag).removeprefix(WEIGHTED)
            logger.warning(
                "%r is weighted by %r, which a rank with a value did not record at step %d: such a rank does "
                "not count there, and a step at which no rank has a weight has no merged value",
                tag, weights, first[tag],
            )  # fmt: skip

    def _held(
        self, tags: Sequence[str], ranks: Ints, points: Ints, values: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """The arguments, with the newest values of sampled tags in the place of the recorded ones."""
        sampled = [number for number, tag in enumerate(tags) if tag.startswith(SYSTEM_TAGS)]
        if not sampled:
            return ranks, points, values
        of = points % len(tags)
        rest = ~np.isin(of, sampled)
        columns = [(ranks[rest], points[rest], values[rest])]
        for number in sampled:
            mine = np.flatnonzero(of == number)
            if len(mine):
                newest = self._sampled.setdefault(tags[number], _Newest())
                columns += newest.add(ranks[mine], points[mine], values[mine])
        found_ranks, found_points, found_values = map(np.concatenate, zip(*columns, strict=True))
        return found_ranks, found_points, found_values

    def _merged(
        self,
        steps: Sequence[int],
        tags: Sequence[str],
        statistics: RankStatistics,
        is_there: Bools,
        counts: Sequence[int],
    ) -> Iterator[MergedStep]:
        where, which = np.divmod(statistics.points, len(tags))
        columns = (where, which, is_there, statistics.mean, statistics.min, statistics.median, statistics.max)
        # Points rise by step, then by tag: that is the order in which MAX_DIFFERING counts.
        differ = np.flatnonzero(statistics.differ)
        _, firsts = np.unique(which[differ], return_index=True)
        for point in differ[np.sort(firsts)].tolist():
            self._begin(tags[which[point]], steps[where[point]])
        begin = [_ALWAYS if tag in self._declared else self._begun.get(tag, _NEVER) for tag in tags]
        # Name of a statistic -> the step from which on a rank's own scalar has the name.
        until = [
            [(name, self._recorded.get(name, _NEVER)) for name in statistics_of(tag)]
            if start < _NEVER
            else []
            for tag, start in zip(tags, begin, strict=True)
        ]
        ranks_until = self._recorded.get(RANKS_TAG, _NEVER)
        rows = zip(*(column.tolist() for column in (*columns, statistics.argmax_rank)), strict=True)
        for index, same_step in groupby(rows, key=itemgetter(0)):
            step = steps[index]
            values: list[Value] = []
            for _, number, has_value, merged, *others in same_step:
                if has_value:
                    values.append(Value("scalar", tags[number], merged))
                if step >= begin[number]:
                    named = zip(until[number], others, strict=True)
                    values += [Value("scalar", name, float(x)) for (name, end), x in named if step < end]
            if step < ranks_until:
                values.append(Value("scalar", RANKS_TAG, float(counts[index])))
            yield MergedStep(step, values)

    def _begin(self, tag: str, step: int) -> None:
        """Note that the ranks differ in a tag at a step."""
        if tag in self._declared or tag in self._begun:
            return
        if len(self._begun) < MAX_DIFFERING:
            self._begun[tag] = step
        elif not self._is_full:
            self._is_full = True
            logger.warning(
                "the ranks differ in more than %d scalar tags: from %r at step %d on, further ones get their "
                "mean alone; name those that shall have min, median and max: distsummary merge RUN --tag %s",
                MAX_DIFFERING, tag, step, tag,
            )  # fmt: skip


class _Newest:
    """The newest value of a sampled tag on each rank, up to the last step that was added."""

    def __init__(self) -> None:
        self._ranks, self._values = np.empty(0, np.int64), np.empty(0)

    def add(self, ranks: Ints, points: Ints, values: Floats) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Ranks, points and values that count at these points, which are the tag's at rising steps."""
        order = np.argsort(points, kind="stable")
        ranks, points, values = ranks[order], points[order], values[order]
        starts = np.unique(points, return_index=True)[1]
        # The table of points and ranks is made in pieces, to bound its size.
        rows = max(1, _MAX_TABLE // len(np.union1d(self._ranks, ranks)))
        bounds = [*starts[::rows].tolist(), len(points)]
        for start, end in pairwise(bounds):
            yield self._counted(ranks[start:end], points[start:end], values[start:end])

    def _counted(self, ranks: Ints, points: Ints, values: Floats) -> tuple[Ints, Ints, Floats]:
        known = np.union1d(self._ranks, ranks)
        numbers = np.concatenate((self._values, values))
        unique, row = np.unique(points, return_inverse=True)
        # Row 0 holds what was there before, row i + 1 what is new at the point i; -1 is nothing.
        table = np.full((len(unique) + 1, len(known)), -1)
        table[0, np.searchsorted(known, self._ranks)] = np.arange(len(self._ranks))
        table[row + 1, np.searchsorted(known, ranks)] = len(self._ranks) + np.arange(len(ranks))
        is_new = table >= 0
        newest = np.maximum.accumulate(table, axis=0)
        # By point, the column of the lowest rank that has recorded the tag so far: only its steps count.
        lowest = (newest >= 0).argmax(axis=1)
        counts = is_new[np.arange(len(table)), lowest]
        counts[0] = False
        # The next call continues from the newest values.
        self._ranks, self._values = known, numbers[newest[-1]]
        newest = newest[counts]
        rows, columns = np.nonzero(newest >= 0)
        return known[columns], unique[counts[1:]][rows], numbers[newest[rows, columns]]


def _across(definitions: Definitions, tag: str) -> str:
    return definitions.of(tag).across or MEAN


def _without_phases(rows: RecordedScalars) -> RecordedScalars:
    """The rows without the scalars that only distinguish the ranks."""
    names = np.array([tag.startswith((PHASE_TAGS, CHECK_TAGS)) for tag in rows.tags], np.bool_)
    if not names.any():
        return rows
    keep = ~names[rows.which]
    places = np.cumsum(~names) - 1
    tags = [tag for tag, is_phase in zip(rows.tags, names.tolist(), strict=True) if not is_phase]
    return RecordedScalars(
        tags, places[rows.which[keep]], rows.ranks[keep], rows.steps[keep], rows.values[keep]
    )


def distinct(numbers: Ints) -> tuple[Ints, Ints]:
    """The different numbers among N, rising, and the place of each of the N among them.

    As np.unique does, but in a fraction of the time where the numbers lie close together.
    """
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > 8 * len(numbers):
        unique, places = np.unique(numbers, return_inverse=True)
        return unique, places
    offsets = numbers - low
    is_there = np.zeros(high - low + 1, np.bool_)
    is_there[offsets] = True
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[offsets]


def last_recorded(ranks: Ints, points: Ints) -> Ints | None:
    """The indices, int64 (M,), of the last of each (rank, point) among N in recording order.

    None if each is there once, so that all are the last.
    """
    keys = points * (int(ranks.max()) + 1) + ranks
    if len(distinct(keys)[0]) == len(keys):
        return None
    order = np.argsort(keys, kind="stable")
    return np.sort(order[np.append(np.diff(keys[order]) != 0, True)])
