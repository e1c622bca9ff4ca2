"""Alerts that are held back: muted causes, levels that are too low, more than so many an hour."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import distsummary as ds
from distsummary.base.terminal import announced
from distsummary.diagnosis import reporting
from distsummary.diagnosis.alerts import all_hangs, open_findings, read_alerts, with_reported, worst_level
from distsummary.diagnosis.reporting import Alerts
from distsummary.diagnosis.verdict import CAUSES, ENDS, MESSAGE, Verdict
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.rundir.run_dir import RunDir


def verdict(cause, since=3, rank=1, **fields):
    fields = {"until_step": None, "evidence": f"because {since}", "reported_step": since, **fields}
    return Verdict(rank=rank, cause=cause, since_step=since, **fields)


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path).create()


def choose(run_dir, **options):
    """Write options of ds.Diagnose into run.json, as rank 0 does."""
    entry = {"role": "train", "attempt": 0, "incarnation": "", "world_size": 1}
    run_dir.update_manifest(lambda manifest: manifest.update(attempts=[entry | {"diagnose": options}]))


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1_800_000_000.0

        def time(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(reporting, "time", found)
    return found


def lines(capsys):
    return [
        one.removeprefix("distsummary: ").split(" More:")[0] for one in capsys.readouterr().err.splitlines()
    ]


def held(run_dir):
    return [one.get("held") for one in read_alerts(run_dir)]


def test_each_cause_has_a_level():
    levels = {cause: verdict(cause).level for cause in CAUSES}
    assert {cause for cause, level in levels.items() if level == "error"} == {
        "hang", "nan", "drift", "shard", "dropped", "unsaved", "failed", "lost",
    }  # fmt: skip
    assert {cause for cause, level in levels.items() if level == "info"} == {
        "started", "finished", "message", "uneven",
    }  # fmt: skip
    assert verdict("message", level="error").level == "error"
    with pytest.raises(InvalidValueError, match="level must be one of"):
        verdict("nan", level="fatal")


def test_an_alert_of_a_low_level_or_a_muted_cause_is_written_and_not_printed(run_dir, capsys):
    choose(run_dir, level="error", mute=["nan"], most_per_hour=20)
    alerts = Alerts(run_dir)
    for cause in ("data", "nan", "drift"):
        assert alerts.report(0, verdict(cause))
    assert lines(capsys) == ["Rank 1 has held other weights since step 3: because 3."]
    assert held(run_dir) == ["level", "mute", None]


def test_infos_are_written_and_not_printed_unless_asked_for(run_dir, capsys):
    Alerts(run_dir).report(0, verdict("started", evidence="4 ranks"))
    assert (lines(capsys), held(run_dir)) == ([], ["level"])
    choose(run_dir, level="info")
    Alerts(run_dir).report(0, verdict("finished", evidence="4 ranks"))
    assert lines(capsys) == ["The run finished at step 3: 4 ranks."]


# Names and messages of the user, or of another rank, may hold what controls a terminal.
def test_a_printed_alert_controls_no_terminal(run_dir, capsys):
    Alerts(run_dir).report(0, verdict("drift", evidence="\x1b[31mred\x07 \u202elive"))
    announced("\x1b[2Jgone")
    assert lines(capsys) == ["Rank 1 has held other weights since step 3: ?[31mred? ?live.", "?[2Jgone"]


def test_more_than_so_many_an_hour_are_counted_and_the_count_is_said_once(run_dir, capsys, clock):
    choose(run_dir, most_per_hour=2)
    alerts = Alerts(run_dir)
    for since in range(1, 6):
        alerts.report(0, verdict("data", since, rank=since, until_step=since))
    assert lines(capsys) == [
        "Rank 1 held up the run in step 1: because 1.",
        "Rank 2 held up the run in step 2: because 2.",
        "2 alerts came within an hour; more are only counted for a while.",
    ]
    clock.now += reporting.HOUR_S + 1
    for since in range(6, 8):
        alerts.report(0, verdict("data", since, rank=since, until_step=since))
    assert lines(capsys) == [
        "Rank 6 held up the run in step 6: because 6. 3 more alerts were held back, as too many came "
        "within an hour (ds.Diagnose(most_per_hour=)).",
        "Rank 7 held up the run in step 7: because 7.",
    ]
    assert held(run_dir) == [None, None, "rate", "rate", "rate", None, None]


def test_warnings_hold_back_no_error_and_the_rate_is_that_of_all_processes_of_the_run(run_dir, capsys, clock):
    choose(run_dir, most_per_hour=2)
    for since in range(1, 4):
        Alerts(run_dir).report(0, verdict("data", since, rank=since, until_step=since))
    last = Alerts(run_dir)
    for since in (10, 20, 30):
        last.report(0, verdict("nan", since, rank=since))
    assert held(run_dir) == [None, None, "rate", None, None, "rate"]
    capsys.readouterr()
    last.close()
    last.close()
    assert lines(capsys) == [
        "1 more alert was held back, as too many came within an hour (ds.Diagnose(most_per_hour=))."
    ]


def test_what_another_process_has_reported_is_not_reported_again(run_dir, capsys):
    first, second = Alerts(run_dir), Alerts(run_dir)
    second.write()  # it has read the file, which has no line yet
    assert first.report(0, verdict("nan"))
    assert not second.report(0, verdict("nan"))
    assert second.report(0, verdict("failed", 9, rank=2))
    assert not first.report(0, verdict("failed", 10, rank=3))  # the run fails once
    assert len(lines(capsys)) == 2
    assert run_dir.alerts_path.read_bytes().count(b"\n") == 2


def test_messages_of_one_step_are_distinguished_by_what_they_say(run_dir, capsys):
    alerts = Alerts(run_dir)
    for text in ("low accuracy: 0.1", "low accuracy: 0.1", "high loss"):
        alerts.report(0, verdict("message", 7, evidence=text, level="warning", until_step=7))
    assert lines(capsys) == [
        "Rank 1 reports at step 7: low accuracy: 0.1.",
        "Rank 1 reports at step 7: high loss.",
    ]


def test_the_level_of_a_run_is_that_of_what_lasts():
    assert worst_level([]) == ""
    assert worst_level([verdict("data"), verdict("hang", until_step=9)]) == "warning"
    assert worst_level([verdict("data"), verdict("hang")]) == "error"
    assert worst_level([verdict("message", until_step=3, level="error")]) == "error"


def test_starts_infos_and_muted_alerts_are_no_findings():
    found = [
        {"attempt": 0, **verdict(cause, evidence=cause).as_json()}
        for cause in (*ENDS, "message", "data", "nan", "dropped")
    ]
    found[-2]["held"] = "mute"
    assert [one.cause for one in open_findings(found, None)] == ["failed", "lost", "data", "dropped"]


@pytest.mark.parametrize(
    ("reported", "expected", "printed"),
    [
        (["memory", "growth"], [("growth", (), "growth; it has memory")], 1),
        (["growth", "memory"], [("growth", (), "growth; it has memory")], 1),
        (["config", "drift"], [("drift", (), "drift; its settings differ: config")], 2),  # an error is said
        (["growth", ("memory", 2)], [("growth", (), "growth"), ("memory", (), "memory")], 2),
        (
            ["drift", ("config", 1, 2)],
            [("drift", (), "drift"), ("config", (1, 2), "config")],  # of the drift, rank 2 is no part
            1,
        ),
    ],
)
def test_one_fact_is_one_finding_with_the_evidence_of_both(run_dir, capsys, reported, expected, printed):
    alerts = Alerts(run_dir)
    for number, one in enumerate(reported):
        cause, *ranks = (one, 1) if isinstance(one, str) else one
        made = verdict(cause, 10 + number, rank=ranks[0], evidence=cause)
        alerts.report(0, replace(made, ranks=tuple(ranks) if len(ranks) > 1 else ()))
    found = open_findings(read_alerts(run_dir), None)
    assert [(one.cause, one.ranks, one.evidence) for one in found] == expected
    assert [one for _, one in with_reported([], run_dir)] == found
    assert len(lines(capsys)) == printed


def test_of_a_rank_that_hangs_is_not_said_that_it_was_awaited_before(run_dir):
    alerts = Alerts(run_dir)
    for cause, step in [("waiting", 10), ("hang", 10), ("waiting", 20)]:
        alerts.report(0, verdict(cause, step))
    found = open_findings(read_alerts(run_dir), None)
    assert [(one.cause, one.since_step) for one in found] == [("hang", 10), ("waiting", 20)]
    assert [one.cause for _, one in all_hangs(run_dir, None, [])] == ["hang", "waiting"]


def test_an_alert_of_an_older_version_has_the_level_of_its_cause(run_dir):
    old = verdict("nan").as_json()
    del old["level"]
    run_dir.alerts_path.write_text(json.dumps({"time": 1.0, "attempt": 0, **old}) + "\n")
    [found] = open_findings(read_alerts(run_dir), None)
    assert found == replace(verdict("nan"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"level": "fatal"}, InvalidValueError, "level must be one of"),
        ({"mute": "data"}, InvalidTypeError, "mute must be"),
        ({"mute": ["dta"]}, InvalidValueError, "a cause in mute must be one of"),
        ({"most_per_hour": 0}, InvalidValueError, "most_per_hour must be"),
    ],
)
def test_a_wrong_option_names_its_range(options, error, words):
    with pytest.raises(error, match=words):
        ds.Diagnose(**options)


def test_what_lasts_gets_a_line_when_it_costs_clearly_more_and_its_end_the_whole_cost(run_dir, capsys):
    alerts = Alerts(run_dir)
    for second in range(3, 603):
        alerts.report(0, verdict("hang", 10, until_step=None, lost_s=float(second)))
    [found] = read_alerts(run_dir)
    assert 570.0 < found["lost_s"] <= 602.0
    assert len(run_dir.alerts_path.read_text().splitlines()) < 120
    alerts.report(0, verdict("hang", 10, until_step=10, lost_s=602.0))
    [found] = read_alerts(run_dir)
    assert (found["until_step"], found["lost_s"]) == (10, 602.0)
    assert len(lines(capsys)) == 1


def test_a_rank_that_is_slow_again_for_the_same_cause_is_one_alert_with_its_intervals(run_dir, capsys):
    alerts = Alerts(run_dir)
    first = verdict("data", 10, until_step=None)
    assert alerts.report(0, first)
    assert not alerts.report(0, replace(first, until_step=20, lost_s=1.5))
    again = replace(first, until_step=None, intervals=((10, 20), (50, None)), lost_s=1.6)
    assert not alerts.report(0, again)
    assert not alerts.report(0, replace(again, until_step=70, intervals=((10, 20), (50, 70)), lost_s=4.0))
    [found] = read_alerts(run_dir)
    assert (found["since_step"], found["until_step"], found["lost_s"]) == (10, 70, 4.0)
    assert found["intervals"] == [[10, 20], [50, 70]]
    assert len(lines(capsys)) == 1
    before = run_dir.alerts_path.read_bytes()
    # another object judges the same files from their beginning
    once_more = Alerts(run_dir)
    for one in (first, replace(first, until_step=20, lost_s=1.5), again):
        once_more.report(0, one)
    assert run_dir.alerts_path.read_bytes() == before
    assert once_more.report(0, verdict("forward", 12))
    assert once_more.report(1, first)


def test_an_interval_that_lasted_becomes_the_first_of_those_that_take_its_place(run_dir):
    first = verdict("data", 201, until_step=None)
    turns = replace(first, since_step=39, ranks=(0, 1), intervals=((39, 188), (201, 212), (219, None)))
    alerts = Alerts(run_dir)
    for one in (first, turns, replace(turns, until_step=267, intervals=(*turns.intervals[:2], (219, 267)))):
        alerts.report(0, one)
    [*_, found] = read_alerts(run_dir)
    assert found["intervals"] == [[39, 188], [201, 212], [219, 267]]


def test_ranks_that_are_slow_in_turns_are_one_finding_whatever_was_reported_before(run_dir):
    alerts = Alerts(run_dir)
    for rank, since in ((2, 39), (1, 190), (0, 201)):
        alerts.report(0, verdict("data", since, rank=rank, until_step=None))
    alerts.report(0, verdict("forward", 200, rank=1))
    turns = replace(verdict("data", 39, rank=2, until_step=267), ranks=(1, 2))
    alerts.report(0, turns)
    found = open_findings(read_alerts(run_dir), None)
    assert [(one.cause, one.rank, one.ranks) for one in found] == [
        ("data", 2, (1, 2)),
        ("data", 0, ()),
        ("forward", 1, ()),
    ]


def test_what_costs_more_is_written_and_not_printed_again(run_dir, capsys):
    alerts = Alerts(run_dir)
    slow = verdict("data", 10, until_step=None)
    alerts.report(0, slow)
    alerts.report(0, replace(slow, lost_s=3.0, evidence="now it takes longer"))
    alerts.report(0, replace(slow, lost_s=2.0))
    [found] = read_alerts(run_dir)
    assert (found["lost_s"], found["evidence"]) == (3.0, "now it takes longer")
    assert len(lines(capsys)) == 1
    assert run_dir.alerts_path.read_bytes().count(b"\n") == 2


def test_a_slow_rank_is_said_when_it_has_cost_enough_and_no_finding_before(run_dir, capsys, clock):
    alerts = Alerts(run_dir)
    clock.now += 60
    assert alerts.report(0, verdict("data", lost_s=0.1))
    assert (lines(capsys), held(run_dir)) == ([], ["cost"])
    assert open_findings(read_alerts(run_dir), None) == []
    assert not alerts.report(0, verdict("data", lost_s=0.5))
    clock.now += 600
    assert alerts.report(0, verdict("data", lost_s=1.0))
    assert not alerts.report(0, verdict("data", lost_s=5.0))
    assert lines(capsys) == ["Rank 1 has held up the run since step 3: because 3. Cost so far: 1.0 s."]
    assert held(run_dir) == [None]
    # Where no rank records that it waits, the cost is not known.
    assert alerts.report(0, verdict("forward", rank=2))
    assert len(lines(capsys)) == 1


def test_alerts_are_not_appended_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    run_dir = RunDir(tmp_path / "run").create()
    run_dir.alerts_path.symlink_to(other)
    alerts = Alerts(run_dir)
    alerts.report(0, message("text"))
    with pytest.raises(OSError, match="symbolic link"):
        alerts.write()
    assert not other.exists()


def test_messages_beyond_a_number_are_left_out_and_that_is_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reporting, "MOST_MESSAGES", 3)
    alerts = Alerts(RunDir(tmp_path / "run").create())
    for number in range(6):
        alerts.report(0, message(f"text {number}"))
    assert len(read_alerts(RunDir(tmp_path / "run"))) == 3
    assert capsys.readouterr().err.count("3 messages were reported; further ones are left out") == 1


def message(text: str) -> Verdict:
    return Verdict(rank=0, cause=MESSAGE, since_step=1, until_step=1, evidence=text, reported_step=1)
