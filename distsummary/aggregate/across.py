"""Merged values that are no mean, as the definitions of their tags say: sum, min, max or weighted mean."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from distsummary.aggregate.rank_columns import Bools, Floats, Ints
from distsummary.format.definitions import MAX, MEAN, MIN, SUM, WEIGHTED

Rows: TypeAlias = tuple[Ints, Ints, Floats]
_UFUNCS = {SUM: np.add, MIN: np.minimum, MAX: np.maximum}


class Across(NamedTuple):
    """Of each of S points (a tag at a step) its merged value.

    `merged` float64 (S,); `is_there` bool (S,): False where no rank has a weight; `is_short` bool (S,): where
    a rank with a value has none, and was left out.
    """

    merged: Floats
    is_there: Bools
    is_short: Bools


def across_ranks(
    hows: Mapping[int, str],
    places: Mapping[str, int],
    rows: tuple[Ints, Ints, Floats],
    at: Ints,
    mean: Floats,
) -> Across:
    """The value of each point over the ranks that recorded it; a NaN of any of them makes it NaN.

    Args:
        hows: the number of a tag -> how its values become one; the other tags keep their mean.
        places: tag -> its number among T tags.
        rows: ranks int64 (N,), points int64 (N,): step index * T + number of the tag, values float64 (N,). No
            pair of rank and point occurs twice.
        at: int64 (S,), the points, rising; `mean` float64 (S,): their means.
    """
    ranks, points, values = rows
    found = Across(mean.copy(), np.ones(len(at), np.bool_), np.zeros(len(at), np.bool_))
    tags_of = defaultdict(list)
    for number, how in hows.items():
        tags_of[how].append(number)
    for how, numbers in tags_of.items():
        mine = np.flatnonzero(np.isin(points % len(places), numbers))
        if how == MEAN or not len(mine):
            continue
        mine = mine[np.lexsort((ranks[mine], points[mine]))]
        starts = np.flatnonzero(np.append(True, np.diff(points[mine]) != 0))
        places_of = np.searchsorted(at, points[mine][starts])
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if how in _UFUNCS:
                found.merged[places_of] = _UFUNCS[how].reduceat(values[mine], starts)
                continue
            weights, has_weight = _weights(how.removeprefix(WEIGHTED), places, rows, mine)
            products = np.where(has_weight, values[mine] * weights, 0.0)
            total = np.add.reduceat(np.where(has_weight, weights, 0.0), starts)
            found.merged[places_of] = np.add.reduceat(products, starts) / total
        found.is_there[places_of] = np.logical_or.reduceat(has_weight, starts)
        found.is_short[places_of] = ~np.logical_and.reduceat(has_weight, starts)
    return found


def _weights(tag: str, places: Mapping[str, int], rows: Rows, mine: Ints) -> tuple[Floats, Bools]:
    """What the rank of each row in `mine` recorded as `tag` at the row's step, and whether it did."""
    ranks, points, values = rows
    theirs = np.flatnonzero(points % len(places) == places.get(tag, -1))
    if not len(theirs):
        return np.zeros(len(mine)), np.zeros(len(mine), np.bool_)
    keys = points // len(places) * (int(ranks.max()) + 1) + ranks
    theirs = theirs[np.argsort(keys[theirs])]
    nearest = theirs[np.minimum(np.searchsorted(keys[theirs], keys[mine]), len(theirs) - 1)]
    return values[nearest], keys[nearest] == keys[mine]
