"""delete, prune and rename: what they would do, what they do, and what they never touch."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import distsummary as ds
from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.metadata import read_metadata
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.cli.main import main
from distsummary.errors import InvalidValueError
from distsummary.rundir.run_dir import RunDir
from distsummary.runs.housekeeping import Keep, read_age, read_keep, to_prune
from distsummary.runs.run_metrics import RunMetric
from distsummary.runs.run_row import RunRow
from distsummary.runs.run_table import RunTable
from tests.refusals import refused
from tests.unit.runs.recording import record


def train(path, *, loss=1.0, ranks=1, checkpoints=()):
    """A finished run, also with checkpoints of its path."""
    for rank in range(ranks):
        with ds.init(
            path, rank=rank, world_size=ranks, aggregate=False, quiet=True, system_metrics=False
        ) as run:
            for _ in run.steps(range(3)):
                run.log(loss=loss)
    if ranks > 1:
        ds.merge_run(path)
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    spec = LandscapeSpec(intervals=((1, 2, 3),), landscape_size=5)
    writer = TrajectoryWriter(path / "ckpt_dir", spec, model_name="M", run_id=run_id, step_per_epoch=1)
    for number in checkpoints:
        writer.save(number, {"w": np.full(2, number, np.float32)})
    return path


def files(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if not one.is_dir())


def test_a_run_is_removed_whole_and_only_with_yes(tmp_path, capsys):
    run = train(tmp_path / "run", ranks=2, checkpoints=(1, 2))
    (run / "labels.json").write_text("{}")
    before = files(run)
    assert main(["delete", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith(f"remove {run}: finished, {len(before)} files, ")
    assert "nothing was changed: repeat it with --yes" in out
    assert files(run) == before
    assert main(["delete", str(run), "--yes", "--json"]) == 0
    [removed] = json.loads(capsys.readouterr().out)["runs"]
    assert (removed["is_done"], removed["kept"]) == (True, [])
    assert not run.exists()


def test_what_others_wrote_stays(tmp_path, capsys):
    run = train(tmp_path / "run", ranks=2, checkpoints=(1,))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.json").write_text("precious")
    for name in ("notes.txt", "rank_00000/mine.npy", "ckpt_dir/best.ckpt", "plots/a.png"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (run / "export_1").symlink_to(elsewhere)
    (run / "torn-0.bin").symlink_to(elsewhere / "run.json")
    foreign = record(tmp_path / "other", run_id="f" * 16)
    [theirs] = foreign.glob("*tfevents*")
    os.rename(theirs, run / theirs.name)
    inner = train(run / "inner")
    inside = files(inner)
    kept = ["ckpt_dir/best.ckpt", "export_1", "inner", "notes.txt", "plots", "rank_00000/mine.npy"]
    kept.append("torn-0.bin")
    assert main(["delete", str(run), "--yes", "--json"]) == 0
    [removed] = json.loads(capsys.readouterr().out)["runs"]
    assert removed["kept"] == sorted([*kept, theirs.name])
    assert files(inner) == inside
    assert (elsewhere / "run.json").read_text() == "precious"
    left = {name.partition("/")[0] if name.startswith("inner") else name for name in files(run)}
    assert left == {*kept, "plots/a.png", theirs.name} - {"plots", "export_1"}  # a link is no file here
    assert (run / "export_1").is_symlink()


def test_a_run_that_is_written_or_is_none_is_never_removed(tmp_path, capsys):
    run = ds.init(tmp_path / "live", rank=0, world_size=1, quiet=True)
    run.log(loss=1.0, step=1)
    run.log(loss=1.0, step=2)
    other = record(tmp_path / "records")
    damaged = train(tmp_path / "damaged")
    (damaged / "run.json").write_text("{")
    held = train(tmp_path / "held")
    before = files(tmp_path / "records"), files(damaged), files(held)
    with RunDir(held).lock(".lock"):
        for path, said in (
            (tmp_path / "live", "is running; end it first"),
            (other, "has no run.json"),
            (damaged, "run.json"),
            (held, "a process holds its lock"),
            (tmp_path / "gone", "there is no"),
        ):
            assert main(["delete", str(path), "--yes"]) == 1
            assert said in " ".join(capsys.readouterr().out.split())
    assert main(["rename", str(tmp_path / "live"), "new", "--yes"]) == 1
    assert "is running" in capsys.readouterr().err
    run.close()
    assert (files(tmp_path / "records"), files(damaged), [*files(held)]) == before
    assert (tmp_path / "live/run.json").exists()


def test_what_cannot_be_removed_is_named_and_the_run_can_be_removed_later(tmp_path, capsys, monkeypatch):
    run = train(tmp_path / "run")
    unlink = type(run).unlink

    def refuse(path, **options):
        if "tfevents" in path.name:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(run), "unlink", refuse)
        assert main(["delete", str(run), "--yes"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "not removed: events.out.tfevents" in out
    assert "Permission denied" in out
    assert (run / "run.json").exists()
    assert main(["delete", str(run), "--yes"]) == 0
    assert not run.exists()


def test_prune_keeps_what_is_asked_for_and_what_is_young(tmp_path, capsys):
    for name, loss in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 4.0)):
        train(tmp_path / name, loss=loss)
    record(tmp_path / "records")
    assert main(["prune", str(tmp_path), "--keep", "best 2 by loss", "--older", "1d"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 runs, 0.0 MB; nothing was changed: repeat it with --yes",
        "1 directory left alone: no readable run.json",
    ]
    assert main(["prune", str(tmp_path), "--keep", "best 2 by loss", "--keep", "newest 1", "--yes"]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b", "c", "d", "records"]
    assert main(["prune", str(tmp_path), "--where", "loss > 3", "--yes"]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["b", "c", "records"]


def test_prune_of_checkpoints_leaves_the_runs_and_their_last_checkpoint(tmp_path):
    run = train(tmp_path / "run", checkpoints=(1, 2, 3))
    one = train(tmp_path / "one", checkpoints=(1,))
    none = train(tmp_path / "none")
    before = files(one), files(none)
    (run / "ckpt_dir/mine.pt").write_text("mine")
    for _ in range(2):
        assert main(["prune", str(tmp_path), "--keep", "newest 0", "--checkpoints", "--yes"]) == 0
        assert files(run / "ckpt_dir") == ["M_3_step.ckpt", "mine.pt", "train_metadata.json"]
    assert [*read_metadata(run / "ckpt_dir").files] == [3]
    assert ds.open_run(run).state == "finished"
    assert [[f for f in files(p) if "seg-row" not in f] for p in (one, none)] == [*before]


def row(name, *, started, loss=None, accuracy=None, id="x"):
    metrics = {"loss": RunMetric(loss, 1, "min")} if loss is not None else {}
    metrics |= {"speed": RunMetric(accuracy, 1)} if accuracy is not None else {}
    return RunRow(
        path=name, folder=name, state="finished", id=id, started=started, duration_s=10.0, metrics=metrics
    )


def test_which_runs_are_kept():
    now = 1000 * 86400.0
    table = RunTable([
        row("new", started=now - 86400, loss=1.0, accuracy=0.1),
        row("old", started=now - 50 * 86400, loss=0.5, accuracy=0.2),
        row("older", started=now - 60 * 86400, loss=2.0, accuracy=0.3),
        row("nan", started=now - 70 * 86400, loss=float("nan")),
        row("bare", started=now - 80 * 86400),
        row("foreign", started=now - 80 * 86400, id=""),
        replace(row("undated", started=1.0), started=None),
    ])  # fmt: skip

    def pruned(*keep, older="0m"):
        return to_prune(table, keep=[read_keep(one) for one in keep], older_s=read_age(older), now=now)

    assert pruned("best 1 by loss") == ["new", "older", "nan", "bare"]
    assert pruned("highest 1 by loss", older="30d") == ["old", "nan", "bare"]
    assert pruned("lowest 2 by speed", "newest 1", older="1w") == ["older", "nan", "bare"]
    assert pruned("best 9 by loss") == ["nan", "bare"]
    assert to_prune(table, keep=[Keep("newest", 5, "")]) == ["undated"]
    refused(
        InvalidValueError,
        (lambda: pruned("best 1 by speed"), "unknown of speed: write lowest or highest"),
        (lambda: pruned("best 1 by los"), "the column of --keep must be one of .*'loss'.*got 'los'"),
    )


@pytest.mark.parametrize(
    "text", ["best", "best 5", "newest 5 by loss", "best x by loss", "5", "all", "best -1 by loss"]
)
def test_what_is_no_rule_is_refused(text):
    refused(InvalidValueError, (lambda: read_keep(text), "--keep must be 'best N by COLUMN'"))
    refused(InvalidValueError, (lambda: read_age(text), "--older must be a number of m, h, d or w"))


def test_prune_without_a_rule_is_refused(tmp_path, capsys):
    assert main(["prune", str(tmp_path), "--yes"]) == 2
    assert "prune needs --keep, --older or --where" in capsys.readouterr().err
    assert main(["prune", str(tmp_path / "gone"), "--keep", "newest 1"]) == 2
    assert [read_age(text) for text in ("30d", "12h", "1.5 w", "0m")] == [2592000, 43200, 907200, 0]


def test_a_run_is_renamed_with_its_name(tmp_path, capsys):
    run = train(tmp_path / "run")
    with ds.init(tmp_path / "named", name="first try", rank=0, world_size=1, quiet=True) as named:
        named.log(loss=1.0)
    assert main(["rename", str(run), "new"]) == 0
    assert "repeat it with --yes" in capsys.readouterr().out
    assert run.exists()
    for path, name in ((run, "new"), (tmp_path / "named", "baseline")):
        assert main(["rename", str(path), name, "--yes"]) == 0
        assert ds.open_run(tmp_path / name).state == "finished"
    assert sorted(ds.open_runs(tmp_path)["name"].tolist()) == ["baseline", "new"]
    for name, said in (
        ("baseline", "is there already"), ("a/b", "must be that of a directory"), ("..", "must be that"),
        (".hidden", "begin with no dot"), ("a\nb", "must be that"), ("x" * 300, "File name too long"),
    ):  # fmt: skip
        assert main(["rename", str(tmp_path / "new"), name, "--yes"]) in (1, 2)
        assert said in capsys.readouterr().err
