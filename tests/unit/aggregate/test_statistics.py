import numpy as np
import pytest

from distsummary.aggregate.statistics import held, last_recorded, named_series, over_ranks

NAN, INF = float("nan"), float("inf")


def one_step(values):
    """The statistics of one step at which rank r has values[r]."""
    ranks = np.arange(len(values))
    return over_ranks(ranks, np.full(len(values), 7), np.array(values, np.float64))


def numbers(statistics):
    return [float(x[0]) for x in (statistics.mean, statistics.min, statistics.median, statistics.max)]


def test_each_step_has_the_statistics_of_the_ranks_that_recorded_it():
    ranks = np.array([0, 1, 2, 0, 2, 1])
    steps = np.array([1, 1, 1, 2, 2, 5])
    statistics = over_ranks(ranks, steps, np.array([1.0, 2.0, 6.0, 4.0, 3.0, 9.0]))
    assert statistics.steps.tolist() == [1, 2, 5]
    assert statistics.mean.tolist() == [3.0, 3.5, 9.0]
    assert statistics.min.tolist() == [1.0, 3.0, 9.0]
    assert statistics.median.tolist() == [2.0, 3.5, 9.0]
    assert statistics.max.tolist() == [6.0, 4.0, 9.0]
    assert statistics.argmax_rank.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("values", "expected", "rank"),
    [
        ([1.0, NAN, 3.0, 2.0], [NAN, 1.0, 2.0, 3.0], 1),
        ([NAN, 1.0, NAN, 4.0], [NAN, 1.0, 2.5, 4.0], 0),
        ([NAN, NAN], [NAN, NAN, NAN, NAN], 0),
        ([1.0, INF, 2.0], [INF, 1.0, 2.0, INF], 1),
        ([-INF, INF, 2.0], [NAN, -INF, 2.0, INF], 1),
        ([1.0, -INF], [-INF, -INF, -INF, 1.0], 0),
        ([3.0, 5.0, 5.0], [13 / 3, 3.0, 5.0, 5.0], 1),
        ([-0.5], [-0.5, -0.5, -0.5, -0.5], 0),
    ],
)
def test_a_value_that_is_no_number_stays_visible(values, expected, rank):
    statistics = one_step(values)
    assert numbers(statistics) == pytest.approx(expected, nan_ok=True)
    assert statistics.argmax_rank.tolist() == [rank]


def test_ranks_that_agree_have_their_value_as_the_mean_to_the_last_bit():
    values = np.random.default_rng(0).normal(size=1000)
    for ranks in (3, 7, 11):
        statistics = over_ranks(
            np.tile(np.arange(ranks), 1000), np.repeat(np.arange(1000), ranks), np.repeat(values, ranks)
        )
        assert statistics.mean.tolist() == statistics.median.tolist() == values.tolist()


def test_no_values_have_no_statistics():
    empty = np.empty(0, np.int64)
    statistics = over_ranks(empty, empty, np.empty(0))
    assert [len(column) for column in named_series("loss", statistics, is_key=True).values()] == [0] * 5
    assert last_recorded(empty, empty).tolist() == []


def test_a_step_recorded_twice_counts_as_recorded_last():
    ranks = np.array([0, 0, 1, 0, 1])
    steps = np.array([4, 5, 4, 4, 6])
    assert last_recorded(ranks, steps).tolist() == [1, 2, 3, 4]


def test_a_key_tag_is_written_with_all_statistics_and_another_with_its_mean():
    statistics = one_step([1.0, 4.0])
    assert {name: x.tolist() for name, x in named_series("loss", statistics, is_key=True).items()} == {
        "loss": [2.5],
        "loss/min": [1.0],
        "loss/median": [2.5],
        "loss/max": [4.0],
        "loss/argmax_rank": [1.0],
    }
    assert list(named_series("acc", statistics, is_key=False)) == ["acc"]


def test_a_statistic_does_not_take_the_name_of_a_tag_that_ranks_recorded():
    series = named_series("loss", one_step([1.0, 4.0]), is_key=True, recorded=["loss", "loss/min"])
    assert list(series) == ["loss", "loss/median", "loss/max", "loss/argmax_rank"]


def test_samples_of_ranks_meet_at_the_steps_of_the_lowest_rank():
    ranks = np.array([3, 3, 1, 1, 1, 2, 3])
    steps = np.array([9, 31, 10, 20, 30, 25, 12])
    values = np.array([3.0, 3.3, 1.0, 1.1, 1.2, 2.0, 3.1])
    found = {(int(r), int(s)): float(v) for r, s, v in zip(*held(ranks, steps, values), strict=True)}
    assert found == {
        (1, 10): 1.0, (1, 20): 1.1, (1, 30): 1.2,
        (2, 30): 2.0,
        (3, 10): 3.0, (3, 20): 3.1, (3, 30): 3.1,
    }  # fmt: skip
    nothing = np.empty(0, np.int64)
    assert [len(column) for column in held(nothing, nothing, np.empty(0))] == [0, 0, 0]
