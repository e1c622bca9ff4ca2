"""Which rank is stuck, from the files of the ranks: their clocks, attempts and worlds may differ."""

import json
import math
import os
from dataclasses import replace

import pytest

from distsummary.diagnosis import stuck_files
from distsummary.diagnosis.stuck import Collective, ProcessGroup, RankReport
from distsummary.diagnosis.stuck_files import FORMAT, hung_ranks
from distsummary.rundir.run_dir import STUCK, RunDir
from distsummary.rundir.states import AttemptState, RankState

NOW, WORLD = 1_000_000.0, 4
BEGUN, PENDING = Collective(64, "all_reduce", ((10,),)), Collective(65, "all_reduce", ((10,),), True)


def attempt(number: int = 0, world_size: int = WORLD, **states: str) -> AttemptState:
    """An attempt whose ranks run, but for those in `states`, such as rank2="lost"."""
    ranks = tuple(
        RankState(
            role="train", rank=rank, attempt=number, state=states.get(f"rank{rank}", "running"), step=59
        )
        for rank in range(world_size)
    )
    return AttemptState(
        role="train", attempt=number, state="running", world_size=world_size, started=0.0, ranks=ranks,
        missing=(), failure=None,
    )  # fmt: skip


@pytest.fixture
def report(tmp_path):
    """Writes a rank's report: it waits, or (`sleeps`) stands still; `clock`: how far its clock is off."""

    def reported(rank, *, sleeps=False, clock=0.0, ago=0.5, number=0, world_size=WORLD, **other):
        report = RankReport(
            rank=rank, step=60, phase="forward" if sleeps else "wait", late_s=3.5, limit_s=1.0, recorder="on",
            line="train.py:7 in step: time.sleep(9)" if sleeps else "train.py:9 in step: loss.backward()",
            groups=(ProcessGroup("0", tuple(range(world_size)), (BEGUN,) if sleeps else (BEGUN, PENDING)),),
        )  # fmt: skip
        path = RunDir(tmp_path).writer_dir("train", rank, world_size) / STUCK
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"format": FORMAT, "attempt": number, "rank": rank, "time": NOW + clock, "is_over": False}
        path.write_text(json.dumps(head | report.as_json() | other))
        os.utime(path, (NOW - ago, NOW - ago))  # as the file system says

    return reported


def named(tmp_path, state):
    return [verdict.rank for verdict in hung_ranks(RunDir(tmp_path), state, now=NOW)]


def test_clocks_that_are_hours_apart_change_nothing(tmp_path, report):
    for rank in range(WORLD):
        report(rank, sleeps=rank == 2, clock=(-7200.0, 0.0, 86_400.0, 3.0)[rank])
    [verdict] = hung_ranks(RunDir(tmp_path), attempt(), now=NOW)
    assert (verdict.rank, verdict.since_step) == (2, 60)
    assert "ranks 0, 1 and 3 have waited 4.0 s" in verdict.evidence


def test_a_report_with_numbers_that_are_no_rank_is_none(tmp_path, report):
    for rank in range(WORLD):
        report(rank, sleeps=rank == 2)
    path = RunDir(tmp_path).writer_dir("train", 2, WORLD) / STUCK
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank": math.inf}))
    assert named(tmp_path, attempt()) == [2]  # as the one of which nothing can be read


def test_what_was_reported_a_while_ago_counts_a_second_more(tmp_path, report):
    """The others may have found no processor, either: no one has had the time to report."""
    for rank in (0, 1, 3):
        report(rank, ago=4.5, late_s=1.5)
    assert named(tmp_path, attempt()) == []
    for rank in (0, 1, 3):
        report(rank, ago=4.5, late_s=2.5)
    assert named(tmp_path, attempt()) == [2]


