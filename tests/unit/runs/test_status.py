"""What `distsummary status` says of the states of a run."""

import json
import os
import re
import time
from dataclasses import replace

import pytest

import distsummary as ds
from distsummary.aggregate.merge import merge_run
from distsummary.base.publish import file_system_time
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.sentence import sentence
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import DamagedFileError, MissingFileError, RunDirError
from distsummary.events.segments import all_event_files
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.timeouts import HIDDEN_S
from distsummary.runs.run_row import read_first, with_events
from distsummary.runs.run_rows import RunRows
from distsummary.runs.status import Merged, read_status
from distsummary.runs.status_text import as_json, hints, text_of
from tests.unit.runs.states import BEGAN, attempt_state, failure, lost, rank_state, status_of


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_run_of_four_ranks_is_a_line_for_each():
    ranks = [rank_state(rank) for rank in range(4)]
    ranks[3] = rank_state(3, step=118, step_s=0.2, phase="evaluating", health={"dropped": 2})
    assert text_of(status_of(attempt_state(ranks), merged=Merged(118, 4))).splitlines() == [
        "/runs/mine: running, attempt 0, 4 ranks, step 120, began 2027-01-15 08:00:00 (52 min ago)",
        "  merged up to step 118, the newest on 4 ranks",
        "",
        "rank  state    step  phase       ms/step  seen  dropped  process",
        "0     running   120  training       12.3   2 s        -  node-0:1000",
        "1     running   120  training       12.3   2 s        -  node-0:1001",
        "2     running   120  training       12.3   2 s        -  node-0:1002",
        "3     running   118  evaluating    200.0   2 s        2  node-0:1003",
        "",
        "The run is fine: all 4 ranks run.",
        "next: distsummary watch /runs/mine",
    ]


def test_how_far_a_run_is_how_long_it_takes_and_its_loss_are_in_its_first_line():
    ranks = [rank_state(rank, total=1200, step_s=0.5) for rank in range(4)]
    status = status_of(attempt_state(ranks), loss=0.12345)
    assert ", step 120 of 1,200, 9 min left, loss 0.1235, began " in text_of(status).splitlines()[0]
    assert {name: as_json(status)[name] for name in ("total", "left_s", "loss")} == {
        "total": 1200, "left_s": 540.0, "loss": 0.12345
    }  # fmt: skip
    over = status_of(attempt_state([rank_state(0, "finished", total=1200)], "finished"))
    assert ", step 120 of 1,200, began " in text_of(over).splitlines()[0]


def test_own_and_waiting_time_of_ranks_that_measure_them_have_columns():
    ranks = [rank_state(0, own_ms=5.04, wait_ms=7.0), rank_state(1, own_ms=11.9, wait_ms=0.2), lost(2)]
    status = status_of(attempt_state(ranks))
    assert text_of(status, width=120).splitlines()[2:6] == [
        "rank  state    step  phase     ms/step   own  waiting  seen  dropped  process",
        "0     running   120  training     12.3   5.0      7.0   2 s        -  node-0:1000",
        "1     running   120  training     12.3  11.9      0.2   2 s        -  node-0:1001",
        "2     lost      120  -               -     -        -  95 s        -  node-0:1002  its process is "
        "gone from node-0",
    ]
    first, second = as_json(status)["attempts"][0]["ranks"][:2]
    assert (first["own_ms"], second["wait_ms"]) == (5.04, 0.2)


def test_ranks_that_are_all_of_a_host_are_named_by_it():
    ranks = [rank_state(0, host="h0"), rank_state(1, host="h0"), lost(2, host="h1"), lost(3, host="h1")]
    since = "since 08:50:25 (95 s ago): their processes are gone from"
    assert hints(status_of(attempt_state(ranks)))[1] == f"  Host h1 (ranks 2-3) lost {since} h1"
    ranks[1] = rank_state(1, host="h1")
    assert hints(status_of(attempt_state(ranks)))[1] == f"  Ranks 2-3 lost {since} h1"
    everywhere = [lost(rank, host=f"h{rank}") for rank in range(2)]
    assert hints(status_of(attempt_state(everywhere, "lost")))[1].startswith("  Ranks 0-1 lost")


