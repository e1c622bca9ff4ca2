import logging

import numpy as np
import pytest

from distsummary.aggregate.rank_columns import RecordedScalars
from distsummary.aggregate.statistics import MAX_DIFFERING, StatisticsRule, over_ranks
from tests.unit.aggregate import live_ranks

NAN, INF = float("nan"), float("inf")


def one_step(values):
    """The statistics of one step at which rank r has values[r]."""
    ranks = np.arange(len(values))
    return over_ranks(ranks, np.full(len(values), 7), np.array(values, np.float64))


def numbers(statistics):
    return [float(x[0]) for x in (statistics.mean, statistics.min, statistics.median, statistics.max)]


@pytest.mark.parametrize(
    ("values", "expected", "rank"),
    [
        ([1.0, NAN, 3.0, 2.0], [NAN, 1.0, 2.0, 3.0], 1), ([NAN, 1.0, NAN, 4.0], [NAN, 1.0, 2.5, 4.0], 0),
        ([NAN, NAN], [NAN, NAN, NAN, NAN], 0), ([2.0, NAN, 2.0], [NAN, 2.0, 2.0, 2.0], 1),
        ([1.0, INF, 2.0], [INF, 1.0, 2.0, INF], 1), ([-INF, INF, 2.0], [NAN, -INF, 2.0, INF], 1),
        ([1.0, -INF], [-INF, -INF, -INF, 1.0], 0), ([3.0, 5.0, 5.0], [13 / 3, 3.0, 5.0, 5.0], 1),
        ([-0.5], [-0.5, -0.5, -0.5, -0.5], 0),
    ],
)  # fmt: skip
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
    assert [len(column) for column in (statistics.points, statistics.mean, statistics.differ)] == [0] * 3
    assert StatisticsRule().add(RecordedScalars(["loss"], empty, empty, empty, np.empty(0))) == []


def merged(*recorded, key_tags=(), rule=None, is_late=False):
    """step -> tag -> value, of (step, rank, {tag: value}) in recording order."""
    rows = [(tag, rank, step, value) for step, rank, values in recorded for tag, value in values.items()]
    return live_ranks.merged(rule or StatisticsRule(key_tags), *rows, is_late=is_late)


def test_at_most_so_many_tags_get_them_by_step_then_by_tag_and_the_log_names_the_first_without(caplog):
    def step(number, values):
        tags = [f"t{n:03d}" for n in range(300)] if number else ["t299"]
        return [(number, rank, {tag: float(values[rank]) for tag in reversed(tags)}) for rank in (0, 1)]

    rule = StatisticsRule()
    with caplog.at_level(logging.WARNING):
        for number, values in ((0, (1, 2)), (1, (1, 1)), (2, (1, 2)), (3, (3, 4))):
            found = merged(*step(number, values), rule=rule)[number]
    having = [name.split("/")[1] for name in found if name.endswith("/min")]
    assert having == [*(f"t{n:03d}" for n in range(MAX_DIFFERING - 1)), "t299"]
    [record] = caplog.records
    assert "'t255' at step 2" in record.message
    assert "--tag t255" in record.message


@pytest.mark.parametrize("other", [1.5, NAN])
def test_any_other_tag_has_them_from_the_first_step_at_which_its_ranks_differ(other):
    steps = [(step, rank, {"acc": 1.0}) for step in (1, 2, 4, 5) for rank in (0, 1)]
    found = merged(*steps[:4], (3, 0, {"acc": 1.0}), (3, 1, {"acc": other}), *steps[4:])
    assert [step for step, values in found.items() if "zz_ranks/acc/min" in values] == [3, 4, 5]


def test_a_statistic_gives_way_to_a_tag_of_its_name_from_that_tags_first_step_on():
    found = merged(*((step, rank, {"loss": rank}) for step in (1, 3) for rank in (0, 1)),
        (2, 1, {"zz_ranks/loss/min": 7.0}), (3, 1, {"zz_ranks/count": 9.0}))  # fmt: skip
    assert (found[1]["zz_ranks/loss/min"], found[1]["zz_ranks/count"]) == (0.0, 2.0)
    assert found[2] == {"zz_ranks/loss/min": 7.0, "zz_ranks/count": 1.0}
    assert "zz_ranks/loss/min" not in found[3]
    assert (found[3]["zz_ranks/loss/max"], found[3]["zz_ranks/count"]) == (1.0, 9.0)


def test_values_count_as_the_files_hold_them():
    assert merged((1, 0, {"a": 0.1}), (1, 1, {"a": 1e300}))[1]["zz_ranks/a/min"] == float(np.float32(0.1))
    assert merged((1, 0, {"a": 1e300}))[1]["a"] == INF


def test_a_step_that_does_not_come_after_the_earlier_ones_is_refused():
    rule = StatisticsRule()
    merged((2, 0, {"a": 1.0}), (1, 0, {"a": 1.0}), rule=rule)
    with pytest.raises(ValueError, match="steps must rise, but 2 was given after 2"):
        merged((2, 1, {"a": 1.0}), rule=rule)


def test_a_tag_may_come_late_but_its_step_has_reported_its_ranks_by_then():
    rule = StatisticsRule()
    merged((1, 0, {"a": 1.0}), (2, 0, {"a": 1.0}), (3, 0, {"a": 1.0}), rule=rule)
    found = merged(
        (1, 0, {"x": 1.0}), (1, 1, {"x": 1.0}), (2, 0, {"x": 1.0}), (2, 1, {"x": 2.0}), rule=rule,
        is_late=True,
    )  # fmt: skip
    assert found == {
        1: {"x": 1.0},
        2: {
            "x": 1.5, "zz_ranks/x/min": 1.0, "zz_ranks/x/median": 1.5, "zz_ranks/x/max": 2.0,
            "zz_ranks/x/argmax_rank": 1.0,
        },
    }  # fmt: skip
    assert merged((4, 0, {"x": 1.0}), rule=rule)[4]["zz_ranks/x/min"] == 1.0  # it has begun
