"""Maps of ranks by steps: a fixed scale, the median of a cell with its extreme, the worst rows first."""

import numpy as np
import pytest

from distsummary.runs.table import Matrix
from distsummary.view.rank_maps import NOTHING, rank_map, reference
from distsummary.view.reduce import band

NAN = np.nan


def map_of(values, *, steps=None, named=(), step_of=None):
    values = np.array(values, np.float32)
    ranks = np.arange(values.shape[1], dtype=np.int32)
    steps = np.arange(values.shape[0]) if steps is None else np.array(steps)
    middle = reference(band(ranks, values), ranks.size)
    return rank_map("Own time", "ms", "own", Matrix(steps, ranks, values, None), middle, step_of, named)


def test_a_cell_is_the_median_of_its_steps_in_percent_of_the_median_rank():
    values = np.full((400, 3), 10.0)
    values[:, 2] = 15.0
    values[7, 1] = 40.0  # one step of rank 1
    found = map_of(values)
    assert (found["rows"], found["columns"], found["ranks"].tolist()) == (3, 100, [2, 0, 1])
    assert set(found["percent"][0].tolist()) == {50}
    row = found["ranks"].tolist().index(1)
    assert found["percent"][row].tolist() == [0] * 100
    # At step 7 the median is 15: the others are compared with it.
    column = 7 // 4
    assert (found["far"][row, column], found["first_steps"][column] + found["far_steps"][row, column]) == (
        167,
        7,
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [([[1.0, NAN, 2.0]] * 3, [0, NOTHING, 100]),  # a rank that recorded nothing; the median is 1.5 otherwise
     ([[0.0, 0.0, 0.0]] * 3, [0, 0, 0]),
     ([[-4.0, -2.0, -2.0]] * 3, [-100, 0, 0]),
     ([[3e38, 3e38, -3e38]] * 4, [0, 0, -200])],
)  # fmt: skip
def test_what_is_missing_is_left_out_and_nothing_is_divided_by_0(values, expected):
    found = map_of(values)
    by_rank = dict(zip(found["ranks"].tolist(), found["percent"][:, 0].tolist(), strict=True))
    if NOTHING in expected:
        assert by_rank[1] == NOTHING
        assert by_rank[0] < 0 < by_rank[2]
    else:
        assert [by_rank[rank] for rank in range(3)] == expected


def test_two_ranks_are_compared_with_the_lower_one_and_named_ranks_come_first():
    found = map_of([[10.0, 15.0]] * 5)
    assert (found["ranks"].tolist(), found["percent"][:, 0].tolist()) == ([1, 0], [50, 0])
    assert map_of([[10.0, 15.0]] * 5, named=[0])["ranks"].tolist() == [0, 1]


def test_waiting_is_in_percent_of_a_step():
    found = map_of([[1.0, 1.0, 6.0]] * 4, step_of=np.full(4, 10.0))
    assert (found["ranks"].tolist()[0], found["percent"][0, 0], found["is_of_step"]) == (2, 50, True)


def test_of_a_thousand_ranks_the_worst_have_rows_and_the_others_share_one():
    values = np.ones((50, 1000), np.float32)
    values[:, 765] = 2.0
    values[33, 10] = 9.0
    found = map_of(values)
    assert (found["ranks"][0], found["rows"], found["others"].size) == (765, 33, 968)
    assert found["percent"][-1].max() == 0
    assert (found["far"][-1].max(), found["far_rank"].size) in ((800, 50), (0, 50))


def test_without_a_finite_value_there_is_no_map():
    assert map_of([[NAN, NAN, NAN]]) is None
    infinite = map_of([[1.0, 1.0, np.inf]])
    assert infinite["bad"][infinite["ranks"].tolist().index(2)].tolist() == [1]
