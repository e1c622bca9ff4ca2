"""Which rank holds up the others, from what the ranks report."""

import json
from dataclasses import replace

import pytest

from distsummary.diagnosis.sentence import named_ranks
from distsummary.diagnosis.stuck import AFTER_RUN, Collective, ProcessGroup, RankReport, hung

RANKS = (0, 1, 2, 3)
BEGUN = Collective(64, "all_reduce", ((2632,),))
PENDING = Collective(65, "all_reduce", ((2632,),), True)


def group(*collectives: Collective, ranks: tuple[int, ...] = RANKS, name: str = "0") -> ProcessGroup:
    return ProcessGroup(name, ranks, collectives)


def waits(rank: int, *collectives: Collective, late_s: float = 3.5) -> RankReport:
    return RankReport(
        rank=rank, step=60, phase="wait", late_s=late_s, limit_s=1.0, recorder="on",
        groups=(group(*(collectives or (BEGUN, PENDING))),), line="train.py:9 in step: loss.backward()",
    )  # fmt: skip


def sleeps(rank: int, late_s: float = 3.4) -> RankReport:
    return replace(
        waits(rank, BEGUN, late_s=late_s), phase="forward", line="train.py:7 in step: time.sleep(9)"
    )


def others(*reports: RankReport) -> list[RankReport]:
    """These, and ranks that wait for them."""
    given = {one.rank: one for one in reports}
    return [given.get(rank) or waits(rank) for rank in RANKS]


def test_the_rank_that_has_not_begun_what_the_others_wait_for_is_named_with_its_line() -> None:
    [verdict] = hung(others(sleeps(2)))
    assert (verdict.rank, verdict.cause, verdict.since_step, verdict.until_step) == (2, "waiting", 60, None)
    assert verdict.evidence == (
        "it has not begun all_reduce of 2,632 elements (collective 65 of group 0), in which ranks 0, 1 and 3 "
        "have waited 3.5 s; it has been at train.py:7 in step: time.sleep(9) for 3.4 s, in forward"
    )
    assert (verdict.lost_s, verdict.ranks) == (3.5, ())


def test_a_rank_that_waits_but_has_not_reported_for_what_is_not_blamed() -> None:
    early = replace(waits(0), limit_s=600.0, recorder="", groups=())
    assert [one.rank for one in hung(others(early, sleeps(2)))] == [2]


def test_a_rank_that_reports_nothing_is_reported_by_the_others() -> None:
    silent = RankReport(rank=1, step=41)
    # Native code may come back, such as one that writes a file.
    for late_s, cause in ((4.0, "waiting"), (61.0, "hang")):
        [verdict] = hung([waits(0, late_s=late_s), silent, *(waits(rank, late_s=late_s) for rank in (2, 3))])
        assert (verdict.rank, verdict.since_step, verdict.cause) == (1, 60, cause)
        assert "native code in it holds the interpreter lock" in verdict.evidence
    stopped = replace(silent, process="its process is stopped by a signal", is_stopped=True)
    [verdict] = hung(others(stopped))
    assert verdict.cause == "hang"
    assert "stopped by a signal" in verdict.evidence


def test_a_rank_that_reports_nothing_but_finds_no_processor_is_given_a_minute() -> None:
    busy = RankReport(rank=1, step=41, is_moving=True)
    assert hung(others(busy)) == []
    long = [replace(one, late_s=61.0) if one.late_s else one for one in others(busy)]
    assert [one.rank for one in hung(long)] == [1]


def test_nothing_is_said_before_all_have_had_time_to_report() -> None:
    assert hung([waits(rank, late_s=2.9) for rank in (0, 1, 3)] + [RankReport(rank=2)]) == []
    assert hung([RankReport(rank=rank, step=60) for rank in RANKS]) == []
    assert hung(others(replace(sleeps(2), limit_s=None))) == []


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint", "compile"])
def test_phases_that_take_their_time_are_no_hangs(phase: str) -> None:
    long = replace(sleeps(2), phase=phase, limit_s=600.0)
    assert hung(others(long)) == []
    assert [one.rank for one in hung(others(replace(long, late_s=603.0)))] == [2]