@pytest.mark.parametrize(
    ("ago", "evidence"),
    [
        pytest.param(0.5, "it has been at train.py:7 in step: time.sleep(9) for 3.5 s", id="it says where"),
        pytest.param(60.0, "it has recorded nothing", id="its process is gone"),
    ],
)
def test_a_rank_that_has_not_come_to_its_first_step(tmp_path, report, ago, evidence):
    for rank in (0, 1, 3):
        report(rank)
    report(2, sleeps=True, step=1, phase="start", groups=[], ago=ago)
    begun = attempt()
    begun = replace(begun, ranks=tuple(one for one in begun.ranks if one.rank != 2), missing=(2,))
    [verdict] = hung_ranks(RunDir(tmp_path), begun, now=NOW)
    assert verdict.rank == 2
    assert evidence in verdict.evidence
    assert ("before its first step" in verdict.evidence) == (ago < 1.0)


def test_what_an_earlier_attempt_of_another_size_reported_is_no_news(tmp_path, report):
    for rank in range(WORLD):
        report(rank, sleeps=rank == 2)
    assert named(tmp_path, attempt(number=1, world_size=2)) == []
    for rank in range(2):
        report(rank, sleeps=rank == 1, number=1, world_size=2)
    assert named(tmp_path, attempt(number=1, world_size=2)) == [1]


def test_a_run_of_one_rank_hangs_when_it_stands_still(tmp_path, report):
    report(0, world_size=1, sleeps=True, late_s=1000.0)
    assert named(tmp_path, attempt(world_size=1)) == [0]


def test_a_rank_that_has_not_reported_for_long_has_begun_what_it_had_begun(tmp_path, report, monkeypatch):
    """On a busy host, threads that write what they know find no processor for seconds."""
    for rank in (0, 1, 3):
        report(rank, ago=0.5 if rank == 0 else 60.0)
    report(2, sleeps=True, ago=60.0)
    [verdict] = hung_ranks(RunDir(tmp_path), attempt(), now=NOW)
    assert verdict.rank == 2
    assert "its last report was from train.py:7 in step" in verdict.evidence
    report(2, ago=60.0)
    assert named(tmp_path, attempt()) == []  # all have begun it
    later = replace(attempt(), ranks=tuple(replace(one, step=60) for one in attempt().ranks))
    assert [one.ranks for one in hung_ranks(RunDir(tmp_path), later, now=NOW)] == [
        (1, 2, 3)
    ]  # they reported a step that they have finished since
    monkeypatch.setattr(stuck_files, "is_stopped", lambda process: True)
    assert "its process is stopped" in hung_ranks(RunDir(tmp_path), attempt(), now=NOW)[0].evidence


def test_a_file_that_is_torn_or_of_another_version_is_that_of_a_rank_that_reports_nothing(tmp_path, report):
    for rank in range(WORLD):
        report(rank)
    place = RunDir(tmp_path).writer_dir("train", 2, WORLD) / STUCK
    for content in (
        '{"format": 1, "att',
        '{"format": 99}',
        "[]",
        json.dumps({"format": FORMAT, "attempt": 0}),
    ):
        place.write_text(content)
        os.utime(place, (NOW, NOW))
        assert named(tmp_path, attempt()) == [2], content


def test_a_rank_that_an_elastic_training_does_without_holds_up_no_one(tmp_path, report):
    assert named(tmp_path, attempt(rank2="lost")) == []
    report(2, sleeps=True)  # as it stood when it was killed; the others continue
    assert named(tmp_path, attempt(rank2="lost")) == []


def test_a_silent_rank_whose_host_sends_nothing_is_not_taken_for_a_stopped_one(tmp_path, report):
    for rank in range(1, WORLD):
        report(rank, late_s=9.0)
    run, found = RunDir(tmp_path), attempt()
    found = replace(found, ranks=(replace(found.ranks[0], host="far"), *found.ranks[1:]))
    run.mark_sent("far", [])
    [beacon] = tmp_path.glob(".host-*")
    for seconds, is_reached in ((1.0, True), (3.1, False)):
        os.utime(beacon, (NOW - seconds, NOW - seconds))
        [verdict] = hung_ranks(run, found, now=NOW)
        assert verdict.rank == 0
        assert ("host far is not reached since" in verdict.evidence) is not is_reached
        assert ("its process was stopped" in verdict.evidence) is is_reached