def test_a_run_without_all_of_its_ranks_or_steps_is_not_called_fine(tmp_path):
    finished = [rank_state(rank, "finished") for rank in range(2)]
    assert hints(status_of(attempt_state(finished, "finished", missing=(2, 3))))[:2] == [
        "The run has finished without ranks 2-3.",
        "Ranks 2-3 never registered; a training may record on some ranks only.",
    ]
    assert hints(status_of(attempt_state([rank_state(0)], missing=(1,))))[0] == (
        "The run continues without rank 1: 1 rank runs."
    )
    waits = attempt_state([rank_state(0, step=None)], missing=(1,), started=BEGAN + 3087)
    assert hints(status_of(waits))[0] == "No rank has made a step for 33 s: rank 1 has not begun."
    short = status_of(attempt_state(finished, "finished"), merged=Merged(120, 2), unmerged={1: 64})
    assert hints(short)[:2] == [
        "The run has finished, but its ranks are not merged to their ends.",
        "The ranks are not merged to their ends: distsummary merge /runs/mine",
    ]


def test_the_steps_that_a_merge_did_not_see_are_found_in_the_files(tmp_path, monkeypatch):
    for rank in range(2):
        with ds.init(tmp_path / "run", rank=rank, world_size=2, aggregate=False, quiet=True) as run:
            for _ in run.steps(range(9)):
                run.log(loss=1.0)
    merge_run(tmp_path / "run")
    assert read_status(tmp_path / "run").unmerged == {}

    def forget(manifest):
        manifest["merged"]["train"]["last_steps"]["1"] = 4

    RunDir(tmp_path / "run").update_manifest(forget)
    assert read_status(tmp_path / "run").unmerged == {1: 4}
    # An aggregator that ended before the last merge noted none; while it may still come, nothing is said.
    RunDir(tmp_path / "run").update_manifest(lambda manifest: manifest.pop("merged"))
    assert read_status(tmp_path / "run").unmerged == {}
    later = file_system_time(tmp_path) + 2 * HIDDEN_S
    monkeypatch.setattr("distsummary.runs.status.file_system_time", lambda _: later)
    assert read_status(tmp_path / "run").unmerged == {0: 0, 1: 0}


def test_a_run_that_lost_a_rank_names_it_and_why():
    ranks = [rank_state(0), rank_state(1), lost(2, step=31)]
    status = status_of(attempt_state(ranks, failure=failure(2, "killed by signal 9"), missing=(3,)))
    assert text_of(status, width=100).splitlines() == [
        "/runs/mine: running, attempt 0, 4 ranks, step 120, began 2027-01-15 08:00:00 (52 min ago)",
        "  first failure: rank 2, killed by signal 9",
        "",
        "rank  state    step  phase     ms/step  seen  dropped  process",
        "0     running   120  training     12.3   2 s        -  node-0:1000",
        "1     running   120  training     12.3   2 s        -  node-0:1001",
        "2     lost       31  -               -  95 s        -  node-0:1002  its process is gone from node-0",
        "3     missing     -  -               -     -        -  -            never registered",
        "",
        "The run continues without rank 2: 2 ranks run.",
        "  Rank 2 lost since 08:50:25 (95 s ago): its process is gone from node-0",
        "Rank 3 never registered; a training may record on some ranks only.",
        "next: distsummary watch /runs/mine",
    ]
    sentences = hints(status)
    assert text_of(status).splitlines()[-len(sentences) :] == sentences, "a pipe gets each in one line"
    assert status.exit_code == 1