def test_a_rank_that_computes_is_given_a_minute() -> None:
    moving = replace(sleeps(2), is_moving=True)
    assert hung(others(moving)) == []
    assert [one.rank for one in hung(others(replace(moving, late_s=61.0)))] == [2]


def test_a_rank_that_has_just_gone_on_is_not_blamed() -> None:
    assert hung(others(RankReport(rank=2, step=60, went_on_s=0.4))) == []
    assert [one.rank for one in hung(others(RankReport(rank=2, step=60, went_on_s=30.0)))] == [2]


def test_other_orders_of_collectives() -> None:
    other = Collective(65, "broadcast", ((4,),), True)
    [verdict] = hung(others(waits(2, BEGUN, other)))
    assert verdict.rank == 2
    assert verdict.evidence == (
        "it began broadcast of 4 elements as collective 65 of group 0, where ranks 0, 1 and 3 began "
        "all_reduce of 2,632 elements; it has been at train.py:9 in "
        "step: loss.backward() for 3.5 s, where it waits for other ranks"
    )
    # it has gone on, since a broadcast does not wait for all
    done = other._replace(is_pending=False)
    [verdict] = hung(others(waits(2, BEGUN, done, PENDING._replace(number=66))))
    assert (verdict.rank, "collective 65" in verdict.evidence) == (2, True)
    sizes = PENDING._replace(sizes=((10,),))
    assert [one.rank for one in hung(others(waits(1, BEGUN, sizes)))] == [1]
    gathered = Collective(65, "all_gather", ((10,),), True)  # its sizes may differ
    verdicts = hung([waits(rank, gathered._replace(sizes=((rank,),))) for rank in RANKS])
    assert ["all have begun it" in one.evidence for one in verdicts] == [True]


def test_of_two_ranks_that_differ_both_are_named() -> None:
    pair = (0, 1)
    reported = [
        replace(waits(rank), groups=(group(Collective(65, name, (), True), ranks=pair),))
        for rank, name in enumerate(("all_reduce", "broadcast"))
    ]
    [verdict] = hung(reported)
    assert verdict.ranks == (0, 1)
    assert "there is no majority" in verdict.evidence


def test_an_exited_rank() -> None:
    [verdict] = hung(others(RankReport(rank=2, step=59, state="finished")))
    assert verdict.rank == 2
    assert verdict.cause == "hang"
    assert verdict.evidence == (
        "it has ended its training after step 59; it has not begun all_reduce of 2,632 elements "
        "(collective 65 of group 0), in which ranks 0, 1 and 3 have waited 3.5 s"
    )
    # the others have lost the connection, and failed
    reset = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"
    failed = [replace(waits(rank), state="failed", error=reset, late_s=0.3) for rank in (0, 1, 3)]
    [verdict] = hung([*failed, RankReport(rank=2, step=59, state="lost")])
    assert (verdict.rank, verdict.cause) == (2, "lost")
    assert verdict.evidence == (
        "lost; ranks 0, 1 and 3 waited until the connection broke in all_reduce of 2,632 elements "
        "(collective 65 of group 0)"
    )
    cut = [replace(waits(rank), is_cut_off=True, late_s=0.3, state="lost") for rank in (0, 1, 3)]
    assert [one.rank for one in hung([*cut, RankReport(rank=2, state="lost")])] == [2]
    assert hung(failed) == []
    # ranks without a report may be cut off in a moment, and the launcher may kill ranks that reported
    assert hung([failed[0], RankReport(rank=1), RankReport(rank=2), failed[2]]) == []
    [verdict] = hung(
        [failed[0], replace(waits(1), state="lost"), RankReport(rank=2, state="lost"), failed[2]]
    )
    assert verdict.rank == 2
    # its report about an earlier long step says nothing about its end
    [verdict] = hung([*failed, replace(waits(2, BEGUN), step=20, state="lost")])
    assert (verdict.since_step, verdict.cause) == (60, "lost")


