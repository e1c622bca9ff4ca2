"""The data of a run's page: what it says about ranks, attempts and verdicts; its extremes are exact."""

import base64
import json
import zlib

import numpy as np
import pytest

import distsummary as ds
from distsummary.errors import InvalidValueError
from distsummary.format.records import Value
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.run_rows import RunRows
from distsummary.view.packing import embedded, packed, plain
from distsummary.view.page import page
from tests.unit.runs.recording import record

NASTY = "</script><img src=x onerror=alert(1)>\"'&\u2028é" + "x" * 900


def timed(step, rank):
    spike = 900.0 if (step, rank) == (1234, 2) else 0.0
    loss = float("nan") if (step, rank) == (50, 1) else 1 / step
    return [Value("scalar", "zz_perf/own_ms", 10 + rank + spike), Value("scalar", "loss", loss)]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A run of four ranks with a spike at rank 2, NaN at rank 1 and a verdict; without a run.json."""
    path = tmp_path_factory.mktemp("view") / "slow"
    for rank in range(4):
        record(path, rank=rank, ranks=4, steps=range(1, 8001), values=timed)
    reported = {
        "time": 1.0, "rank": 2, "cause": "data", "since_step": 1200, "until_step": None, "evidence": "e",
    }  # fmt: skip
    reported |= {"lost_s": 2.5, "ranks": [2, 3]}
    (path / "alerts.jsonl").write_text(json.dumps(reported | {"reported_step": 1240}) + "\n")
    return page(ds.open_run(path))


def test_a_spike_of_one_rank_is_in_the_band_the_line_and_the_heat_map_with_its_place(slow):
    [curve] = [one for one in slow["curves"] if one["tag"] == "zz_perf/own_ms"]
    place = curve["band"]["high"].argmax()
    found = [curve["band"][name][place] for name in ("high", "high_steps", "high_ranks")]
    assert found == [912, 1234, 2]
    [line] = [line for line in curve["lines"] if line["rank"] == 2]
    assert line["steps"].size < 8000
    assert line["steps"][line["values"].argmax()] == 1234
    [heat] = [one for one in slow["maps"] if one["tag"] == "zz_perf/own_ms"]
    column = (1234 - 1) // 20
    assert heat["ranks"].tolist()[0] == 2  # the verdict is on it
    assert (heat["first_steps"][column] + heat["far_steps"][0, column], heat["far"][0, column]) == (
        1234,
        7500,
    )
    assert heat["percent"][0, column] == 4  # the median of the cell: 12 ms, of the ranks 11.5 ms


def test_a_curve_has_the_unit_and_the_direction_that_were_defined(tmp_path):
    define = {"eval/*": {"best": "min"}, "tokens": {"unit": "tokens/s"}}
    with ds.init(tmp_path, define=define, system_metrics=False) as run:
        for step in run.steps(range(3)):
            run.log({"tokens": 1.0, "zz_perf/own_ms": 2.0})
            with run.eval() as evaluation:
                evaluation.log(accuracy=float(step))
    found = page(ds.open_run(tmp_path))
    units = {curve["tag"]: curve["unit"] for curve in found["curves"]}
    assert (units["tokens"], units["zz_perf/own_ms"], units["eval/accuracy"]) == ("tokens/s", "ms", "")
    assert (found["answer"]["metric"]["best"], found["answer"]["metric"]["best_step"]) == (0.0, 1)


def test_nan_that_was_recorded_is_reported_with_its_step(slow):
    [curve] = [one for one in slow["curves"] if one["tag"] == "loss"]
    assert (curve["not_finite"], curve["first_not_finite"], curve["points"]) == (1, 50, 32_000)
    [heat] = [one for one in slow["maps"] if one["tag"] == "loss"]
    assert np.argwhere(heat["bad"]).tolist() == [[heat["ranks"].tolist().index(1), (50 - 1) // 20]]


def test_nan_of_any_rank_is_found_while_one_rank_is_a_step_ahead(tmp_path):
    def loss(step, rank):
        return [Value("scalar", "loss", float("nan") if (step, rank) == (3, 99) else 1.0)]

    for rank in range(100):
        record(tmp_path, rank=rank, ranks=100, steps=range(1, 6 + (rank == 0)), values=loss)
    found = page(ds.open_run(tmp_path))
    [curve] = found["curves"]
    assert (curve["not_finite"], curve["first_not_finite"]) == (1, 3)
    [heat] = found["maps"]
    assert (heat["ranks"][0], np.argwhere(heat["bad"]).tolist()) == (99, [[0, 2]])


@pytest.mark.parametrize(
    ("cause", "until", "level"),
    [("nan", None, "error"), ("data", None, "warning"), ("hang", 3, "warning"), (None, None, "")],
)
def test_the_page_says_how_grave_the_worst_finding_is(tmp_path, cause, until, level):
    with ds.init(tmp_path, quiet=True) as run:
        for _ in run.steps(range(5)):
            run.log(loss=1.0)
    reported = {"time": 1.0, "attempt": 0, "rank": 0, "since_step": 2, "until_step": until, "evidence": "e"}
    ended = reported | {"cause": "failed", "reported_step": 2}
    (tmp_path / "alerts.jsonl").write_text(
        json.dumps(ended)
        + "\n"
        + json.dumps(reported | {"cause": cause or "finished", "reported_step": 2})
        + "\n"
    )
    found = page(ds.open_run(tmp_path))["overview"]
    assert (found["state"], found["level"], found["findings"]) == ("finished", level, int(bool(level)))
    shown = [(one["cause"], one["level"]) for one in found["verdicts"]]
    assert shown == ([(cause, "error" if cause == "hang" else level)] if cause else [])
    assert found["found"].startswith("1 finding: rank 0 ") == bool(cause)
    [row] = RunRows(tmp_path).read()
    assert (row.level, row.causes, row.is_healthy) == (level, (cause,) if level else (), level != "error")


def test_verdicts_and_what_is_missing_are_reported(slow):
    [verdict] = slow["overview"]["verdicts"]
    assert (verdict["lost_s"], verdict["ranks"]) == (2.5, [2, 3])
    assert (verdict["rank"], verdict["cause"], verdict["since_step"], verdict["until_step"]) == (
        2, "data", 1200, -1
    )  # fmt: skip
    assert slow["overview"]["state"] == "no run.json"
    assert slow["timeline"]["bars"] == []


def test_attempts_and_ranks_have_their_times_and_steps(tmp_path):
    settings = {"aggregate": False, "quiet": True, "config": {"a": {"lr": 0.5}}, "on_existing": "attempt"}
    for first in (1, 6):
        for rank in range(2):
            with ds.init(
                tmp_path / "run", rank=rank, world_size=2, initial_step=first - 1, **settings
            ) as run:
                for step in run.steps(range(first, 11)):
                    run.log(loss=1 / step)
    ds.merge_run(tmp_path / "run")
    found = page(ds.open_run(tmp_path / "run"))
    assert [(one["attempt"], one["first_step"]) for one in found["marks"]["attempts"]] == [(0, 1), (1, 6)]
    bars = [(one["rank"], one["attempt"], one["state"]) for one in found["timeline"]["bars"]]
    assert {(0, 1, "finished"), (1, 1, "finished")} <= {*bars}
    assert all(one["begin"] <= one["end"] for one in found["timeline"]["bars"])
    assert found["overview"]["config"] == {"a.lr": 0.5}
    [curve] = [one for one in found["curves"] if one["tag"] == "loss"]
    assert curve["merged"]["steps"].tolist() == list(range(1, 11))
    json.loads(packed(found)[0])


def test_attempts_ranks_and_times_are_those_of_the_training_and_not_of_its_evaluation(tmp_path):
    for role in ("train", "eval"):
        with ds.init(tmp_path, role=role, aggregate=False, quiet=True) as run:
            for _ in run.steps(range(2)):
                run.log(loss=1.0)
    found = page(ds.open_run(tmp_path))
    assert [one["role"] for one in found["overview"]["attempts"]] == ["train"]
    assert [one["role"] for one in found["overview"]["health"]] == ["train"]
    assert [one["role"] for one in found["timeline"]["bars"]] == ["train"]
    assert found["overview"]["started"] == found["timeline"]["bars"][0]["begin"]
    assert found["overview"]["facts"]["attempts"] == 1


def test_ranks_that_are_all_nan_do_not_disagree(tmp_path):
    conflicts = [{"field": "a", "by_rank": {"0": "nan", "1": "nan"}}]
    conflicts += [{"field": "b", "by_rank": {"0": "nan", "1": 2.0}}, {"field": "and 3 more", "by_rank": {}}]
    with ds.init(tmp_path, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(1)):
            run.log(loss=1.0)
    manifest = RunDir(tmp_path).read_manifest() | {"merged": {"train": {"conflicts": conflicts}}}
    RunDir(tmp_path).manifest_path.write_text(json.dumps(manifest))
    assert page(ds.open_run(tmp_path))["overview"]["conflicts"] == conflicts[1:]


def test_of_many_ranks_those_with_lines_are_named_extreme_or_asked_for(tmp_path):
    for rank in range(40):
        values = [Value("scalar", "loss", 1.0 + (rank == 33) - 0.5 * (rank == 17))]
        record(tmp_path, rank=rank, ranks=40, values=lambda step, rank, values=values: values)
    run = ds.open_run(tmp_path)
    [curve] = page(run, ranks=[39])["curves"]
    lines = [line["rank"] for line in curve["lines"]]
    assert {17, 33, 39} <= {*lines}
    assert len(lines) == 16
    with pytest.raises(InvalidValueError, match="rank must be one of 0-39, got 40"):
        page(run, ranks=[40])
    with pytest.raises(InvalidValueError, match="the nearest are loss"):
        page(run, tags=["los"])


def test_a_run_of_one_rank_has_lines_and_no_band_or_heat_maps(tmp_path):
    record(tmp_path)
    found = page(ds.open_run(tmp_path), tags=["lr"])
    curve, of_first_screen = found["curves"]
    assert (curve["band"], curve["median"], found["maps"]) == (None, None, [])
    assert curve["lines"][0]["values"].tolist() == [0.5] * 5
    assert of_first_screen["tag"] == "loss"


def test_the_steps_begin_with_the_curves_and_of_the_phases_those_that_verdicts_name_come_first(tmp_path):
    phases = [f"zz_perf/phase/{name}/cpu_ms" for name in ("backward", "data", "forward")]
    record(
        tmp_path,
        steps=range(4),
        values=lambda step, rank: (
            [Value("text", "settings", "lr: 1")]
            if step == 0
            else [Value("scalar", tag, 1.0) for tag in ("loss", *phases)]
        ),
    )
    reported = {"rank": 0, "cause": "data", "since_step": 1, "until_step": None, "evidence": "e"}
    (tmp_path / "alerts.jsonl").write_text(json.dumps(reported | {"reported_step": 2}) + "\n")
    found = page(ds.open_run(tmp_path))
    assert found["overview"]["steps"] == [1, 3]
    assert [curve["tag"] for curve in found["curves"]] == ["loss", *(phases[at] for at in (1, 0, 2))]


def test_arrays_come_back_from_the_block_and_the_text_cannot_leave_its_element():
    given = {
        "tag": NASTY,
        "values": np.array([[1.5, np.nan], [-np.inf, 3e-8]], np.float32),
        "steps": np.array([2**31 - 1, -5], np.int32),
        "again": np.array([2**31 - 1, -5], np.int32),
        "none": np.zeros(0, np.uint8),
    }
    text, block = embedded(given)
    assert text.isascii()
    assert not set("<>&") & set(text)
    raw = zlib.decompress(base64.b64decode(block))
    assert len(raw) == 16 + 8

    def array(stored):
        kind, place, count = stored["$"]
        size = np.dtype(kind).itemsize
        shuffled = np.frombuffer(raw, np.uint8, size * count, place).reshape(size, count)
        return np.ascontiguousarray(shuffled.T).reshape(-1).view(f"<{kind}")

    back = json.loads(text)
    assert back["tag"] == NASTY
    np.testing.assert_array_equal(array(back["values"]), given["values"].reshape(-1))
    np.testing.assert_array_equal(array(back["steps"]), given["steps"])
    assert back["steps"] == back["again"]
    assert array(back["none"]).size == 0


def test_what_a_page_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="set cannot be"):
        embedded({"a": {1, 2}})
    assert embedded({"a": float("nan")})[0] == '{"a":null}'


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2**53, 2**53), (2**53 + 1, "9007199254740993"), (-(2**60), str(-(2**60))), (True, True), (None, None),
     (float("nan"), "NaN"), (np.float32(0.5), 0.5), ({1: [np.int64(3), b""]}, {"1": [3, "b''"]})],
)  # fmt: skip
def test_values_are_plain_and_a_number_that_a_browser_would_round_is_a_text(value, shown):
    assert plain(value) == shown
