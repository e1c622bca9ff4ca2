import json
from dataclasses import replace

from distsummary.diagnosis.alerts import all_hangs, open_findings, read_alerts
from distsummary.diagnosis.verdict import Verdict
from distsummary.rundir.deal import LongStep
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.states import AttemptState, RankState

ALERT = {"time": 1.0, "attempt": 0, "rank": 1, "cause": "data", "since_step": 3, "until_step": None}


def test_the_last_line_of_an_alert_counts_and_lines_that_are_none_are_reported_by_number(tmp_path):
    bad = [{}, 5, [1], "text", ALERT | {"rank": None}, ALERT | {"until_step": "soon"}]
    bad.append({name: ALERT[name] for name in ALERT if name != "until_step"})
    ended = ALERT | {"until_step": 9}
    other = ALERT | {"attempt": 1}
    lines = [json.dumps(one) for one in (ALERT, *bad, ended, other)]
    RunDir(tmp_path).alerts_path.write_text("\n".join([*lines, '{"rank": 1, "cau']))
    reported = []
    assert read_alerts(RunDir(tmp_path), lambda line, error: reported.append(line)) == [ended, other]
    assert reported == [*range(2, 2 + len(bad)), len(lines) + 1]


def test_a_run_without_alerts_has_none(tmp_path):
    assert read_alerts(RunDir(tmp_path)) == []


def test_hangs_that_were_reported_hold_and_those_that_no_one_reported_follow(tmp_path):
    run_dir = RunDir(tmp_path)

    def hang(rank, since, evidence="then", until=None):
        return Verdict(
            rank=rank, cause="hang", since_step=since, until_step=until, evidence=evidence,
            reported_step=since,
        )  # fmt: skip

    reported = [(0, hang(3, 7)), (1, hang(1, 20, until=20)), (1, hang(1, 60))]
    lines = [{"time": 1.0, "attempt": attempt, **one.as_json()} for attempt, one in reported]
    lines += [ALERT, ALERT | {"cause": "hang"}]
    run_dir.alerts_path.write_text("\n".join(map(json.dumps, lines)))
    attempt = AttemptState(
        role="train", attempt=1, state="running", world_size=4, started=0.0, ranks=(), missing=(),
        failure=None,
    )  # fmt: skip
    seen = [hang(1, 61, "now"), hang(2, 61, "now")]
    earlier = reported[:2]
    assert all_hangs(run_dir, attempt, seen) == [*earlier, (1, hang(1, 60, "now")), (1, hang(2, 61, "now"))]
    dead = replace(attempt, state="lost")
    assert all_hangs(run_dir, dead, seen) == reported
    stood = "it has been at train.py:7 for 340 s"  # as it reported before it was killed
    assert all_hangs(run_dir, dead, [hang(1, 61, stood)]) == [*earlier, (1, hang(1, 60, stood))]
    assert all_hangs(run_dir, replace(attempt, attempt=2), seen) == [*reported, *((2, one) for one in seen)]
    assert all_hangs(RunDir(tmp_path / "none"), attempt, seen) == [(1, one) for one in seen]


def test_a_slow_rank_has_the_line_of_its_long_steps(tmp_path):
    RunDir(tmp_path).alerts_path.write_text(
        json.dumps(ALERT | {"evidence": "slow", "reported_step": 3, "level": "warning"})
    )
    seen = (LongStep(2, "data", "a.py:1"), LongStep(4, "data", "a.py:2"), LongStep(5, "forward", "a.py:3"))
    rank = RankState(role="train", rank=1, attempt=0, state="running", step=9, seen=seen)
    attempt = AttemptState(
        role="train", attempt=0, state="running", world_size=2, started=0.0, ranks=(rank,), missing=(),
        failure=None,
    )  # fmt: skip
    [found] = open_findings(read_alerts(RunDir(tmp_path)), attempt)
    assert found.evidence == "slow; at step 4 it was at a.py:2"