def test_a_dead_run_says_where_it_ended_and_what_to_do():
    silent = attempt_state([lost(rank, last_seen_s=95.0 - 4 * rank) for rank in range(2)], "lost")
    status = status_of(silent, merged=Merged(100, 2))
    assert hints(status) == [
        "The run is dead at step 120.",
        "  Ranks 0-1 lost between 08:50:25 and 08:50:29 (91 s ago): their processes are gone from node-0",
        "The ranks are not merged to their ends: distsummary merge /runs/mine",
        "next: mend the cause (see the job's log), then resume a checkpoint by resume= or initial_step= "
        "(attempt 1)",
    ]
    assert "first failure" not in text_of(status)


HANG = Verdict(
    rank=2,
    cause="hang",
    since_step=120,
    until_step=None,
    evidence="it has not begun all_reduce of 10 elements (collective 7 of group 0), for which ranks 0 and 1 "
    "have waited 340 s; it has stood for 339.0 s at train.py:36 in step: lock.acquire(), in phase forward",
    reported_step=121,
)


NAN = Verdict(rank=1, cause="nan", since_step=61, until_step=None, evidence="loss is nan", reported_step=61)


def slow(rank, since, until=None, **fields):
    return Verdict(
        rank=rank, cause="data", since_step=since, until_step=until, evidence="slow", reported_step=since,
        **fields,
    )  # fmt: skip


def message(level, text="low"):
    return Verdict(
        rank=0, cause="message", since_step=7, until_step=7, evidence=text, reported_step=7, level=level
    )


BAD = "rank 1 had the first number that is not finite, at step 61"


@pytest.mark.parametrize(
    ("findings", "code", "going_on", "over"),
    [
        ((NAN,), 1, f"1 finding: {BAD}", f"1 finding: {BAD}"),
        (
            (slow(2, 5), NAN), 1,
            f"2 findings: {BAD}; rank 2 has held up the run since step 5 (data)",
            f"2 findings: {BAD}; rank 2 held up the run from step 5 to the end (data)",
        ),
        (
            (slow(2, 5, 9),), 0,
            "1 finding: rank 2 held up the run in steps 5 to 9 (data)",
            "1 finding: rank 2 held up the run in steps 5 to 9 (data)",
        ),
        (
            (replace(HANG, until_step=130),), 0,
            "1 finding: rank 2 hung at step 120", "1 finding: rank 2 hung at step 120",
        ),
        ((message("error"),), 1, "1 finding: low (step 7)", "1 finding: low (step 7)"),
        (
            (message("warning", "x" * 99),), 0,
            f"1 finding: {'x' * 57}... (step 7)", f"1 finding: {'x' * 57}... (step 7)",
        ),
    ],
)  # fmt: skip
def test_fine_is_never_said_above_a_finding_and_only_errors_that_last_change_the_exit_code(
    findings, code, going_on, over
):
    running = status_of(attempt_state([rank_state(rank) for rank in range(4)]), findings=findings)
    assert hints(running)[0] == f"The run continues: all 4 ranks run, with {going_on}."
    assert running.exit_code == code
    finished = status_of(attempt_state([rank_state(0, "finished")], "finished"), findings=findings)
    assert hints(finished)[:2] == [
        f"The run has finished, with {over}.",
        "evidence: distsummary why /runs/mine",
    ]
    assert finished.exit_code == code
    assert (as_json(finished)["level"], len(as_json(finished)["findings"])) == (finished.level, len(findings))
    assert "fine" not in text_of(running) + text_of(finished)


def test_many_findings_are_counted_and_the_errors_come_first():
    findings = [slow(rank, 5 + rank) for rank in range(4)]
    status = status_of(attempt_state([rank_state(0)]), findings=(*findings, NAN))
    assert hints(status)[0].endswith(
        f"with 5 findings: {BAD}; rank 0 has held up the run since step 5 (data); rank 1 has held up the run "
        "since step 6 (data); and 2 more."
    )


def test_values_that_ranks_dropped_are_an_error_also_if_no_alert_reports_them(tmp_path):
    with ds.init(tmp_path, quiet=True) as run:
        for _ in run.steps(range(3)):
            run.log(loss=1.0, name="text")
    status = read_status(tmp_path)
    assert (status.exit_code, status.level) == (1, "error")
    assert (
        hints(status)[0]
        == "The run has finished, with 1 finding: rank 0 has dropped values (3 values by step 3)."
    )


