"""What `why` says where no rank can be compared with others."""

from distsummary.cli.why import Findings, text_of
from tests.unit.runs.states import BEGAN, attempt_state, rank_state, status_of


def said(*ranks, **fields):
    return text_of(Findings(status_of(attempt_state(ranks, **fields)), [], 0, 0), width=200)


def test_ranks_that_have_not_begun_are_named_before_the_first_step():
    waits = said(rank_state(0, step=None), missing=(1,), started=BEGAN + 3087)
    assert waits == "No rank has made a step for 33 s: rank 1 has not begun."


def test_without_a_verdict_the_bill_is_named():
    assert said(rank_state(0), rank_state(1)) == (
        "none of the 2 ranks stands out; what the time went to: distsummary cost /runs/mine"
    )
    assert said(rank_state(0)).startswith("nothing was found; the run has one rank")
