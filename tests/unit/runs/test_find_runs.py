"""The table of runs below a directory."""

import json
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import distsummary as ds
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import MissingFileError
from distsummary.format.json_values import plain
from distsummary.rundir.rank_manifest import RANK_MANIFEST
from distsummary.runs.find_runs import RunRow, find_runs, row_of, text_of
from tests.unit.runs.states import attempt_state, rank_state, status_of


def record(path, steps=3, **given):
    with ds.init(path, quiet=True, **given) as run:
        for step in run.steps(range(steps)):
            run.log(loss=1.0 / (step + 1))


def test_runs_of_every_kind_are_found_the_newest_first(tmp_path):
    record(tmp_path / "a" / "alone")
    for rank in range(2):
        record(tmp_path / "two", steps=5, rank=rank, world_size=2, aggregate=False)
    with ds.SummaryRecord(str(tmp_path / "record")) as written:
        written.add_value("scalar", "loss", 0.25)
        written.record(7)
    (tmp_path / "a" / "empty").mkdir()
    rows = {row.name: row for row in find_runs(tmp_path)}
    assert set(rows) == {"a/alone", "two", "record"}
    assert (rows["a/alone"].state, rows["a/alone"].ranks, rows["a/alone"].step) == ("finished", 1, 3)
    assert rows["a/alone"].loss == pytest.approx(1 / 3)
    assert (rows["two"].ranks, rows["two"].step, rows["two"].loss) == (2, 5, pytest.approx(0.2))
    assert (rows["record"].state, rows["record"].step, rows["record"].loss) == ("no run.json", 7, 0.25)
    started = [row.started for row in find_runs(tmp_path)]
    assert started == sorted(started, reverse=True)
    assert [rows[name].is_healthy for name in ("a/alone", "two", "record")] == [True, True, None]


def test_an_evaluation_after_the_training_does_not_hide_the_loss(tmp_path):
    record(tmp_path / "a")
    with ds.init(tmp_path / "a", role="eval", quiet=True) as run, run.eval() as evaluation:
        evaluation.log(accuracy=0.5)
    with ds.SummaryRecord(str(tmp_path / "b")) as written:
        written.add_value("scalar", "loss", 0.25)
        written.record(1)
        for step in range(2, 9):
            written.add_value("tensor", "large", np.arange(5000))
            written.record(step)
    assert {row.name: row.loss for row in find_runs(tmp_path)} == {"a": pytest.approx(1 / 3), "b": 0.25}


def test_how_long_a_copied_run_lasted_is_what_was_recorded_not_the_times_of_its_files(tmp_path):
    record(tmp_path / "run")
    with ds.SummaryRecord(str(tmp_path / "record")) as written:
        written.add_value("scalar", "loss", 0.25)
        written.record(7)
    shutil.copytree(tmp_path / "run", tmp_path / "lost")
    manifest = tmp_path / "lost" / RANK_MANIFEST
    reported = json.loads(manifest.read_text())
    reported["attempts"][0] |= {
        "state": "running",
        "ended": None,
        "pid_start": "0",
    }  # which is no process now
    manifest.write_text(json.dumps(reported))
    for path in (*tmp_path.rglob("run.json"), *tmp_path.rglob(RANK_MANIFEST)):  # recorded two hours ago
        path.write_text(re.sub(r"\b\d{10}\.\d+", lambda time: str(float(time[0]) - 7200), path.read_text()))
    for path in (tmp_path / "record").iterdir():
        os.utime(path, (path.stat().st_mtime + 7200,) * 2)
    rows = {row.name: (row.state, row.lasted_s < 3000) for row in find_runs(tmp_path)}
    expected = {"run": "finished", "lost": "lost", "record": "no run.json"}
    assert rows == {name: (state, True) for name, state in expected.items()}


def test_a_run_itself_is_a_table_of_one(tmp_path):
    record(tmp_path)
    assert [row.name for row in find_runs(tmp_path)] == ["."]


def test_failures_and_damage_are_noted(tmp_path):
    with pytest.raises(ValueError, match="no data"):
        record_that_raises(tmp_path / "bad")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    rows = {row.name: row for row in find_runs(tmp_path)}
    assert (rows["bad"].state, rows["bad"].note) == ("failed", "Rank 0 failed: ValueError: no data")
    assert rows["torn"].state == "unreadable"
    assert [rows[name].is_healthy for name in ("bad", "torn")] == [False, False]
    assert "is not JSON" in rows["torn"].note