def test_muted_findings_and_those_of_earlier_attempts_do_not_count(tmp_path):
    with ds.init(tmp_path, quiet=True, diagnose=ds.Diagnose(mute=["data"])) as run:
        run.log(loss=1.0)
    Alerts(RunDir(tmp_path)).report(0, slow(0, 1))
    Alerts(RunDir(tmp_path)).report(1, NAN)
    status = read_status(tmp_path)
    assert (status.findings, status.earlier, status.exit_code) == ((), 1, 0)
    assert hints(status)[1] == f"1 finding of earlier attempts: distsummary why {tmp_path}"


def test_a_run_that_is_stuck_says_so_first_also_when_it_is_dead():
    stuck = status_of(attempt_state([rank_state(rank, step_s=0.0) for rank in range(3)]), stuck=(HANG,))
    assert hints(stuck)[:2] == ["The run is stuck at step 120: look at rank 2.", sentence(HANG)]
    assert "end the job" in hints(stuck)[-1]
    [attempt] = as_json(stuck)["attempts"]
    assert [(one["phase"], one["step_s"]) for one in attempt["ranks"]] == [
        ("training", None),
        ("training", None),
        ("stuck", None),
    ]
    dead = status_of(
        attempt_state([lost(rank) for rank in range(3)], "lost"),
        stuck=(HANG,),
        findings=(HANG, NAN),
        earlier=2,
    )
    reported = hints(dead)
    assert (
        reported[0]
        == f"The run is dead; it was stuck at step 120: look at rank 2, with 1 more finding: {BAD}."
    )
    assert reported[2] == sentence(HANG, is_over=True)
    assert "evidence and 2 findings of earlier attempts: distsummary why /runs/mine" in reported
    assert max(map(len, text_of(dead, width=100).splitlines())) <= 100


def test_commands_stay_whole_where_lines_are_broken():
    ranks = [rank_state(rank, "finished") for rank in range(2)]
    status = status_of(attempt_state(ranks, "finished"), merged=Merged(120, 2), unmerged={1: 64})
    assert "  distsummary merge /runs/mine" in text_of(status, width=60).splitlines()


def test_verdicts_that_were_reported_of_a_run_are_counted_and_an_alert_is_no_merged_step(tmp_path):
    for rank in range(2):
        with ds.init(tmp_path, quiet=True, rank=rank, world_size=2, aggregate=False) as run:
            for step in run.steps(range(3)):
                run.log(loss=float(step))
    Alerts(RunDir(tmp_path)).report(0, replace(HANG, rank=1, since_step=4, reported_step=4))
    merge_run(RunDir(tmp_path))
    status = read_status(tmp_path)
    assert hints(status)[:2] == [
        "The run has finished, with 1 finding: rank 1 hung at step 4.",
        f"evidence: distsummary why {tmp_path}",
    ]
    assert (status.exit_code, status.step, status.merged_step) == (0, 3, 3)
    [row] = RunRows(tmp_path).read()
    assert (row.step, row.finding) == (3, "1 finding: rank 1 hung at step 4")
    assert (row.level, row.causes, row.is_healthy) == ("warning", ("hang",), True)


def test_a_run_that_was_asked_to_end_has_no_cause_to_mend():
    status = status_of(attempt_state([rank_state(0, "interrupted")], "interrupted"))
    assert hints(status)[-1] == "next: resume a checkpoint by resume= or initial_step= (attempt 1)"


def test_ranks_of_several_hosts_that_fell_silent_are_one_line_without_their_hosts():
    ranks = [lost(rank, host=f"n{rank}", reason=f"its process is gone from n{rank}") for rank in range(2)]
    assert hints(status_of(attempt_state(ranks, "lost")))[1] == (
        "  Ranks 0-1 lost since 08:50:25 (95 s ago): their processes are gone from 2 hosts"
    )
    ranks = [lost(rank, reason="its heartbeats stopped") for rank in range(2)]
    assert hints(status_of(attempt_state(ranks, "lost")))[1].endswith("(95 s ago): their heartbeats stopped")