def test_a_rank_that_raised_is_reported_once_with_its_error() -> None:
    error = "ValueError: bad batch"
    raised = RankReport(rank=2, step=59, state="failed", error=error)
    [verdict] = hung(others(raised))
    assert (verdict.rank, verdict.cause, verdict.since_step) == (2, "failed", 60)
    assert verdict.evidence.startswith(
        "ValueError: bad batch; ranks 0, 1 and 3 have waited 3.5 s in all_reduce"
    )
    # it had reported before that its step was long
    [again] = hung(others(replace(sleeps(2), state="failed", error=error)))
    assert again.evidence.startswith("ValueError: bad batch at train.py:7 in step: time.sleep(9); ranks 0, 1")
    # two that raise are one verdict; one that still runs may be about to raise it, too
    both = [waits(0), replace(raised, rank=1), raised, waits(3)]
    [verdict] = hung(both)
    assert (verdict.rank, verdict.ranks) == (1, (1, 2))
    assert hung([*both[:3], RankReport(rank=3, step=60)]) == []
    [verdict] = hung(others(replace(raised, state="interrupted", error="SystemExit: 0")))
    assert verdict.evidence.startswith(
        "it has ended its training (SystemExit: 0) after step 59; it has not begun"
    )


def test_what_most_ranks_raise_or_a_signal_that_ends_the_job_is_no_hang() -> None:
    raised = RankReport(rank=0, step=59, state="failed", error="ValueError: no such optimizer")
    everywhere = [replace(raised, rank=rank) for rank in RANKS]
    assert hung(everywhere) == []
    assert hung([*everywhere[:3], waits(3)]) == []
    reset = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"
    cut_off = replace(waits(3), state="failed", error=reset, late_s=0.3)
    assert hung([*everywhere[:3], cut_off]) == []
    assert hung(others(replace(raised, rank=2, state="interrupted", error="Terminated: SIGTERM"))) == []
    stopped = replace(waits(1), state="lost", error="stopped: it still ran 10 s after the first failure")
    verdicts = hung([waits(0), stopped, replace(raised, rank=2), waits(3)])
    assert [one.rank for one in verdicts] == [2]


def test_ranks_that_were_killed_together_are_reported_as_they_were() -> None:
    [verdict] = hung([replace(one, state="lost") for one in others(sleeps(2))])
    assert (verdict.rank, "time.sleep(9)" in verdict.evidence) == (2, True)
    [verdict] = hung([replace(one, state="lost") for one in others(RankReport(rank=2, step=40))])
    assert (verdict.rank, "it reports nothing, and all have ended" in verdict.evidence) == (2, True)


def test_ranks_that_wait_in_other_groups_are_no_culprits() -> None:
    """Rank 3 sleeps; rank 2 waits for it in their group, and 0 and 1 wait for 2 in that of all."""
    pair = ProcessGroup("1", (2, 3), (Collective(5, "all_gather", ((3,),), True),))
    middle = replace(waits(2, BEGUN), groups=(group(BEGUN), pair))
    last = replace(
        sleeps(3), groups=(group(BEGUN), ProcessGroup("1", (2, 3), (Collective(4, "all_gather"),)))
    )
    assert [one.rank for one in hung([waits(0), waits(1), middle, last])] == [3]


@pytest.mark.parametrize("odd", RANKS)
def test_of_ranks_that_wait_for_each_other_in_two_groups_the_odd_one_is_named(odd: int) -> None:
    """It left out the all_reduce of an evaluation, in a group of its own, and is in the next step."""
    counted = [Collective(number, "all_reduce", ((2,),), number == 3) for number in (2, 3)]
    reports = [
        replace(waits(rank, BEGUN), groups=(group(BEGUN), group(*counted, name="1"))) for rank in RANKS
    ]
    reports[odd] = replace(waits(odd), groups=(group(BEGUN, PENDING), group(counted[0], name="1")), step=71)
    [verdict] = hung(reports)
    assert (verdict.rank, verdict.ranks) == (odd, ())
    assert verdict.evidence.startswith(
        f"it has not begun all_reduce of 2 elements (collective 3 of group 1), in which "
        f"{named_ranks([rank for rank in RANKS if rank != odd])} have waited "
    )
    assert "and waits in all_reduce of 2,632 elements (collective 65 of group 0)" in verdict.evidence


def test_of_two_ranks_that_wait_for_each_other_in_two_groups_both_are_named() -> None:
    pair = (0, 1)
    first = replace(waits(0), groups=(group(PENDING, ranks=pair),))
    other = Collective(3, "all_reduce", ((2,),), True)
    second = replace(waits(1, BEGUN), groups=(group(BEGUN, ranks=pair), group(other, ranks=pair, name="1")))
    [verdict] = hung([first, second])
    assert verdict.ranks == pair


