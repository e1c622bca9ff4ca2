"""How long a rank waits for its collector."""

import pytest

from distsummary.collect.remote import patience as module
from distsummary.collect.remote.patience import (
    ANSWER_S,
    AWAITED_S,
    CALLER_S,
    MOST_ANSWER_S,
    MOST_AWAITED_S,
    OUTAGE_S,
    STARTS,
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


def test_a_collector_that_does_not_start_is_late_when_the_outage_is_over(clock):
    patience = Patience(clock)
    clock.now += OUTAGE_S - 1
    assert not patience.is_late()
    clock.now += 1
    assert patience.is_late()
    assert patience.is_over()
    assert not patience.is_worn()  # it may still come
    patience.begins()
    assert not patience.is_late()


def test_an_outage_begins_with_its_first_failure_and_ends_with_an_acknowledged_batch(clock):
    patience = Patience(clock)
    patience.works()
    clock.now = 5000.0
    patience.fails(is_dead=True)
    clock.now += OUTAGE_S - 1
    patience.fails(is_dead=True)
    assert not patience.is_late()
    clock.now += 1
    assert patience.is_late()
    patience.works()
    assert patience.deaths == 0
    clock.now = 9000.0
    assert not patience.is_late()
    patience.fails(is_dead=False)
    assert not patience.is_late()


def test_deaths_in_a_row_are_bounded_and_each_start_waits_longer(clock):
    patience = Patience(clock)
    pauses = []
    for _ in range(STARTS):
        assert not patience.is_worn()
        pauses.append(patience.pause_s())
        patience.fails(is_dead=True)
    assert patience.is_worn()
    assert pauses == [0.0, 0.0, 0.25, 0.5, 1.0]
    for _ in range(100):
        patience.fails(is_dead=True)
    assert patience.pause_s() == module.LONGEST_PAUSE_S


def test_a_directory_that_cannot_be_opened_is_no_death(clock):
    patience = Patience(clock)
    for _ in range(100):
        patience.fails(is_dead=False)
    assert not patience.is_over()


def test_an_answer_has_its_time_and_less_of_it_while_a_caller_waits(clock):
    patience = Patience(clock)
    assert patience.answer_until(1000.0) == 1000.0 + ANSWER_S
    assert patience.answer_until(1000.0, 40 << 20) == 1000.0 + ANSWER_S + 10
    clock.now = 1010.0
    patience.hurry()
    assert patience.answer_until(1000.0) == 1010.0 + AWAITED_S
    assert patience.answer_until(1012.0) == 1012.0 + AWAITED_S
    assert patience.answer_until(1012.0, 64 << 20) == 1012.0 + AWAITED_S + 1
    assert patience.is_awaited()
    assert not patience.is_over()
    clock.now = 1010.0 + CALLER_S  # no one waits any more
    assert not patience.is_awaited()
    assert patience.answer_until(1040.0) == 1040.0 + ANSWER_S


def test_who_closes_takes_no_second_attempt(clock):
    patience = Patience(clock)
    patience.works()
    patience.hurry(is_closing=True)
    patience.hurry()
    assert patience.answer_until(1000.0) == 1000.0 + AWAITED_S
    clock.now += 2 * CALLER_S
    assert patience.answer_until(1000.0) == 1000.0 + AWAITED_S
    assert patience.is_over()  # asked after a failure only


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
