import json

from distsummary.diagnosis.alerts import read_alerts
from distsummary.run_dir import RunDir

ALERT = {"time": 1.0, "attempt": 0, "rank": 1, "cause": "data", "since_step": 3, "until_step": None}


def test_the_last_line_of_an_alert_counts_and_lines_that_are_none_are_told_by_number(tmp_path):
    bad = [{}, 5, [1], "text", ALERT | {"rank": None}, ALERT | {"until_step": "soon"}]
    bad.append({name: ALERT[name] for name in ALERT if name != "until_step"})
    ended = ALERT | {"until_step": 9}
    other = ALERT | {"attempt": 1}
    lines = [json.dumps(one) for one in (ALERT, *bad, ended, other)]
    RunDir(tmp_path).alerts_path.write_text("\n".join([*lines, '{"rank": 1, "cau']))
    told = []
    assert read_alerts(RunDir(tmp_path), lambda line, error: told.append(line)) == [ended, other]
    assert told == [*range(2, 2 + len(bad)), len(lines) + 1]


def test_a_run_without_alerts_has_none(tmp_path):
    assert read_alerts(RunDir(tmp_path)) == []
