"""Verdicts on the ranks of a run: live, from the files afterwards, in alerts.jsonl, by `why`."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from distsummary.aggregate.merge import merge_run
from distsummary.cli.main import main
from distsummary.diagnosis.alerts import read_alerts
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.format.own_tags import ALERT_RANK, ALERT_TAGS, ALERT_TEXT
from distsummary.format.records import MINDSPORE, TENSORBOARD
from distsummary.rundir.rank_facts import RankFacts, write_facts
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.guides import page_of
from tests.disks import room_for
from tests.unit.aggregate.live_ranks import Ranks, judge_files, scalar, series

STEPS, SLOW = 120, range(40, 90)


@pytest.fixture
def four(tmp_path):
    ranks = Ranks(tmp_path / "run", 4)
    yield ranks
    ranks.close()


def phases(step, rank):
    """What a rank records at a step: rank 2 takes longer in forward at the steps SLOW."""
    rng = np.random.default_rng(1000 * step + rank)
    usual = {"data": 2.0, "forward": 5.0, "backward": 8.0, "optimizer": 2.0, "rest": 1.0}
    times = {name: ms * rng.uniform(0.97, 1.03) for name, ms in usual.items()}
    if rank == 2 and step in SLOW:
        times["forward"] += 5.0
    loss = math.nan if rank == 1 and step == 100 else 1.0
    measured = {f"zz_perf/phase/{name}/cpu_ms": ms for name, ms in times.items()}
    return scalar(step, loss=loss, **{"zz_perf/own_ms": sum(times.values())}, **measured)


def write(ranks, live=None):
    for step in range(1, STEPS + 1):
        for rank in range(4):
            ranks.write(rank, [phases(step, rank)])
        if live is not None and step % 7 == 0:
            live.advance({0, 1, 2, 3}, float(step))


def shown(ranks, dialect=MINDSPORE):
    found = series(ranks.run_dir.base, dialect)
    return {key: value for key, value in found.items() if key[1] in ALERT_TAGS}


def test_the_slow_and_the_sick_rank_are_reported_live_and_a_merge_of_the_files_says_the_same(four, capsys):
    live = four.live()
    write(four, live)
    live.close()
    alerts = read_alerts(four.run_dir)
    assert [(one["rank"], one["cause"], one["since_step"], one["until_step"]) for one in alerts] == [
        (2, "forward", 40, 89),
        (1, "nan", 100, None),
    ]
    assert 40 <= alerts[0]["reported_step"] <= 50
    reported = capsys.readouterr().err.splitlines()
    assert [one.split(":")[1] for one in reported] == [
        " Rank 2 has held up the run since step 40",
        " Rank 1 had the first number that is not finite, at step 100",
    ]
    assert all(one.endswith(f". More: distsummary why {four.run_dir.base}") for one in reported)
    verdicts = judge_files(four.run_dir)
    assert [one.as_json() for one in verdicts] == [
        {name: value for name, value in alert.items() if name not in ("time", "attempt")} for alert in alerts
    ]
    by_hand, by_hand_too = shown(four), shown(four, TENSORBOARD)
    assert [step for step, _ in by_hand["text", ALERT_TEXT]] == [alerts[0]["reported_step"], 100]
    assert [(step, float(rank)) for step, rank in by_hand["scalar", ALERT_RANK]] == [
        (alerts[0]["reported_step"], 2.0),
        (100, 1.0),
    ]
    before = four.run_dir.alerts_path.read_bytes()
    merge_run(four.run_dir)
    assert (shown(four), shown(four, TENSORBOARD)) == (by_hand, by_hand_too)
    assert four.run_dir.alerts_path.read_bytes() == before


def test_the_phases_of_the_ranks_are_not_merged(four):
    write(four)
    merge_run(four.run_dir)
    tags = {tag for _, tag in series(four.run_dir.base, MINDSPORE)}
    assert "zz_ranks/zz_perf/own_ms/argmax_rank" in tags
    assert not [tag for tag in tags if tag.startswith("zz_perf/phase/")]


def test_why_names_them_in_words_and_as_json_and_exits_with_1(four, capsys):
    write(four)
    assert main(["why", str(four.run_dir.base)]) == 1
    text = capsys.readouterr().out
    assert text.splitlines() == [
        "2 findings on ranks 1 and 2: 1 error, 1 warning.",
        "Rank 1 had the first number that is not finite, at step 100: loss is nan, finite on 3 other ranks.",
        f"  What it means, and what to do: {page_of('nan')}",
        "",
        "- Rank 2 held up the run in steps 40 to 89: forward took 9.95 ms a step, on its peers 4.95 ms.",
        "All of them, in full: --json",
    ]
    assert main(["why", str(four.run_dir.base), "--json"]) == 1
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(one["rank"], one["cause"]) for one in verdicts] == [(1, "nan"), (2, "forward")]


def test_at_how_many_steps_processors_were_too_busy_is_logged_once_and_counted_by_why(four, capsys, caplog):
    live = four.live()
    for step in range(1, 61):
        for rank in range(4):
            event = phases(step, rank)
            queued = scalar(step, **{"zz_perf/phase/forward/queue_ms": 0.0 if step <= 20 else 500.0})
            four.write(rank, [event, queued])
        live.advance({0, 1, 2, 3}, float(step))
    live.close()
    assert caplog.text.count("wait for processors more than ten times as long as they work") == 1
    assert main(["why", str(four.run_dir.base), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"verdicts": [], "steps": 60, "abstained": found["abstained"], "apart": ""}
    assert 30 <= found["abstained"] <= 40
    assert main(["why", str(four.run_dir.base)]) == 0
    line = f"At {found['abstained']} of 60 measured steps, processors were too busy to judge who is slow."
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_verdict_is_reported_once_also_after_a_restart_and_a_torn_line_is_left_out(tmp_path, four, capsys):
    verdict = Verdict(rank=1, cause="data", since_step=3, until_step=None, evidence="slow", reported_step=9)
    Alerts(four.run_dir).report(0, verdict)
    with open(four.run_dir.alerts_path, "ab") as file:
        file.write(b'{"rank": 1, "cau\n')
    again = Alerts(four.run_dir)
    again.report(0, verdict)
    again.report(1, verdict)  # another attempt
    found = read_alerts(four.run_dir)
    assert [(one["attempt"], one["rank"], one["evidence"]) for one in found] == [
        (0, 1, "slow"),
        (1, 1, "slow"),
    ]
    assert len(capsys.readouterr().err.splitlines()) == 2


def slow(rank, since=3, until=None):
    return Verdict(
        rank=rank, cause="data", since_step=since, until_step=until, evidence="slow", reported_step=since + 6
    )


def reports_of(run_dir):
    return [(one["rank"], one["since_step"], one["until_step"]) for one in read_alerts(run_dir)]


def test_a_full_disk_loses_no_alert_and_tears_no_line(tmp_path, capsys):
    run_dir = RunDir(tmp_path).create()
    alerts = Alerts(run_dir)
    alerts.report(0, slow(1))
    before = run_dir.alerts_path.read_bytes()
    with room_for(len(before) + 20):
        alerts.report(0, slow(2))
        alerts.report(0, slow(1, until=50))
        with pytest.raises(OSError, match="File too large"):
            alerts.write()
        assert run_dir.alerts_path.read_bytes() == before
    assert len(capsys.readouterr().err.splitlines()) == 2  # the line of rank 2 comes at once
    alerts.report(0, slow(2))
    assert reports_of(run_dir) == [(1, 3, 50), (2, 3, None)]
    alerts.write()
    assert run_dir.alerts_path.read_bytes().count(b"\n") == 3
    assert capsys.readouterr().err == ""


def test_an_alert_after_half_a_line_of_a_process_that_died_has_a_line_of_its_own(tmp_path):
    run_dir = RunDir(tmp_path).create()
    Alerts(run_dir).report(0, slow(1))
    with open(run_dir.alerts_path, "ab") as file:
        file.write(b'{"rank": 1, "cau')
    Alerts(run_dir).report(0, slow(2))
    assert reports_of(run_dir) == [(1, 3, None), (2, 3, None)]


def test_alerts_that_cannot_be_read_or_written_delay_no_merge_and_are_written_later(four, capsys, caplog):
    four.run_dir.alerts_path.mkdir()
    live = four.live()
    write(four, live)
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert [one for one in caplog.messages if "alerts.jsonl" in one] == [
        f"alerts.jsonl cannot be written now: [Errno 21] Is a directory: '{four.run_dir.alerts_path}'"
    ]
    four.run_dir.alerts_path.rmdir()
    live.close()
    assert reports_of(four.run_dir) == [(2, 40, 89), (1, 100, None)]
    assert [step for step, _ in shown(four)["scalar", ALERT_RANK]][1:] == [100]


def test_what_ranks_report_late_moves_the_begin_of_an_episode_and_reports_it_no_second_time(four, capsys):
    """The values of rank 2 at the first slow steps come when these have been judged without them."""
    live = four.live()
    late = []
    for step in range(1, STEPS + 1):
        for rank in (0, 1, 3):
            four.write(rank, [phases(step, rank)])
        late.append(phases(step, 2))
        if not 40 <= step < 48:
            four.write(2, late)
            late = []
        for second in (0, 50):  # a step is written so long after its first report
            live.advance({0, 1, 2, 3}, 100.0 * step + second)
    report = live.close()
    before = read_alerts(four.run_dir)
    assert not report.is_exact
    assert [(one["rank"], one["until_step"]) for one in before] == [(2, 89), (1, None)]
    assert before[0]["since_step"] != judge_files(four.run_dir)[0].since_step
    capsys.readouterr()
    merge_run(four.run_dir)
    assert read_alerts(four.run_dir) == before
    assert capsys.readouterr().err == ""


def test_the_last_merge_reports_the_end_of_an_episode_that_began_otherwise_while_the_ranks_trained(four):
    write(four)
    Alerts(four.run_dir).report(0, slow(2, since=44))
    forward = replace(slow(2, since=44), cause="forward")
    Alerts(four.run_dir).report(0, forward)
    merge_run(four.run_dir)
    assert [
        (one["rank"], one["cause"], one["since_step"], one["until_step"]) for one in read_alerts(four.run_dir)
    ] == [(2, "data", 44, None), (2, "forward", 44, 89), (1, "nan", 100, None)]


def test_a_hang_is_shown_at_its_step_which_no_rank_ends_and_a_merge_of_the_files_shows_it_too(four):
    live = four.live()
    for step in (1, 2, 3, 4, 5):
        for rank in range(4):
            if rank < 3 or step < 3:  # the reports of rank 3 are late: the merged run is behind
                four.write(rank, [scalar(step, loss=1.0)])
    live.advance({0, 1, 2, 3}, 1.0)
    hang = Verdict(rank=2, cause="hang", since_step=6, until_step=None, evidence="waits", reported_step=6)
    Alerts(four.run_dir).report(0, hang)
    live.show([hang])
    live.advance({0, 1, 2, 3}, 2.0)
    said = {
        ("text", ALERT_TEXT): [(6, repr("Rank 2 hangs at step 6: waits."))],
        ("scalar", ALERT_RANK): [(6, "2.0")],
    }
    assert (shown(four), shown(four, TENSORBOARD)) == (said, said)
    live.abandon()
    live = four.live()  # the next aggregator
    live.show([hang])
    live.close()
    assert (shown(four), shown(four, TENSORBOARD)) == (said, said)
    report = merge_run(four.run_dir)
    assert (report.steps, shown(four), shown(four, TENSORBOARD)) == (5, said, said)
    # it went on
    Alerts(four.run_dir).report(0, replace(hang, until_step=6))
    for step in (6, 7):
        for rank in range(4):
            four.write(rank, [scalar(step, loss=1.0)])
    report = merge_run(four.run_dir)
    assert (report.steps, shown(four)) == (7, said)


def test_a_hang_at_a_step_that_a_later_attempt_repeats_is_not_shown(tmp_path):
    for attempt, steps in enumerate(((1, 2, 3), (2, 3, 4))):
        ranks = Ranks(tmp_path / "run", 2, attempt)
        for step in steps:
            for rank in range(2):
                ranks.write(rank, [scalar(step, loss=1.0)])
        hang = Verdict(
            rank=1, cause="hang", since_step=4, until_step=None, evidence="x", reported_step=4 + attempt
        )
        Alerts(ranks.run_dir).report(attempt, hang)
        ranks.close()
    merge_run(ranks.run_dir)
    assert [step for step, _ in shown(ranks)["scalar", ALERT_RANK]] == [5]


def test_a_verdict_about_a_step_that_has_been_merged_is_shown_there(four):
    """Settings are compared when all ranks have reported theirs, from the first step on."""
    live = four.live()
    for step in range(1, 31):
        for rank in range(4):
            four.write(rank, [scalar(step, loss=1.0)])
        live.advance({0, 1, 2, 3}, float(step))
        if step == 10:
            for rank in range(4):
                directory = four.run_dir.writer_dir("train", rank, 4)
                write_facts(directory, 0, RankFacts(settings={"config lr": str(0.1 + (rank == 2))}, names=()))
    live.close()
    [alert] = read_alerts(four.run_dir)
    assert (alert["rank"], alert["cause"], alert["since_step"]) == (2, "config", 1)
    assert [step for step, _ in shown(four)["scalar", ALERT_RANK]] == [1]
    steps = [step for step, _ in series(four.run_dir.base)["scalar", "loss"]]
    assert steps == [*range(1, 31)]


def test_a_world_that_becomes_smaller_is_judged_again(tmp_path):
    """Rank 2 of four is slow, then rank 0 of two, whose steps continue behind those of the first attempt."""
    place = tmp_path / "run"
    for attempt, (world_size, slow) in enumerate(((4, 2), (2, 0))):
        ranks = Ranks(place, world_size, attempt)
        for step in range(1 + 60 * attempt, 61 + 60 * attempt):
            for rank in range(world_size):
                times = {"data": 2.0, "forward": 5.0, "backward": 8.0}
                times["forward"] += 5.0 * (rank == slow and step % 60 > 30)
                measured = {f"zz_perf/phase/{name}/cpu_ms": ms for name, ms in times.items()}
                ranks.write(rank, [scalar(step, loss=1.0, **measured)])
        ranks.close()
    found = [(one.rank, one.cause, one.since_step) for one in judge_files(ranks.run_dir)]
    assert found == [(2, "forward", 31), (0, "forward", 91)]


def test_why_reports_what_alerts_say_of_earlier_attempts_whose_steps_were_repeated(tmp_path, capsys):
    """Attempt 0 has a NaN at step 50; attempt 1 begins at step 1 again, and rank 2 becomes slow."""
    for attempt in (0, 1):
        ranks = Ranks(tmp_path / "run", 4, attempt)
        live = ranks.live()
        for step in range(1, 81):
            for rank in range(4):
                event = scalar(step, loss=math.nan if (attempt, step, rank) == (0, 50, 3) else 1.0)
                ranks.write(rank, [phases(step, rank) if attempt else event])
        live.close()
        ranks.close()
    merge_run(ranks.run_dir)
    forgotten = slow(0, since=70, until=75)  # the files do not show it
    Alerts(ranks.run_dir).report(1, forgotten)
    path = str(ranks.run_dir.base)
    assert [(one["attempt"], one["rank"]) for one in read_alerts(ranks.run_dir)] == [(0, 3), (1, 2), (1, 0)]
    capsys.readouterr()
    assert main(["why", path]) == 1
    assert [one.partition(":")[0] for one in capsys.readouterr().out.splitlines()] == [
        "3 findings on ranks 0, 2 and 3", "In attempt 0", "  What it means, and what to do", "",
        "- Rank 2 has held up the run since step 40", "- Rank 0 held up the run in steps 70 to 75",
        "All of them, in full",
    ]  # fmt: skip
    assert main(["why", path, "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)["verdicts"]
    assert [(one["rank"], one["cause"], one["since_step"], one["until_step"]) for one in reported] == [
        (3, "nan", 50, None),
        (2, "forward", 40, None),
        (0, "data", 70, 75),
    ]
    assert set(reported[0]) == {field.name for field in fields(Verdict)}
