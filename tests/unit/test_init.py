"""The recommended door: ranks meet in one run, resumed ones keep its past, strangers get an error at once."""

import builtins
import inspect
import json
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import distsummary as ds
from distsummary.cli.fsck import fsck
from distsummary.errors import ClosedError, InvalidTypeError, InvalidValueError, RunDirError
from distsummary.events.reader import read_directory, read_lineage
from distsummary.format.lineage import custom_values
from distsummary.rundir.attempts import OF_RUN
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import LAUNCH_ID
from tests.unit.collect.doubles import Model
from tests.viewer_rules import lost_points

BEST = {"best": "min"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def train(path: Path, steps: int, *, rank: int = 0, world_size: int = 2, **options: Any) -> None:
    with ds.init(path, rank=rank, world_size=world_size, aggregate=False, **options) as run:
        for _ in run.steps(range(steps)):
            run.log(loss=float(rank))


def losses(path: Path) -> Mapping[int, float]:
    return {e.step: v.data for e in read_directory(path) for v in e.values if v.tag == "loss"}


def test_ranks_that_no_launcher_names_meet_in_one_attempt(nasty_tmp_path: Path) -> None:
    for rank in range(2):
        train(nasty_tmp_path, 3, rank=rank)
    assert len(RunDir(nasty_tmp_path).read_manifest()["attempts"]) == 1
    ds.merge_run(nasty_tmp_path)
    assert losses(nasty_tmp_path) == {1: 0.5, 2: 0.5, 3: 0.5}


def test_a_resumed_training_continues_and_the_merged_run_keeps_its_past(nasty_tmp_path: Path) -> None:
    for rank in range(2):
        train(nasty_tmp_path, 5, rank=rank, system_metrics=False)
    for rank in range(2):
        train(nasty_tmp_path, 3, rank=rank, initial_step=4, initial_epoch=1, system_metrics=False)
    report = ds.merge_run(nasty_tmp_path)
    assert list(losses(nasty_tmp_path)) == [1, 2, 3, 4, 5, 6, 7]
    assert (report.attempts, report.superseded) == ((0, 1), 2)  # step 5 of both ranks was computed again


def test_what_resume_returned_gives_step_and_epoch(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path, 5, world_size=1, system_metrics=False)
    train(nasty_tmp_path, 3, world_size=1, resume=ds.Resumed(epoch=1, step=4), system_metrics=False)
    assert [*losses(nasty_tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    with ds.init(nasty_tmp_path, resume=ds.Resumed(epoch=2, step=7), system_metrics=False) as run:
        assert (run.step, list(run.epochs(4))) == (7, [2, 3])


def test_a_position_given_twice_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"step 4 and the epoch 1, got also initial_step=3"):
        ds.init(tmp_path / "run", resume=ds.Resumed(epoch=1, step=4), initial_step=3)
    with pytest.raises(InvalidTypeError, match=r"^resume must be what ds\.resume\(checkpoint"):
        ds.init(tmp_path / "run", resume="checkpoints")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("options", "has_images"), [
    ({}, False),
    ({"record": ds.Record(overload="drop")}, False),
    ({"record": ds.Record(images=True)}, True),
])  # fmt: skip
def test_pictures_of_the_data_are_recorded_on_request_alone(tmp_path, options, has_images):
    with ds.init(tmp_path, watch=Model(), system_metrics=False, **options) as run:
        for _ in run.steps([(np.ones((2, 3, 4, 4), np.float32), np.zeros(2))]):
            run.log(loss=1.0)
    found = {value.plugin for event in read_directory(tmp_path) for value in event.values}
    assert ("image" in found) is has_images


@pytest.mark.parametrize(
    "made", [ds.init, ds.Record, ds.Diagnose, ds.SummaryCollector], ids=lambda made: made.__name__
)
def test_every_argument_has_a_name_a_type_and_a_description(made: Any) -> None:
    parameters = signature(made).parameters
    hints = get_type_hints(made.__init__ if isinstance(made, type) else made)
    undescribed = {name for name in parameters if not re.search(rf"\b{name}\b", inspect.getdoc(made) or "")}
    untyped = {name for name in parameters if name not in hints}
    assert (undescribed, untyped) == (set(), set())
    assert all(one.kind is not one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize(("histograms", "count"), [(".*", 6), (False, 0), ("layer[3-5]", 3), (".*weight", 6)])
def test_the_histograms_of_the_watched_model_are_chosen(tmp_path: Path, histograms: Any, count: int) -> None:
    with ds.init(tmp_path, watch=Model(), histograms=histograms) as run:
        list(run.steps([1]))
    plugins = [value.plugin for event in read_directory(tmp_path) for value in event.values]
    assert plugins.count("histogram") == count


def test_a_choice_of_histograms_without_a_model_is_refused_naming_watch(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"histograms=.* got watch=None; pass the model"):
        ds.init(tmp_path, histograms="conv")
    ds.init(tmp_path, histograms=False).close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"watch": "model"}, "^watch must be .* got str;"),
        ({"watch": Model}, "^watch must be .* got type;"),
        ({"optimizer": "adam"}, "optimizer must be the object that the training uses, got 'adam'"),
        ({"optimizer": Model}, "optimizer must be the object .* of type type; pass that object"),
        ({"loss_fn": "mse"}, "loss_fn must be the object that the training uses, got 'mse'"),
        ({"callbacks": 5}, "callbacks must be Callback or Sequence or None, got 5"),
        ({"initial_step": "3"}, "initial_step must be int, got '3'"),
        ({"initial_step": -1}, "initial_step must be >= 0"),
        ({"initial_epoch": -1}, "initial_epoch must be >= 0"),
        ({"config": [1]}, r"config must have named values, got \[1\] of type list"),
        ({"mesh": {"dp": (0, 3)}}, "has 3 ranks, but world_size is 1"),
        ({"graph": "ops"}, "graph looks into a torch.nn.Module, got a network of type Model"),
        ({"graph": "ops", "watch": None}, "graph looks into the watched model, got watch=None"),
        ({"checksums": 5, "watch": None}, "checksums=5 sums up the parameters of the watched model, got"),
        (
            {"record": ds.Record(collectors="rank")},
            "collectors='rank' needs Ray, .* start the ranks by ds.launch",
        ),
        (
            {"record": ds.Record(collect_landscape={"intervals": [[1, 2, 3]]}), "watch": None},
            "collect_landscape looks into the",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=said):
        ds.init(tmp_path / "run", **{"watch": Model(), **options})
    assert not (tmp_path / "run").exists()


