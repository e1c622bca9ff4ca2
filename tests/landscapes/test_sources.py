"""Where checkpoints come from: what is read of each kind of source, and what they are called."""

import logging
from pathlib import Path
from typing import Any

import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.metadata import MAX_INT
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.landscapes.directions.checkpoint_sources import open_runs, open_source, saved_intervals
from distsummary.rundir.run_dir import RunDir
from tests.refusals import refused
from tests.unit.landscapes.golden_mlp import Mlp
from tests.unit.landscapes.test_generator import draw, save_path, walk


def make_run(path: Path, intervals: Any = ((1, 2, 3),)) -> RunDir:
    run = RunDir(path).create()
    save_path(run, walk(3), intervals)
    return run


def test_unit_and_length_of_an_epoch_are_those_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for around in (None, {4: Mlp().parameters}, run):
        asked = open_source(Mlp(), around, "epoch", 7)
        assert (asked.unit, asked.step_per_epoch) == ("epoch", 7)
        usual = open_source(Mlp(), around)
        assert (usual.unit, usual.step_per_epoch) == ("step", 4 if around is run else 1)


def test_numbers_are_those_that_files_can_hold() -> None:
    assert open_source(Mlp(), {0: Mlp().parameters, MAX_INT: Mlp().parameters}).last == MAX_INT
    with pytest.raises(InvalidValueError, match="a key of around, a step or epoch, must be"):
        open_source(Mlp(), {MAX_INT + 1: Mlp().parameters})


def test_in_mindspores_mode_a_run_takes_the_samples_that_it_asked_for(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    spec = LandscapeSpec(intervals=((1, 2, 3),), num_samples=16)
    writer = TrajectoryWriter(run.ckpt_dir, spec, model_name="Mlp", run_id="0" * 16)
    for number, state in enumerate(walk(3), 1):
        writer.save(number, state)
    assert [draw(around=run, mode=mode).samples for mode in ("standard", "mindspore")] == [24, 16]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no checkpoint")
    refused(
        InvalidValueError,
        (lambda: open_source(Mlp(), {1: "checkpoint-1"}), r"around\[1\] must be values by name or a file"),
        (lambda: open_source(Mlp(), " "), "around must not be blank"),
        (lambda: open_source(Mlp(), tmp_path / "notes.txt"), "must be a run, a ckpt_dir or a checkpoint"),
    )
    wrong: Any = {1: 5}
    refused(InvalidTypeError, (lambda: open_source(Mlp(), wrong), r"around\[1\] must be values by name or a"))


def test_a_run_is_called_after_its_directory_and_runs_of_one_name_are_numbered(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / folder / "run").base for folder in "ab"]
    assert [source.label for source in open_runs(Mlp(), runs)] == ["run (1)", "run (2)"]
    kept = make_run(tmp_path / "c" / "run").ckpt_dir.rename(tmp_path / "kept")
    assert [source.label for source in open_runs(Mlp(), [*runs[:1], kept])] == ["run", "kept"]


def test_of_planned_paths_what_was_saved_is_drawn_where_it_spans_a_plane(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert saved_intervals([[1, 2, 3]], [1, 2, 3]) == ((1, 2, 3),)
        assert not caplog.messages
        assert saved_intervals([[1, 2, 3, 9], [3, 4, 9]], [1, 2, 3, 4]) == ((1, 2, 3),)
        assert saved_intervals([[1, 2, 9]], [1, 2]) == ((1, 2),)
    assert caplog.messages[0] == "of the checkpoints in the interval [1, 2, 3, 9], only [1, 2, 3] were saved"
    with pytest.raises(LandscapeError, match="the trajectory has no checkpoints yet"):
        saved_intervals([[1, 2, 3]], [])
