"""Histograms of a page: shares in bins that steps share, exact ends, and which rank recorded them."""

import json

import numpy as np
import pytest

import distsummary as ds
from distsummary.format.histogram import count_histogram
from distsummary.format.records import Histogram, Value
from distsummary.view.histograms import BINS, axis, bin_edges, histograms, shares_of, with_finite_ends
from distsummary.view.packing import packed
from tests.unit.runs.recording import record


def of(**tags):
    return [Value("histogram", tag, np.asarray(values, np.float32)) for tag, values in tags.items()]


def test_shares_ends_and_what_is_not_finite(tmp_path):
    def values(step, rank):
        return of(w=[*np.linspace(-1, step, 100), *([np.nan, np.inf] if step == 2 else [])], same=[3.0] * 4)

    record(tmp_path, steps=[1, 2, 5], values=values)
    found = histograms(ds.open_run(tmp_path))
    wide, same = found["tags"]
    assert (wide["tag"], wide["ranks"], wide["is_merged"], wide["recorded"]) == ("w", [0], False, 3)
    assert (wide["steps"].tolist(), wide["low"], wide["high"], wide["linear"]) == ([1, 2, 5], -1, 5, None)
    assert (wide["min"].tolist(), wide["max"].tolist()) == ([-1] * 3, [1, 2, 5])
    assert (wide["median_low"] <= [0, 0.5, 2]).all()
    assert (wide["median_high"] >= [0, 0.5, 2]).all()
    assert (wide["counts"].tolist(), wide["bad"].tolist()) == ([100, 102, 100], [0, 2, 0])
    shares = (wide["shares"] / 255.0) ** 2 * wide["highest"]
    assert shares.sum(axis=1) == pytest.approx(1, abs=0.02)
    assert not shares[0, BINS // 3 :].any()  # step 1 has nothing above 1, which is a third of the axis
    assert (same["low"], same["high"]) == (1.5, 4.5)
    assert (same["shares"] == 255).sum(axis=1).tolist() == [1] * 3


def test_of_many_steps_the_first_and_the_newest_stay_and_the_rest_is_spread_evenly(tmp_path):
    record(tmp_path, steps=range(1, 1002), values=lambda step, rank: of(w=[step, step + 1.0]))
    [one] = histograms(ds.open_run(tmp_path))["tags"]
    assert (one["recorded"], one["steps"].size) == (1001, 120)
    assert (one["steps"][0], one["steps"][-1], one["max"][-1]) == (1, 1001, 1002)
    assert {*np.diff(one["steps"])} == {8, 9}


def test_the_rank_that_recorded_a_tag_is_reported_and_many_tags_are_left_out(tmp_path):
    for rank in range(2):
        tags = {f"t{number}": [1.0, 2.0] for number in range(rank, 120, 2)}
        record(
            tmp_path, rank=rank, ranks=2, values=lambda step, rank, tags=tags: of(**tags, both=[rank, 5.0])
        )
    found = histograms(ds.open_run(tmp_path))
    assert (len(found["tags"]), found["left_out"]) == (100, 21)
    ranks = {one["tag"]: (one["ranks"], one["is_merged"], one["min"][0]) for one in found["tags"]}
    assert (ranks["t0"], ranks["t1"], ranks["both"]) == (([0], False, 1), ([1], False, 1), ([0, 1], False, 0))
    ds.merge_run(tmp_path)
    merged = histograms(ds.open_run(tmp_path))
    assert {one["tag"]: one["is_merged"] for one in merged["tags"]}["both"]
    assert merged["tags"][0]["shares"].tolist() == found["tags"][0]["shares"].tolist()


def test_values_far_out_make_the_axis_logarithmic():
    values = np.concatenate([np.random.default_rng(0).normal(0, 1e-3, 5000), [1000.0]])
    one = count_histogram(values, fixed=True)
    low, high, linear = axis([one])
    assert linear == pytest.approx(1.28e-3, rel=0.1)
    edges = bin_edges(low, high, linear)
    assert (np.diff(edges) > 0).all()
    shares = shares_of(one, edges)
    assert (edges[0], edges[-1], shares.sum()) == (one.min, one.max, pytest.approx(1))
    assert shares[-1] == pytest.approx(1 / 5001)
    assert shares.max() < 0.5
    ends = np.array([-1e308, 1e308])
    assert np.isfinite(bin_edges(*axis([count_histogram(ends)]))).all()


def test_a_run_without_histograms_has_none_and_one_of_nan_alone_has_no_shares(tmp_path):
    record(tmp_path / "a")
    assert histograms(ds.open_run(tmp_path / "a")) is None
    record(tmp_path / "b", values=lambda step, rank: of(w=[np.nan]))
    [one] = histograms(ds.open_run(tmp_path / "b"))["tags"]
    assert not one["shares"].any()
    assert np.isnan(one["min"]).all()
    assert one["bad"].tolist() == [1] * 5


@pytest.mark.parametrize(
    ("low", "high", "left", "width"),
    [
        (np.nan, np.nan, [0.0, 1.0], [1.0, 1.0]),
        (0.0, np.inf, [0.0, 1.0], [1.0, np.inf]),
        (-np.inf, np.inf, [-np.inf, 1.0], [np.inf, 1.0]),
        (np.nan, np.nan, [], []),
    ],
)
def test_a_histogram_of_others_without_finite_ends_has_those_of_its_bins(low, high, left, width):
    """As torch's writer leaves it when a value is NaN."""
    counts = np.ones(len(left), np.int64)
    one = Histogram(
        left=np.array(left), width=np.array(width), counts=counts, count=len(left), min=low, max=high, sum=low
    )
    found = with_finite_ends(one)
    assert all(end is None or np.isfinite(end) for end in (found.min, found.max))
    assert np.isfinite(axis([found])[:2]).all()


def test_what_is_not_finite_reaches_no_json_of_a_page():
    numbers = [np.nan, np.inf, -np.inf, np.float64("nan"), 1.5]
    text, _ = packed({"a": numbers, "b": {"c": (float("nan"), "NaN", 3)}, "d": np.array([np.nan])})
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["a"] == [None] * 4 + [1.5]
    assert json.loads(text)["b"] == {"c": [None, "NaN", 3]}
