"""Mean, min, median, max of a scalar over the ranks, and the rank with the maximum or a NaN, at each step."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KEY_TAGS = frozenset(
    (
        "loss",
        "loss/auto",
        "lr",
        "learning_rate",
        "learning_rate/auto",
        "perf/step_ms",
        "perf/data_wait_ms",
        "system/process/cpu_percent",
        "system/process/memory_gib",
        "system/gpu/memory_percent",
        "system/gpu/utilization_percent",
    )
)
SAMPLED = ("system/process/", "system/node/", "system/gpu/")  # tags that each rank records at its own steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistics:
    """Statistics of one tag over the ranks that recorded it, at each of S steps; all arrays are (S,).

    `steps` int64, rising; `mean`, `min`, `median`, `max` float64; `argmax_rank` int64. A NaN of a rank makes
    the mean NaN, is left out of min, median and max, and its rank is the `argmax_rank`: it names the rank to
    look at. See `over_ranks`.
    """

    steps: Ints
    mean: Floats
    min: Floats
    median: Floats
    max: Floats
    argmax_rank: Ints


def last_recorded(ranks: Ints, steps: Ints) -> Ints:
    """The indices, int64 (M,), of the last value of each (rank, step) among N values in recording order."""
    order = np.lexsort((np.arange(len(ranks)), steps, ranks))
    if not len(order):
        return order
    changes = (np.diff(ranks[order]) != 0) | (np.diff(steps[order]) != 0)
    return np.sort(order[np.append(changes, True)])


def over_ranks(ranks: Ints, steps: Ints, values: Floats) -> RankStatistics:
    """Mean, min, median, max and the rank of the maximum at each step, over the ranks with a value.

    If any rank has a NaN, the mean is NaN and `argmax_rank` is the lowest rank with a NaN, while min, median
    and max are taken over the other ranks (NaN if there are none). Infinities count as numbers. If several
    ranks have the maximum, `argmax_rank` is the lowest of them. The order of the values makes no difference.

    Args:
        ranks, steps: int64 (N,); no pair occurs twice.
        values: float64 (N,).
    """
    # Sorted by step, then value (NaN last), then falling rank: the last entry of a step has its argmax_rank.
    order = np.lexsort((-ranks, values, steps))
    ranks, steps, values = ranks[order], steps[order], values[order]
    unique, starts, counts = np.unique(steps, return_index=True, return_counts=True)
    ends = starts + counts
    if not len(unique):
        empty = np.empty(0)
        return RankStatistics(
            steps=unique, mean=empty, min=empty, median=empty, max=empty, argmax_rank=unique.copy()
        )
    numbers = counts - np.add.reduceat(np.isnan(values), starts, dtype=np.int64)
    highest = starts + np.maximum(numbers - 1, 0)  # the index of a NaN if all values of the step are NaN
    with np.errstate(invalid="ignore", over="ignore"):  # a sum may be infinite or NaN
        low, high = values[starts + (highest - starts) // 2], values[starts + numbers // 2]
        median = np.where(low == high, low, low / 2 + high / 2)
        mean = np.add.reduceat(values, starts) / counts
    # Where all ranks agree the mean is their value, to the last bit.
    mean = np.where((numbers == counts) & (values[starts] == values[highest]), values[starts], mean)
    return RankStatistics(
        steps=unique,
        mean=mean,
        min=values[starts],
        median=median,
        max=values[highest],
        argmax_rank=ranks[ends - 1],
    )


def held(ranks: Ints, steps: Ints, values: Floats) -> tuple[Ints, Ints, Floats]:
    """For sampled tags: the newest value of every rank at each step of the lowest rank with the tag.

    Ranks take samples at the same times, but not at the same steps. A rank without a value up to a step has
    none at it. Arguments and results are as in `over_ranks`.
    """
    if not len(ranks):
        return ranks, steps, values
    wanted = np.sort(steps[ranks == ranks.min()])
    columns = []
    for rank in np.unique(ranks):
        order = np.flatnonzero(ranks == rank)
        order = order[np.argsort(steps[order])]
        newest = np.searchsorted(steps[order], wanted, "right") - 1
        at = wanted[newest >= 0]
        columns.append((np.full(len(at), rank), at, values[order[newest[newest >= 0]]]))
    found_ranks, found_steps, found_values = map(np.concatenate, zip(*columns, strict=True))
    return found_ranks, found_steps, found_values


def named_series(
    tag: str, statistics: RankStatistics, *, is_key: bool, recorded: Collection[str] = ()
) -> dict[str, Floats]:
    """The series to write, name -> float64 (S,): the mean as `tag`; for a key tag also `<tag>/min` etc.

    A name such as `<tag>/min` is left out if it is in `recorded`, the tags that the ranks recorded.
    """
    series = {tag: statistics.mean}
    if is_key:
        others: dict[str, Floats] = {
            f"{tag}/min": statistics.min,
            f"{tag}/median": statistics.median,
            f"{tag}/max": statistics.max,
            f"{tag}/argmax_rank": statistics.argmax_rank.astype(np.float64),
        }
        series |= {name: values for name, values in others.items() if name not in recorded}
    return series
