"""Landscapes that would have one name: each has its own key, tag and file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import Directions, LossGrid
from distsummary.errors import InvalidValueError, LandscapeError
from distsummary.landscapes.output.write import write_landscapes
from distsummary.rundir.run_dir import RunDir
from tests.landscapes.test_prepare import make_run, start_of
from tests.unit.landscapes.golden_mlp import Mlp
from tests.unit.landscapes.test_generator import draw, save_path, walk

pytestmark = pytest.mark.usefixtures("no_matplotlib")


def given(seed: int) -> Directions:
    return Directions(x=start_of(seed), y=start_of(seed + 1))


def files(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.landscape_dir.glob("*.npz"))


def test_own_directions_next_to_random_ones_and_others_have_keys_tags_and_files_of_their_own(tmp_path: Path):
    run = make_run(tmp_path / "run", 1)
    grids = draw(around=run, directions=[given(3), "random", given(5)], size=3, run_dir=run)
    assert {key: grid.tag for key, grid in grids.items()} == {
        "given": "landscape_given_[3]",
        "random": "landscape_[3]",
        "given[2]": "landscape_given_no2_[3]",
    }
    for grid in grids.values():
        loaded = LossGrid.load(run.landscape_file(grid.tag, ".npz"))
        assert (loaded.kind, loaded.z.tobytes()) == (grid.kind, grid.z.tobytes())


def test_intervals_with_the_same_ends_are_drawn_each(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    save_path(run, walk(5), [[1, 2, 5], [1, 3, 5], [1, 2, 5], [2, 3, 4]])
    grids = draw(around=run, size=3, run_dir=run)
    assert {key: grid.numbers for key, grid in grids.items()} == {
        "pca[1, 5]": (1, 2, 5),
        "pca[1, 5][2]": (1, 3, 5),
        "pca[2, 4]": (2, 3, 4),
    }
    assert files(run) == ["landscape_1-5.npz", "landscape_2-4.npz", "landscape_no2_1-5.npz"]


def test_subspaces_and_seeds_do_not_replace_each_other(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    asked: list[dict[str, Any]] = [{}, {"parameters": "d1"}, {"parameters": "^d2"}, {"directions": "random"}]
    for more in [*asked, {"directions": "random", "seed": 7}, {"seed": 7}]:  # PCA has no seed
        draw(around=run, size=3, run_dir=run, **more)
    names = files(run)
    assert len(names) == 5
    assert {"landscape_1-3.npz", "landscape_only_d1_1-3.npz", "landscape_3.npz"} <= set(names)
    assert "landscape_seed7_3.npz" in names


def test_other_runs_landscapes_stay_and_ones_own_is_replaced(tmp_path: Path) -> None:
    a, b, c = (make_run(tmp_path / name, seed) for seed, name in enumerate("abc"))
    target = RunDir(tmp_path / "maps")
    for runs in ([a, b], [a, c], [a, b], [a, c]):
        grids = draw(around=None, runs=runs, directions=["pca", "line"], size=3, run_dir=target)
        assert [grid.tag for grid in grids.values()] == ["landscape_joint_[1, 3]", "landscape_line_[3, 3]"]
    assert files(target) == [
        "landscape_joint_1-3.npz",
        "landscape_joint_of_a-and-c_1-3.npz",
        "landscape_line_3-3.npz",
        "landscape_line_of_a-and-c_3-3.npz",
    ]
    loaded = LossGrid.load(target.landscape_dir / "landscape_joint_of_a-and-c_1-3.npz")
    assert (loaded.runs, loaded.tag) == (("a", "c"), "landscape_joint_of_a-and-c_[1, 3]")


def test_grids_of_equal_tags_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    grid = draw(around=None, size=3)
    with pytest.raises(InvalidValueError, match="grids must have different tags, got landscape twice"):
        write_landscapes(RunDir(tmp_path / "run"), [grid, grid])
    assert not (tmp_path / "run").exists()


def test_mindspores_own_tag_stays_where_its_random_plane_is_replayed() -> None:
    assert draw(around=start_of(1), directions=given(3), size=3, mode="mindspore").label == ""
    both = draw(around=start_of(1), directions=["random", given(3)], size=3, mode="mindspore")
    assert [grid.tag for grid in both.values()] == ["landscape", "landscape_given"]


def test_a_grid_says_what_moved_along_which_directions(tmp_path: Path) -> None:
    whole, part = draw(around=None, size=3), draw(around=None, size=3, parameters="d1")
    again = draw(around=None, size=3, parameters=["d1"], filter_axis={"d1.weight": 1})
    assert (whole.parameters, part.parameters, again.parameters) == ((), ("d1",), ("d1",))
    assert (part.filter_axis, again.filter_axis) == ({}, {"d1.weight": 1})
    assert len({grid.directions for grid in (whole, part, again)}) == 3
    assert draw(around=None, size=5).directions == whole.directions
    assert draw(around=None, size=3, seed=1).directions != whole.directions
    again.save(tmp_path / "grid.npz")
    loaded = LossGrid.load(tmp_path / "grid.npz")
    for field in ("parameters", "filter_axis", "directions", "tag"):
        assert getattr(loaded, field) == getattr(again, field)


def test_the_directions_of_a_path_are_those_of_its_checkpoints(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, seed) for name, seed in [("a", 1), ("b", 2), ("c", 1)]]
    a, b, c = (draw(around=run, size=3).directions for run in runs)
    assert a == c != b
    assert np.all([len(text) == 32 for text in (a, b)])


def test_normalization_mindspore_of_names_that_it_does_not_move_is_refused() -> None:
    class Plain(Mlp):
        """Parameters without MindSpore's words in their names."""

        def __init__(self) -> None:
            super().__init__()
            self.parameters = {"kernel": np.ones((2, 2), np.float32)}

        def __call__(self, x: Any) -> Any:
            return x @ np.ones((x.shape[1], 3))

    with pytest.raises(LandscapeError, match="normalization='mindspore' leaves random directions without"):
        draw(model=Plain(), around=None, normalization="mindspore")
