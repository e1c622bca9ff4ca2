"""The data of runs next to each other: what differs, their curves, where they part."""

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import InvalidValueError
from distsummary.format.records import Value
from distsummary.view.packing import packed
from distsummary.view.page import page
from tests.unit.runs.recording import record

NAN = float("nan")


def compared(first, *others, **settings):
    found = page(ds.open_run(first), others=[ds.open_run(other) for other in others], **settings)["compare"]
    packed({"found": found})
    return found


def curve(spoilt_from=10**9, more=()):
    """A loss, 5 higher from a step on."""
    return lambda step, rank: [
        Value("scalar", "loss", 100 / step + rank / 4 + 5 * (step >= spoilt_from)),
        Value("scalar", "same", NAN if step == 3 else 1.0),
        *(Value("scalar", tag, 1.0) for tag in more),
    ]


def test_curves_are_next_to_each_other_and_where_they_part_is_reported(tmp_path):
    runs = [tmp_path / name for name in ("x/run", "y/run", "z")]
    record(runs[0], steps=range(1, 5001), values=curve(more=["only"]))
    record(runs[1], steps=range(1, 4001), values=curve(700))
    for rank in range(2):
        record(runs[2], rank=rank, ranks=2, steps=range(1, 5001), values=curve())
    found = compared(*runs)
    assert [run["name"] for run in found["runs"]][:2] == ["x/run", "y/run"]
    assert [(run["ranks"], run["source"], run["steps"]) for run in found["runs"]] == [
        (1, 0, [1, 5000]), (1, 0, [1, 4000]), (2, 0, [1, 5000])
    ]  # fmt: skip
    loss, only, same = found["tags"]
    assert [loss["tag"], only["tag"], same["tag"]] == ["loss", "only", "same"]
    assert (loss["best"], same["best"]) == ("min", None)
    assert loss["value"] == pytest.approx(100 / 680, rel=0.05)  # what the second came to before step 700
    assert loss["standings"][0]["parting"] is None
    apart, equal = (one["parting"] for one in loss["standings"][1:])
    assert (apart["common"], apart["first_difference"], apart["parts_at"]) == (4000, 700, 700)
    assert apart["last"] == pytest.approx([100 / 4000, 5 + 100 / 4000])
    assert apart["between"] == pytest.approx(5 * 3300 / 3999, rel=0.01)
    assert (equal["first_difference"], equal["parts_at"]) == (None, None)
    assert [one["parting"]["first_difference"] for one in same["standings"][1:]] == [None, None]
    first, second = loss["differences"]
    assert {*np.round(np.unique(first["values"]), 4)} == {0.0, 5.0}
    assert {*second["values"]} == {0.0}
    assert [line["steps"][-1] for line in loss["lines"]] == [5000, 4000, 5000]
    assert loss["lines"][0]["steps"].size < 5000
    assert [line is None for line in only["lines"]] == [False, True, True]
    assert only["standings"][1:] == [None, None]
    assert only["differences"] == [None, None]
    assert found["runs"][0]["verdicts"] == ()
    assert found["not_in_all"] == [["only", [True, False, False]]]


def test_facts_that_differ_are_reported_with_the_value_of_each_run(tmp_path):
    for name, config in (("a", {"lr": 0.1, "opt": {"wd": NAN}}), ("b", {"lr": 0.2, "opt": {"wd": NAN}})):
        with ds.init(tmp_path / name, config=config, rank=0, world_size=1, quiet=True) as run:
            for _ in run.steps(range(3)):
                run.log(loss=1.0)
    record(tmp_path / "c")
    found = compared(*(tmp_path / name for name in "abc"))
    differing = dict(found["differing"])
    assert differing["config.lr"] == [[0.1], [0.2], [None]]
    assert differing["state"] == [["finished"], ["finished"], ["no run.json"]]
    assert differing["config.opt.wd"] == [["nan"], ["nan"], [None]]
    two = compared(tmp_path / "a", tmp_path / "b", tags=["loss"])
    assert "config.opt.wd" not in dict(two["differing"])
    assert two["equal"] > 0
    assert [one["tag"] for one in two["tags"]] == ["loss"]


def test_runs_of_a_group_are_one_curve_with_the_lowest_and_the_highest(tmp_path):
    for place, (lr, seed) in enumerate([(0.1, 0), (0.2, 0), (0.1, 1), (0.1, 2)]):
        with ds.init(tmp_path / f"{place}", config={"lr": lr, "seed": seed}, quiet=True) as run:
            for step in run.steps(range(1, 6 + seed)):
                run.log(loss=lr / step + seed)
    paths = [tmp_path / f"{place}" for place in range(4)]
    found = compared(*paths, labels=["lr 0.1", "lr 0.2", "lr 0.1", "lr 0.1"], tags=["loss"])
    assert found["groups"] == [
        {"name": "lr 0.1", "runs": 3, "epochs": None},
        {"name": "lr 0.2", "runs": 1, "epochs": None},
    ]
    assert [one["group"] for one in found["runs"]] == [0, 1, 0, 0]
    assert dict(found["differing"])["config.lr"] == [[0.1], [0.2]]
    [loss] = found["tags"]
    mean, alone = loss["lines"]
    assert mean["steps"].tolist() == [1, 2, 3, 4, 5]  # that all of them have
    assert [float(mean[name][-1]) for name in ("low", "values", "high")] == pytest.approx([0.02, 1.02, 2.02])
    assert "low" not in alone
    assert (mean["seconds"] >= 0).all()
    assert loss["differences"][0]["values"][-1] == pytest.approx(0.04 - 1.02)
    assert [one["last"] for one in loss["standings"]] == pytest.approx([1.0175, 0.04], rel=0.01)


def test_each_group_has_the_epochs_of_its_own_runs(tmp_path):
    for name, each in (("a", 2), ("b", 4), ("c", 8), ("none", 0)):
        with ds.init(tmp_path / name, quiet=True) as run:
            for step in run.steps(range(1, 9)):
                run.log(loss=1.0, **({"epoch": step / each} if each else {}))
    found = compared(
        *(tmp_path / name for name in ("a", "b", "c", "none")), labels=["2", "4 and 8", "4 and 8", "none"]
    )
    first, mean, none = (one["epochs"] for one in found["groups"])
    assert first["values"].tolist() == [step / 2 for step in range(1, 9)]
    assert mean["values"].tolist() == [(step / 4 + step / 8) / 2 for step in range(1, 9)]
    assert mean["steps"].tolist() == [*range(1, 9)]
    assert none is None


def test_what_cannot_be_compared_is_refused_and_without_others_there_is_nothing(tmp_path):
    record(tmp_path / "a")
    assert page(ds.open_run(tmp_path / "a"))["compare"] is None
    with pytest.raises(InvalidValueError, match=r"must be different ones, got .*a twice"):
        compared(tmp_path / "a", tmp_path / "a")
