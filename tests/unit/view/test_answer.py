"""The first screen's data: badge, sentence and numbers; the anatomy of steps and the marks of the axis."""

import json

import numpy as np
import pytest

import distsummary as ds
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Value
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.cost import Bill, Part
from distsummary.view.answer import answer
from distsummary.view.page import page, tag_curve
from tests.unit.runs.recording import RUN, record


def recorded(path, verdicts=(), ranks=2):
    """A finished run; the lines of alerts.jsonl are `verdicts`."""
    for rank in range(ranks):
        with ds.init(path, rank=rank, world_size=ranks, aggregate=False, quiet=True) as run:
            for step in run.steps(range(1, 41)):
                run.log(loss=1 / step)
    ds.merge_run(path)
    base = {"time": 1.0, "attempt": 0, "rank": 1, "since_step": 5, "until_step": 20, "reported_step": 9}
    lines = [json.dumps(base | {"evidence": "forward took 9 ms."} | one) for one in verdicts]
    (path / "alerts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return page(ds.open_run(path))


@pytest.mark.parametrize(
    ("verdicts", "badge", "head"),
    [([], ("finished", "good"), "Both ranks trained alike"),
     ([{"cause": "forward", "lost_s": 2.0}], ("finished · slow", "warn"),
      "Rank 1 held up the run in steps 5 to 20"),
     ([{"cause": "forward", "lost_s": 9.0}, {"cause": "nan", "until_step": None}], ("finished · NaN", "bad"),
      "Rank 1 had the first number that is not finite, at step 5"),
     ([{"cause": "hang"}], ("finished · hung", "warn"), "Rank 1 hung at step 5")],
)  # fmt: skip
def test_the_badge_is_the_state_with_the_worst_finding_and_the_sentence_is_of_the_heaviest(
    tmp_path, verdicts, badge, head
):
    found = recorded(tmp_path, verdicts)["answer"]
    assert (found["badge"]["text"], found["badge"]["kind"]) == badge
    assert found["head"] == head
    assert [*found["guides"]] == [
        *dict.fromkeys(one["cause"] for one in sorted(verdicts, key=lambda one: one["cause"] != "nan"))
    ]
    assert all(text.startswith("# ") for text in found["guides"].values())


def test_what_could_not_be_read_is_not_green(tmp_path):
    recorded(tmp_path)
    (tmp_path / "alerts.jsonl").write_text("{\n")
    found = page(ds.open_run(tmp_path))["answer"]
    assert found["badge"]["kind"] == "warn"
    assert found["head"] == "Not all of the run could be read"
    assert "alerts.jsonl" in found["detail"]


def test_a_rank_that_failed_is_the_answer_though_no_alert_says_so(tmp_path):
    def train():
        with ds.init(tmp_path, aggregate=False, quiet=True) as run:
            for step in run.steps(range(5)):
                run.log(loss=1 / (3 - step))

    with pytest.raises(ZeroDivisionError):
        train()
    found = page(ds.open_run(tmp_path))
    assert found["answer"]["badge"] == {"text": "failed · rank failed", "kind": "bad"}
    assert found["answer"]["head"].startswith("Rank 0 failed at step ")
    assert "ZeroDivisionError" in found["answer"]["detail"]
    assert "failed" in found["answer"]["guides"]


def values(step, rank):
    phases = {
        "forward/cpu_ms": 5.0 + 20 * (rank == 3 and step == 50),
        "wait/blocked_ms": 2.0,
        "checkpoint/cpu_ms": 9.0 * (step % 25 == 0),
    }
    found = [Value("scalar", f"zz_perf/phase/{name}", value) for name, value in phases.items()]
    own = sum(value for name, value in phases.items() if "wait" not in name)
    found += [
        Value("scalar", "zz_perf/own_ms", own),
        Value("scalar", "train/loss", 1 / step),
        Value("scalar", "epoch", step // 30),
    ]
    return found + [Value("scalar", f"eval/{name}", 0.5 + step / 1000) for name in ("loss", "accuracy")] * (
        step % 30 == 0
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("measured")
    for rank in range(4):
        record(path, rank=rank, ranks=4, steps=range(1, 101), values=values)
    return ds.open_run(path)


def test_the_numbers_are_loss_first_metric_and_step_time(measured):
    found = page(measured)["answer"]
    assert (found["loss"]["tag"], found["loss"]["last"]) == ("train/loss", pytest.approx(0.01))
    metric = found["metric"]
    assert (metric["tag"], metric["best_step"], metric["last"]) == ("eval/accuracy", 90, pytest.approx(0.59))
    assert (found["time"]["tag"], found["time"]["median"], found["proof"]) == (
        "zz_perf/own_ms",
        5,
        "zz_perf/own_ms",
    )


def test_the_anatomy_has_the_worst_steps_phase_by_phase(measured):
    found = page(measured)["anatomy"]
    at = found["steps"].tolist().index(50)
    assert found["ranks"].tolist()[0] == 3
    assert {name: float(of[at, 0]) for name, of in found["phases"].items()} == {
        "forward": 25,
        "wait": 2,
        "checkpoint": 9,
    }
    assert all(of.shape == (found["steps"].size, 4) for of in found["phases"].values())


def test_the_marks_are_evaluations_checkpoints_epochs_and_times(measured):
    found = page(measured)["marks"]
    assert (found["evaluations"].tolist(), found["checkpoints"].tolist()) == ([30, 60, 90], [25, 50, 75, 100])
    assert (found["epochs"]["values"][-1], found["attempts"]) == (
        3,
        [{"attempt": 0, "first_step": 1, "last_step": 100}],
    )
    assert np.allclose(found["times"]["seconds"], 100.0 + found["times"]["steps"])


def test_the_first_screen_has_its_curves_and_maps_however_many_tags_there_are(tmp_path):
    many = [Value("scalar", f"layer{number:03}/norm", 1.0) for number in range(300)]
    for rank in range(3):
        record(
            tmp_path,
            rank=rank,
            ranks=3,
            steps=range(1, 9),
            values=lambda step, rank: [*many, *values(step, rank)],
        )
    run = ds.open_run(tmp_path)
    found = page(run)
    tags = {one["tag"] for one in found["curves"]}
    assert len(found["tags"]) == 306
    assert {"train/loss", "zz_perf/own_ms"} <= tags
    assert [one["tag"] for one in found["maps"]] == [
        "zz_perf/own_ms",
        "zz_perf/phase/forward/cpu_ms",
        "train/loss",
    ]
    absent = next(tag for tag in found["tags"] if tag not in tags)
    assert tag_curve(run, absent)["median"]["values"].tolist() == [1.0] * 8


def test_a_run_of_one_rank_and_one_without_numbers_have_the_same_screen(tmp_path):
    record(tmp_path / "one")
    found = page(ds.open_run(tmp_path / "one"))
    assert (found["answer"]["loss"]["last"], found["answer"]["time"], found["anatomy"]) == (5, None, None)
    record(tmp_path / "none", values=lambda step, rank: [Value("text", "a", "b")])
    found = page(ds.open_run(tmp_path / "none"))
    assert (found["answer"]["loss"], found["tags"], found["curves"], found["marks"]["times"]) == (
        None, [], [], None,
    )  # fmt: skip


def test_tags_of_steps_that_were_made_again_and_clocks_without_a_time_do_no_harm(tmp_path):
    times = [
        Value("scalar", tag, 1.0) for tag in ("zz_perf/own_ms", "zz_perf/step_ms", "old/loss", "eval/acc")
    ]
    for rank in range(3):
        record(tmp_path, rank=rank, ranks=3, steps=range(5, 9), values=lambda step, rank: times)
        later = {"attempt": 1, "values": lambda step, rank: [Value("scalar", "lr", 0.1)]}
        record(tmp_path, rank=rank, ranks=3, steps=range(1, 4), **later)
        spec = WriterSpec(
            directory=RunDir(tmp_path).writer_dir("train", rank, 3), run_id=RUN, attempt=1, rank=rank
        )
        writer = RankWriter(spec)
        lost = [Event(4, float("nan"), [Value("scalar", "lr", 0.1)])]
        writer.write(Batch(run_id=RUN, attempt=1, rank=rank, first_seq=4, events=lost))
        writer.close()
    found = page(ds.open_run(tmp_path))
    assert (found["answer"]["loss"], found["answer"]["metric"], found["maps"]) == (None, None, [])
    assert found["anatomy"] is None
    assert found["marks"]["times"]["steps"].tolist() == [1, 2, 3]


@pytest.fixture
def failed(tmp_path):
    """A run that failed at step 4 of 40."""

    def train():
        with ds.init(tmp_path, aggregate=False, quiet=True) as run:
            for step in run.steps(range(40)):
                run.log(loss=1 / (3 - step))

    with pytest.raises(ZeroDivisionError):
        train()
    return ds.open_run(tmp_path)


LOSS = {"bad_steps": 3, "steps": 40}


@pytest.mark.parametrize(
    ("cause", "checkpoints", "detail"),
    [("failed", [1, 2, 9], "why; the run ended at step 4, its newest checkpoint is of step 2"),
     ("failed", [], "why"),
     ("unsaved", [2], "why"),
     ("nan", [], "why; 3 of 40 steps have a loss that is not finite"),
     ("nan", [2, 4], "why; 3 of 40 steps have a loss that is not finite; the newest checkpoint before is of "
      "step 2; the run ended at step 4, its newest checkpoint is of step 4")],
)  # fmt: skip
def test_what_a_run_that_ended_early_lost_is_said(failed, cause, checkpoints, detail):
    verdict = {
        "cause": cause, "level": "error", "rank": 0, "sentence": "It: cost.", "evidence": "why.",
        "since_step": 3,
    }  # fmt: skip
    cost = Bill(wall_s=9.0, parts=(Part("rollback", None, None, 5.0),))
    found = answer(failed, [verdict], steps=(1, 4), loss=LOSS, checkpoints=checkpoints, cost=cost)
    assert (found["head"], found["detail"], found["earlier"]) == ("It", detail, "")


def test_what_a_restart_lost_is_said(tmp_path, failed):
    with ds.init(tmp_path, aggregate=False, quiet=True) as run:
        for _ in run.steps(range(5)):
            run.log(loss=1.0)
    said = "Attempt 0 failed at step 3: ZeroDivisionError: division by zero"
    for again_s, more in ((0.0, ""), (5.0, "; steps that were made again cost 5.0 s")):
        cost = Bill(wall_s=9.0, parts=(Part("rollback", None, None, again_s),))
        found = answer(ds.open_run(tmp_path), [], steps=(1, 5), loss=None, checkpoints=[], cost=cost)
        badge = {"text": "finished · restarted", "kind": "good"}
        assert (found["earlier"], found["badge"]) == (said + more, badge)


@pytest.mark.parametrize(
    ("values", "kind"), [([0.5, float("nan"), 0.5], "warn"), ([0.5, 0.5, float("inf")], "bad")]
)
def test_a_loss_that_is_not_finite_is_not_green_though_no_one_judged_it(tmp_path, values, kind):
    record(tmp_path, steps=range(3), values=lambda step, rank: [Value("scalar", "loss", values[step])])
    found = page(ds.open_run(tmp_path))["answer"]
    assert found["badge"] == {"text": "no run.json · NaN", "kind": kind}
    assert found["head"] == "loss is NaN or infinite at 1 of 3 steps"


def test_a_run_json_that_cannot_be_read_is_said_of_no_more_than_itself(tmp_path):
    record(tmp_path)
    (tmp_path / "run.json").write_text("{")
    found = page(ds.open_run(tmp_path))["answer"]
    assert found["head"] == "run.json cannot be read"
    assert found["detail"] == "steps 1 to 5; in what was recorded nothing was found to be wrong"


def test_ranks_that_are_not_merged_are_not_called_unreadable(tmp_path):
    recorded(tmp_path)
    for path in tmp_path.glob("events.*"):
        path.unlink()
    found = page(ds.open_run(tmp_path))["answer"]
    assert (found["head"], found["badge"]["kind"]) == ("The ranks are not merged", "warn")
    assert found["detail"].startswith("distsummary merge ")
