"""Statistics of one tag over the ranks, step by step."""

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
        "perf/step_s",
        "perf/data_wait_s",
    )
)
PARTS = ("min", "median", "max", "argmax_rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistics:
    """One tag over the ranks that recorded it: `steps` int64 (S,), rising; the rest (S,) too.

    `mean`, `min`, `median`, `max` are float64, `argmax_rank` is int64.
    """

    steps: Ints
    mean: Floats
    min: Floats
    median: Floats
    max: Floats
    argmax_rank: Ints


def last_recorded(ranks: Ints, steps: Ints) -> Ints:
    """Which of the values (N,), in order of recording, are the last of their rank and step: int64 (M,)."""
    order = np.lexsort((np.arange(len(ranks)), steps, ranks))
    if not len(order):
        return order
    changes = (np.diff(ranks[order]) != 0) | (np.diff(steps[order]) != 0)
    return np.sort(order[np.append(changes, True)])


def over_ranks(ranks: Ints, steps: Ints, values: Floats) -> RankStatistics:
    """Mean, min, median, max and the rank of the maximum at each step, of the ranks that have the step.

    A NaN of any rank is visible: the mean is NaN and `argmax_rank` names the lowest rank that has one, while
    min, median and max are those of the ranks that have a number (NaN when none has). Infinities are numbers.
    Equal maxima name the lowest rank. Computed in float64; the order of the values makes no difference.

    Args:
        ranks, steps: int64 (N,). values: float64 (N,). A pair of rank and step stands at most once.
    """
    # Within a step by value, NaN last; of equal values the lowest rank last: the end of a step names a rank.
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
    highest = starts + np.maximum(numbers - 1, 0)  # without a number: one of the NaNs
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
        low, high = values[starts + (highest - starts) // 2], values[starts + numbers // 2]
        median = np.where(low == high, low, low / 2 + high / 2)
        mean = np.add.reduceat(values, starts) / counts
    # Ranks that agree have their value as their mean, to the last bit.
    mean = np.where((numbers == counts) & (values[starts] == values[highest]), values[starts], mean)
    return RankStatistics(
        steps=unique,
        mean=mean,
        min=values[starts],
        median=median,
        max=values[highest],
        argmax_rank=ranks[ends - 1],
    )


def named_series(
    tag: str, statistics: RankStatistics, *, is_key: bool, taken: Collection[str] = ()
) -> dict[str, Floats]:
    """What is written of a tag: the mean under its name; of a key tag also `<tag>/min` and the other PARTS.

    Each (S,) float64. A part whose name a rank recorded itself (`taken`) is left out.
    """
    series = {tag: statistics.mean}
    if is_key:
        parts: dict[str, Floats] = {
            "min": statistics.min,
            "median": statistics.median,
            "max": statistics.max,
            "argmax_rank": statistics.argmax_rank.astype(np.float64),
        }
        series |= {f"{tag}/{part}": parts[part] for part in PARTS if f"{tag}/{part}" not in taken}
    return series
