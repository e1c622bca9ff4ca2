"""compare: what differs between runs and between groups of them, as text, JSON and exit code."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.main import main
from distsummary.errors import InvalidValueError
from distsummary.format.records import Value
from distsummary.runs.compare import compare, read_values, text_of
from tests.refusals import refused
from tests.unit.runs.recording import record


def train(path, *, lr=0.1, seed=0, worse=1.0, steps=40, **settings):
    """A training whose loss falls with its rate, and ends higher if it is worse."""
    random = np.random.default_rng(seed)
    factor = worse * (1 + 0.01 * random.normal())
    config = {"config": {"lr": lr, "seed": seed}, "rank": 0, "world_size": 1, "quiet": True, **settings}
    with ds.init(path, system_metrics=False, **config) as run:
        for step in run.steps(range(steps)):
            run.log({"loss": factor * (0.3 + 2 * np.exp(-step * lr)), "eval/accuracy": step / 50, "lr": lr})
    return path


@pytest.fixture
def sweep(tmp_path):
    for seed in range(3):
        train(tmp_path / "main" / f"s{seed}", seed=seed, steps=120)
        train(tmp_path / "new" / f"s{seed}", seed=seed + 5, steps=120, lr=0.4, worse=1.08)
    return tmp_path


def paths(directory):
    return sorted(map(str, directory.iterdir()))


def test_groups_are_compared_and_a_condition_decides_the_exit_code(sweep, capsys):
    both = [*paths(sweep / "main"), "--with", *paths(sweep / "new")]
    assert main(["compare", *both, "--fail-if", "loss > +2%", "--fail-if", "eval/accuracy < -1%"]) == 1
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["config.lr", "0.1", "0.4"] in lines
    assert "differ within each group alike" not in out  # the seeds are others
    assert "fails: fail if loss > +2%, of the last value of each run" in out
    assert "main/s* (3 runs): mean 0.3" in out
    assert "holds: fail if eval/accuracy < -1%" in out
    assert "90 % interval +" in out
    assert main(["compare", *both, "--fail-if", "loss > +20%", "--reach", "loss=0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [decision] = found["decisions"]
    assert (decision["outcome"], len(decision["new"]["values"])) == ("holds", 3)
    assert decision["low"] < decision["change"] < decision["high"]
    loss = found["curves"]["loss"]
    assert loss["standings"][1]["reached_step"] < loss["standings"][0]["reached_step"]
    assert main(["compare", *both, "--fail-if", "loss > +8%"]) == 3
    assert main(["compare", *both]) == 0


def test_which_direction_is_better_is_what_was_defined(tmp_path):
    runs = [[ds.open_run(train(tmp_path / n, define={"l*": {"best": "max"}}, steps=9))] for n in "ab"]
    found = compare(runs).curves
    assert {tag: row.best for tag, row in found.items() if tag[:2] != "zz"} == {
        "loss": "max", "lr": "max", "eval/accuracy": "max"
    }  # fmt: skip
    assert found["loss"].standings[0].best_step == 1


def test_one_that_learns_faster_differs_although_both_end_together(tmp_path, capsys):
    slow, fast = (train(tmp_path / f"{rate}", lr=rate, steps=200) for rate in (0.05, 0.4))
    assert main(["compare", str(slow), str(fast), "--reach", "loss=0.5", "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["curves"]["loss"]
    assert (loss["best"], loss["value"]) == ("min", 0.5)
    assert [one["reached_step"] for one in loss["standings"]] == [
        pytest.approx(47, abs=2),
        pytest.approx(7, abs=2),
    ]
    assert all(one["reached_s"] >= 0 for one in loss["standings"])
    parting = loss["standings"][1]["parting"]
    assert parting["parts_at"] is None
    assert parting["between"] < -0.1


def falling(worse):
    return lambda step, rank: [
        Value("scalar", "loss", 1 / step + (step > 5) * worse),
        Value("scalar", f"only_{worse}", 1.0),
    ]


def test_where_curves_part_is_reported_and_which_curves_only_some_have(tmp_path, capsys):
    a, b, same = (
        str(record(tmp_path / n, steps=range(1, 11), values=falling(w)))
        for n, w in (("a", 0), ("b", 8), ("c", 0))
    )
    assert main(["compare", a, b]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = [line[:1] for line in lines].index(["loss"])
    assert " ".join(lines[at]) == "loss (lower is better, to reach: 0.2)"
    assert [line[:4] + line[-2:] for line in lines[at + 1 : at + 3]] == [
        ["a", "0.1", "0.1", "5", "-", "-"],
        ["b", "8.1", "0.2", "5", "+4", "6"],
    ]
    assert ["only", "in", "b:", "only_8"] in lines
    assert main(["compare", a, same, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["differing"] == {}
    assert reported["curves"]["loss"]["standings"][1]["parting"]["first_difference"] is None


def test_what_differs_is_readable_whole_and_verdicts_and_reasons_too(tmp_path, capsys):
    command = "/data/" + "a_long_way/" * 20 + "train.py --name {} " + "--more " * 20
    for name in "ab":
        with ds.init(
            tmp_path / name, config={"call": command.format(name)}, rank=0, world_size=1, quiet=True
        ) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1.0)
        alerts = [
            Value("scalar", "zz_alerts/rank", 3.0),
            Value("scalar", "zz_system/node/cpu_percent", 1.0 + (name == "b")),
        ]
        record(tmp_path / name, steps=[3], values=lambda step, rank, alerts=alerts: alerts)
    found = compare([[ds.open_run(tmp_path / name)] for name in "ab"])
    assert not {"zz_alerts/rank", "zz_system/node/cpu_percent"} & {*found.curves}
    slow = ("rank 3: forward, from step 502 on",)
    for width in (60, 120):
        path = "/a/" + "b" * 200
        problems = (f"{path}: a CRC is wrong",), ()
        groups = tuple(
            replace(group, verdicts=verdicts, problems=problem)
            for group, verdicts, problem in zip(found.groups, (slow, ()), problems, strict=True)
        )
        text = text_of(replace(found, groups=groups), width=width)
        lines = text.splitlines()
        assert max(len(line) for line in lines if path not in line) <= width
        assert path in text
        assert "..." not in "".join(lines[: lines.index("")])
        [at] = [number for number, line in enumerate(lines) if line.startswith("config.call")]
        left = "".join(
            line[: width // 2 + 6].removeprefix("config.call") for line in lines[at : lines.index("")]
        )
        assert "".join(left.split()).startswith("/data/a_long_way/")
        assert "rank 3: forward" in text
        assert "none" in text
        assert "a CRC is wrong" in " ".join(text.split())
        assert "apart from: the first step" in " ".join(text.split())


def test_many_runs_are_listed_by_value_where_there_is_no_room_for_columns(tmp_path):
    runs = [[ds.open_run(train(tmp_path / f"{n}", lr=0.1 * (n % 2 + 1), steps=2))] for n in range(6)]
    text = text_of(compare(runs), width=80)
    assert "config.lr: 0.1 (0, 2, 4); 0.2 (1, 3, 5)" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_that_did_not_finish_or_lacks_the_tag_is_not_fine(tmp_path, capsys):
    main_runs = [str(train(tmp_path / f"m{n}", seed=n)) for n in range(2)]
    with suppress(RuntimeError), ds.init(tmp_path / "n0", rank=0, world_size=1, quiet=True) as run:
        for _ in run.steps(range(5)):
            run.log(loss=0.1)
            raise RuntimeError("out of memory")
    record(tmp_path / "n1", values=lambda step, rank: [Value("scalar", "other", 1.0)])
    new = [str(tmp_path / f"n{n}") for n in range(2)]
    assert main(["compare", *main_runs, "--with", *new, "--fail-if", "loss > +2%"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "n0 is failed" in said
    assert "n1 has no loss" in said


def test_what_cannot_be_compared_is_refused(tmp_path, capsys):
    a, b = (str(record(tmp_path / name)) for name in "ab")
    (tmp_path / "empty").mkdir()
    for words, message in [
        ([a], "runs to compare must be 2 to 20, or as many groups of runs, got 1"),
        ([a, a], "must be different ones, got"),
        ([a, b, "--with", a], "must be different ones, got"),
        ([a, b, "--fail-if", "loss > 2%"], "--fail-if must be a tag, > or <, and a change with its sign"),
        ([a, b, "--fail-if", "los > +2%"], "the tag of --fail-if must be one that was recorded, got 'los'"),
        ([a, b, "--at", "first"], "--at must be last, best, or mean:N"),
        ([a, b, "--tag", "los"], "--tag must be one that was recorded, got 'los'; the nearest are loss"),
        ([a, b, "--reach", "loss"], "--reach must be TAG=VALUE, such as loss=0.3, got 'loss'"),
        ([a, b, "--reach", "loss=nan"], "--reach must be TAG=VALUE"),
        ([a, str(tmp_path / "empty")], "holds no runs"),
        ([a, str(tmp_path)], "must be different ones, got"),
        ([a, str(tmp_path / "gone")], "there is no"),
    ]:
        assert main(["compare", *words]) == 2, words
        assert message in capsys.readouterr().err
    refused(InvalidValueError, (lambda: compare([[ds.open_run(a)]] * 21), "2 to 20"))
    assert read_values(["a=b=0.5", "loss=1e-3"]) == pytest.approx({"a=b": 0.5, "loss": 1e-3})
    assert read_values(["loss=0.7"])["loss"] == np.float32(0.7)  # as it was recorded


def test_runs_of_a_directory_are_compared_by_a_column(sweep, capsys):
    assert (
        main(["compare", str(sweep / "main"), "--with", str(sweep / "new"), "--fail-if", "loss > +2%"]) == 1
    )
    assert "main/s* (3 runs): mean 0.3" in capsys.readouterr().out
    by = ["compare", str(sweep), "--by", "config.lr"]
    assert main([*by, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(one["name"], len(one["paths"])) for one in groups] == [
        ("config.lr = 0.1", 3),
        ("config.lr = 0.4", 3),
    ]
    assert main([*by, "--where", "config.seed in (0, 5)"]) == 0
    assert "config.lr = 0.4" in capsys.readouterr().out
    for words, said in (
        ([*by, "--with", str(sweep)], "--by makes the groups, and so does --with"),
        ([*by, "--where", "config.lr <"], "expected a number"),
        (["compare", str(sweep), "--by", "config.x"], "a column must be one of"),
        ([*by, "--where", "config.lr < 0.2"], "must be 2 to 20, or as many groups of runs, got 1"),
        (
            ["compare", str(sweep), "--where", "config.lr > 9", "--with", str(sweep / "new/s0")],
            "at least one run",
        ),
    ):
        assert main(words) == 2, words
        assert said in capsys.readouterr().err