def test_event_files_in_the_place_of_the_merged_run_are_reported_at_once(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path, 3, world_size=1)
    with pytest.raises(RunDirError, match=r"holds event files that no merge wrote .* move those"):
        ds.init(nasty_tmp_path, rank=1, world_size=2, on_existing="attempt")


def test_a_run_that_is_open_in_this_process_is_refused_until_it_is_closed(nasty_tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    earlier = ds.init(nasty_tmp_path)  # not begun, so it is in no one's way
    run = ds.init(nasty_tmp_path)
    reported = (
        r"is open in this process \(by the run made at .*test_init.py:\d+\); close it first: run.close\(\)"
    )
    run.text("note", "given before the first step")
    with pytest.raises(RunDirError, match=reported):
        ds.init(nasty_tmp_path)
    batches = run.steps(range(9))
    next(batches)
    run.log(loss=0.0)
    for on_existing in ("auto", "attempt", "error"):
        with pytest.raises(RunDirError, match=reported):
            ds.init(nasty_tmp_path, on_existing=on_existing)
    with pytest.raises(RunDirError, match=reported):
        list(earlier.steps(range(9)))
    with ds.init(nasty_tmp_path, on_existing="new") as other:
        other.log(loss=1.0)
    with ds.init(nasty_tmp_path, initial_step=1) as resumed:  # such as in a loop that catches exceptions
        resumed.log(loss=2.0)
    run.close()
    with ds.init(nasty_tmp_path, on_existing="attempt") as later:
        later.log(loss=3.0)
    events = list(read_directory(nasty_tmp_path))
    found = sorted((e.attempt, e.step, v.data) for e in events for v in e.values if v.tag == "loss")
    assert found == [(0, 1, 0.0), (1, 1, 2.0), (2, 0, 3.0)]
    assert list(losses(nasty_tmp_path.with_name(f"{nasty_tmp_path.name}-2")).values()) == [1.0]


def test_one_callback_is_enough_and_a_second_collector_is_refused(nasty_tmp_path: Path) -> None:
    with ds.init(nasty_tmp_path, callbacks=ds.TimeMonitor()) as run:
        list(run.steps([1, 2]))
    with pytest.raises(InvalidValueError, match="callbacks must not hold a SummaryCollector"):
        ds.init(nasty_tmp_path, callbacks=[ds.SummaryCollector(nasty_tmp_path)])


def test_a_landscape_of_a_model_that_no_one_gives_is_refused(tmp_path: Path) -> None:
    record = ds.Record(collect_landscape={"intervals": [[1, 2, 3]]})
    with pytest.raises(InvalidValueError, match=r"got watch=None; pass the model: ds\.init"):
        ds.init(tmp_path, record=record)
    ds.init(tmp_path, rank=1, world_size=2, record=record).close()  # rank 0 keeps what all have


def test_the_ranks_of_a_job_name_their_run_by_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    for rank in range(2):
        train(tmp_path / "{time}", 2, rank=rank)
    [path] = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert list(RunDir(path).rank_dirs()) == [0, 1]


def test_ranks_that_cannot_know_one_time_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"must not hold {time} here, .* --rdzv-id"):
        ds.init(tmp_path / "{time}", rank=1, world_size=2)
    assert list(tmp_path.iterdir()) == []
    train(tmp_path / "{time}", 1, world_size=1)
    assert len(list(tmp_path.iterdir())) == 1