def test_a_rank_that_is_behind_is_named_in_a_run_of_any_size():
    ranks = [rank_state(rank, step=717, step_s=1.0) for rank in range(4)]
    ranks[3] = rank_state(3, step=522, step_s=1.5)
    status = status_of(attempt_state(ranks), merged=Merged(689, 3))
    assert hints(status) == [
        "The run continues: all 4 ranks run, but rank 3 is behind.",
        "Rank 3 is 195 steps, 3 min, behind the others (1.5 s a step against 1.0 s).",
        "next: distsummary watch /runs/mine",
    ]
    assert status.exit_code == 0
    [attempt] = as_json(status)["attempts"]
    assert [rank["behind"] for rank in attempt["ranks"]] == [0, 0, 0, 195]


@pytest.mark.parametrize(
    ("step", "step_s", "is_behind"),
    [(702, 1.0, False), (701, 1.0, True), (690, 0.0, True), (710, 0.5, False)],
)
def test_fifteen_seconds_of_steps_are_behind(step, step_s, is_behind):
    ranks = [
        *[rank_state(rank, step=717, step_s=1.0) for rank in range(3)],
        rank_state(3, step=step, step_s=step_s),
    ]
    assert (3 in status_of(attempt_state(ranks)).behind) is is_behind


def test_steps_of_minutes_are_behind_by_more_than_two():
    ranks = [rank_state(rank, step=20 - 2 * rank, step_s=60.0) for rank in range(3)]
    assert status_of(attempt_state(ranks)).behind == {2: 4}


def test_a_run_that_ended_without_a_rank_is_not_called_dead():
    status = status_of(attempt_state([rank_state(0, "finished"), lost(1), lost(2)], "lost"))
    assert hints(status)[0] == "The run has ended without ranks 1-2, which did not finish."


@pytest.mark.parametrize(
    ("state", "of_ranks", "code", "verdict"),
    [
        ("finished", "finished", 0, "The run is fine: it has finished."),
        ("finished", "incomplete", 1, "The run has finished, but events are missing from the files."),
        ("failed", "failed", 1, "The run has failed at step 120."),
        ("interrupted", "interrupted", 1, "The run was interrupted at step 120."),
        ("unknown", "unknown", 1, "The run has ended at step 120."),
    ],
)
def test_every_end_has_a_verdict_and_an_exit_code(state, of_ranks, code, verdict):
    status = status_of(attempt_state([rank_state(0, of_ranks)], state))
    assert hints(status)[0] == verdict
    assert (status.exit_code, status.is_healthy) == (code, not code)


def test_a_run_without_ranks_says_so():
    assert hints(status_of())[0] == "No rank has registered: the job has not reached its first step."
    assert "No rank has registered in this attempt." in text_of(status_of(attempt_state([])))


def test_what_a_later_attempt_hides_is_said():
    older = [
        attempt_state([rank_state(0, "superseded", step=40 + number)], "superseded", attempt=number)
        for number in range(5)
    ]
    older[4] = attempt_state([lost(0, step=310)], "lost", attempt=4, failure=failure(0, "out of memory"))
    lines = text_of(status_of(*older, attempt_state([rank_state(0)], attempt=5))).splitlines()
    assert lines[1:5] == [
        "  2 earlier attempts: see --json",
        "  before: attempt 2, superseded, 1 rank, came to step 42",
        "  before: attempt 3, superseded, 1 rank, came to step 43",
        "  before: attempt 4, lost, 1 rank, came to step 310 (rank 0: out of memory)",
    ]


