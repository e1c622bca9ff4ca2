"""sentence: verdicts in words."""

from dataclasses import replace

import pytest

from distsummary.diagnosis.sentence import named_ranks, seconds, sentence, weight, with_line
from distsummary.diagnosis.verdict import CAUSES, FINISHED, INTERRUPTED, STARTED, Verdict
from distsummary.rundir.deal import LongStep

SLOW = Verdict(
    rank=2, cause="forward", since_step=1200, until_step=1419,
    evidence="forward took 5.7 ms a step, on its peers 1.3 ms", reported_step=1203, lost_s=1.04,
)  # fmt: skip


def test_the_finding_comes_first_then_the_numbers_then_the_cost() -> None:
    assert sentence(SLOW, of_s=30.2) == (
        "Rank 2 held up the run in steps 1,200 to 1,419: forward took 5.7 ms a step, on its peers 1.3 ms. "
        "Cost: 1.0 s of 30 s."
    )


def test_what_lasts_what_is_over_and_what_cost_nothing() -> None:
    lasts = replace(SLOW, until_step=None, lost_s=0.4)
    assert sentence(lasts).startswith("Rank 2 has held up the run since step 1,200: ")
    assert sentence(lasts).endswith(" Cost so far: 0.4 s.")
    over = sentence(replace(lasts, lost_s=0.01, evidence="it slept"), is_over=True)
    assert over == "Rank 2 held up the run from step 1,200 to the end: it slept."
    assert sentence(lasts, is_over=True, of_s=0.2).endswith(" Cost: 0.4 s of 0.4 s.")


def test_the_steps_of_several_times() -> None:
    def said(*intervals: tuple[int, int | None]) -> str:
        one = replace(SLOW, since_step=intervals[0][0], until_step=intervals[-1][1], intervals=intervals)
        return sentence(one).partition(":")[0].partition("run ")[2]

    assert said((5, 5)) == "in step 5"
    assert said((5, 9), (20, 20)) == "in steps 5 to 9 and 20"
    assert said((5, 9), (20, None)) == "in steps 5 to 9 and since step 20"
    many = said((1, 2), (4, 5), (7, 8), (10, 11), (13, 14))
    assert many == "in steps 1 to 2, 4 to 5, 7 to 8 and 2 more times"


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(("ranks", "until"), [((), None), ((0, 2, 3), 9)])
def test_each_cause_has_a_sentence(cause: str, ranks: tuple[int, ...], until: int | None) -> None:
    said = sentence(replace(SLOW, cause=cause, ranks=ranks, until_step=until, since_step=7))
    of_run = cause in (STARTED, FINISHED, INTERRUPTED)
    assert said.startswith("The run " if of_run else "Ranks 0, 2 and 3 " if ranks else "Rank 2 ")
    assert not {"{", "}", "told", "lacks"}.intersection(said.split())


def test_ranks_and_seconds_in_words() -> None:
    assert named_ranks([3]) == "rank 3"
    assert named_ranks([5, 3]) == "ranks 3 and 5"
    assert named_ranks([0, 1, 2, 3, 7, 8]) == "ranks 0 to 3, 7 and 8"
    assert named_ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert [seconds(value) for value in (0.04, 3.21, 35.4, 130.0, 9000.0)] == [
        "0.0 s", "3.2 s", "35 s", "2 min", "2.5 h",
    ]  # fmt: skip


def test_errors_come_first_then_what_ended_the_training_then_what_cost_most() -> None:
    def one(cause: str, lost_s: float = 0.0) -> Verdict:
        return replace(SLOW, cause=cause, lost_s=lost_s, level="")

    verdicts = [
        one("data", 1.0), one("config"), one("forward", 9.0), one("drift"), one("hang", 2.0), one("nan"),
    ]  # fmt: skip
    assert [found.cause for found in sorted(verdicts, key=weight)] == [
        "hang", "nan", "drift", "forward", "data", "config",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "since", "until", "expected"),
    [
        ("unknown", 100, None, "; at step 300 it was at c"),  # the newest one
        ("unknown", 100, 250, "; at step 200 it was at b"),
        ("data", 100, None, "; at step 210 it was at d"),
        ("data", 211, None, ""),
        ("forward", 100, None, ""),
        ("hang", 100, None, ""),
    ],
)
def test_a_long_step_has_the_line_at_which_the_rank_was(cause, since, until, expected):
    seen = [(50, "rest", "a"), (200, "outside", "b"), (210, "data", "d"), (300, "rest", "c")]
    verdict = Verdict(
        rank=0, cause=cause, since_step=since, until_step=until, evidence="it took long", reported_step=320
    )
    found = with_line(verdict, [LongStep(*one) for one in seen])
    assert found == replace(verdict, evidence=f"it took long{expected}")