def finished(path: Path, world_size: int = 1, steps: int = 3) -> None:
    for rank in range(world_size):
        train(path, steps, rank=rank, world_size=world_size)


def evaluate(path: Path, *, rank: int = 0, world_size: int = 1, **options: Any) -> None:
    here: Any = {"role": "eval", "rank": rank, "world_size": world_size, "aggregate": False} | options
    with ds.init(path, **here) as run, run.eval() as evaluation:
        evaluation.log(accuracy=0.5 + rank)


def scalars(path: Path, tag: str) -> list[tuple[int, int, float]]:
    events = read_directory(path)
    return [(e.attempt, e.step, v.data) for e in events for v in e.values if v.tag == tag]


def roles(path: Path) -> list[tuple[str, int]]:
    return [(entry["role"], entry["attempt"]) for entry in RunDir(path).read_manifest()["attempts"]]


def test_an_evaluation_after_the_training_stands_at_its_last_step_and_takes_no_attempt(nasty_tmp_path: Path):
    finished(nasty_tmp_path)
    for _ in range(2):
        evaluate(nasty_tmp_path)
    assert scalars(nasty_tmp_path, "eval/accuracy") == [(0, 3, 0.5)] * 2
    assert [step for _, step, _ in scalars(nasty_tmp_path, "loss")] == [1, 2, 3]
    assert roles(nasty_tmp_path) == [("train", 0)]
    lineage = read_lineage(nasty_tmp_path)
    assert lineage.train is not None
    assert lineage.evaluation.metric == '{"accuracy": 0.5}'
    assert list(read_directory(nasty_tmp_path, "tensorboard"))[-1].step == 3
    assert (fsck(nasty_tmp_path).findings, lost_points(nasty_tmp_path)) == ((), [])


