"""Puts the histograms of a parameter's shards together: counts in fixed buckets add up."""

import math

import numpy as np

from distsummary.format.histogram import fixed_edges, fixed_histogram
from distsummary.format.records import Array, Histogram, Value

_ROUNDING = 1e-9  # relative; TensorBoard's files hold the right edges alone, as sums of left edge and width


class AddedShards:
    """Adds up the histograms of a parameter's shards, of one tag at one step, without keeping them.

    The whole has counts, min and max as if counted whole, and the sum but for rounding. Shards with the same
    offset are copies, as in hybrid sharding: the first one counts.
    """

    def __init__(self) -> None:
        self._tag = ""
        self._shape: tuple[int, ...] | None = None
        self._offsets: set[tuple[int, ...]] = set()
        self._is_refused = False
        self._counts = np.zeros(len(fixed_edges()) - 1, np.int64)
        self._count = self._nan = self._pos_inf = self._neg_inf = 0
        self._lows, self._highs, self._sums = list[float](), list[float](), list[float]()

    def add(self, value: Value) -> None:
        """Add the value of one shard."""
        shard, part = value.shard, value.data
        counts = _fixed_counts(part) if isinstance(part, Histogram) else None
        if self._shape is None and shard is not None:
            self._tag, self._shape = value.tag, shard.global_shape
        if shard is None or counts is None or shard.global_shape != self._shape:
            self._is_refused = True
            return
        # A rank may have no element of the parameter, or a copy of a shard that counts already.
        if not part.count or shard.offset in self._offsets:
            return
        self._offsets.add(shard.offset)
        self._counts += counts
        self._count += part.count
        self._nan += part.nan_count
        self._pos_inf += part.pos_inf_count
        self._neg_inf += part.neg_inf_count
        if part.min is not None and part.max is not None and part.sum is not None:
            self._lows.append(part.min)
            self._highs.append(part.max)
            self._sums.append(part.sum)

    def whole(self) -> Value | None:
        """The histogram of the whole parameter.

        None if shards are missing (they have fewer elements than the whole has), if they disagree on the
        shape of the whole, or if a value is no shard or no histogram in fixed buckets.
        """
        if self._shape is None or self._is_refused or self._count != math.prod(self._shape):
            return None
        histogram = fixed_histogram(
            self._counts.copy(),
            count=self._count,
            nan_count=self._nan,
            pos_inf_count=self._pos_inf,
            neg_inf_count=self._neg_inf,
            min=min(self._lows, default=None),
            max=max(self._highs, default=None),
            sum=sum(self._sums) if self._sums else None,
        )
        description = f"Added up from {len(self._offsets)} shard(s), the parts that the ranks hold."
        return Value("histogram", self._tag, histogram, description=description)


def _fixed_counts(histogram: Histogram) -> Array | None:
    """The counts, int64 (1548,), of a histogram in all fixed buckets; None if its bins are others."""
    edges = fixed_edges()
    counts = np.zeros(len(edges) - 1, np.int64)
    if histogram.first_fixed is not None:
        first = histogram.first_fixed
        counts[first : first + len(histogram.counts)] = histogram.counts
        return counts
    filled = histogram.counts > 0
    left, width = histogram.left[filled], histogram.width[filled]
    right = left + width
    # In TensorBoard's files the outer edges are min and max, so a bin may be a part of a bucket.
    place = np.searchsorted(edges, left + width / 2, "right") - 1
    slack = _ROUNDING * np.maximum(np.abs(left), np.abs(right))
    if (left < edges[place] - slack).any() or (right > edges[place + 1] + slack).any():
        return None
    np.add.at(counts, place, histogram.counts[filled])
    return counts
