"""Statistics over ranks against numpy's, and the rule of which tags get them against a plain loop."""

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.aggregate import statistics as module
from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.aggregate.statistics import KEY_TAGS, StatisticsRule, over_ranks
from distsummary.format.own_tags import SYSTEM_TAGS


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(-3, 5)),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_the_statistics_are_those_of_numpy_in_any_order_of_the_values(table, random):
    rows = list(table.items())
    random.shuffle(rows)
    ranks, steps = (np.array([key[i] for key, _ in rows]) for i in (0, 1))
    statistics = over_ranks(ranks, steps, np.array([value for _, value in rows]))
    assert statistics.points.tolist() == sorted({step for _, step in table})
    for i, step in enumerate(statistics.points.tolist()):
        by_rank = {rank: value for (rank, s), value in sorted(table.items()) if s == step}
        column = np.array(list(by_rank.values()))
        scale = np.abs(column).max() * 1e-12
        assert statistics.mean[i] == pytest.approx(column.mean(), rel=1e-12, abs=scale)
        assert statistics.min[i] == column.min()
        assert statistics.median[i] == pytest.approx(np.median(column), rel=1e-15)
        assert statistics.max[i] == column.max()
        assert statistics.argmax_rank[i] == next(r for r, v in by_rank.items() if v == column.max())


TAGS = ["loss", "a", "b", "c", "zz_ranks/a/min", "zz_ranks/count", "zz_system/gpu/x", "zz_system/node/y"]


def by_loop(recorded, key_tags, limit):
    """What the rule says, value by value: (step, [(tag, value)]) of (step, rank, tag, value) in any order."""
    known, begun, newest, found = set(), set(), {}, []
    for step in sorted({row[0] for row in recorded}):
        here = {}
        for _, rank, tag, value in (row for row in recorded if row[0] == step):
            here.setdefault(tag, {})[rank] = value
        known |= set(here)
        means = []
        for tag in sorted(here):
            by_rank = here[tag]
            if tag.startswith(SYSTEM_TAGS):
                mine = newest.setdefault(tag, {})
                mine.update(by_rank)
                if min(mine) not in by_rank:
                    continue
                by_rank = mine
            ranks = sorted(by_rank)
            numbers = [by_rank[rank] for rank in ranks if by_rank[rank] == by_rank[rank]]
            is_partly_nan = 0 < len(numbers) < len(ranks)
            differs = is_partly_nan or (numbers and min(numbers) != max(numbers))
            is_declared = tag in KEY_TAGS or tag in key_tags
            if differs and not is_declared and len(begun) < limit:
                begun.add(tag)
            one = over_ranks(
                np.array(ranks), np.zeros(len(ranks), int), np.array([by_rank[r] for r in ranks])
            )
            means.append((tag, one.mean[0]))
            if is_declared or tag in begun:
                for kind in ("min", "median", "max", "argmax_rank"):
                    if f"zz_ranks/{tag}/{kind}" not in known:
                        means.append((f"zz_ranks/{tag}/{kind}", float(getattr(one, kind)[0])))
        if means and "zz_ranks/count" not in known:
            means.append(("zz_ranks/count", float(len({rank for of in here.values() for rank in of}))))
        if means:
            found.append((step, means))
    return found


def by_rule(recorded, key_tags, cuts):
    rule, found = StatisticsRule(key_tags), []
    for low, high in pairwise([-100, *sorted(cuts), 100]):
        part = [row for row in recorded if low <= row[0] < high]
        which = np.array([TAGS.index(row[2]) for row in part], np.int64)
        ranks, steps = (np.array([row[i] for row in part], np.int64) for i in (1, 0))
        rows = RecordedScalars(TAGS, which, ranks, steps, np.array([row[3] for row in part], np.float64))
        found += [(step, [(value.tag, value.data) for value in values]) for step, values in rule.add(rows)]
    return found


NUMBERS = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.1, float("nan"), float("inf")]).map(np.float32).map(float)


@given(
    st.lists(st.tuples(st.integers(-5, 9), st.integers(0, 4), st.sampled_from(TAGS), NUMBERS), max_size=60),
    st.sets(st.sampled_from(TAGS), max_size=2),
    st.sets(st.integers(-5, 9)),
    st.integers(0, 4),
    st.sampled_from([1, 8, 1 << 22]),
)
def test_any_division_of_the_steps_gives_what_a_plain_loop_over_the_steps_gives(
    recorded, key_tags, cuts, limit, table
):
    with mock.patch.multiple(module, MAX_DIFFERING=limit, _MAX_TABLE=table):
        found = by_rule(recorded, key_tags, cuts)
        expected = by_loop(recorded, key_tags, limit)
    assert repr(found) == repr([(step, [(t, float(x)) for t, x in values]) for step, values in expected])
