"""How an attempt began and ended, and what it lost, as alerts: the causes before their consequences."""

import pytest

from distsummary.diagnosis.ends import attempt_verdicts, unreported_end
from tests.unit.runs.states import attempt_state, failure, lost, rank_state

STARTED = ("started", 0, "3 ranks, attempt 0")
BROKEN = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


def said(ranks, state="running", *, is_over=False, **fields):
    found = attempt_verdicts(attempt_state(ranks, state, **fields), is_over=is_over)
    return [(one.cause, one.rank, one.evidence) for one in found]


def ranks_of(*states):
    return [rank_state(rank, state) for rank, state in enumerate(states)]


def test_an_attempt_without_ranks_has_not_started():
    assert said([], missing=(0, 1)) == []


def test_a_start_and_what_was_dropped_are_reported_while_the_ranks_run():
    ranks = [rank_state(0), rank_state(1, health={"dropped": 7}), rank_state(2, health={"dropped": 0})]
    assert said(ranks) == [STARTED, ("dropped", 1, "7 values by step 120; the log names each reason once")]


def test_a_failure_is_reported_before_the_others_have_ended_and_its_consequence_is_not():
    failed = [rank_state(0), rank_state(1, "failed", error="ValueError: x"), rank_state(2)]
    assert said(failed, "failed", failure=failure(1, "ValueError: x")) == [
        STARTED,
        ("failed", 1, "ValueError: x"),
    ]
    broken = [rank_state(0), rank_state(1, "failed", error=BROKEN), rank_state(2)]
    assert said(broken, "failed", failure=failure(1, BROKEN)) == [STARTED]
    assert [cause for cause, *_ in said(broken, "failed", failure=failure(1, BROKEN), is_over=True)] == [
        "started",
        "failed",
    ]


def test_a_rank_that_died_is_lost_with_its_reason():
    gone = [rank_state(0), lost(1), lost(2)]
    assert said(gone) == [STARTED, ("lost", 1, "its process is gone from node-0")]
    killed = failure(1, "killed by signal 9")
    assert said(gone, failure=killed)[1:] == [("lost", 1, "killed by signal 9")]


def test_an_end_is_of_the_step_of_the_rank_that_it_names():
    ranks = [rank_state(0, step=101), rank_state(1, "failed", step=100, error="ValueError: x")]
    found = attempt_verdicts(
        attempt_state(ranks, "failed", failure=failure(1, "ValueError: x")), is_over=True
    )
    assert [one.since_step for one in found if one.cause == "failed"] == [100]


@pytest.mark.parametrize(("state", "evidence"), [("finished", "3 ranks"), ("interrupted", "by a signal")])
def test_an_end_is_reported_when_no_rank_runs_any_more(state, evidence):
    ranks = ranks_of(state, state, state)
    assert said(ranks, state) == [STARTED]
    assert said(ranks, state, is_over=True) == [STARTED, (state, 0, evidence)]


def test_an_attempt_that_a_later_one_replaced_has_no_end():
    assert said(ranks_of(*["superseded"] * 3), "superseded", is_over=True) == [STARTED]


def test_a_rank_alone_that_was_killed_is_lost_although_nothing_reported_it():
    killed = attempt_state([lost(0)], "lost")
    [verdict] = unreported_end([], killed)
    assert (verdict.cause, verdict.since_step) == ("lost", 120)
    assert unreported_end([verdict], killed) == []
    assert unreported_end([], attempt_state([rank_state(0)])) == []
    assert unreported_end([], None) == []


def test_where_all_ranks_only_lost_a_connection_all_are_named():
    ranks = [rank_state(rank, "failed", error=BROKEN) for rank in range(3)]
    ended = attempt_state(ranks, "failed", failure=failure(1, BROKEN))
    [_, failed] = attempt_verdicts(ended, is_over=True)
    assert (failed.cause, failed.ranks) == ("failed", (0, 1, 2))
