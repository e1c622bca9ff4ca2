"""What MindSpore draws live is what `mode="mindspore"` computes from its checkpoints."""

import json
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from distsummary import LossGrid, Plane, SummaryLandscape, landscape
from distsummary.checkpoints.trajectory import Trajectory, read
from distsummary.events.reader import read_values
from distsummary.events.segments import landscape_files, segments
from distsummary.format.records import Landscape
from distsummary.landscapes.output.write import landscape_record
from tests.interop.conftest import run_mindspore
from tests.unit.landscapes.golden_mlp import cross_entropy, legacy_directions

pytestmark = pytest.mark.interop

PATHS = ["landscape_[1, 5]", "landscape_[4, 6]"]
RANDOM = "landscape_[6]"


class Mlp:
    """The script's network; its weights are those of no checkpoint."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        shapes = {"d1": (hidden, inputs), "d2": (classes, hidden)}
        self.parameters: dict[str, Any] = {}
        for name, shape in shapes.items():
            self.parameters[f"{name}.weight"] = np.ones(shape, np.float32)
            self.parameters[f"{name}.bias"] = np.ones(shape[0], np.float32)

    def __call__(self, x: Any) -> Any:
        p = self.parameters
        h = np.maximum(x @ p["d1.weight"].T + p["d1.bias"], 0)
        return h @ p["d2.weight"].T + p["d2.bias"]


class Drawn(NamedTuple):
    """MindSpore's training and landscapes, the data of both, and what the script reported."""

    training: Path
    landscapes: dict[str, Landscape]
    batches: list[tuple[Any, Any]]
    reported: dict[str, Any]  # Any: from JSON

    def parts(self) -> tuple[Any, Any, Any]:
        """Model, loss function, batches."""
        return Mlp(*self.reported["sizes"]), cross_entropy, self.batches


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    place = tmp_path_factory.mktemp("mindspore_landscape")
    run_mindspore("mindspore_landscape.py", place)
    reported = json.loads((place / "reported.json").read_text())
    with np.load(place / "data.npz") as data:
        x, labels = data["x"], data["labels"]
    size = reported["batch"]
    batches = [(x[i : i + size], labels[i : i + size]) for i in range(0, len(x), size)]
    return Drawn(place / "training", landscapes_of(place / "landscape"), batches, reported)


@pytest.fixture(scope="module")
def trajectory(drawn: Drawn) -> Trajectory:
    return read(drawn.training / "ckpt_dir")


@pytest.fixture(scope="module")
def recomputed(drawn: Drawn, trajectory: Trajectory) -> dict[str, LossGrid]:
    """By tag; the random one with the directions that MindSpore drew from numpy's global generator."""
    given = legacy_directions(trajectory.load(6), drawn.reported["seed"])
    grids = landscape(
        *drawn.parts(),
        around=trajectory,
        plane=Plane(size=drawn.reported["spec"]["landscape_size"]),
        directions=("pca", given),
        mode="mindspore",
        progress=False,
    )
    return {grid.tag: grid for grid in grids.values()}


def landscapes_of(directory: Path) -> dict[str, Landscape]:
    """The landscapes of MindSpore's event files, by tag."""
    files = [*segments(directory, "mindspore"), *landscape_files(directory)]
    values = [value for file in files for value in read_values(file)]
    return {value.tag: value.value for value in values if isinstance(value.value, Landscape)}


def assert_same(ours: Landscape, theirs: Landscape) -> None:
    for name in ("decomposition", "unit", "step_per_epoch", "intervals"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.z.shape == theirs.z.shape == (6, 6)
    for name in ("x", "y", "path_x", "path_y"):  # float32 in the file, which adds its rounding to wide axes
        rtol = 0 if name.startswith("path") else 6e-8
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=rtol, atol=1e-7)
    for name in ("z", "path_z"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.convergence_point, theirs.convergence_point, rtol=0, atol=1e-5)


def test_mindspore_drew_each_landscape_that_it_was_asked_for(drawn: Drawn) -> None:
    assert drawn.landscapes.keys() == {*PATHS, RANDOM}
    assert all(np.ptp(drawn.landscapes[tag].z) > 0.01 for tag in drawn.landscapes)


@pytest.mark.parametrize("tag", [*PATHS, RANDOM])
def test_mindspores_landscapes_are_recomputed_from_its_checkpoints(
    drawn: Drawn, recomputed: dict[str, LossGrid], tag: str
) -> None:
    assert_same(landscape_record(recomputed[tag]), drawn.landscapes[tag])


def test_the_trajectory_is_what_was_asked_for(drawn: Drawn, trajectory: Trajectory) -> None:
    asked = drawn.reported["spec"]
    assert trajectory.numbers == (1, 2, 3, 4, 5, 6)
    assert [list(interval) for interval in trajectory.intervals] == asked["intervals"]
    assert (trajectory.unit, trajectory.spec.num_samples) == (asked["unit"], asked["num_samples"])
    assert trajectory.step_per_epoch == len(drawn.batches)


def test_summary_landscape_writes_mindspores_events_from_mindspores_run(drawn: Drawn, tmp_path: Path) -> None:
    before = contents(drawn.training)
    SummaryLandscape(drawn.training, mode="mindspore").gen_landscapes_with_multi_process(
        drawn.parts,
        collect_landscape={"create_landscape": {"train": True, "result": False}},
        device_ids=[0],
        output=tmp_path,
    )
    written = landscapes_of(tmp_path)
    assert written.keys() == set(PATHS)
    for tag in PATHS:
        assert_same(written[tag], drawn.landscapes[tag])
    assert contents(drawn.training) == before


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and mode of every file."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in files}
