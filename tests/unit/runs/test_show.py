"""show, compare and export: what they report, as text, JSON and files."""

import csv
import json
import re

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.main import main
from distsummary.events.segments import segments
from distsummary.format.norms import ParameterNorms, ParameterTable
from distsummary.format.records import MINDSPORE, Value
from distsummary.rundir.rank_facts import RankFacts, write_facts
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.show import overview
from distsummary.runs.show import text_of as show_text
from tests.unit.collect.doubles import Model
from tests.unit.runs.recording import record


@pytest.fixture
def runs(tmp_path):
    """Two runs of two ranks, merged, which differ in a setting and from step 6 on in the loss."""
    for name, rate in (("a", 0.5), ("b", 0.25)):
        for rank in range(2):
            settings = {"config": {"seed": 7, "opt": {"lr": rate}}, "aggregate": False, "quiet": True}
            with ds.init(tmp_path / name, rank=rank, world_size=2, **settings) as run:
                for step in run.steps(range(1, 11)):
                    run.log(loss=1 / step + rank + (step > 5) * 8 * (rate < 0.5), **{f"only_{name}": 1.0})
        ds.merge_run(tmp_path / name)
    return tmp_path


def test_a_run_is_shown_on_one_screen_and_as_json(runs, capsys):
    assert main(["show", str(runs / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{runs / 'a'}: finished, 2 ranks, steps 1 to 10, began ")
    assert "  config    seed=7, opt.lr=0.5" in lines
    [loss] = [line.split() for line in lines if line.startswith("loss ")]
    assert loss == ["loss", "1.5", "0.6", "0.6", "10", "1.5", "1", "10"]
    assert len(lines) <= 24
    screen = show_text(overview(ds.open_run(runs / "a")), width=100).splitlines()
    assert max(map(len, screen)) <= 100
    assert main(["show", str(runs / "a"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["state"], reported["facts"]["config.opt.lr"], reported["curves_of"]) == (
        "finished",
        0.5,
        "merged",
    )
    assert reported["problems"] == []


def test_metrics_are_shown_with_six_digits_and_the_nearest_tag_has_a_name(tmp_path, capsys):
    for rank in range(2):
        with ds.init(tmp_path, rank=rank, world_size=2, aggregate=False, quiet=True) as run:
            for _ in run.steps(range(2)):
                run.log(loss=1.0)
            with run.eval() as evaluation:
                evaluation.log(accuracy=(rank + 1) / 7)
    ds.merge_run(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    assert '  metrics   {"accuracy": 0.214286}' in capsys.readouterr().out.splitlines()
    assert main(["dump", str(tmp_path), "--tag", "zzz"]) == 2
    nearest = capsys.readouterr().err.partition("the nearest are ")[2].split(", ")
    assert all(nearest)


def test_who_recorded_what_is_shown(tmp_path, capsys):
    for rank in range(2):
        settings = {"watch": Model(), "histograms": "layer[12]", "aggregate": False, "quiet": True}
        with ds.init(tmp_path / "run", rank=rank, world_size=2, **settings) as run:
            for _ in run.steps(range(25)):
                run.log(loss=1.0)
    assert main(["show", str(tmp_path / "run")]) == 0
    shares = (
        "rank 0 histograms of layer2.weight at steps 1, 10, 20; rank 1 histograms of layer1.weight at steps"
    )
    assert f"deal 1, steps 1 to 25, ranks 0-1: {shares}" in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(tmp_path / "run"), "--json"]) == 0
    [first, _] = json.loads(capsys.readouterr().out)["deals"]
    assert (first["rank"], first["parameters"], first["steps"]) == (0, ["layer2.weight"], [1, 10, 20])


def test_a_run_that_is_not_merged_is_shown_by_a_rank_and_damage_is_reported(tmp_path, capsys):
    for rank in range(2):
        directory = record(tmp_path, rank=rank, ranks=2, steps=range(1, 40))
    [file] = segments(directory, MINDSPORE)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 tags of rank 0" in out
    [problem] = [line for line in out.splitlines() if line.startswith("problem: ")]
    assert problem.startswith(f"problem: {file}, byte ")
    assert problem.endswith("the length has a wrong CRC")
    assert str(file) in show_text(overview(ds.open_run(tmp_path)), width=60)


def test_a_rank_with_another_setting_is_a_difference_of_runs_and_its_verdict_has_words(runs, capsys):
    for rank, seed in enumerate(("0", "0", "77")):
        directory = RunDir(runs / "b").writer_dir("train", rank, 3)
        write_facts(directory, 0, RankFacts({"seed torch": seed, "local rank": f"{rank}"}))
    verdict = {"rank": 2, "cause": "config", "since_step": 1, "until_step": None, "reported_step": 1}
    alert = verdict | {"evidence": "seed torch is 77 on rank 2, 0 on 2 others"}
    RunDir(runs / "b").alerts_path.write_text(json.dumps(alert))
    assert main(["compare", str(runs / "a"), str(runs / "b")]) == 0
    assert re.search(r"\nrank 2: seed torch +- +77 on rank 2, 0 on 2 others\n", capsys.readouterr().out)
    assert main(["show", str(runs / "b")]) == 0
    said = (
        "verdict: Rank 2 runs with other settings than its peers: seed torch is 77 on rank 2, 0 on 2 others."
    )
    assert said in capsys.readouterr().out.replace("\n  ", " ")


def test_a_seed_that_most_ranks_of_each_run_have_is_a_fact_of_the_run(runs, capsys):
    for name, seeds in (("a", "001"), ("b", "771")):
        for rank, seed in enumerate(seeds):
            directory = RunDir(runs / name).writer_dir("train", rank, 3)
            own = {
                "seed numpy": f"{name}{rank}", "config lr": "1", "version torch": "2", "torch tf32": "True",
            }  # fmt: skip
            write_facts(directory, 0, RankFacts({"seed torch": seed, "local rank": f"{rank}", **own}))
    assert main(["compare", str(runs / "a"), str(runs / "b")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nseed torch +0 +7\n", out)
    assert "seed numpy" not in out  # each rank has its own
    assert "tf32" not in out  # the same in both
    assert "version torch" not in out


def test_scalars_are_exported_and_read_back(runs, tmp_path, capsys, monkeypatch):
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    table = ds.open_run(runs / "a").scalars("loss")
    assert main(["export", str(runs / "a"), "--to", "csv", "--tag", "loss"]) == 0
    assert capsys.readouterr().out == "a.csv: 20 rows\n"
    with open("a.csv", newline="") as file:
        head, *found = csv.reader(file)
    assert head == [*table.columns]
    assert [np.float32(row[-1]) for row in found] == table["value"].astype(np.float32).tolist()
    assert [(int(row[0]), int(row[2]), row[4]) for row in found] == [(r.rank, r.step, r.tag) for r in table]
    assert main(["export", str(runs / "a"), "--to", "parquet", "--out", "x.parquet", "--json"]) == 0
    everything = ds.open_run(runs / "a").scalars()
    assert json.loads(capsys.readouterr().out) == {"file": "x.parquet", "rows": len(everything)}
    read = pyarrow.parquet.read_table("x.parquet")
    for name in everything.columns:
        assert read[name].to_pylist() == everything[name].tolist()
    assert (
        main(["export", str(runs / "a"), "--to", "csv", "--rank", "merged", "--tag", "zz_ranks/loss/max"])
        == 0
    )
    with pytest.raises(SystemExit):
        main(["export", str(runs / "a"), "--to", "csv", "--rank", "first"])
    assert main(["export", str(runs / "a"), "--to", "csv", "--rank", "7"]) == 2
    assert "export: --rank must be 'merged' or one of 0-1, got 7" in capsys.readouterr().err
    assert main(["export", str(runs / "a"), "--to", "csv", "--out", str(tmp_path)]) == 1
    assert "a directory" in capsys.readouterr().err


def test_dump_is_narrowed_by_tag_kind_dialect_and_rank(runs, capsys):
    def reported(*options):
        assert main(["dump", str(runs / "a"), *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    loss = reported("--tag", "loss", "--dialect", "mindspore", "--rank", "1")
    assert [row["step"] for row in loss] == list(range(1, 11))
    assert {(row["tag"], row["dialect"]) for row in loss} == {("loss", "mindspore")}
    assert {row["plugin"] for row in reported("--plugin", "train_lineage")} == {"train_lineage"}
    assert main(["dump", str(runs / "a"), "--rank", "5"]) == 2
    assert "dump: --rank must be one that has a directory (0-1), got 5" in capsys.readouterr().err
    assert main(["dump", str(runs / "a"), "--plugin", "scalars"]) == 2
    assert "--plugin must be one of" in capsys.readouterr().err
    for verb in (["dump"], ["export", "--to", "csv"]):
        assert main([*verb, str(runs / "a"), "--tag", "loss", "--tag", "los"]) == 2
        said = f"distsummary {verb[0]}: --tag must be one that was recorded, got 'los'; the nearest are loss"
        assert capsys.readouterr().err.startswith(said)
    assert main(["dump", str(runs / "a"), "--tag", "loss", "--plugin", "image"]) == 2
    assert "got 'loss'; there are no values of image" in capsys.readouterr().err


def test_norms_are_a_row_for_each_parameter_and_step(tmp_path):
    table = ParameterTable(("w", "b"), ((2, 2), (2,)), (4, 2), (0, 0))

    def norms(step, rank):
        sums = np.array([4.0 * step, 9.0])
        has = np.array([True, False])
        counts = np.array([0, step], np.int64)
        updates = np.array([16.0, np.nan]), np.array([0.5, np.nan], np.float32)
        found = ParameterNorms(table, sums, sums * has, has, counts, 0 * counts, *updates)
        return [Value("norms", "zz_norms", found), Value("scalar", "loss", 1.0)]

    record(tmp_path, steps=[1, 4], values=norms)
    run = ds.open_run(tmp_path)
    found = run.norms()
    assert [tuple(row)[2:] for row in found if row.parameter == "w"] == [
        (1, 101.0, "w", 2.0, 2.0, 4.0, 0.5, 0), (4, 104.0, "w", 4.0, 4.0, 4.0, 0.5, 0),
    ]  # fmt: skip
    bias = run.norms("b")
    assert bias["weight"].tolist() == [3.0, 3.0]
    assert bias["nonfinite"].tolist() == [1, 4]
    assert np.isnan([*bias["gradient"], *bias["update"]]).all()
    highest = run.norms().to_pandas().groupby("parameter", observed=True)["weight"].max()
    assert highest.to_dict() == {"w": 4, "b": 3}
    with pytest.raises(ValueError, match="got 'weight'; the nearest are b, w"):
        run.norms("weight")
    assert len(ds.open_run(record(tmp_path / "none")).norms()) == 0
