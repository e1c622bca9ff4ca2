"""What a landscape leaves in its run: events for the viewers, grids and pictures."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import LossGrid, Topology, merge_run
from distsummary.aggregate.registrar import first_free_attempt
from distsummary.cli.fsck import fsck
from distsummary.errors import DamagedFileError
from distsummary.events.reader import ReadEvent, read_directory, read_file
from distsummary.events.segments import landscape_files, segments, stamp_of
from distsummary.events.spec import WriterSpec
from distsummary.events.writer import RankWriter
from distsummary.format.records import Batch, Event, Landscape, Value
from distsummary.landscapes.output.write import write_landscapes
from distsummary.rundir.coordination import LocalCoordinator
from distsummary.rundir.run_dir import RunDir
from distsummary.rundir.topology import detect
from tests.unit.landscapes.golden_mlp import Mlp, cross_entropy
from tests.unit.landscapes.test_generator import draw, recorded_run, save_path, walk
from tests.unit.landscapes.test_grid import make_grid, random_grid
from tests.viewer_rules import lost_points


@pytest.fixture
def run_dir(nasty_tmp_path: Path) -> RunDir:
    return recorded_run(nasty_tmp_path / "run")


def shown(run_dir: RunDir) -> list[ReadEvent]:
    """The events of the landscapes for MindInsight, which are in the run dir itself."""
    assert segments(run_dir.landscape_dir, "mindspore") == []
    return [event for file in landscape_files(run_dir.base) for event in read_file(file)]


def test_a_run_gets_events_pictures_and_grids(run_dir: RunDir) -> None:
    grids = draw(around=run_dir, directions=("pca", "random"), run_dir=run_dir)
    events = shown(run_dir)
    found = {v.tag: v.data for e in events for v in e.values if v.plugin == "landscape"}
    assert list(found) == ["landscape_[1, 4]", "landscape_[4]"]
    pca: Landscape = found["landscape_[1, 4]"]
    np.testing.assert_allclose(pca.z, grids["pca"].z, rtol=1e-6)
    assert pca.intervals == (1, 2, 3, 4)
    assert {e.step for e in events if e.values[0].plugin == "landscape"} == {0}
    curve = [(e.step, v.data) for e in events for v in e.values if v.plugin == "scalar"]
    assert curve == [(k + 1, 3.0 - 0.25 * k) for k in range(6)]
    assert {v.tag for e in events for v in e.values if v.plugin == "scalar"} == {"loss/auto"}
    assert {v.plugin for e in events for v in e.values} == {"landscape", "scalar"}
    pictures = [v for e in read_directory(run_dir.landscape_dir, "tensorboard") for v in e.values]
    assert {v.plugin for v in pictures} == {"image"}
    assert [v.tag for v in pictures] == [
        "landscape_[1, 4]", "landscape_[1, 4]/surface", "landscape_[1, 4]/curve", "landscape_[4]",
        "landscape_[4]/surface",
    ]  # fmt: skip
    assert {e.step for e in read_directory(run_dir.landscape_dir, "tensorboard")} == {4}
    for card in (value.data for value in pictures):
        assert card.encoded.startswith(b"\x89PNG")
        assert 630 < card.width < 650
    file = run_dir.landscape_file("landscape_[1, 4]", ".png").read_bytes()
    assert struct.unpack(">II", file[16:24]) == (816, 672)
    assert (grids["pca"].run, grids["pca"].model) == ("run", "Mlp")
    assert grids["pca"].lengths == pytest.approx({"x": 1.0, "y": 1.0})
    names = sorted(p.name for p in run_dir.landscape_dir.iterdir() if p.suffix in (".npz", ".png"))
    assert names == [
        *(f"landscape_1-4{suffix}" for suffix in (".npz", ".png", "_curve.png", "_surface.png")),
        *(f"landscape_4{suffix}" for suffix in (".npz", ".png", "_surface.png")),
    ]


@pytest.mark.usefixtures("one_picture")
def test_a_landscape_made_again_replaces_the_older_events(run_dir: RunDir) -> None:
    draw(around=run_dir, run_dir=run_dir.base)
    older = landscape_files(run_dir.base) + segments(run_dir.landscape_dir, "tensorboard")
    grid = draw(around=run_dir, size=7, run_dir=run_dir.base)
    assert not any(path.exists() for path in older)
    events = shown(run_dir)
    values = [v.data for e in events for v in e.values if v.plugin == "landscape"]
    assert [v.z.shape for v in values] == [grid.z.shape]
    assert sum(v.plugin == "scalar" for e in events for v in e.values) == 6
    assert len(segments(run_dir.landscape_dir, "tensorboard")) == 1


@pytest.mark.usefixtures("no_matplotlib")
def test_a_run_without_loss_or_manifest_gets_its_landscape(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "bare").create()
    save_path(run, walk(3), [[1, 2, 3]])
    draw(around=run, run_dir=run)
    values = [v for e in shown(run) for v in e.values]
    assert [v.plugin for v in values] == ["landscape"]


@pytest.mark.usefixtures("no_matplotlib")
def test_losses_that_overflow_stay_inf_in_the_grid(run_dir: RunDir) -> None:
    limit = np.median(draw(around=run_dir, directions="random", normalization="none").z)

    def loss_fn(model: Mlp, batch: Any) -> float:
        loss = cross_entropy(model(batch[0]), batch[1])
        return loss if loss < limit else float("inf")

    grid = draw(
        around=run_dir, batch_loss=loss_fn, directions="random", normalization="none", run_dir=run_dir
    )
    assert np.isinf(grid.z).any()
    assert np.isfinite(grid.z).any()
    assert LossGrid.load(run_dir.landscape_file(grid.tag, ".npz")).z.tobytes() == grid.z.tobytes()
    drawn = next(v.data for e in shown(run_dir) for v in e.values if v.plugin == "landscape")
    assert np.isfinite(drawn.z).all()
    assert drawn.z.max() == pytest.approx(grid.z[np.isfinite(grid.z)].max(), rel=1e-6)


@pytest.mark.usefixtures("one_picture")
def test_a_second_landscape_joins_the_first(run_dir: RunDir) -> None:
    draw(around=run_dir, directions="pca", run_dir=run_dir)
    draw(around=run_dir, directions="random", run_dir=run_dir)
    assert tags(run_dir, "mindspore", "landscape") == ["landscape_[1, 4]", "landscape_[4]"]
    assert tags(run_dir, "tensorboard", "image") == [
        *("landscape_[1, 4]", "landscape_[1, 4]/surface", "landscape_[1, 4]/curve"),
        *("landscape_[4]", "landscape_[4]/surface"),
    ]


def tags(run_dir: RunDir, dialect: str, plugin: str) -> list[str]:
    events = shown(run_dir) if dialect == "mindspore" else read_directory(run_dir.landscape_dir, dialect)
    return [v.tag for e in events for v in e.values if v.plugin == plugin]


def test_a_line_is_a_picture_and_no_landscape_event(run_dir: RunDir) -> None:
    line = make_grid(y=np.zeros(1), z=np.array([[4.0, 3.0, 2.0, 1.0]]))
    write_landscapes(run_dir, [line])
    assert shown(run_dir) == []
    assert tags(run_dir, "tensorboard", "image") == ["landscape_[1, 9]"]
    assert run_dir.landscape_file(line.tag, ".npz").exists()


@pytest.mark.usefixtures("no_matplotlib")
def test_a_landscape_written_elsewhere_takes_the_loss_curve_of_its_run_along(run_dir: RunDir, tmp_path: Path):
    elsewhere = RunDir(tmp_path / "maps")
    write_landscapes(elsewhere, [make_grid()], loss_of=run_dir)
    values = [v for e in shown(elsewhere) for v in e.values]
    assert [v.plugin for v in values] == ["landscape"] + 6 * ["scalar"]


@pytest.mark.usefixtures("no_matplotlib")
def test_a_landscape_around_a_checkpoint_file_has_the_loss_curve_of_the_run_it_is_written_to(run_dir, caplog):
    draw(around=run_dir.ckpt_dir / "Mlp_2_step.ckpt", run_dir=run_dir)
    assert [record.message for record in caplog.records if "the loss curve of" in record.message] == []
    values = [v for e in shown(run_dir) for v in e.values]
    assert [v.plugin for v in values] == ["landscape"] + 6 * ["scalar"]


def test_without_matplotlib_an_older_picture_does_not_stay(
    run_dir: RunDir,
    hide_package: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    one_picture: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_landscapes(run_dir, [make_grid(), random_grid()])
    monkeypatch.undo()
    hide_package("matplotlib")
    made = write_landscapes(run_dir, [make_grid(z=np.ones((3, 4)))])
    assert "pip install matplotlib" in caplog.text
    assert tags(run_dir, "tensorboard", "image") == ["landscape_[9]", "landscape_[9]/surface"]
    assert sorted(p.name for p in run_dir.landscape_dir.glob("*.png")) == [
        "landscape_9.png",
        "landscape_9_surface.png",
    ]
    assert all(path.exists() for path in made)
    assert LossGrid.load(run_dir.landscape_file("landscape_[1, 9]", ".npz")).z.tolist() == 3 * [4 * [1.0]]


@pytest.mark.usefixtures("one_picture")
def test_the_grids_are_saved_even_if_the_events_cannot_be_written(run_dir: RunDir) -> None:
    run_dir.manifest_path.write_text("no JSON")
    with pytest.raises(DamagedFileError):
        write_landscapes(run_dir, [make_grid()])
    assert LossGrid.load(run_dir.landscape_file("landscape_[1, 9]", ".npz")).samples == 16


def record(directory: Path, run_id: str, attempt: int = 0, **losses: float) -> RankWriter:
    """A training that has recorded one step and continues."""
    writer = RankWriter(WriterSpec(directory=directory, run_id=run_id, attempt=attempt))
    values = [Value("scalar", tag, loss) for tag, loss in losses.items()]
    writer.write(Batch(run_id=run_id, attempt=attempt, rank=0, first_seq=1, events=[Event(7, 1.0, values)]))
    return writer


@pytest.mark.usefixtures("no_matplotlib")
def test_a_landscape_next_to_a_training_is_none_of_its_files(run_dir: RunDir) -> None:
    """The reader of a training, the next attempt, a resumed writer and a merge: none takes it for its own."""
    before, findings = list(read_directory(run_dir.base)), fsck(run_dir.base).findings
    assert lost_points(run_dir.base) == []
    write_landscapes(run_dir, [make_grid()])
    [file] = landscape_files(run_dir.base)
    assert file not in segments(run_dir.base, "mindspore")
    assert list(read_directory(run_dir.base)) == before
    assert first_free_attempt(run_dir, "train") == before[-1].attempt + 1
    assert {(event.run_id, event.attempt, event.seq) for event in shown(run_dir)} == {("", 0, 0)}
    run_id = before[-1].run_id
    assert RankWriter(WriterSpec(directory=run_dir.base, run_id=run_id)).start() == before[-1].seq
    assert file.exists()
    assert (fsck(run_dir.base).findings, lost_points(run_dir.base)) == (findings, [])


@pytest.mark.usefixtures("no_matplotlib")
def test_a_merge_leaves_the_landscape_where_it_is(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    for rank in range(2):
        place = Topology(rank=rank, world_size=2, incarnation="start")
        run_id = LocalCoordinator(run).register(place).run_id
        record(run.writer_dir("train", rank, 2), run_id, **{"loss/auto": 1.0 + rank}).close()
    write_landscapes(run, [make_grid()])
    [file] = landscape_files(run.base)
    curve = [v.data for e in shown(run) for v in e.values if v.plugin == "scalar"]
    assert curve == [1.0]  # of the first rank: there is no merged run yet
    for _ in range(2):
        assert merge_run(run).steps == 1
        assert landscape_files(run.base) == [file]
    assert (fsck(run.base).findings, lost_points(run.base)) == ((), [])
    write_landscapes(run, [make_grid()])
    assert [v.plugin for e in shown(run) for v in e.values] == ["landscape"]  # the merged run has the curve
    assert len(landscape_files(run.base)) == 1


@pytest.mark.usefixtures("no_matplotlib")
def test_the_loss_is_not_copied_where_the_training_has_it_under_the_name_that_mindinsight_asks_for(tmp_path):
    record(tmp_path / "run", "00000000000000ab", **{"loss/auto": 0.5, "loss": 0.5}).close()
    write_landscapes(RunDir(tmp_path / "run"), [make_grid()])
    assert [v.plugin for e in shown(RunDir(tmp_path / "run")) for v in e.values] == ["landscape"]


@pytest.mark.usefixtures("no_matplotlib")
def test_next_to_a_training_that_continues_the_landscape_is_no_newer_than_its_files(tmp_path: Path) -> None:
    """MindInsight follows only the newest file of a directory."""
    run = RunDir(tmp_path / "run").create()
    place = detect(rank=0, world_size=1)
    joined = LocalCoordinator(run).register(place)
    writer = record(run.base, joined.run_id, joined.attempt, loss=0.5)
    write_landscapes(run, [make_grid()])
    [recorded] = segments(run.base, "mindspore")
    [older] = landscape_files(run.base)
    writer.close()
    LocalCoordinator(run).finish(place, joined.attempt, {})
    write_landscapes(run, [make_grid()])
    [newer] = landscape_files(run.base)
    assert stamp_of(older.name) < stamp_of(recorded.name) < stamp_of(newer.name)