@pytest.mark.parametrize("evaluating", [1, 2])
def test_an_evaluation_of_several_ranks_enters_the_merged_run_and_hides_no_step(
    nasty_tmp_path: Path, evaluating: int, caplog: pytest.LogCaptureFixture
) -> None:
    finished(nasty_tmp_path, world_size=2)
    assert not caplog.records
    for rank in range(evaluating):
        evaluate(nasty_tmp_path, rank=rank, world_size=evaluating)
    [record] = caplog.records
    assert record.getMessage().endswith(f"distsummary merge {shlex.quote(str(nasty_tmp_path))}")
    report = ds.merge_run(nasty_tmp_path)
    assert (report.steps, report.superseded) == (3, 0)
    assert scalars(nasty_tmp_path, "eval/accuracy") == [(0, 3, 0.5 if evaluating == 1 else 1.0)]
    assert RunDir(nasty_tmp_path).read_manifest()["attempts"][0]["evaluated"] == []


def test_an_evaluation_writes_no_format_that_the_training_has_not(nasty_tmp_path: Path) -> None:
    for rank in range(2):
        train(nasty_tmp_path, 3, rank=rank, record=ds.Record(formats=("tensorboard",)))
    evaluate(nasty_tmp_path, rank=0, world_size=2)
    assert ds.merge_run(nasty_tmp_path).steps == 3
    assert len(scalars(nasty_tmp_path, "loss")) == 3


def test_the_collector_of_a_training_evaluates_it_later(nasty_tmp_path: Path) -> None:
    collector = ds.SummaryCollector(nasty_tmp_path)
    with ds.Run(callbacks=[collector]) as run:
        list(run.steps(range(4)))
    with ds.Run(callbacks=[collector]) as run, run.eval() as evaluation:
        evaluation.log(accuracy=0.5)
    assert scalars(nasty_tmp_path, "eval/accuracy") == [(0, 4, 0.5)]
    assert collector.health().errors == {}
    assert roles(nasty_tmp_path) == [("train", 0)]


def test_an_evaluation_before_the_first_step_belongs_to_the_attempt_that_follows(nasty_tmp_path: Path):
    with ds.init(nasty_tmp_path, rank=0, world_size=1, initial_step=7) as run:
        with run.eval() as evaluation:
            evaluation.log(accuracy=0.5)
        list(run.steps(range(2)))
    assert scalars(nasty_tmp_path, "eval/accuracy") == [(0, 7, 0.5)]
    assert roles(nasty_tmp_path) == [("train", 0)]


def test_an_evaluation_without_a_training_leaves_the_run_to_one(nasty_tmp_path: Path) -> None:
    evaluate(nasty_tmp_path)
    assert scalars(nasty_tmp_path / "eval", "eval/accuracy") == [(0, 0, 0.5)]
    train(nasty_tmp_path, 3, world_size=1)
    assert roles(nasty_tmp_path) == [("eval", 0), ("train", 0)]
    assert read_lineage(nasty_tmp_path).train is not None


def test_the_lineage_of_an_evaluation_alone_is_where_mindinsight_looks(nasty_tmp_path: Path) -> None:
    for _ in range(2):
        evaluate(nasty_tmp_path, role="train")
    for directory in (nasty_tmp_path, nasty_tmp_path / "eval"):
        assert json.loads(read_lineage(directory).evaluation.metric) == {"accuracy": 0.5}
    assert len([path for path in nasty_tmp_path.iterdir() if path.is_file() and "events" in path.name]) == 1
    assert ds.open_run(nasty_tmp_path).state == "finished"
    train(nasty_tmp_path, 3, world_size=1)
    lineage = read_lineage(nasty_tmp_path)
    assert lineage.train is not None
    assert lineage.evaluation is None or json.loads(lineage.evaluation.metric) == {"accuracy": 0.5}


def test_an_evaluation_without_a_training_names_its_directory_once(tmp_path, caplog):
    for rank in range(2):
        evaluate(tmp_path / "typo", role="train", rank=rank, world_size=2, config={"lr": 0.1})
    [record] = caplog.records
    reported = record.getMessage()
    assert f"{tmp_path / 'typo'} holds no training: the evaluation is recorded in" in reported
    assert reported.count(str(tmp_path / "typo" / "eval")) == 1
    assert [entry["config"] for entry in RunDir(tmp_path / "typo").read_manifest()["attempts"]] == [
        {"lr": 0.1}
    ]
    caplog.clear()
    evaluate(tmp_path / "meant")
    finished(tmp_path / "trained")
    evaluate(tmp_path / "trained")
    assert not caplog.records


