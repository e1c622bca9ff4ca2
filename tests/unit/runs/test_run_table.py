"""The table of runs below a directory."""

import json
import math
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import distsummary as ds
from distsummary.diagnosis.verdict import Verdict
from distsummary.errors import InvalidValueError, MissingFileError
from distsummary.format.definitions import Definitions
from distsummary.format.json_values import plain
from distsummary.rundir.rank_manifest import RANK_MANIFEST
from distsummary.runs import run_rows
from distsummary.runs.run_metrics import RunMetric, better
from distsummary.runs.run_row import RunRow, row_of
from distsummary.runs.run_rows import ROW, RunRows
from distsummary.runs.run_table import RunTable, as_json, open_runs, text_of
from tests.unit.runs.states import BEGAN, attempt_state, rank_state, status_of


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
    rows = {row.path: row for row in RunRows(tmp_path).read()}
    assert set(rows) == {"a/alone", "two", "record"}
    assert (rows["a/alone"].state, rows["a/alone"].ranks, rows["a/alone"].step) == ("finished", 1, 3)
    assert rows["a/alone"].metrics["loss"].last == pytest.approx(1 / 3)
    assert (rows["two"].ranks, rows["two"].step, rows["two"].metrics["loss"].last) == (
        2,
        5,
        pytest.approx(0.2),
    )
    assert (rows["record"].state, rows["record"].step, rows["record"].metrics["loss"].last) == (
        "no run.json",
        7,
        0.25,
    )
    started = [row.started for row in RunRows(tmp_path).read()]
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
    assert {row.path: row.metrics["loss"].last for row in RunRows(tmp_path).read()} == {
        "a": pytest.approx(1 / 3),
        "b": 0.25,
    }


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
    rows = {row.path: (row.state, row.duration_s < 3000) for row in RunRows(tmp_path).read()}
    expected = {"run": "finished", "lost": "lost", "record": "no run.json"}
    assert rows == {name: (state, True) for name, state in expected.items()}


def test_a_run_itself_is_a_table_of_one(tmp_path):
    record(tmp_path)
    assert [row.path for row in RunRows(tmp_path).read()] == ["."]


def test_failures_and_damage_are_noted(tmp_path):
    with pytest.raises(ValueError, match="no data"):
        record_that_raises(tmp_path / "bad")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    rows = {row.path: row for row in RunRows(tmp_path).read()}
    assert (rows["bad"].state, rows["bad"].finding) == ("failed", "Rank 0 failed: ValueError: no data")
    assert rows["torn"].state == "unreadable"
    assert [rows[name].is_healthy for name in ("bad", "torn")] == [False, False]
    assert "is not JSON" in rows["torn"].finding


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
    rows = {row.path: row for row in RunRows(tmp_path).read()}
    assert [rows[name].state for name in "ac"] == ["finished"] * 2
    expected = {"run.json": "unreadable", RANK_MANIFEST: "unknown", "alerts.jsonl": "finished"}
    assert rows["b"].state == expected[file]  # a line that is no alert is left out
    assert text_of(RunTable(rows.values())).count("finished") == 2 + (file == "alerts.jsonl")


def record_that_raises(path):
    with ds.init(path, quiet=True) as run:
        for _ in run.steps(range(3)):
            raise ValueError("no data")


def test_without_runs_the_error_says_what_a_run_is(tmp_path):
    with pytest.raises(MissingFileError, match=r"holds no runs: no directory with a run\.json"):
        RunRows(tmp_path).read()
    with pytest.raises(MissingFileError, match="is missing; name a directory"):
        RunRows(tmp_path / "absent").read()


def test_links_are_not_followed(tmp_path):
    record(tmp_path / "run")
    (tmp_path / "again").symlink_to(tmp_path)
    assert [row.path for row in RunRows(tmp_path).read()] == ["run"]


def loss(value):
    return {"loss": RunMetric(value, 7, "min", value, 7)}


def test_the_table_and_its_json():
    rows = [
        RunRow(
            path="b", folder="b", state="running", ranks=4, step=120, duration_s=3121.0, 
            metrics=loss(0.123456),
        ),
        RunRow(
            path="a\x1b", folder="a", state="failed", metrics=loss(float("nan")), attempts=2,
            finding="rank 2 failed: " + "x" * 200,
        ),
    ]  # fmt: skip
    table = RunTable(rows)
    first, second, third, *note = text_of(table, width=80).splitlines()
    assert first.split() == ["run", "state", "ranks", "step", "began", "lasted", "loss"]
    assert second.split() == ["b", "running", "4", "120", "-", "52", "min", "0.1235"]
    assert third.startswith("a?   failed")
    assert note[0].startswith("    rank 2 failed:")
    assert len(note) == 2
    assert max(map(len, note)) <= 80
    assert text_of(table).endswith(f"    {rows[1].finding}; attempt 1"), "a pipe gets all, on one line"
    assert text_of(table, columns=["name", "loss"]).splitlines()[:2] == ["name    loss", "b     0.1235"]
    found = as_json(table, ["name", "loss", "goodput"])["runs"]
    assert json.loads(json.dumps(plain(found), allow_nan=False)) == [
        {"name": "b", "loss": 0.123456, "goodput": None}, {"name": "a", "loss": "NaN", "goodput": None},
    ]  # fmt: skip