def test_a_rank_that_has_just_come_to_where_it_waits_makes_steps() -> None:
    """As one that has inputs left, while the others are in `DDP.join`."""
    for late_s, found in ((1.6, []), (3.5, [1])):
        behind = waits(1, PENDING._replace(number=64), late_s=late_s)
        assert [one.rank for one in hung(others(behind))] == found
        assert bool(hung(others(waits(1, late_s=late_s)))) == bool(found)


def test_all_wait_in_the_same_collective() -> None:
    [verdict] = hung([waits(rank) for rank in RANKS])
    assert verdict.ranks == RANKS
    assert "all have begun it: look at the network" in verdict.evidence


def test_a_rank_of_the_group_that_records_nothing_is_named_and_not_those_who_wait() -> None:
    here = [waits(rank) for rank in (0, 1, 2)]
    [verdict] = hung(here)
    assert (verdict.rank, verdict.ranks, verdict.cause) == (3, (), "hang")
    assert verdict.evidence == (
        "it has not begun all_reduce of 2,632 elements (collective 65 of group 0), in which ranks 0 to 2 "
        "have waited 3.5 s; it has recorded nothing: it has not come to its first step, or it makes no run"
    )
    starting = RankReport(rank=3, step=1, phase="compile", late_s=20.0, limit_s=600.0, recorder="on")
    assert hung([*here, starting]) == []


def test_steps_of_ten_minutes_are_not_late_before_three_of_them() -> None:
    long = [replace(one, limit_s=1800.0, late_s=1500.0) for one in others(sleeps(2))]
    assert hung(long) == []
    assert [one.rank for one in hung([replace(one, late_s=1803.0) for one in long])] == [2]


def test_without_a_flight_recorder_the_stacks_decide() -> None:
    blind = [replace(one, groups=(), recorder="off") for one in others(sleeps(2))]
    [verdict] = hung(blind)
    assert verdict.rank == 2
    assert "flight recorder is off" in verdict.evidence
    assert "time.sleep(9)" in verdict.evidence
    [verdict] = hung([*blind[:2], RankReport(rank=2, went_on_s=30.0), blind[3]])
    assert (verdict.rank, "reports nothing" in verdict.evidence) == (2, True)
    assert hung([*blind[:2], RankReport(rank=2, went_on_s=0.3), blind[3]]) == []
    order = replace(blind[0], rank=2, line="train.py:5 in step: dist.broadcast(x, 0)")
    [verdict] = hung([*blind[:2], order, blind[3]])
    assert (verdict.rank, "dist.broadcast(x, 0)" in verdict.evidence) == (2, True)


def test_without_collectives_a_rank_that_stands_still_alone_is_named() -> None:
    alone = replace(sleeps(1, late_s=4.1), groups=(), recorder="")
    going = [RankReport(rank=rank, step=80) for rank in (0, 2, 3)]
    [verdict] = hung([going[0], alone, *going[1:]])
    assert (verdict.rank, "while other ranks have" in verdict.evidence) == (1, True)
    # all of them, which may be the end of their work, are given a minute
    together = [replace(alone, rank=rank) for rank in RANKS]
    assert hung(together) == []
    [verdict] = hung([replace(one, late_s=62.0) for one in together])
    assert verdict.ranks == RANKS


def test_a_reporting_goes_through_json() -> None:
    assert RankReport.from_json(json.loads(json.dumps(waits(2).as_json()))) == waits(2)


# --- a rank that skips a collective of one number at step 60 and proceeds to backward of step 61

LOSS = Collective(65, "all_reduce", ((1,),), True)
GRADIENTS = Collective(65, "all_reduce", ((4225,),), True)
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:1] Connection closed by peer"
METRICS = "train.py:5 in metrics: dist.all_reduce(v)"


def skips(rank: int, state: str = "interrupted") -> RankReport:
    """It went on, and SIGTERM ended it at once."""
    backward = waits(rank, BEGUN, GRADIENTS, late_s=0.2)
    return replace(backward, step=61, state=state, error="Terminated: SIGTERM", ended_s=1.0)


