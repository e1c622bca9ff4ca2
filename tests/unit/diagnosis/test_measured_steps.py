"""Which steps are measured if not all are."""

from itertools import pairwise

import pytest

from distsummary.diagnosis.measured_steps import is_measured, next_measured

STEPS = 100_000
POWERS = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("every", POWERS)
def test_one_in_every_is_measured_and_the_next_is_never_far(every: int) -> None:
    measured = [step for step in range(STEPS) if is_measured(step, every)]
    assert abs(len(measured) - STEPS / every) < 3
    assert all(next_measured(one, every) == later for one, later in pairwise(measured))
    assert max(later - one for one, later in pairwise(measured)) < 3 * every


def test_ranks_that_measure_fewer_measure_none_that_others_do_not() -> None:
    for fewer, more in zip(POWERS[1:], POWERS[:-1], strict=True):
        assert all(is_measured(step, more) for step in range(STEPS) if is_measured(step, fewer))


@pytest.mark.parametrize("every", POWERS[1:])
@pytest.mark.parametrize("period", [2, 5, 8, 64, 100, 512])
def test_of_what_is_periodic_one_in_every_is_measured(every: int, period: int) -> None:
    found = [is_measured(step, every) for step in range(1, 2000 * period, period)]
    assert 0.8 < sum(found) * every / len(found) < 1.2


def test_large_numbers_of_steps_are_spread_too() -> None:
    assert 900 < sum(is_measured(step, 4) for step in range(10**9, 10**9 + 4000)) < 1100
