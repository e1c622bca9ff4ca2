"""The data of a page's loss landscapes: the path's losses, what was not computed, what is left out."""

import numpy as np

import distsummary as ds
from distsummary.format.records import Value
from distsummary.landscapes.output.write import landscape_record
from distsummary.rundir.run_dir import RunDir
from distsummary.view.packing import packed
from distsummary.view.page import page
from distsummary.view.surfaces import INTERPOLATED, MISSING, MOST, NOT_FINITE, landscapes
from tests.unit.landscapes.test_grid import full_grid, make_grid, random_grid
from tests.unit.runs.recording import record


def drawn(path, **grids):
    """The landscapes on the page of a run that recorded these grids."""
    record(path)
    directory = RunDir(path).landscape_dir
    directory.mkdir()
    for name, grid in grids.items():
        grid.save(directory / f"{name}.npz")
    found = page(ds.open_run(path))["landscapes"]
    packed({"found": found})
    return {one["name"]: one for one in found["shown"]}, found["left_out"]


def test_the_path_has_its_true_loss_that_in_the_plane_and_how_far_it_is_outside(tmp_path):
    found, _ = drawn(tmp_path, plane=make_grid(), around=random_grid(normalization="filter"))
    plane = found["plane"]
    assert (plane["rows"], plane["columns"], plane["how"]) == (3, 4, None)
    assert plane["z"].reshape(-1).tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
    path = plane["path"]
    assert [path["names"], path["true"].tolist()] == [["1", "5", "9"], [3.5, 2.25, 1.0]]
    assert [path["plane"].tolist(), path["outside"].tolist()] == [
        [3, 2, 1],
        [np.float32(0.1), np.float32(0.2), 0],
    ]
    assert (plane["unit"], path["is_log"]) == ("epoch", False)
    assert plane["lowest"] == {"loss": 0.0, "x": -1.0, "y": -2.0}
    facts = dict(plane["facts"])
    assert (facts["plane"], facts["an epoch"]) == ("PCA", "7 steps")
    assert plane["made"] == "4 x 3 points, 16 samples, all trained parameters moved"
    assert plane["axes"] == ["direction 1 (80.0% of the variance)", "direction 2 (15.0% of the variance)"]
    assert (plane["ticks"][[0, -1]].tolist(), len(plane["tick_labels"])) == ([0, 20], plane["ticks"].size)
    assert found["around"]["path"]["count"] == 1


def test_the_path_is_no_line_where_checkpoints_are_missing(tmp_path):
    along, losses = np.linspace(-0.9, 0.0, 8), np.ones(8)
    path = {
        "path": np.stack([along, along], 1),
        "path_loss": losses,
        "true_loss": losses,
        "residuals": 0 * losses,
    }
    apart = make_grid(numbers=(1, 2, 3, 40, 1, 2, 3, 4), runs=("a", "b"), run_lengths=(4, 4), **path)
    found, _ = drawn(tmp_path, apart=apart, even=make_grid(numbers=(1, 3, 9, 9, 27, 30, 40, 50), **path))
    assert found["apart"]["path"]["stretch"].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert found["even"]["path"]["stretch"].tolist() == [0] * 8


def test_losses_that_span_much_have_a_log_scale(tmp_path):
    losses = np.array([100.0, 10.0, 1.0])
    z = np.geomspace(1, 1000, 12).reshape(3, 4)
    found, _ = drawn(tmp_path, wide=make_grid(z=z, path_loss=losses), flat=make_grid(z=np.full((3, 4), 2.0)))
    wide = found["wide"]
    assert (wide["stretch"], wide["path"]["is_log"]) == ("log", True)
    np.testing.assert_allclose(np.diff(np.log(wide["levels"])), np.diff(np.log(wide["levels"]))[0])
    assert (np.diff(found["flat"]["levels"]) > 0).all()


def test_how_each_point_came_by_its_loss_is_reported(tmp_path):
    computed = np.ones((3, 4), bool)
    computed[0, 1] = computed[1, 1] = False
    z = make_grid().z.copy()
    z[1, 1], z[2, 2] = np.nan, np.inf
    found, _ = drawn(tmp_path, torn=make_grid(z=z, computed=computed, is_partial=True))
    torn = found["torn"]
    expected = [[0, INTERPOLATED, 0, 0], [0, MISSING, 0, 0], [0, 0, NOT_FINITE, 0]]
    assert torn["how"].reshape(3, 4).tolist() == expected
    assert torn["highest"]["loss"] == 23
    assert any("10 of 12 points computed" in note for note in torn["notes"])
    lost, _ = drawn(tmp_path / "lost", lost=make_grid(z=np.full((3, 4), np.nan)))
    assert (lost["lost"]["lowest"], lost["lost"]["is_empty"]) == (None, False)


def test_several_runs_a_line_and_a_plane_of_event_files(tmp_path):
    line = make_grid(kind="line", x=np.linspace(-1, 0, 5), y=np.zeros(1), z=np.array([[0.0, 1, 5, 3, 4]]))
    found, _ = drawn(tmp_path, joint=full_grid(), line=line)
    joint = found["joint"]["path"]
    assert (joint["runs"], joint["run"].tolist()) == (["a/b", "c"], [0, 1, 1])
    assert "lora, head" in found["joint"]["made"]
    assert (found["line"]["is_line"], found["line"]["ends"]) == (True, ["epoch 1", "epoch 9"])
    assert dict(found["line"]["facts"])["barrier"] == "3"
    recorded = landscape_record(make_grid())
    record(tmp_path / "events", values=lambda step, rank: [Value("landscape", "plane", recorded)])
    [plane] = landscapes(ds.open_run(tmp_path / "events"))["shown"]
    assert (plane["path"]["names"], plane["path"]["plane"].tolist()) == (["1", "5", "9"], [3.0, 2.0, 1.0])
    assert np.isnan(plane["path"]["true"]).all()
    assert [name for name, _ in plane["facts"]] == ["plane", "an epoch"]


def test_of_large_and_many_landscapes_it_is_said_what_is_left_out(tmp_path):
    x = np.linspace(-1, 1, 601)
    z = 1 + np.add.outer(x**2, x**2)
    z[123, 457] = -7
    large = make_grid(x=x, y=x, z=z, path=np.zeros((900, 2)), numbers=tuple(range(900)),
                      **{name: np.ones(900) for name in ("path_loss", "true_loss", "residuals")})  # fmt: skip
    found, left_out = drawn(tmp_path, a_large=large, **{f"b{n:02}": random_grid() for n in range(MOST)})
    one = found["a_large"]
    assert one["z"].size <= 30_000 / MOST
    assert [one["x"][0], one["x"][-1]] == [-1, 1]
    assert one["lowest"]["loss"] == -7
    assert len(one["path"]["names"]) == 3000 // MOST
    assert [note.split(" of ")[1][:9] for note in one["notes"]] == ["601 x 601", "900 check"]
    assert left_out == [f"b{MOST - 1:02}"]


def test_a_run_without_landscapes_has_none(tmp_path):
    record(tmp_path)
    assert page(ds.open_run(tmp_path))["landscapes"] is None