def test_of_many_ranks_the_odd_ones_stand_alone_and_the_others_together():
    ranks = [rank_state(rank, step=2000 + rank % 3) for rank in range(1024)]
    ranks[513] = lost(513, step=1900)
    ranks[7] = rank_state(7, step=20)
    ranks[9] = rank_state(9, step=2000, phase="evaluating")
    ranks[11] = rank_state(11, step=2000, health={"dropped": 5})
    lines = text_of(status_of(attempt_state(ranks))).splitlines()
    assert [line.split()[:3] for line in lines[3:8]] == [
        ["7", "running", "20"], ["11", "running", "2000"], ["513", "lost", "1900"],
        ["9", "running", "2000"], ["0-6,8,10,12-512,514-1023", "running", "2000-2002"],
    ]  # fmt: skip
    assert "2000-2002  training       12.3   2 s        -  128 hosts" in lines[7]


@pytest.mark.parametrize("why", ["process {} on node-{} is gone", "no heartbeat for {} s, {}"])
def test_a_thousand_dead_ranks_fit_on_a_screen(why):
    ranks = [
        rank_state(rank, "lost" if rank % 2 else "failed", reason=why.format(rank, rank), error="")
        for rank in range(1024)
    ]
    lines = text_of(status_of(attempt_state(ranks, "lost")), width=100).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100


def test_a_thousand_different_errors_fit_on_a_screen():
    words = [f"{chr(97 + rank // 26 % 26)}{chr(97 + rank % 26)}{'x' * (rank // 676)}" for rank in range(1024)]
    ranks = [rank_state(rank, "failed", error=f"KeyError: {words[rank]}") for rank in range(1024)]
    lines = text_of(status_of(attempt_state(ranks, "failed"))).splitlines()
    assert len(lines) <= 40
    assert "...   1,006 more lines: see --json" in lines
    assert "  and 1,021 more ranks: see --json" in lines


def test_a_dead_node_is_a_line_with_its_name():
    ranks = [rank_state(rank) for rank in range(64)]
    ranks[16:40] = [
        rank_state(rank, "lost", reason="its heartbeats stopped", host="n7") for rank in range(16, 40)
    ]
    lines = text_of(status_of(attempt_state(ranks)), width=200).splitlines()
    assert re.fullmatch(r"16-39 +lost +120 .* n7 +its heartbeats stopped", lines[3])


def test_a_long_path_has_a_line_of_its_own():
    head = text_of(status_of(attempt_state([rank_state(0)])), width=60).splitlines()[:2]
    assert head == ["/runs/mine:", "  running, attempt 0, 1 rank, step 120, began 2027-01-15 ..."]


def test_text_of_others_cannot_control_the_terminal():
    bad = rank_state(0, "failed", error="E: \x1b[2J\x9b\n\u202e", phase="\x07", host="a\x1b")
    text = text_of(status_of(attempt_state([bad], "failed", failure=failure(0, bad.error))))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "E: ?[2J? ?" in text


def test_json_is_strict_and_has_every_rank():
    status = status_of(attempt_state([rank_state(0, health={"dropped": 2}), lost(1)]), merged=Merged(7, 2))
    found = json.loads(json.dumps(as_json(status), allow_nan=False))
    assert found["attempts"][found["newest"]]["ranks"][0]["dropped"] == 2
    assert (found["step"], found["merged_step"], found["merged_ranks"]) == (120, 7, 2)
    assert found["is_healthy"] is False
    assert found["hints"] == hints(status)


def test_a_recorded_run_is_read_from_its_files_also_where_nothing_can_be_written(tmp_path):
    with ds.init(tmp_path, quiet=True) as run:
        for _ in run.steps(range(3)):
            run.log(loss=1.0)
    before = sorted(tmp_path.iterdir())
    tmp_path.chmod(0o555)
    status = read_status(tmp_path)
    tmp_path.chmod(0o755)
    assert (status.exit_code, status.run.state, status.run.newest.ranks[0].step) == (0, "finished", 3)
    assert status.merged_step is None
    assert sorted(tmp_path.iterdir()) == before