def test_a_long_path_is_shortened_in_its_middle_and_the_state_is_whole():
    row = RunRow(
        path="experiments/" + "x" * 100 + "/seed-17", folder="seed-17", state="interrupted", ranks=1024,
        step=1234567, started=1_600_000_000.0, duration_s=345600.0, metrics=loss(0.00012345),
    )  # fmt: skip
    assert row.path in text_of(RunTable([row]))
    lines = text_of(RunTable([row]), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(
        r"exper\.\.\.x+/seed-17  interrupted   1024  1234567  2020-09-13 .*0\.0001234", lines[1]
    )


def test_a_rank_that_is_behind_is_noted():
    slow = status_of(attempt_state([rank_state(0, step=900), rank_state(1, step=9000)]))
    row = row_of(RunRow(path="run", folder="run", state=""), slow)
    assert (row.is_healthy, row.finding) == (
        True,
        "Rank 0 is 8,100 steps, 100 s, behind the others (12.3 ms a step against 12.3 ms).",
    )
    hang = Verdict(rank=0, cause="hang", since_step=901, until_step=None, evidence="", reported_step=901)
    row = row_of(row, replace(slow, stuck=(hang,)))
    assert (row.is_healthy, row.finding) == (False, "stuck at step 901: rank 0")


def test_a_run_is_a_row_of_what_was_set_and_what_came_out(tmp_path):
    with ds.init(tmp_path / "a", quiet=True, config={"lr": 0.1, "model": {"depth": 4, "act": "gelu"}}) as run:
        for step in run.steps(range(5)):
            run.log(loss=2.0 - step, lr=0.25, **{"eval/accuracy": 0.5 if step == 2 else 0.25, "name": 3.0})
    record(tmp_path / "b", config={"lr": "auto", "seed": 7})
    table = ds.open_runs(tmp_path).sorted_by("name")
    assert [os.path.samefile(path, tmp_path / name) for path, name in zip(table["path"], "ab", strict=True)]
    assert table["config.lr"].tolist() == [0.1, "auto"]
    assert table["config.model.depth"].tolist()[0] == 4.0
    assert math.isnan(table["config.model.depth"][1])
    assert table["config.model.act"].tolist() == ["gelu", None]
    columns = ("loss", "loss:best", "loss:best_step", "eval/accuracy", "eval/accuracy:best", "scalar/name")
    assert [table[name].tolist()[0] for name in columns] == [-2.0, -2.0, 5, 0.25, 0.5, 3.0]
    assert [table[name].tolist()[0] for name in ("eval/accuracy:best_step", "lr")] == [3.0, 0.25]
    assert "lr:best" not in table.columns
    assert table["loss"].tolist() == [-2.0, pytest.approx(1 / 3)]
    assert table["size_bytes"].tolist()[0] == sum(
        path.stat().st_size for path in (tmp_path / "a").iterdir() if path.name != ROW
    )
    assert 0 < table["goodput"][0] <= 1
    assert table["id"].tolist() == [ds.open_run(path).id for path in table["path"]]
    frame = pytest.importorskip("pandas") and table.to_pandas()
    assert frame["config.seed"].tolist()[1] == 7.0


def test_a_metric_has_the_step_of_its_first_value_that_is_not_finite(tmp_path):
    for name, broken in (("a", math.nan), ("b", -math.inf), ("c", 0.5)):
        with ds.init(tmp_path / name, quiet=True) as run:
            for step in run.steps(range(1, 6)):
                run.log(loss=broken if step in (3, 4) else 1.0, tokens=7.0)
    table = ds.open_runs(tmp_path)
    assert {name for name in table.columns if name.endswith(":nan_step")} == {"loss:nan_step"}
    found = dict(zip(table["name"].tolist(), table["loss:nan_step"].tolist(), strict=True))
    assert (found["a"], found["b"], math.isnan(found["c"])) == (3.0, 3.0, True)
    assert sorted(table.where("'nan' in causes")["name"].tolist()) == ["a", "b"]


def test_all_ranks_and_attempts_are_paid_for():
    first = attempt_state([rank_state(0, "failed", last_seen_s=3000.0)] * 2, "failed", started=BEGAN)
    second = attempt_state([rank_state(0, attempt=1)] * 4, attempt=1, started=BEGAN + 1120)
    row = row_of(RunRow(path="run", folder="run", state=""), status_of(first, second))
    assert (row.duration_s, row.rank_s) == (3120.0, 2 * 120.0 + 4 * 2000.0)


def test_runs_are_filtered_and_sorted_the_best_first(tmp_path):
    rows = [
        RunRow(
            path=name, folder=name, state="finished", config={"config.lr": lr}, tags=tags,
            metrics={"acc": RunMetric(accuracy, 9, "max", accuracy, 9)} if accuracy is not None else {},
        )
        for name, lr, accuracy, tags in (
            ("a", 0.1, 0.5, ("base",)), ("b", 0.01, None, ()), ("c", 0.1, 0.75, ()), ("d", 0.3, math.nan, ()),
        )
    ]  # fmt: skip
    table = RunTable(rows)

    def names(found):
        return "".join(found["name"].tolist())

    assert names(table.where("config.lr == 0.1")) == "ac"
    assert names(table.where("acc == none or 'base' in tags")) == "ab"
    assert names(table.where("")) == "abcd"
    assert names(table.sorted_by("acc")) == "cabd"
    assert names(table.sorted_by("config.lr")) == "bacd"
    assert names(table.sorted_by("config.lr").reversed()) == "dcab"
    with pytest.raises(InvalidValueError, match=r"a column must be one of .*'config.lr'.*got 'lr'"):
        table.sorted_by("lr")
    assert RunTable([]).where("state == 'x'")["name"].tolist() == []


@pytest.mark.parametrize(
    ("tags", "direction"),
    [
        ("loss train/loss eval/loss_mean val_error perplexity MSE rmse WER zz_perf/step_ms loss/auto", "min"),
        (
            "eval/accuracy val_acc top1_acc acc5 f1 AUC mIoU eval/BinaryAccuracy reward top5 samples_per_s",
            "max",
        ),
        ("lr loss_scale loss_weight tokens accumulate step mapping", ""),
    ],
)
def test_what_is_better_follows_from_the_words_of_a_name(tags, direction):
    assert {tag: better(tag) for tag in tags.split()} == dict.fromkeys(tags.split(), direction)


def test_what_is_better_is_as_defined():
    define = {"tokens": {"best": "max"}, "eval/*": {"best": "min"}, "x": {"unit": "s"}}
    tags = ("tokens", "eval/accuracy", "x", "train/loss")
    assert [better(tag, Definitions(define)) for tag in tags] == ["max", "min", "", "min"]


def test_of_a_run_that_did_not_change_nothing_is_read_again(tmp_path, monkeypatch):
    record(tmp_path / "a")
    record(tmp_path / "b")
    before = RunRows(tmp_path).read()
    monkeypatch.setattr(run_rows, "read_first", None)  # a call of it would raise
    assert RunRows(tmp_path).read() == before
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    copied = {row.path: row for row in RunRows(tmp_path).read()}
    assert copied["copy"].id == copied["a"].id
    (tmp_path / "a" / "labels.json").write_text('{"name": "best"}')
    (tmp_path / "b" / ROW).write_text("[" * 100_000)
    monkeypatch.undo()
    assert {row.path: row.name for row in RunRows(tmp_path).read()} == {"a": "best", "b": "b", "copy": "copy"}
    shutil.rmtree(tmp_path / "a")
    assert {row.path for row in RunRows(tmp_path).read()} == {"b", "copy"}


def test_rows_are_there_before_their_event_files_are_read(tmp_path):
    record(tmp_path / "a")
    record(tmp_path / "b")
    rows = RunRows(tmp_path, uses_index=False)
    first = rows.read(budget_s=0.0)
    assert [(row.state, row.is_whole, row.metrics) for row in first] == [("finished", False, {})] * 2
    assert [row.is_whole for row in rows.read()] == [True, True]
    assert not [*tmp_path.rglob("*.idx")]


def test_what_is_more_than_columns_is_named(tmp_path):
    with ds.init(tmp_path / "a", quiet=True, config={f"x{n}": n for n in range(300)}) as run:
        for _ in run.steps(range(2)):
            run.log(**{f"tag{n}": 1.0 for n in range(70)})
    table = open_runs(tmp_path)
    assert table.problems == ["a: 50 tags or settings are no columns; read them with ds.open_run"]
    assert text_of(table).endswith(table.problems[0])


def test_labels_that_cannot_be_read_are_a_finding(tmp_path):
    record(tmp_path / "a")
    (tmp_path / "a" / "labels.json").write_text("{")
    [row] = RunRows(tmp_path).read()
    assert (row.state, row.level) == ("finished", "warning")
    assert "labels.json is not JSON" in row.finding


def test_a_path_that_is_no_text_hides_no_other_run(tmp_path):
    pandas = pytest.importorskip("pandas")
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    record(tmp_path / "a")
    shutil.copytree(tmp_path / "a", odd)
    table = open_runs(tmp_path).sorted_by("path")
    frame = table.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["path"].tolist() == [str(tmp_path / "a"), odd]
    assert ds.open_run(frame["path"][1]).state == "finished"
    assert "finished" in text_of(table).splitlines()[2]


def test_a_directory_that_vanishes_while_it_is_read_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(run_rows, "PAUSE", 1e6)  # between two looks, whatever this machine does
    record(tmp_path / "a")
    record(tmp_path / "b")
    rows = RunRows(tmp_path, uses_index=False)
    rows.read(budget_s=0.0)
    shutil.rmtree(tmp_path / "b")
    found = {row.path: row.finding for row in rows.read()}
    assert found["a"] == ""
    assert "removed" in found["b"]
    assert {row.path for row in rows.read()} == {"a"}
    shutil.rmtree(tmp_path)
    with pytest.raises(MissingFileError, match="is missing; name a directory"):
        rows.read()
