"""What `distsummary serve` answers: the list, a page that is made again when there is more, single curves."""

import gzip
import json
import shutil
import threading
from functools import reduce
from operator import getitem

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import FilterError, InvalidValueError, MissingFileError
from distsummary.format.records import Value
from distsummary.runs.recorded_run import RecordedRun
from distsummary.view import served as module
from distsummary.view.page import page
from distsummary.view.served import Response, Served, UnknownRunError
from tests.patience import PATIENCE_S
from tests.unit.runs.recording import record


def contents(answer: Response) -> dict:
    """The JSON text of an answer; its arrays stay places in the block."""
    data = gzip.decompress(answer.data)
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])


def array(answer: Response, *names: str) -> list[float]:
    data = gzip.decompress(answer.data)
    block = data[4 + int.from_bytes(data[:4], "little") :]
    kind, place, count = reduce(getitem, names, contents(answer))["$"]
    size = np.dtype(kind).itemsize
    raw = np.frombuffer(block[place : place + size * count], np.uint8)
    return raw.reshape(size, count).T.copy().view(f"<{kind}").ravel().tolist()


def names(served: Served) -> list[str]:
    return listed(served)["columns"]["path"]


def listed(served: Served) -> dict:
    return json.loads(gzip.decompress(served.runs().data))


def test_a_page_is_made_again_when_there_is_more_and_only_then(tmp_path):
    record(tmp_path / "a/run")
    made = []
    served = Served(tmp_path, every_s=0.0, make=lambda run, **given: made.append(run) or page(run, **given))
    assert names(served) == ["a/run"]
    first = served.page("a/run")
    assert contents(first)["overview"]["steps"] == [1, 5]
    assert served.page("a/run") is first
    record(tmp_path / "a/run", steps=range(6, 9), first_seq=6)
    later = served.page("a/run")
    assert contents(later)["overview"]["steps"] == [1, 8]
    assert later.version != first.version
    assert len(made) == 2
    assert made[0] is made[1]  # what was read is kept


def test_tabs_that_ask_together_have_it_read_once(tmp_path):
    record(tmp_path / "run")
    inside, go_on, made = threading.Event(), threading.Event(), []

    def slow(run, **given):
        made.append(run)
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return {"number": len(made)}

    served = Served(tmp_path, make=slow)
    found = []
    tabs = [threading.Thread(target=lambda: found.append(served.page("run"))) for _ in range(5)]
    tabs[0].start()
    assert inside.wait(PATIENCE_S)
    for tab in tabs[1:]:
        tab.start()
    go_on.set()
    for tab in tabs:
        tab.join(PATIENCE_S)
    assert [contents(one) for one in found] == [{"number": 1}] * 5