def test_the_config_of_an_evaluation_is_reported_if_the_training_has_another(tmp_path, caplog):
    train(tmp_path, 2, world_size=1, config={"lr": 0.1, "opt": {"eps": 1, "amp": None}})
    evaluate(tmp_path, config={"lr": 0.1, "opt": {"eps": 1, "amp": None}})
    assert not caplog.records
    with ds.init(tmp_path, role="eval", config={"lr": 0.2, "beams": 4}) as run, run.eval() as evaluation:
        evaluation.log(accuracy=0.5)
    [(reason, times)] = run.health().errors.items()
    assert (times, len(caplog.records)) == (1, 1)
    assert "config of a run that only evaluates is not recorded" in reason
    assert "in lr, beams:" in reason
    assert [entry["config"]["lr"] for entry in RunDir(tmp_path).read_manifest()["attempts"]] == [0.1]


def test_an_evaluation_next_to_an_open_run_of_the_process_is_kept_apart(nasty_tmp_path: Path) -> None:
    with ds.init(nasty_tmp_path, rank=0, world_size=1) as run:
        for _ in run.steps(range(2)):
            evaluate(nasty_tmp_path)
    assert len(scalars(nasty_tmp_path / "eval", "eval/accuracy")) == 2
    assert scalars(nasty_tmp_path, "eval/accuracy") == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_training_after_a_finished_one_is_recorded_next_to_it_unless_an_attempt_is_asked_for(
    nasty_tmp_path: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    base = nasty_tmp_path / "mine"
    for _ in range(3):
        finished(base, world_size)
    names = ["mine", "mine-2", "mine-3"]
    assert [roles(nasty_tmp_path / name) for name in names] == [[("train", 0)]] * 3
    assert caplog.text.count(f"{base} is taken; this training is recorded in {base}-") == 2
    for rank in range(world_size):
        train(base, 3, rank=rank, world_size=world_size, on_existing="attempt")
    assert roles(base) == [("train", 0), ("train", 1)]


def test_a_new_run_gets_the_next_free_name_on_all_ranks(tmp_path, caplog, monkeypatch):
    for job in ("a", "b", "c"):
        monkeypatch.setenv(LAUNCH_ID, job)
        for rank in range(2):
            train(tmp_path / "mine", 3, rank=rank, on_existing="new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-2", "mine-3"]
    assert all(roles(path) == [("train", 0)] for path in tmp_path.iterdir())
    assert caplog.text.count(f"{tmp_path / 'mine'} is taken; this training is recorded in") == 2


def test_a_name_that_a_dead_process_has_reserved_is_free_again(tmp_path: Path) -> None:
    finished(tmp_path / "mine")
    ds.init(tmp_path / "mine", rank=0, world_size=1)  # reserves the next name, and never begins
    reserved = RunDir(tmp_path / "mine-2")
    assert ds.init(tmp_path / "mine", rank=0, world_size=1).dir == tmp_path / "mine-3"
    reserved.update_manifest(lambda manifest: manifest["claimed_by"].update(pid=2**22 - 1, pid_start="0"))
    assert ds.init(tmp_path / "mine", rank=0, world_size=1).dir == reserved.base


def test_jobs_that_start_together_do_not_get_the_same_new_run(tmp_path: Path) -> None:
    runs = [ds.init(tmp_path / "mine", rank=0, world_size=1, on_existing="new") for _ in range(2)]
    for run in runs:
        list(run.steps(range(2)))
        run.close()
    assert [roles(tmp_path / name) for name in ("mine", "mine-2")] == [[("train", 0)]] * 2


def test_a_training_that_failed_gets_its_next_attempt_from_step_0(nasty_tmp_path: Path) -> None:
    def fail() -> None:
        with ds.init(nasty_tmp_path, rank=0, world_size=1) as run:
            for _ in run.steps(range(3)):
                raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
    assert roles(nasty_tmp_path) == [("train", 0), ("train", 1)]
    train(nasty_tmp_path, 3, world_size=1)
    assert roles(nasty_tmp_path)[-1] == ("train", 2)


def custom(path: Path) -> dict[str, Any]:
    info = read_lineage(path).custom
    return {} if info is None else dict(custom_values(info))


def test_a_config_is_in_the_lineage_and_in_the_manifest_of_its_attempt(nasty_tmp_path: Path) -> None:
    config = {"lr": 0.1, "opt": {"betas": (0.9, 0.99), "amp": False}, "hf_token": "k3y"}
    train(nasty_tmp_path, 2, world_size=1, config=config)
    flat = {"lr": 0.1, "opt.betas": "[0.9, 0.99]", "opt.amp": "False", "hf_token": "***"}
    assert custom(nasty_tmp_path) == flat
    train(nasty_tmp_path, 2, world_size=1, initial_step=2, config={"lr": 0.2})
    attempts = RunDir(nasty_tmp_path).read_manifest()["attempts"]
    assert [entry["config"] for entry in attempts] == [
        {"lr": 0.1, "opt": {"betas": [0.9, 0.99], "amp": False}, "hf_token": "***"},
        {"lr": 0.2},
    ]
    assert custom(nasty_tmp_path) == {"lr": 0.2}  # the lineage is that of the newest attempt


def test_what_people_call_a_run_is_in_its_manifest(nasty_tmp_path: Path) -> None:
    train(nasty_tmp_path, 1, name="first try", group="sweep", tags=["a", "b", "a"], define={"loss": BEST})
    found = {key: RunDir(nasty_tmp_path).read_manifest().get(key) for key in OF_RUN}
    assert found == {
        "name": "first try", "group": "sweep", "tags": ["a", "b"], "notes": None,
        "define": {"loss": {"across": None, "best": "min", "unit": None}}, "keep_bytes": None,
    }  # fmt: skip
    # A later attempt that leaves one out keeps it, and rank 0 alone names the run.
    train(nasty_tmp_path, 1, initial_step=1, name="second", notes="lr halved")
    train(nasty_tmp_path, 1, initial_step=1, rank=1, name="third", define={"x": BEST})
    manifest = RunDir(nasty_tmp_path).read_manifest()
    assert found | {"name": "second", "notes": "lr halved"} == {key: manifest.get(key) for key in OF_RUN}


def test_a_definition_counts_from_the_first_step_on_or_later(nasty_tmp_path: Path) -> None:
    with ds.init(nasty_tmp_path) as run:
        run.define("loss", best="max", unit="nats")
        for step in run.steps(range(2)):
            if step == 1:
                run.define("loss", best="min")
            run.log(loss=1.0)
    defined = RunDir(nasty_tmp_path).read_manifest()["define"]
    assert defined == {"loss": {"across": None, "best": "min", "unit": None}}
    with pytest.raises(ClosedError):
        run.define("loss", best="min")


def test_custom_lineage_data_take_values_of_any_kind_and_win_over_the_config(nasty_tmp_path: Path) -> None:
    args = vars(Namespace(amp=False, resume=None, gpus=[0, 1], lr=np.float32(0.1), bad="\udcff"))
    config = {"lr": 3, "seed": 1}
    collector = ds.SummaryCollector(nasty_tmp_path, config=config, custom_lineage_data=args)
    with ds.Run(callbacks=collector) as run:
        list(run.steps(range(1)))
    expected = {"lr": 0.1, "seed": 1, "amp": "False", "resume": "None", "gpus": "[0, 1]", "bad": "\\udcff"}
    assert custom(nasty_tmp_path) == expected


def test_rank_0_says_once_where_the_run_is_and_how_to_open_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        train(Path("my runs/a"), 3, rank=rank)
    output = capfd.readouterr()
    both = "files: mindspore, tensorboard"
    said = "distsummary: recording my runs/a (2 ranks; their files: mindspore; of the merged run: mindspore, "
    said += "tensorboard); tensorboard --logdir 'my runs'; "
    assert output.err == said + "after the training: distsummary merge 'my runs/a'\n"
    assert output.out == ""
    train(tmp_path / "b", 3, world_size=1)
    assert capfd.readouterr().err == f"distsummary: recording b ({both}); tensorboard --logdir .\n"
    train(tmp_path / "c", 3, world_size=1, record=ds.Record(formats=("mindspore",)))
    assert capfd.readouterr().err.endswith("(files: mindspore); mindinsight start --summary-base-dir .\n")


def test_of_many_ranks_the_first_line_names_the_one_format_that_they_write(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(builtins, "print", lambda *given, **options: [sys.stderr.write("x")] * 2)
    train(tmp_path / "a", 3, world_size=17)
    err = capfd.readouterr().err
    assert err.count("distsummary: recording ") == 1  # in Ray Train's workers, print writes twice
    assert "(17 ranks; their files: mindspore; of the merged run: mindspore, tensorboard); " in err
    assert [path.suffix for path in (tmp_path / "a/rank_00000").glob("events*MS")] != []
    assert [*(tmp_path / "a/rank_00000").glob("*tfevents*")] == []


def test_nothing_is_said_if_quiet_without_training_or_before_it_has_begun(tmp_path, capfd):
    train(tmp_path / "a", 3, world_size=1, quiet=True)
    evaluate(tmp_path / "a")
    ds.init(tmp_path / "b", rank=0, world_size=1).close()
    assert capfd.readouterr().err == ""


def test_system_metrics_stand_at_the_last_step_and_are_turned_off(tmp_path: Path) -> None:
    train(tmp_path / "on", 3, world_size=1)
    found = {v.tag: (e.step, v.data) for e in read_directory(tmp_path / "on") for v in e.values}
    step, memory_gib = found["zz_system/process/memory_gib"]
    assert step == 3
    assert 0 < memory_gib < 1024
    train(tmp_path / "off", 3, world_size=1, system_metrics=False)
    tags = {v.tag for e in read_directory(tmp_path / "off") for v in e.values}
    assert not any(tag.startswith("zz_system/") for tag in tags)


def test_settings_that_differ_between_ranks_are_named_once_and_stand_in_the_manifest(
    nasty_tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        config = {"lr": 0.1 if rank < 2 else 0.2, "local_rank": rank, "seed": 7}
        train(nasty_tmp_path, 1, rank=rank, world_size=3, config=config)
    caplog.clear()
    report = ds.merge_run(nasty_tmp_path)
    [reported] = (record.getMessage() for record in caplog.records)
    [alert] = (text for text in capsys.readouterr().err.splitlines() if "distsummary why" in text)
    assert alert.startswith(
        "distsummary: Rank 2 runs with other settings than its peers: config lr is 0.2 on rank 2, 0.1 on 2 "
        "others. More: "
    )
    assert reported.startswith(
        f"{nasty_tmp_path}: the config of the ranks differs: lr (0.1 on 2 ranks (0, 1); "
    )
    assert "0.2 on rank 2), local_rank (0 on rank 0; 1 on rank 1; 2 on rank 2); the merged run" in reported
    assert reported.endswith("of each entry the value of the lowest rank that has it")
    assert [one.field for one in report.conflicts if one.field.startswith("custom.")] == [
        "custom.lr",
        "custom.local_rank",
    ]
    entry = RunDir(nasty_tmp_path).read_manifest()["merged"]["train"]["conflicts"]
    assert {"field": "custom.lr", "by_rank": {"0": 0.1, "1": 0.1, "2": 0.2}} in entry
    assert custom(nasty_tmp_path) == {"lr": 0.1, "local_rank": 0, "seed": 7}


def test_a_later_attempt_with_another_config_is_reported_of_what_tensorboard_shows(nasty_tmp_path, caplog):
    for attempt, rate in enumerate((0.1, 0.1, 0.2)):
        caplog.clear()
        train(nasty_tmp_path, 1, world_size=1, initial_step=attempt, config={"lr": rate, "seed": 7})
    [record] = caplog.records
    assert "the config differs from that of attempt 0 in lr; TensorBoard" in record.getMessage()