def cut_off(rank: int) -> RankReport:
    """Its connection broke while it waited for the others to give their loss."""
    loss = waits(rank, BEGUN, LOSS, late_s=0.0)
    return replace(loss, line=METRICS, state="failed", error=RESET, is_cut_off=True, ended_s=1.0)


def crashed(rank: int, line: str = METRICS) -> RankReport:
    """gloo aborted it, since it received more than it expected."""
    return RankReport(
        rank=rank, step=59, state="lost", error="its process is gone", crash="Aborted", line=line, ended_s=1.0
    )


@pytest.mark.parametrize(("odd", "line"), [(0, METRICS), (1, METRICS), (2, "")])
def test_a_rank_that_skips_a_collective_is_named_and_not_the_one_that_crashes_of_it(odd: int, line: str):
    reported = {
        odd: skips(odd),
        (odd + 1) % 3: cut_off((odd + 1) % 3),
        (odd + 2) % 3: crashed((odd + 2) % 3, line),
    }
    three = [
        replace(one, groups=tuple(group(*each.collectives, ranks=(0, 1, 2)) for each in one.groups))
        for _, one in sorted(reported.items())
    ]
    [verdict] = hung(three)
    assert (verdict.rank, verdict.ranks, verdict.cause, verdict.since_step) == (odd, (), "hang", 60)
    theirs = " and ".join(str(rank) for rank in range(3) if rank != odd)
    assert verdict.evidence == (
        f"it began all_reduce of 4,225 elements as collective 65 of group 0, where ranks {theirs} began "
        f"all_reduce of 1 element at {METRICS}; at step 61 already, it has skipped one, or the others made "
        f"one more; rank {(odd + 2) % 3} crashed because of that (Aborted); it was at train.py:9 in step: "
        "loss.backward(), where it waits for other ranks"
    )


def test_without_a_word_of_the_crashed_rank_the_one_that_is_a_step_ahead_is_named() -> None:
    silent = replace(crashed(1), crash="", line="")
    assert [(one.rank, one.ranks) for one in hung([cut_off(0), silent, skips(2)])] == [(2, ())]


def test_of_two_the_one_that_is_a_step_ahead_is_named_first() -> None:
    pair = [
        replace(one, groups=(group(*one.groups[0].collectives, ranks=(0, 1)),))
        for one in (cut_off(0), skips(1))
    ]
    [verdict] = hung(pair)
    assert (verdict.rank, verdict.ranks) == (1, (0, 1))
    assert verdict.evidence.startswith(
        "rank 1 began all_reduce of 4,225 elements as collective 65 of group 0"
    )


def test_it_is_waited_for_what_a_rank_that_still_runs_reports() -> None:
    """The launcher is about to end rank 2, which has not been late for long."""
    running = RankReport(rank=2, step=60)
    assert hung([cut_off(0), crashed(1), running]) == []
    long_ago = [replace(one, ended_s=11.0) for one in (cut_off(0), crashed(1))]
    assert [(one.rank, one.cause) for one in hung([*long_ago, running])] == [(1, "lost")]


def test_a_crashed_rank_at_another_line_than_all_others_is_the_odd_one() -> None:
    """It skipped a large collective, and its small one was sent more than it expected."""
    large = Collective(65, "all_reduce", ((9000,),), True)
    waiting = [replace(cut_off(rank), groups=(group(BEGUN, large, ranks=(0, 1, 2)),)) for rank in (0, 2)]
    [verdict] = hung([waiting[0], crashed(1, "train.py:9 in step: loss.backward()"), waiting[1]])
    assert (verdict.rank, verdict.cause) == (1, "lost")
    assert verdict.evidence.startswith("Aborted at train.py:9 in step: loss.backward(); ranks 0 and 2 waited")