def test_a_run_that_was_removed_is_reported_and_another_of_its_name_is_read_again(tmp_path):
    record(tmp_path / "run")
    served = Served(tmp_path, every_s=0.0)
    served.page("run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(MissingFileError, match="run was removed while it was read"):
        served.page("run")
    with pytest.raises(MissingFileError, match="there is no"):
        served.page("run")
    assert names(served) == []
    record(tmp_path / "run", steps=range(1, 3))
    assert contents(served.page("run"))["overview"]["steps"] == [1, 2]


def test_a_run_that_begins_right_after_the_list_was_made_is_read(tmp_path):
    record(tmp_path / "first")
    served = Served(tmp_path, every_s=3600.0)
    assert names(served) == ["first"]
    record(tmp_path / "second")
    assert contents(served.page("second"))["overview"]["steps"] == [1, 5]


def test_runs_are_compared_in_groups_of_those_that_have_the_same_in_columns_of_the_list(tmp_path):
    for place, (lr, seed) in enumerate([(0.1, 0), (0.1, 1), (0.2, 0)]):
        with ds.init(tmp_path / f"{place}", config={"lr": lr, "seed": seed, "batch": 8}, quiet=True) as run:
            for _ in run.steps(range(2)):
                run.log(loss=lr)
    served = Served(tmp_path, every_s=3600.0)

    def groups(*by):
        return [
            (one["name"], one["runs"])
            for one in contents(served.page("0", ["1", "2"], by))["compare"]["groups"]
        ]

    assert groups("config.lr", "config.batch") == [("lr 0.1", 2), ("lr 0.2", 1)]
    assert groups("config.batch", "nothing") == [("batch 8, nothing -", 3)]
    assert groups() == [("0", 1), ("1", 1), ("2", 1)]


def test_only_runs_of_the_list_are_read(tmp_path):
    record(tmp_path / "shown/run")
    record(tmp_path / "other")
    served = Served(tmp_path / "shown")
    for name in ("../other", str(tmp_path / "other"), "", "run/", "./run"):
        with pytest.raises(UnknownRunError):
            served.page(name)
    assert names(served) == ["run"]


def test_the_curve_of_any_rank_is_exact(tmp_path):
    for rank in range(3):
        record(tmp_path / "run", rank=rank, ranks=3)
    served = Served(tmp_path / "run")
    curve = served.curve(".", "loss", 2)
    assert array(curve, "steps") == [1, 2, 3, 4, 5]
    assert array(curve, "values") == [1.5, 2.5, 3.5, 4.5, 5.5]
    with pytest.raises(InvalidValueError, match=r"rank must be .* got 3"):
        served.curve(".", "loss", 3)
    with pytest.raises(InvalidValueError, match="the nearest are loss"):
        served.curve(".", "los", 2)


def test_any_measured_step_of_the_ranks_is_exact(tmp_path):
    def values(step, rank):
        own = [Value("scalar", "zz_perf/own_ms", 10.0 + rank)]
        return own + [
            Value("scalar", f"zz_perf/phase/forward/{kind}_ms", step + rank) for kind in ("cpu", "blocked")
        ]

    for rank in range(80):
        record(tmp_path, rank=rank, ranks=80, steps=range(2, 400, 2), values=values)
    served = Served(tmp_path, every_s=0)
    for asked, found in ((122, 122), (121, 122), (900, 398)):
        answer = served.step(".", asked, 3)
        ranks = array(answer, "anatomy", "ranks")
        assert (array(answer, "anatomy", "steps"), ranks[:2], len(ranks)) == ([found], [3, 79], 64)
        forward = array(answer, "anatomy", "phases", "forward")
        assert forward == [2 * (found + rank) for rank in ranks]
    record(tmp_path / "timeless", rank=0, ranks=2)
    with pytest.raises(InvalidValueError, match="own_ms"):
        Served(tmp_path / "timeless", every_s=0).step(".", 1)


def test_between_two_looks_at_the_files_page_and_curves_are_of_one_moment_and_read_once(
    tmp_path, monkeypatch
):
    for rank in range(3):
        record(tmp_path, rank=rank, ranks=3)
    read, looked = [], []
    curve, stamp = module.rank_curve, RecordedRun.stamp
    monkeypatch.setattr(module, "rank_curve", lambda *asked: read.append(asked[1:]) or curve(*asked))
    monkeypatch.setattr(RecordedRun, "stamp", lambda run: looked.append(run) or stamp(run))
    seldom, always = Served(tmp_path, every_s=3600.0), Served(tmp_path, every_s=0.0)
    for served in (seldom, always):
        for _ in range(2):
            assert array(served.curve(".", "loss", 2), "steps") == [1, 2, 3, 4, 5]
    assert read == [("loss", 2)] * 2
    for rank in range(3):
        record(tmp_path, rank=rank, ranks=3, steps=[6], first_seq=6)
    looked.clear()
    assert array(seldom.curve(".", "loss", 2), "steps") == [1, 2, 3, 4, 5]
    assert array(seldom.curve(".", "loss", 1), "steps") == [1, 2, 3, 4, 5]
    assert contents(seldom.page("."))["overview"]["steps"] == [1, 5]
    assert looked == []
    assert array(always.curve(".", "loss", 2), "steps") == [1, 2, 3, 4, 5, 6]
    assert contents(always.page("."))["overview"]["steps"] == [1, 6]


def test_a_page_that_fails_is_tried_again_only_when_the_files_are_looked_at_again(tmp_path):
    record(tmp_path)
    tried = []

    def failing(run, **given):
        tried.append(run)
        if len(tried) > 3:
            return page(run, **given)
        raise OSError(f"try {len(tried)}")

    seldom, always = (Served(tmp_path, every_s=every_s, make=failing) for every_s in (3600.0, 0.0))
    for served, expected in ((seldom, ["try 1", "try 1"]), (always, ["try 2", "try 3"])):
        for text in expected:
            with pytest.raises(OSError, match=text):
                served.page(".")
    assert contents(always.page("."))["overview"]["steps"] == [1, 5]


def test_a_directory_may_fill_later_but_must_be_there(tmp_path):
    served = Served(tmp_path, every_s=0.0)
    assert "holds no runs" in listed(served)["note"]
    record(tmp_path / "run")
    assert names(served) == ["run"]
    with pytest.raises(MissingFileError, match="there is no"):
        Served(tmp_path / "none")


def test_the_list_has_the_columns_of_the_runs_and_is_filtered(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", PATIENCE_S)
    for name, value in (("a", 0.5), ("b", float("nan"))):
        record(tmp_path / name, values=lambda step, rank, value=value: [Value("scalar", "loss", value)])
    served = Served(tmp_path, every_s=0.0)
    found = listed(served)
    rows = dict(zip(found["columns"]["path"], found["columns"]["loss"], strict=True))
    assert rows == {"a": 0.5, "b": "NaN"}
    assert [len(values) for values in found["columns"].values()] == [2] * len(found["columns"])
    assert (found["better"]["loss"], found["pending"]) == ("min", 0)
    assert {tuple(one) for one in found["spark"]} == {(0.5,) * 5, ("NaN",) * 5}
    assert json.loads(gzip.decompress(served.filtered("loss < 1 and name ~ 'A'").data)) == ["a"]
    with pytest.raises(FilterError, match="there is no column 'los'; the nearest are loss"):
        served.filtered("los < 1")


def test_while_rows_are_not_whole_the_next_answer_has_more(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    monkeypatch.setattr(module, "LIST_S", PATIENCE_S)
    record(tmp_path / "a")
    served = Served(tmp_path, every_s=3600.0)
    first = listed(served)
    assert (first["pending"], "loss" in first["columns"]) == (1, False)
    assert listed(served)["columns"]["loss"] == [5.0]
    assert served.runs() is served.runs()


def test_a_run_is_called_otherwise_at_once(tmp_path):
    record(tmp_path / "a")
    served = Served(tmp_path, every_s=3600.0)
    assert listed(served)["columns"]["name"] == ["a"]
    served.relabel("a", {"name": "best", "add": ["x"]})
    assert (listed(served)["columns"]["name"], listed(served)["columns"]["tags"]) == (["best"], [["x"]])
    with pytest.raises(InvalidValueError, match="changes has the unknown key 'path'"):
        served.relabel("a", {"path": "/"})
    with pytest.raises(UnknownRunError):
        served.relabel("../a", {"name": "x"})


def test_too_many_or_equal_runs_are_refused_before_one_is_opened(tmp_path):
    for number in range(10):
        record(tmp_path / str(number))
    served = Served(tmp_path)
    assert len(names(served)) == 10
    for number in range(10):
        shutil.rmtree(tmp_path / str(number))  # one that is opened would be missing
    with pytest.raises(InvalidValueError, match="with up to 19 others, got 1500"):
        served.page("0", [str(1 + number % 9) for number in range(1500)])
    with pytest.raises(InvalidValueError, match=r"must be different ones, got .*1 twice"):
        served.page("0", ["1", "1"])


def test_runs_are_next_to_each_other_and_the_page_follows_each_of_them(tmp_path):
    for name in "ab":
        record(tmp_path / name)
    served = Served(tmp_path, every_s=0.0)
    first = served.page("a", ["b"])
    assert [one["name"] for one in contents(first)["compare"]["runs"]] == ["a", "b"]
    assert served.page("a", ["b"]) is first
    record(tmp_path / "b", steps=range(6, 9), first_seq=6)
    later = contents(served.page("a", ["b"]))
    assert later["compare"]["runs"][1]["steps"] == [1, 8]
    assert contents(served.page("a"))["compare"] is None
    with pytest.raises(UnknownRunError, match="none"):
        served.page("a", ["none"])
    with pytest.raises(InvalidValueError, match="must be different ones"):
        served.page("a", ["a"])
