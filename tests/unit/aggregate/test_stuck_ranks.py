"""StuckRanks: when hangs are reported, and when they end."""

import json
import os
import time
from dataclasses import replace

import pytest

from distsummary.aggregate.stuck_ranks import StuckRanks
from distsummary.diagnosis import stuck_files
from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.stuck import Collective, ProcessGroup, RankReport
from distsummary.diagnosis.stuck_files import FORMAT
from distsummary.rundir.run_dir import STUCK, RunDir
from distsummary.rundir.states import AttemptState, RankState

WORLD = 4
PENDING = Collective(65, "all_reduce", ((10,),), True)


def attempt(step: int = 59) -> AttemptState:
    ranks = tuple(
        RankState(role="train", rank=rank, attempt=0, state="running", step=step) for rank in range(WORLD)
    )
    return AttemptState(
        role="train", attempt=0, state="running", world_size=WORLD, started=0.0, ranks=ranks, missing=(),
        failure=None,
    )  # fmt: skip


@pytest.fixture
def busy(tmp_path, monkeypatch):
    """The ranks that seem to compute; all but rank 2 wait at step 60, and rank 2 reports nothing."""
    found: set[int] = set()
    monkeypatch.setattr(stuck_files, "are_busy", lambda processes: found & processes.keys())
    for rank in (0, 1, 3):
        report = RankReport(
            rank=rank, step=60, phase="wait", late_s=4.0, limit_s=1.0, recorder="on",
            groups=(ProcessGroup("0", tuple(range(WORLD)), (PENDING,)),),
        )  # fmt: skip
        path = RunDir(tmp_path).writer_dir("train", rank, WORLD) / STUCK
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({"format": FORMAT, "attempt": 0, "rank": rank, "is_over": False} | report.as_json())
        )
    return found


def reported(run_dir):
    return [(one["rank"], one["since_step"], one["until_step"]) for one in read_alerts(run_dir)]


def test_a_hang_that_one_look_does_not_see_has_not_ended(tmp_path, busy, capsys):
    run_dir = RunDir(tmp_path)
    stuck = StuckRanks(run_dir)
    assert [one.rank for one in stuck.look(attempt())] == [2]
    for computes in (True, False, True):
        busy.update({2} if computes else ())
        assert stuck.look(attempt()) == []
        busy.clear()
    assert reported(run_dir) == [(2, 60, None)]
    assert run_dir.alerts_path.read_bytes().count(b"\n") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_hang_that_is_seen_again_continues_and_has_no_second_line_on_the_console(tmp_path, busy, capsys):
    run_dir = RunDir(tmp_path)
    stuck = StuckRanks(run_dir)
    stuck.look(attempt())
    busy.add(2)
    for _ in range(2):
        stuck.look(attempt())
    assert reported(run_dir) == [(2, 60, 60)]
    busy.clear()
    assert stuck.look(attempt()) == []
    assert reported(run_dir) == [(2, 60, None)]
    assert reported(RunDir(tmp_path)) == [(2, 60, None)]
    assert len(capsys.readouterr().err.splitlines()) == 1
    stuck = StuckRanks(run_dir)  # of the next aggregator
    assert stuck.look(attempt()) == []
    assert reported(run_dir) == [(2, 60, None)]


def test_a_hang_has_ended_when_its_rank_has_finished_a_later_step(tmp_path, busy):
    run_dir = RunDir(tmp_path)
    stuck = StuckRanks(run_dir)
    stuck.look(attempt())
    busy.add(2)
    stuck.look(attempt(step=61))
    assert reported(run_dir) == [(2, 60, 60)]


def test_a_hang_costs_the_time_until_a_rank_went_on(tmp_path, busy):
    """It is reported after 4 s; rank 0 goes on 2 s later, rank 1 3 s later."""
    run_dir, stuck = RunDir(tmp_path), StuckRanks(RunDir(tmp_path))
    stuck.look(attempt())
    for rank, seconds in ((0, 2.0), (1, 3.0)):
        path = run_dir.writer_dir("train", rank, WORLD) / STUCK
        path.write_text(json.dumps({"format": FORMAT, "attempt": 0, "rank": rank, "is_over": True}))
        os.utime(path, (0.0, time.time() + seconds))
    busy.add(2)
    stuck.look(attempt(step=61))
    [alert] = read_alerts(run_dir)
    assert alert["lost_s"] == pytest.approx(6.0, abs=1.0)


def test_a_hang_is_reported_also_while_alerts_cannot_be_read(tmp_path, busy, capsys):
    run_dir = RunDir(tmp_path)
    run_dir.alerts_path.mkdir()
    stuck = StuckRanks(run_dir)
    assert [one.rank for one in stuck.look(attempt())] == [2]
    with pytest.raises(IsADirectoryError):
        stuck.look(attempt())
    run_dir.alerts_path.rmdir()
    assert stuck.look(attempt()) == []
    assert reported(run_dir) == [(2, 60, None)]
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("ends_at", [None, "later step", "the end"])
def test_a_rank_that_is_waited_for_is_a_warning_then_a_hang_and_closes_when_all_have_passed_it(
    tmp_path, busy, capsys, ends_at
):
    """Rank 2 sleeps at step 60, for 4 s and then for 61 s."""
    run_dir, stuck = RunDir(tmp_path), StuckRanks(RunDir(tmp_path))

    def write(late_s):
        report = RankReport(
            rank=2, step=60, phase="forward", late_s=late_s, limit_s=1.0, recorder="on",
            groups=(ProcessGroup("0", tuple(range(WORLD)), ()),), line="t.py:7 in step: time.sleep(x)",
        )  # fmt: skip
        path = run_dir.writer_dir("train", 2, WORLD) / STUCK
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"format": FORMAT, "attempt": 0, "rank": 2, "is_over": False} | report.as_json())
        )

    def found():
        return [(one["cause"], one["level"], one["until_step"]) for one in read_alerts(run_dir)]

    write(4.0)
    stuck.look(attempt())
    assert found() == [("waiting", "warning", None)]
    if ends_at is None:
        write(61.0)
        stuck.look(attempt())
        stuck.look(attempt())
        assert found() == [("waiting", "warning", 60), ("hang", "error", None)]
        assert "Rank 2 keeps the others waiting at step 60" in capsys.readouterr().err
        return
    for rank in range(WORLD):
        (run_dir.writer_dir("train", rank, WORLD) / STUCK).unlink()
    ended = attempt(step=61)
    if ends_at == "the end":
        ranks = tuple(replace(rank, state="finished") for rank in ended.ranks)
        ended = replace(ended, state="finished", ranks=ranks)
    stuck.look(ended)
    assert found() == [("waiting", "warning", 60)]
