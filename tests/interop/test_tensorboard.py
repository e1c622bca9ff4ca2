"""TensorBoard's two readers see all of a run, with the values that were recorded."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

import distsummary as ds
from distsummary.cli.fsck import fsck
from distsummary.cli.main import main
from tests.interop.conftest import RANKS, Demo
from tests.interop.views import (
    View,
    descriptions,
    differences,
    first_times,
    own_view,
    python_view,
    server_view,
)
from tests.viewer_rules import lost_points

pytestmark = [pytest.mark.interop, pytest.mark.smoke]


@pytest.fixture(scope="module")
def demo(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, whose ranks have TensorBoard's files, too: by `distsummary convert`."""
    run_dir = tmp_path_factory.mktemp("converted") / "my runs" / "digits"
    shutil.copytree(demo.run_dir, run_dir)
    assert main(["convert", str(run_dir)]) == 0
    return demo._replace(run_dir=run_dir)


@pytest.fixture(scope="module")
def recorded(demo: Demo) -> View:
    return own_view(demo.run_dir)


def test_the_python_reader_sees_what_was_recorded(demo: Demo, recorded: View) -> None:
    assert differences(python_view(demo.run_dir), recorded) == []


def test_the_data_server_sees_what_was_recorded(demo: Demo, recorded: View) -> None:
    assert differences(server_view(demo.run_dir), recorded) == []


def test_the_run_begins_at_the_time_of_its_manifest_so_that_runs_are_sorted(demo: Demo) -> None:
    created = json.loads((demo.run_dir / "run.json").read_text())["created"]
    assert [found["."] for found in first_times(demo.run_dir)] == [created] * 2


def test_a_merged_histogram_says_which_rank_recorded_it(demo: Demo, recorded: View) -> None:
    of_rank = {tag: run for run, tag in recorded.histograms if run.startswith("rank_")}  # the tags are dealt
    merged = {tag: points[0][0] for (run, tag), points in recorded.histograms.items() if run == "."}
    for found in descriptions(demo.run_dir, "."):
        assert found.keys() == merged.keys()
        for tag, step in merged.items():
            assert found[tag].startswith(f"Step {step} was recorded by rank {int(of_rank[tag][-5:])};")


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_rank_has_scalars_images_and_its_share_of_the_histograms(recorded: View, rank: int) -> None:
    run = f"rank_{rank:05d}"
    assert {tag for name, tag in recorded.scalars if name == run} >= {"loss", "lr", "zz_perf/step_ms"}
    assert any(name == run for name, _ in recorded.images)
    assert any(name == run for name, _ in recorded.histograms)


def test_both_dialects_hold_the_same_scalars(demo: Demo, recorded: View) -> None:
    scalars = own_view(demo.run_dir, "mindspore").scalars
    assert differences(recorded._replace(scalars=scalars), recorded) == []


def test_a_later_evaluation_erases_no_other_step(nasty_tmp_path: Path) -> None:
    """The data server shows the newer of two points of one step, the Python reader both."""
    with ds.init(nasty_tmp_path, rank=0, world_size=1) as run:
        for accuracy in (0.25, 0.5):
            list(run.steps(range(3)))
            with run.eval() as evaluation:
                evaluation.log(accuracy=accuracy)
    with ds.init(nasty_tmp_path, role="eval", rank=0, world_size=1) as run, run.eval() as evaluation:
        evaluation.log(accuracy=0.75)
    key = (".", "eval/accuracy")
    assert python_view(nasty_tmp_path).scalars[key] == [(3, 0.25), (6, 0.5), (6, 0.75)]
    assert server_view(nasty_tmp_path).scalars[key] == [(3, 0.25), (6, 0.75)]
    assert (fsck(nasty_tmp_path).findings, lost_points(nasty_tmp_path)) == ((), [])


# --- the views themselves, on files that TensorBoard's own writer wrote


@pytest.fixture
def foreign(nasty_tmp_path: Path) -> Path:
    """Files of torch.utils.tensorboard: three steps of every kind in the directory and in one below it."""
    for path in (nasty_tmp_path, nasty_tmp_path / "rank_00000"):
        with SummaryWriter(str(path)) as writer:
            for step in range(3):
                writer.add_scalar("loss", 0.5 / (step + 1), step)
                writer.add_histogram("weights", np.arange(10.0) * step, step)
                writer.add_image("picture", np.full((3, 4, 5), step / 3, dtype=np.float32), step)
                writer.add_text("note", f"step {step}", step)
    return nasty_tmp_path


def test_the_three_readers_agree_on_the_files_of_another_writer(foreign: Path) -> None:
    own = own_view(foreign)
    assert {name for name, _ in own.scalars} == {".", "rank_00000"}
    assert [step for step, _ in own.histograms["rank_00000", "weights"]] == [0, 1, 2]
    assert own.texts[".", "note/text_summary"] == [(step, f"step {step}") for step in range(3)]
    assert own.images.keys() == {(".", "picture"), ("rank_00000", "picture")}
    assert differences(python_view(foreign), own) == []
    assert differences(server_view(foreign), own) == []


def test_a_lost_point_and_a_lost_tag_are_differences(foreign: Path) -> None:
    whole, damaged = own_view(foreign), own_view(foreign)
    damaged.scalars[".", "loss"].pop()
    del damaged.images["rank_00000", "picture"]
    assert differences(whole, damaged) == [
        "images ('rank_00000', 'picture') only on the left",
        "scalars ('.', 'loss'): 3 points, then 2",
    ]


def test_the_data_server_view_refuses_a_directory_with_a_damaged_file(foreign: Path) -> None:
    path = next((foreign / "rank_00000").iterdir())
    path.write_bytes(path.read_bytes()[:200] + b"\xff" * 100 + path.read_bytes()[300:])
    with pytest.raises(AssertionError, match="could not read everything"):
        server_view(foreign)
