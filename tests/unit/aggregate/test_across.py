"""What a definition makes of the ranks' values is what NumPy makes of their files, live and by a merge."""

import logging

import numpy as np
import pytest

from distsummary.aggregate.statistics import StatisticsRule
from distsummary.events.reader import read_directory
from distsummary.format.definitions import Definitions
from tests.unit.aggregate.live_ranks import Ranks, merged, scalar, series

NAN = float("nan")
ACROSS = {"plain": np.mean, "a/sum": np.sum, "a/min": np.min, "a/max": np.max}
DEFINED = {
    "a/*": {"across": "max"}, "a/sum": {"across": "sum", "best": "max"}, "a/min": {"across": "min"},
    "weighted": {"across": "mean:samples"}, "zz_system/process/*": {"across": "sum"},
}  # fmt: skip


def values_of(rng, rank, step):
    found = dict(zip(ACROSS, rng.normal(size=len(ACROSS)) * 10.0 ** rng.integers(-3, 6), strict=True))
    if rng.random() < 0.1:
        found["a/min"] = found["a/sum"] = NAN
    if step % 3 != rank:
        found |= {"weighted": rng.normal(), "samples": float(rng.integers(0, 9))}
    return found


@pytest.fixture
def ranks(tmp_path):
    made = Ranks(tmp_path / "run", 3)
    yield made
    made.close()


def recorded(ranks):
    """tag -> step -> rank -> value, as the files of the ranks have it."""
    found = {}
    for rank, directory in ranks.run_dir.rank_dirs().items():
        for event in read_directory(directory):
            for value in event.values:
                found.setdefault(value.tag, {}).setdefault(event.step, {})[rank] = value.data
    return found


def expected(of_ranks, tag):
    """By step, in float64."""
    if tag == "weighted":
        found = {}
        for step, got in of_ranks[tag].items():
            weights = np.array([of_ranks["samples"][step][rank] for rank in got])
            found[step] = np.average([*got.values()], weights=weights) if weights.any() else NAN
        return found
    return {step: ACROSS[tag](list(got.values())) for step, got in of_ranks[tag].items()}


def test_each_way_is_what_numpy_gives_also_where_a_rank_is_missing(ranks, tmp_path):
    rng = np.random.default_rng(3)
    ranks.define(DEFINED)
    live = ranks.live()
    for step in range(1, 31):
        for rank in range(3):
            if (step, rank) not in ((4, 0), (5, 1), (9, 0), (9, 2)):
                ranks.write(rank, [scalar(step, **values_of(rng, rank, step))])
        live.advance({0, 1, 2}, float(step))
    assert live.close().is_exact
    of_ranks = recorded(ranks)
    for found in (series(ranks.run_dir.base), ranks.offline(tmp_path / "offline")):
        for tag in (*ACROSS, "weighted"):
            wanted = expected(of_ranks, tag)
            points = {step: eval(value, {"nan": NAN, "inf": np.inf}) for step, value in found["scalar", tag]}
            assert points.keys() == wanted.keys()
            got, want = ([values[step] for step in sorted(wanted)] for values in (points, wanted))
            np.testing.assert_array_equal(got, np.array(want).astype(np.float32).astype(np.float64), tag)


def test_a_rank_without_a_weight_does_not_count_and_is_named_once(caplog):
    rule = StatisticsRule(definitions=Definitions({"x": {"across": "mean:n"}}))
    with caplog.at_level(logging.WARNING):
        found = merged(rule, ("x", 0, 1, 1.0), ("x", 1, 1, 3.0), ("n", 1, 1, 2.0), ("x", 0, 2, 5.0))
        merged(rule, ("x", 0, 3, 5.0))
    assert found[1]["x"] == 3.0
    assert "x" not in found[2]
    assert found[2]["zz_ranks/count"] == 1.0
    assert [record.message for record in caplog.records if "'x' is weighted by 'n'" in record.message] != []
    assert len(caplog.records) == 1
    assert "at step 1" in caplog.records[0].message


def test_samples_of_the_system_are_added_where_they_hold():
    rule = StatisticsRule(definitions=Definitions(DEFINED))
    tag = "zz_system/process/memory_gib"
    found = merged(rule, (tag, 0, 1, 1.0), (tag, 1, 2, 2.0), (tag, 0, 3, 4.0))
    assert [found[step][tag] for step in (1, 3)] == [1.0, 6.0]


def test_a_merge_is_needed_where_a_definition_or_a_weight_came_late():
    rule = StatisticsRule(definitions=Definitions({"x": {"across": "mean:n"}}))
    merged(rule, ("x", 0, 1, 1.0), ("n", 0, 1, 1.0), ("y", 0, 1, 1.0))
    rule.define(Definitions({"x": {"across": "mean:n", "unit": "m"}, "y": {"across": "mean"}}))
    assert rule.inexact == 0
    merged(rule, ("x", 1, 2, 1.0), is_late=True)
    assert rule.inexact == 1
    rule.define(Definitions({}))
    assert rule.inexact == 2


def test_a_definition_that_comes_while_ranks_train_counts_for_all_steps_in_the_end(ranks, tmp_path):
    live = ranks.live()
    for step in (1, 2):
        for rank in range(3):
            ranks.write(rank, [scalar(step, x=1.0)])
    live.advance({0, 1, 2}, 0.0)
    ranks.define({"x": {"across": "sum"}})
    live.advance({0, 1, 2}, 9.0)
    assert series(ranks.run_dir.base)["scalar", "x"] == [(1, "1.0"), (2, "3.0")]
    assert not live.close().is_exact
    assert ranks.offline(tmp_path / "offline")["scalar", "x"] == [(1, "3.0"), (2, "3.0")]