def test_of_two_that_called_different_collectives_the_one_that_crashed_is_not_alone_to_blame() -> None:
    """Rank 1 skipped the all_reduce of the metrics and began backward; gloo ended rank 0."""
    backward = replace(skips(1), step=60, is_cut_off=True, late_s=0.0, state="failed", error=RESET)
    backward = replace(backward, groups=(group(BEGUN, GRADIENTS, ranks=(0, 1)),))
    victim = replace(crashed(0), crashed_in="all_reduce")
    [verdict] = hung([victim, backward])
    assert (verdict.cause, verdict.ranks, verdict.since_step) == ("hang", (0, 1), 60)
    assert verdict.evidence == (
        "rank 1 began all_reduce of 4,225 elements (collective 65 of group 0) at train.py:9 in step: "
        f"loss.backward(), where rank 0 called all_reduce at {METRICS} and crashed because of that "
        "(Aborted): one has skipped a collective, or the other made one more; there is no majority"
    )
    # of three, two of which crashed, it is the third
    ranks = (0, 1, 2)
    alone = replace(backward, groups=(group(BEGUN, GRADIENTS, ranks=ranks),))
    [verdict] = hung([victim, alone, replace(victim, rank=2)])
    assert (verdict.cause, verdict.rank, verdict.ranks) == ("hang", 1, ())
    assert verdict.evidence.startswith("it began all_reduce of 4,225 elements")
    # what ends native code elsewhere is a crash
    [verdict] = hung([crashed(0), backward])
    assert (verdict.cause, verdict.rank) == ("lost", 0)


def test_broadcasts_from_other_roots() -> None:
    sent = Collective(65, "broadcast", ((7,),), True)
    reported = [replace(waits(rank, BEGUN, sent), root=3 if rank == 1 else 0) for rank in RANKS]
    [verdict] = hung(reported)
    assert verdict.rank == 1
    assert "broadcast of 7 elements (root: rank 3)" in verdict.evidence
    # the others got theirs, and wait in what comes next
    later = [
        waits(rank, BEGUN, sent._replace(is_pending=False), PENDING._replace(number=66)) for rank in (0, 2, 3)
    ]
    [verdict] = hung([later[0], reported[1], *later[1:]])
    assert verdict.rank == 1
    assert verdict.evidence.startswith(
        "it is in broadcast of 7 elements (collective 65 of group 0) (root: rank 3), which "
        "ranks 0, 2 and 3 ended; it has been at"
    )


def test_a_rank_whose_loop_has_ended_is_named_with_the_line_at_which_it_waits() -> None:
    barrier = Collective(65, "barrier", (), True)
    after = replace(
        waits(2, BEGUN, barrier),
        step=59,
        phase=AFTER_RUN,
        state="finished",
        line="train.py:30 in main: dist.barrier()",
    )
    [verdict] = hung(others(after))
    assert (verdict.rank, verdict.cause, verdict.since_step) == (2, "hang", 60)
    assert verdict.evidence == (
        "it has ended its training after step 59 and was at train.py:30 in main: dist.barrier(), after the "
        "end of its run; it has not begun all_reduce of 2,632 elements (collective 65 of group 0), in which "
        "ranks 0, 1 and 3 have waited 3.5 s"
    )
    [of_two] = hung(
        [replace(one, groups=(group(*one.groups[0].collectives, ranks=(2, 3)),)) for one in (after, waits(3))]
    )
    assert (of_two.rank, of_two.ranks) == (2, ())
    # it waits for something else
    reads = replace(after, groups=(group(BEGUN),), line="train.py:31 in main: queue.get()")
    [verdict] = hung(others(reads))
    assert verdict.evidence.startswith(
        "it has ended its training after step 59 and was at train.py:31 in main: queue.get(), "
        "after the end of its run; it has not begun all_reduce"
    )
    assert hung([reads, *(RankReport(rank=rank, step=70) for rank in (0, 1, 3))]) == []


def test_a_run_that_hung_before_a_signal_ended_it_still_did() -> None:
    def ended(late_s: float) -> list[RankReport]:
        return [
            replace(one, late_s=late_s, state="interrupted", error="Terminated: SIGTERM")
            for one in others(sleeps(2))
        ]

    assert [(one.rank, one.cause) for one in hung(ended(3.5))] == [(2, "hang")]
    assert hung(ended(0.4)) == []
    evaluates = [
        replace(one, phase="evaluation", limit_s=600.0) if one.rank == 2 else one for one in ended(9.0)
    ]
    assert hung(evaluates) == []


