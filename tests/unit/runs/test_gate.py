"""A gate: which changes fail, which hold, and which are unclear."""

import math

import numpy as np
import pytest

from distsummary.errors import InvalidValueError
from distsummary.runs.curves import curve_of
from distsummary.runs.gate import (
    FAILS,
    HOLDS,
    UNCLEAR,
    check_at,
    decide,
    exit_code,
    read_condition,
    side_of,
    student,
    tag_of,
    text_of,
    welch,
)
from tests.refusals import refused

NAN = math.nan


def decided(text, base, new, at="last"):
    """A condition on runs that recorded one value each, or the given curves."""
    condition = read_condition(text)
    sides = []
    for name, values in (("main", base), ("new", new)):
        curves = {
            f"{name}/{number}": None if one is None else curve_of(np.arange(np.size(one)), np.atleast_1d(one))
            for number, one in enumerate(values)
        }
        sides.append(side_of(name, curves, (), condition, at))
    return decide(condition, *sides, at=at)


def test_conditions_are_read():
    for text, expected in {
        "loss > +2%": ("loss", True, 0.02, True),
        "eval/accuracy<-0.01": ("eval/accuracy", False, -0.01, False),
        " my tag  > -.5e1 % ": ("my tag", True, -0.05, True),
        "a<b > + 3": ("a<b", True, 3.0, False),
    }.items():
        found = read_condition(text)
        assert found[1:] == pytest.approx(expected), text
    wrong = ["", "loss", "loss > 2%", "loss >= +2%", "loss = +2%", "> +2%", "loss > +2 3", "loss > +1e999"]
    wrong += ["loss > +__import__('os')", "loss > +2%%", "loss > +nan"]
    refused(InvalidValueError, *[(lambda text=text: read_condition(text), "--fail-if") for text in wrong])
    assert [check_at(at) for at in ("last", "best", "mean:100")] == ["last", "best", "mean:100"]
    at = ["first", "mean", "mean:0", "mean:-1", "mean:x", "mean:1e3", ""]
    refused(InvalidValueError, *[(lambda one=one: check_at(one), "--at must be last") for one in at])


def test_our_own_tags_need_no_prefix_and_unknown_ones_name_the_nearest():
    condition = read_condition("perf/step_ms > +5%")
    assert tag_of(condition, ["loss", "zz_perf/step_ms"]) == "zz_perf/step_ms"
    assert tag_of(condition, ["perf/step_ms", "zz_perf/step_ms"]) == "perf/step_ms"
    with pytest.raises(InvalidValueError, match=r"the tag of --fail-if .* got 'los'; the nearest are loss"):
        tag_of(read_condition("los > +1"), ["loss", "lr"])


def test_the_intervals_are_those_of_the_tables():
    # D. B. Owen's tables of Student's t; the rest by SciPy: ttest_ind(..., equal_var=False), 90 %.
    expected = {1: 6.3138, 2: 2.9200, 4: 2.1318, 8.5: 1.8455, 30: 1.6973, 1e6: 1.6464}
    assert {f: student(float(f)) for f in expected} == pytest.approx(expected, abs=2e-4)
    first, second = np.array([19.8, 20.4, 19.6, 17.8, 18.5]), np.array([28.2, 26.6, 20.1, 23.3, 25.2, 22.1])
    difference, half = welch(first, second)
    assert (difference, half) == pytest.approx((5.03, 2.5143), abs=1e-3)
    assert welch(first, np.array([21.0]))[1] == pytest.approx(
        2.1318 * first.std(ddof=1) * math.sqrt(1.2), abs=1e-3
    )
    assert welch(np.array([1.0]), np.array([2.0])) == (1.0, None)


