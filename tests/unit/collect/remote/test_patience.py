"""How long a rank waits for its collector."""

import pytest

from distsummary.collect.remote.patience import (
    ANSWER_S,
    AWAITED_S,
    CALLER_S,
    MOST_ANSWER_S,
    MOST_AWAITED_S,
    Patience,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_answer_has_its_time_and_less_of_it_while_a_caller_waits(clock):
    patience = Patience(clock)
    assert patience.answer_until(1000.0) == 1000.0 + ANSWER_S
    clock.now = 1010.0
    patience.hurry()
    assert patience.answer_until(1000.0) == 1010.0 + AWAITED_S
    assert patience.answer_until(1012.0) == 1012.0 + AWAITED_S
    clock.now = 1010.0 + CALLER_S  # no one waits any more
    assert patience.answer_until(1040.0) == 1040.0 + ANSWER_S


def test_who_closes_waits_until_the_end(clock):
    patience = Patience(clock)
    patience.hurry(is_closing=True)
    patience.hurry()
    assert patience.answer_until(1000.0) == 1000.0 + AWAITED_S
    clock.now += 2 * CALLER_S
    assert patience.answer_until(1000.0) == 1000.0 + AWAITED_S
    assert patience.is_closing


def test_a_collector_that_is_seen_at_work_has_more_time_but_not_for_ever(clock):
    patience = Patience(clock)
    clock.now += 10
    patience.is_at_work()
    assert patience.answer_until(1000.0) == 1010.0 + ANSWER_S
    patience.hurry()
    clock.now += 4
    patience.is_at_work()
    assert patience.answer_until(1000.0) == 1014.0 + AWAITED_S
    clock.now = 1010.0 + MOST_AWAITED_S - 1
    patience.is_at_work()
    assert patience.answer_until(1000.0) == 1010.0 + MOST_AWAITED_S
    clock.now = 1000.0 + MOST_ANSWER_S - 1
    patience.is_at_work()
    assert patience.answer_until(1000.0) == 1000.0 + MOST_ANSWER_S