def test_ranks_that_have_not_begun_it_are_one_verdict() -> None:
    [verdict] = hung(
        [waits(0), sleeps(1), replace(sleeps(2), line="train.py:8 in step: lock.acquire()"), waits(3)]
    )
    assert (verdict.rank, verdict.ranks) == (1, (1, 2))
    assert verdict.evidence == (
        "they have not begun all_reduce of 2,632 elements (collective 65 of group 0), in which "
        "ranks 0 and 3 have waited 3.5 s; rank 1 has been at train.py:7 in step: time.sleep(9) for 3.4 s, "
        "in forward; rank 2 has been at train.py:8 in step: lock.acquire() for 3.4 s, in forward"
    )


@pytest.mark.parametrize("sizes", [(70, 7, 7), (7, 70, 70)])
def test_a_crashed_rank_at_the_line_of_all_others_expected_the_least(sizes: tuple[int, ...]) -> None:
    """Rank 0 has another size than ranks 1 and 2; gloo ends one with the smaller size."""
    died = min((1, 2, 0), key=lambda rank: sizes[rank])

    def here(rank: int) -> RankReport:
        begun = Collective(65, "all_reduce", ((sizes[rank],),), True)
        return (
            crashed(rank) if rank == died else replace(cut_off(rank), groups=(group(begun, ranks=(0, 1, 2)),))
        )

    [verdict] = hung([here(rank) for rank in range(3)])
    assert verdict.rank == 0


@pytest.mark.parametrize(
    ("line", "stack", "is_moving", "late_s", "cause"),
    [
        ("t.py:7 in save: subprocess.run(['aws'])", ("/lib/subprocess.py:2 in wait",), False, 4.0, "waiting"),
        ("t.py:7 in save: subprocess.run(['aws'])", ("/lib/subprocess.py:2 in wait",), False, 61.0, "hang"),
        ("t.py:7 in put: bucket.upload(x)", ("/lib/ssl.py:3 in recv", "/x/urllib3/a.py:1 in b"), False, 4.0,
         "waiting"),
        ("t.py:7 in log: file.write(line)", (), False, 4.0, "waiting"),
        ("t.py:7 in evaluate: model(x)", (), True, 62.0, "waiting"),
        ("t.py:7 in evaluate: model(x)", (), True, 601.0, "hang"),
        ("t.py:7 in step: time.sleep(9)", (), False, 59.0, "waiting"),
        ("t.py:7 in step: time.sleep(9)", (), False, 61.0, "hang"),
        ("t.py:7 in step: lock.acquire()", ("/lib/threading.py:4 in acquire",), False, 4.0, "waiting"),
    ],
)  # fmt: skip
def test_a_rank_that_does_what_may_end_is_waited_for_before_it_hangs(line, stack, is_moving, late_s, cause):
    rank = replace(sleeps(2, late_s=late_s), line=line, stack=stack, is_moving=is_moving)
    [verdict] = hung([waits(0, late_s=late_s), waits(1, late_s=late_s), rank, waits(3, late_s=late_s)])
    assert (verdict.rank, verdict.cause) == (2, cause)
    assert verdict.level == ("warning" if cause == "waiting" else "error")
    assert line in verdict.evidence


@pytest.mark.parametrize(
    ("late_s", "cause"), [(20.0, None), (61.0, None), (63.0, "waiting"), (599.0, "waiting"), (605.0, "hang")]
)
@pytest.mark.parametrize("is_there", [True, False])
def test_of_the_first_step_it_is_said_after_a_minute_who_has_not_begun(late_s, cause, is_there):
    first = [replace(waits(rank, PENDING, late_s=late_s), step=1, limit_s=600.0) for rank in (0, 2, 3)]
    loads = replace(sleeps(1, late_s=late_s), step=1, phase="data", limit_s=600.0, groups=(group(),))
    found = hung([first[0], *([loads] if is_there else []), *first[1:]])
    assert [(one.rank, one.ranks, one.cause) for one in found] == [(1, (), cause)] * (cause is not None)


def test_a_rank_that_has_just_come_through_a_long_first_step_is_not_blamed() -> None:
    through = replace(waits(0, BEGUN, late_s=110.0), step=1, phase="recording", limit_s=600.0)
    assert hung([through, RankReport(rank=1, step=2), RankReport(rank=2, step=2)]) == []