@pytest.mark.parametrize(
    ("text", "base", "new", "outcome"),
    [
        ("loss > +2%", [1.0, 1.01, 0.99], [1.08, 1.09, 1.1], FAILS),
        ("loss > +2%", [1.0, 1.01, 0.99], [0.9, 0.91, 0.92], HOLDS),
        ("loss > +2%", [1.0, 1.01, 0.99], [1.01, 1.02, 1.03], UNCLEAR),
        ("loss > +0.5", [1.0, 1.01, 0.99], [1.4, 1.41, 1.42], HOLDS),
        ("acc < -0.01", [0.9, 0.9, 0.901], [0.85, 0.85, 0.851], FAILS),
        ("acc < -1%", [0.9, 0.9, 0.901], [0.9, 0.9, 0.9], HOLDS),
        ("loss > -5%", [1.0, 1.01, 0.99], [0.99, 1.0, 1.01], FAILS),  # it was to become better
        ("elbo < -2%", [-10.0, -10.1, -9.9], [-11.0, -11.1, -10.9], FAILS),
        ("elbo < -2%", [-10.0, -10.1, -9.9], [-9.0, -9.1, -8.9], HOLDS),
        ("loss > +2%", [1.0, 1.0], [1.0, 1.0], HOLDS),  # the same each time: no spread
        ("loss > +2%", [1.0, 1.0], [1.5, 1.5], FAILS),
        ("loss > +2%", [1.0, 1.01, 0.99, 1.0], [1.2], FAILS),  # one run, against the spread of the others
        ("loss > +2%", [1.0], [1.2], UNCLEAR),
        ("loss > +2%", [0.0, 0.0], [1.0, 1.0], UNCLEAR),
        ("loss > +2%", [1.0, 1.01], [NAN, 1.0], FAILS),
        ("loss > +2%", [1.0, NAN], [1.0, 1.0], UNCLEAR),
        ("loss > +2%", [1.0, 1.0], [1.0, None], UNCLEAR),
        ("loss > +2%", [None, None], [None, None], UNCLEAR),
    ],
)  # fmt: skip
def test_what_fails_holds_and_is_unclear(text, base, new, outcome):
    found = decided(text, base, new)
    assert found.outcome == outcome
    assert exit_code([found]) == {HOLDS: 0, FAILS: 1, UNCLEAR: 3}[outcome]
    lines = text_of(found, width=100)
    assert lines[0].startswith(outcome)
    assert max(map(len, lines)) <= 100


def test_a_failure_outweighs_what_is_unclear():
    held, unclear = decided("loss > +2%", [1.0, 1.0], [1.0, 1.0]), decided("loss > +2%", [1.0], [1.0])
    failed = decided("loss > +2%", [1.0, 1.0], [2.0, 2.0])
    assert [exit_code(one) for one in ([held, unclear, failed], [held, unclear], [held], [])] == [1, 3, 0, 0]


def test_values_are_the_last_the_best_or_the_mean_of_the_last():
    base, new = [[9.0, 1.0, 3.0], [9.0, 1.2, 3.0]], [[9.0, NAN, 5.0], [9.0, 4.0, 5.0]]
    assert decided("x > +9", base, new).new.values == (5.0, 5.0)
    best = decided("x > +9", base, new, "best")
    assert (best.base.values, best.base.steps, best.new.values) == ((1.0, 1.2), (1, 1), (5.0, 4.0))
    assert decided("x < -9", base, new, "best").base.values == (9.0, 9.0)  # more is better
    assert decided("x > +9", base, new, "mean:2").base.values == pytest.approx((2.0, 2.1))
    assert decided("x > +9", base, new, "mean:2").outcome == FAILS  # NaN is among them
    assert decided("x > +9", base, new, "mean:50").base.values[0] == pytest.approx(13 / 3)


def test_what_is_unclear_says_how_many_runs_would_decide():
    spread = np.array([-0.02, 0.0, 0.02])
    found = decided("loss > +2%", 1 + spread, 1.03 + spread)
    assert "it takes about 25 runs on each side" in found.reason
    found = decided("loss > +2%", 1 + np.tile(spread, 9), 1.03 + np.tile(spread, 9))
    assert found.outcome == FAILS


def test_of_forty_pairs_with_and_without_a_regression_at_most_one_is_judged_wrongly():
    """Five seeds a side, a spread of 1 % in the loss and 2 % in the step time; half are worse."""
    random, outcomes = np.random.default_rng(3), []
    for number in range(40):
        text, spread, planted = (
            ("loss > +2%", 0.01, 0.03), ("loss > +2%", 0.01, 0.08), ("perf/step_ms > +5%", 0.02, 0.08)
        )[number // 2 % 3]  # fmt: skip
        worse = number % 2 * planted
        base, new = (1 + spread * random.normal(size=5) for _ in range(2))
        outcomes.append((decided(text, base, new * (1 + worse)).outcome, FAILS if worse else HOLDS))
    assert sum(found not in (right, UNCLEAR) for found, right in outcomes) <= 1
    assert sum(found == right for found, right in outcomes) >= 26