def test_an_earlier_attempt_came_to_the_step_that_its_files_hold(tmp_path):
    for steps in (7, 4):
        with ds.init(tmp_path, quiet=True, on_existing="attempt") as run:
            for _ in run.steps(range(steps)):
                run.log(loss=1.0)
    assert "  before: attempt 0, finished, 1 rank, came to step 7" in text_of(read_status(tmp_path))


def test_a_lost_rank_has_the_step_that_its_files_hold(tmp_path):
    for rank in (0, 1):
        with ds.init(tmp_path, rank=rank, world_size=2, quiet=True, aggregate=False) as run:
            for _ in run.steps(range(3 + rank)):
                run.log(loss=1.0)
    status = read_status(tmp_path)
    assert [rank.step for rank in status.run.newest.ranks] == [3, 4]
    assert any("are not merged to their ends" in line for line in hints(status))
    assert "fine" not in text_of(status)


def _halve(files):
    for file in files:
        os.truncate(file, file.stat().st_size // 2)


def _remove(files):
    for file in files:
        file.unlink()


@pytest.mark.parametrize(("harm", "shown"), [(_halve, r"end at step \d+"), (_remove, "show no step")])
def test_a_finished_run_whose_files_lack_what_it_recorded_is_not_fine(tmp_path, harm, shown):
    with ds.init(tmp_path / "run", quiet=True, system_metrics=False) as run:
        for _ in run.steps(range(40)):
            run.log(loss=1.0)
    now = file_system_time(tmp_path) + HIDDEN_S
    assert read_status(tmp_path / "run", now=now).is_healthy
    harm([file for file in all_event_files(tmp_path / "run") if "lineage" not in file.name])
    said = f"it recorded step 40, but its files {shown}: distsummary fsck"
    text = text_of(read_status(tmp_path / "run", now=now))
    assert "The run has finished, but events are missing from the files." in text
    assert re.search(said, text)
    # On a network file system the end of a file may be seen later than the rank's own.
    assert "incomplete" not in text_of(read_status(tmp_path / "run", now=now - HIDDEN_S))
    row = with_events(read_first("run", tmp_path / "run", now=now), tmp_path / "run", now=now)
    assert (row.is_healthy, row.level) == (False, "warning")
    assert re.search(said, row.finding)


def test_a_run_json_that_cannot_be_opened_was_not_removed(tmp_path):
    (tmp_path / "run.json").symlink_to(tmp_path / "run.json")
    with pytest.raises(RunDirError, match=r"run\.json cannot be read: Too many levels of symbolic links"):
        read_status(tmp_path)
    [row] = RunRows(tmp_path).read()
    assert (row.state, row.is_healthy, row.level) == ("unreadable", False, "error")


def test_what_is_no_run_is_named(tmp_path):
    def reported(path):
        with pytest.raises(MissingFileError) as caught:
            read_status(path)
        return str(caught.value)

    assert f"{tmp_path / 'absent'} is missing; name the directory of a run" in reported(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    assert "is a file" in reported(tmp_path / "file")
    assert "no run.json; name the directory that ds.init was given" in reported(tmp_path)
    with ds.init(tmp_path / "run", rank=0, world_size=2, quiet=True, aggregate=False) as run:
        list(run.steps(range(1)))
    assert f"it holds runs: distsummary runs {tmp_path}" in reported(tmp_path)
    assert f"it belongs to the run {tmp_path / 'run'}" in reported(tmp_path / "run" / "rank_00000")


def test_half_written_files_are_named_not_raised_through(tmp_path):
    with ds.init(tmp_path, quiet=True) as run:
        list(run.steps(range(1)))
    rank_file = tmp_path / "manifest.json"
    rank_file.write_bytes(rank_file.read_bytes()[:40])
    [rank] = read_status(tmp_path).run.newest.ranks
    assert (rank.state, "manifest.json" in rank.reason) == ("unknown", True)
    manifest = RunDir(tmp_path).manifest_path
    manifest.write_bytes(manifest.read_bytes()[:40])
    with pytest.raises(DamagedFileError, match=r"run\.json is not JSON.*fsck --repair"):
        read_status(os.fspath(tmp_path))
