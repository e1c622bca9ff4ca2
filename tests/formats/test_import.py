"""import: TensorBoard's writer and MLflow's file store become runs, and what cannot be read is named."""

import json
import os
import shutil

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import distsummary as ds
from distsummary.cli.import_runs import import_runs
from distsummary.cli.main import main
from distsummary.errors import MissingFileError
from tests.refusals import refused
from tests.unit.runs.recording import record


def scalar(tag, value):
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])


def write(directory, *summaries):
    """What TensorBoard's own writer makes of summaries, a step each from 1 on."""
    writer = EventFileWriter(str(directory))
    for step, summary in enumerate(summaries, 1):
        writer.add_event(TensorBoardEvent(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()


def losses(*values, tag="loss"):
    return [scalar(tag, value) for value in values]


def curve(run, tag="loss", rank="merged"):
    table = run.scalars(tag, rank)
    return dict(zip(table["step"].tolist(), table["value"].tolist(), strict=True))


def imported(directory, into, **options):
    return {
        os.path.relpath(one.path, into): one for one in import_runs(directory, into, **options) if one.path
    }


def test_a_directory_of_tensorboard_is_a_run_and_rank_directories_are_its_ranks(tmp_path):
    source = tmp_path / "logs"
    for number in range(2):
        write(source / f"version_{number}", *losses(3.0 + number, 2.0))
    for rank in range(3):
        write(source / "ddp" / f"exp_rank{rank}", *losses(1.0 + rank, 0.5))
        write(source / "other" / f"rank_{rank + 5}", *losses(1.0))  # not all of them
    found = imported(source, tmp_path / "runs")
    others = {f"other/rank_{rank}" for rank in (5, 6, 7)}
    assert {*found} == {"version_0", "version_1", "ddp/exp", *others}
    ranks = ds.open_run(tmp_path / "runs/ddp/exp")
    assert (ranks.state, [*ranks.ranks]) == ("finished", [0, 1, 2])
    assert curve(ranks) == {1: 2.0, 2: 0.5}
    assert curve(ranks, rank=2) == {1: 3.0, 2: 0.5}
    run = ds.open_run(tmp_path / "runs/version_1")
    assert (curve(run), run.problems) == ({1: 4.0, 2: 2.0}, [])
    assert run.scalars("loss")["wall_time"].tolist() == [1e9 + 1, 1e9 + 2]
    table = ds.open_runs(tmp_path / "runs").where("'imported' in tags")
    assert len(table) == 6
    assert main(["fsck", str(tmp_path / "runs")]) == 0
    assert {*imported(source / "ddp", tmp_path / "each", each="runs")} == {
        f"exp_rank{rank}" for rank in range(3)
    }
    one = imported(source / "other", tmp_path / "forced", each="ranks")
    assert (one["other"].ranks, [*ds.open_run(tmp_path / "forced/other").ranks]) == (3, [0, 1, 2])


def test_the_directories_that_writers_make_for_a_part_of_a_run_join_it(tmp_path):
    source = tmp_path / "keras"
    write(source / "train", *losses(3.0, 2.0, tag="epoch_loss"))
    write(source / "validation", *losses(4.0, 3.0, tag="epoch_loss"))
    torch = tmp_path / "torch"
    write(torch, *losses(1.0))
    write(torch / "Loss_all_val x", *losses(9.0, tag="Loss/all"))
    session = hparams.hparams_pb({"lr": 0.5, "opt": "sgd"})
    write(torch / "1796030714.87", session, scalar("hparam/acc", 0.75))
    assert {*imported(source, tmp_path / "runs"), *imported(torch, tmp_path / "runs")} == {"keras", "torch"}
    run = ds.open_run(tmp_path / "runs/keras")
    assert (curve(run, "epoch_loss"), curve(run, "validation/epoch_loss")) == ({1: 3, 2: 2}, {1: 4, 2: 3})
    run = ds.open_run(tmp_path / "runs/torch")
    assert {*run.tags["scalar"]} == {"loss", "Loss/all/val x", "hparam/acc"}
    assert run.config == {"lr": 0.5, "opt": "sgd"}


def test_what_cannot_be_read_of_tensorboard_is_named_and_hides_nothing(tmp_path, capsys):
    source = tmp_path / "logs"
    mesh = Summary.Value(tag="m", metadata=SummaryMetadata(plugin_data={"plugin_name": "mesh"}))
    mesh.tensor.dtype = 3
    write(source / "a", *losses(1.0, 2.0, 3.0), Summary(value=[mesh]))
    [file] = (source / "a").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    (source / "b").mkdir()
    (source / "b/events.out.tfevents.1.host").write_bytes(b"\xff" * 100)
    write(source / "c", *losses(5.0))
    os.symlink(source / "c", source / "link")
    record(source / "ours")
    assert main(["import", str(source), "--into", str(tmp_path / "runs")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "not read: 1 value of mesh" in out
    assert f"not read: {file}, byte" in out
    assert str(source / "b/events.out.tfevents.1.host") in out
    assert curve(ds.open_run(tmp_path / "runs/c")) == {1: 5.0}
    assert len(curve(ds.open_run(tmp_path / "runs/a"))) == 2
    assert sorted(one.name for one in (tmp_path / "runs").iterdir()) == ["a", "c"]


def test_an_import_changes_nothing_that_is_there_and_needs_something_to_import(tmp_path, capsys):
    source = tmp_path / "logs"
    write(source / "a", *losses(1.0))
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/mine.txt").write_text("mine")
    assert main(["import", str(source), "--into", str(tmp_path / "runs")]) == 0
    assert "is there already; remove it to import this again" in " ".join(capsys.readouterr().out.split())
    assert [one.name for one in (tmp_path / "runs/a").iterdir()] == ["mine.txt"]
    (tmp_path / "none").mkdir()
    refused(
        MissingFileError,
        (
            lambda: import_runs(tmp_path / "none", tmp_path / "runs"),
            "has neither event files of other programs",
        ),
        (lambda: import_runs(tmp_path / "gone", tmp_path / "runs"), "is missing; name a directory"),
    )
    assert main(["import", str(tmp_path / "gone")]) == 2
    # What was imported into the directory itself is not imported again.
    assert main(["import", str(source), "--into", str(source / "runs")]) == 0
    assert len(import_runs(source, source / "runs2")) == 1


META = """artifact_uri: file:///x
end_time: {end}
lifecycle_stage: {stage}
run_id: {id}
run_name: '{name}'
start_time: 1000000000000
status: {status}
tags: []
"""


def store(path, runs):
    """A file store as MLflow 3 writes it (checked with mlflow-skinny 3.17.2)."""
    experiment = path / "691859340855599755"
    experiment.mkdir(parents=True)
    (experiment / "meta.yaml").write_text(
        "experiment_id: '691859340855599755'\nlifecycle_stage: active\nname: my sweep\n"
    )
    for number, (name, status, stage) in enumerate(runs):
        run = experiment / f"{number:032x}"
        for folder in ("params/model", "metrics/train", "tags", "artifacts"):
            (run / folder).mkdir(parents=True)
        (run / "meta.yaml").write_text(
            META.format(
                end=1000000100000, stage=stage, id=run.name, name=name.replace("'", "''"), status=status
            )
        )
        for key, value in {
            "lr": "0.5",
            "model/depth": "18",
            "amp": "True",
            "opt": "adam",
            "v": "1_0",
        }.items():
            (run / "params" / key).write_text(value)
        (run / "metrics/train/loss").write_text(
            "".join(f"{10**12 + s} {1 / (s + 1)} {s}\n" for s in range(3))
        )
        (run / "metrics/odd").write_text("1000000000001 nan 0\n1000000000002 1.7976931348623157e308 1\n")
        (run / "tags/mlflow.note.content").write_text("two\nlines")
        (run / "tags/mlflow.source.git.commit").write_text("a" * 40)
        (run / "tags/team").write_text("vision")
        (run / "artifacts/model.bin").write_text("x")
    return experiment


def test_mlflows_file_store_becomes_runs_with_their_settings_states_and_notes(tmp_path, capsys):
    experiment = store(
        tmp_path / "mlruns",
        [("it's one", 3, "active"), ("two", 4, "active"), ("gone", 3, "deleted"), ("now", 1, "active")],
    )
    (experiment / f"{1:032x}/metrics/broken").write_text(
        "12 x\n\n1000000000001 2.0 -5\n1000000000001 2.5 5 data\n"
    )
    assert main(["import", str(tmp_path / "mlruns"), "--into", str(tmp_path / "runs")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "it was deleted in MLflow" in out
    assert "not read: artifacts: 1 file" in out
    assert "metric broken: 2 lines that are no `timestamp value step`" in out
    table = ds.open_runs(tmp_path / "runs")
    assert sorted(zip(table["name"], table["state"], strict=True)) == [
        ("it's one", "finished"), ("now", "unknown"), ("two", "failed"),
    ]  # fmt: skip
    [one] = table.where("name == \"it's one\" and group == 'my sweep' and 'team=vision' in tags")
    run = ds.open_run(one.path)
    assert run.config == {"lr": 0.5, "model/depth": 18, "amp": True, "opt": "adam", "v": "1_0"}
    assert curve(run, "train/loss") == pytest.approx({0: 1.0, 1: 0.5, 2: 1 / 3})
    assert np.isnan(curve(run, "odd")[0])
    assert curve(run, "odd")[1] == np.inf
    assert run.provenance["git"]["commit"] == "a" * 40
    assert (one.notes, one.duration_s, one.started) == ("two\nlines", 100.0, 1e9)
    assert json.loads((run.path / "run.json").read_text())["imported"]["kind"] == "mlflow"


def test_a_broken_store_hides_no_other_run_and_hostile_names_stay_inside(tmp_path):
    experiment = store(
        tmp_path / "mlruns", [("../../up", 3, "active"), (".hidden", 3, "active"), ("fine", 3, "active")]
    )
    broken = experiment / f"{9:032x}"
    shutil.copytree(experiment / f"{2:032x}", broken)
    (broken / "meta.yaml").write_bytes(b"\x00\xff")
    found = import_runs(tmp_path / "mlruns", tmp_path / "runs")
    assert [one.is_wrong for one in found] == [False, False, False, True]
    assert "is no meta.yaml" in found[-1].reason
    made = sorted(one.name for one in (tmp_path / "runs/my sweep").iterdir())
    assert made == ["_.._up-00000000", "fine-00000000", "hidden-00000000"]