@pytest.mark.parametrize(
    ("file", "text"),
    [("run.json", "[" * 100_000), ("run.json", None), (RANK_MANIFEST, None), ("alerts.jsonl", "[" * 100_000)],
    ids=["deep", "world", "heartbeat", "alerts"],
)
def test_a_run_with_a_damaged_file_is_one_row_next_to_the_others(tmp_path, file, text):
    for name in "abc":
        record(tmp_path / name)
    path = tmp_path / "b" / file
    damaged = json.loads(path.read_text()) if text is None else {}
    for attempt in damaged.get("attempts", ()):
        attempt |= {"world_size": 10**12, "heartbeat": {"time": "noon"}}
    path.write_text(text or json.dumps(damaged))
    rows = {row.name: row for row in find_runs(tmp_path)}
    assert [rows[name].state for name in "ac"] == ["finished"] * 2
    expected = {"run.json": "unreadable", RANK_MANIFEST: "unknown", "alerts.jsonl": "finished"}
    assert rows["b"].state == expected[file]  # a line that is no alert is left out
    assert text_of([*rows.values()]).count("finished") == 2 + (file == "alerts.jsonl")


def record_that_raises(path):
    with ds.init(path, quiet=True) as run:
        for _ in run.steps(range(3)):
            raise ValueError("no data")


def test_without_runs_the_error_says_what_a_run_is(tmp_path):
    with pytest.raises(MissingFileError, match=r"holds no runs: no directory with a run\.json"):
        find_runs(tmp_path)
    with pytest.raises(MissingFileError, match="is missing; name a directory"):
        find_runs(tmp_path / "absent")


def test_links_are_not_followed(tmp_path):
    record(tmp_path / "run")
    (tmp_path / "again").symlink_to(tmp_path)
    assert [row.name for row in find_runs(tmp_path)] == ["run"]


def test_the_table_and_its_json():
    rows = [
        RunRow(name="b", state="running", ranks=4, step=120, started=None, lasted_s=3121.0, loss=0.123456),
        RunRow(name="a\x1b", state="failed", loss=float("nan"), note="rank 2 failed: " + "x" * 200),
    ]
    first, second, third, *note = text_of(rows, width=80).splitlines()
    assert first.split() == ["run", "state", "ranks", "step", "began", "lasted", "loss"]
    assert second.split() == ["b", "running", "4", "120", "-", "52", "min", "0.1235"]
    assert third.startswith("a?   failed")
    assert note[0].startswith("    rank 2 failed:")
    assert len(note) == 2
    assert max(map(len, note)) <= 80
    assert text_of(rows).endswith(f"    {rows[1].note}"), "a pipe gets all of it, on one line"
    assert json.loads(json.dumps(plain(rows[1]), allow_nan=False))["loss"] == "NaN"


def test_a_long_path_is_shortened_in_its_middle_and_the_state_is_whole():
    row = RunRow(
        name="experiments/" + "x" * 100 + "/seed-17", state="interrupted", ranks=1024, step=1234567,
        started=1_600_000_000.0, lasted_s=345600.0, loss=0.00012345,
    )  # fmt: skip
    assert row.name in text_of([row])
    lines = text_of([row], width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(
        r"exper\.\.\.x+/seed-17  interrupted   1024  1234567  2020-09-13 .*0\.0001234", lines[1]
    )


def test_a_rank_that_is_behind_is_noted():
    slow = status_of(attempt_state([rank_state(0, step=900), rank_state(1, step=9000)]))
    row = row_of("run", slow, step=None, loss=None)
    assert (row.is_healthy, row.note) == (
        True,
        "Rank 0 is 8,100 steps, 100 s, behind the others (12.3 ms a step against 12.3 ms).",
    )
    hang = Verdict(rank=0, cause="hang", since_step=901, until_step=None, evidence="", reported_step=901)
    row = row_of("run", replace(slow, stuck=(hang,)), step=None, loss=None)
    assert (row.is_healthy, row.note) == (False, "stuck at step 901: rank 0")
