"""What recording costs the loop: a finding if it is over 10 % in two windows one after the other."""

import pytest

from distsummary.events.overhead import Overhead


def looked(shares, *, step_s=0.1, values=1000, every_s=5.0):
    """What is found if a look comes every 5 s, and recording takes `shares` of the time between looks."""
    at = [0.0]
    overhead, found = Overhead(lambda: at[0]), []
    step = 0.0
    for share in shares:
        at[0] += every_s
        step += every_s / step_s
        overhead.spent_s += every_s * share
        found.append(overhead.look(round(step), round(values * step)))
    return [(place, one) for place, one in enumerate(found) if one is not None]


def test_two_windows_over_ten_percent_are_found_once():
    [(place, found)] = looked([0.3] * 20)
    assert place == 5  # the first look begins, the second is after the first steps; then 20 s
    assert (found.step, found.lost_s) == (100, pytest.approx(6.0))
    assert found.evidence == (
        "30% of the time, 30 of 100 ms a step with 1,000 values; record fewer of them, or only if "
        "run.step % 4 == 0"
    )
    spent, rest = 0.3 / 4, 0.7
    assert spent / (spent + rest) < 0.1 < (0.3 / 3) / (0.3 / 3 + rest)


@pytest.mark.parametrize(
    "shares",
    [[0.09] * 50, [0.3, 0.3] + [0.01] * 50, [0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0] * 5, [0.9] * 3],
    ids=["below", "the first steps", "single windows", "too short"],
)
def test_less_is_not(shares):
    assert looked(shares) == []


def test_short_steps_are_not():
    assert looked([0.5] * 20, step_s=5e-4) == []
    assert looked([0.5] * 20, step_s=2e-3) != []


def test_time_within_time_counts_once():
    at = [0.0]
    overhead = Overhead(lambda: at[0])
    with overhead.measured():
        at[0] += 1.0
        with overhead.measured():
            at[0] += 2.0
        overhead.spent_s += 2.0
    assert overhead.spent_s == 3.0
