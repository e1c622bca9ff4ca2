"""Statistics over ranks beside numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsummary.aggregate.statistics import over_ranks


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
    assert statistics.steps.tolist() == sorted({step for _, step in table})
    for i, step in enumerate(statistics.steps.tolist()):
        by_rank = {rank: value for (rank, s), value in sorted(table.items()) if s == step}
        column = np.array(list(by_rank.values()))
        scale = np.abs(column).max() * 1e-12
        assert statistics.mean[i] == pytest.approx(column.mean(), rel=1e-12, abs=scale)
        assert statistics.min[i] == column.min()
        assert statistics.median[i] == pytest.approx(np.median(column), rel=1e-15)
        assert statistics.max[i] == column.max()
        assert statistics.argmax_rank[i] == next(r for r, v in by_rank.items() if v == column.max())
