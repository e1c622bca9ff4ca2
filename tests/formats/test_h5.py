"""HDF5 files in the layout of Li et al.'s repository, read back with h5py."""

import json
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from distsummary import LossGrid
from tests.unit.landscapes.test_grid import QUANTITY_NAMES, full_grid, make_grid, random_grid

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install h5py")


def test_one_file_is_the_peers_surface_direction_and_projection_file(nasty_tmp_path: Path) -> None:
    z = make_grid().z.copy()
    z[0, 0], z[1, 1] = np.nan, np.inf
    grid = make_grid(z=z)
    grid.save(nasty_tmp_path / "grid.h5")
    with h5py.File(nasty_tmp_path / "grid.h5", "r") as file:
        x, y = np.meshgrid(file["xcoordinates"][:], file["ycoordinates"][:])  # as plot_2D.py does
        assert file["train_loss"].shape == x.shape == y.shape
        np.testing.assert_array_equal(file["train_loss"][:], z)
        assert file["proj_xcoord"][:].tolist() == grid.path[:, 0].tolist()
        assert file["proj_ycoord"][:].tolist() == grid.path[:, 1].tolist()
        assert file["explained_variance_ratio_"][:].tolist() == [0.8, 0.15]
        assert file["checkpoints"][:].tolist() == [1, 5, 9]
        assert file["true_loss"][:].tolist() == grid.true_loss.tolist()
        assert file["path_loss"][:].tolist() == grid.path_loss.tolist()
        assert file["residuals"][:].tolist() == grid.residuals.tolist()
        assert json.loads(file.attrs["distsummary"])["step_per_epoch"] == 7


def test_a_grid_of_one_row_is_the_peers_one_dimensional_file(tmp_path: Path) -> None:
    make_grid(y=np.zeros(1), z=np.array([[4.0, 3.0, 2.0, 1.0]])).save(tmp_path / "line.hdf5")
    with h5py.File(tmp_path / "line.hdf5", "r") as file:
        assert "ycoordinates" not in file
        assert file["train_loss"][:].tolist() == [4.0, 3.0, 2.0, 1.0]
        assert np.isnan(file["train_acc"][:]).all()
        assert file["train_acc"].shape == file["xcoordinates"].shape == (4,)


def test_a_random_plane_has_no_explained_variance(tmp_path: Path) -> None:
    random_grid(numbers=()).save(tmp_path / "random.h5")
    with h5py.File(tmp_path / "random.h5", "r") as file:
        assert "explained_variance_ratio_" not in file
        assert file["proj_xcoord"][:].tolist() == [0.0]
        assert file["checkpoints"].shape == (0,)


def test_every_quantity_is_a_dataset_of_its_own_under_its_name(nasty_tmp_path: Path) -> None:
    grid = full_grid()
    grid.save(nasty_tmp_path / "grid.h5")
    with h5py.File(nasty_tmp_path / "grid.h5", "r") as file:
        group = file["quantities"]
        assert len(group) == len(QUANTITY_NAMES)
        found = {dataset.attrs["name"]: dataset[:] for dataset in group.values()}
        assert found.keys() == grid.quantities.keys()
        for name, values in grid.quantities.items():
            np.testing.assert_array_equal(found[name], values)
        assert group["loss[3]"].shape == group["test%2Floss"].shape == (3, 4)
        assert {unquote(link) for link in group} == set(QUANTITY_NAMES)


def test_what_was_computed_and_where_steps_went_stands_in_the_file(tmp_path: Path) -> None:
    grid = full_grid()
    grid.save(tmp_path / "grid.h5")
    with h5py.File(tmp_path / "grid.h5", "r") as file:
        assert file["computed"].dtype == np.bool_
        assert file["computed"][:].tolist() == grid.computed.tolist()
        assert file["steps"][:].tolist() == [3, 4]
        assert file["step_path"][:].tolist() == grid.step_path.tolist()
        told = json.loads(file.attrs["distsummary"])
    assert (told["hardware"], told["precision_error"]) == ("two of a kind é", 2.5e-4)
    assert told["rounding"] == {"x": 0.23, "y": 0.0}


@pytest.mark.parametrize(("accuracy", "percent"), [(0.5, 50.0), (1.0, 100.0), (62.5, 62.5)])
def test_an_accuracy_is_the_peers_in_percent(tmp_path: Path, accuracy: float, percent: float) -> None:
    measured = np.full((3, 4), accuracy)
    measured[0, 0] = np.nan
    make_grid(quantities={"accuracy": measured, "acc": measured}).save(tmp_path / "grid.h5")
    with h5py.File(tmp_path / "grid.h5", "r") as file:
        assert file["train_acc"].shape == file["train_loss"].shape
        assert file["train_acc"][1, 1] == percent
        assert file["quantities/accuracy"][1, 1] == accuracy
        assert np.isnan(file["train_acc"][0, 0])
    row = {"y": np.zeros(1), "z": np.ones((1, 4)), "quantities": {"accuracy": measured[1:2]}}
    make_grid(**row).save(tmp_path / "line.h5")
    with h5py.File(tmp_path / "line.h5", "r") as file:
        assert file["train_acc"][:].tolist() == [percent] * 4


def test_data_sets_called_train_and_test_are_the_peers(tmp_path: Path) -> None:
    shares = {"train/accuracy": 0.5, "test/loss": 3.0, "test/accuracy": 0.25, "val/loss": 9.0}
    named = {"quantities": {name: np.full((3, 4), share) for name, share in shares.items()}}
    for order in (("train", "test", "val"), ("train", "val", "test")):
        assert surface_of(make_grid(data_sets=order, **named), tmp_path) == {
            "train_loss": 11.0,
            "train_acc": 50.0,
            "test_loss": 3.0,
            "test_acc": 25.0,
        }


def test_the_loss_of_the_grid_is_the_training_loss_unless_a_data_set_is_called_so(tmp_path: Path) -> None:
    first = {"quantities": {"val/accuracy": np.full((3, 4), 0.5), "train/loss": np.full((3, 4), 7.0)}}
    assert surface_of(make_grid(data_sets=("val", "train"), **first), tmp_path) == {"train_loss": 7.0}
    found = surface_of(make_grid(data_sets=("val", "other"), **first), tmp_path)
    assert found == {"train_loss": 11.0, "train_acc": 50.0}
    found = surface_of(make_grid(data_sets=("test",)), tmp_path)
    assert found == {"train_loss": 11.0, "test_loss": 11.0}


def test_a_line_has_an_accuracy_beside_each_loss(tmp_path: Path) -> None:
    row = {"y": np.zeros(1), "z": np.ones((1, 4)), "quantities": {"test/loss": np.full((1, 4), 2.0)}}
    make_grid(data_sets=("train", "test"), **row).save(tmp_path / "line.h5")
    with h5py.File(tmp_path / "line.h5", "r") as file:
        assert file["test_loss"][:].tolist() == [2.0] * 4
        assert np.isnan(file["test_acc"][:]).all()
        assert file["test_acc"].shape == file["train_acc"].shape == (4,)


def surface_of(grid: LossGrid, folder: Path) -> dict[str, float]:
    """The peers' surfaces of a file, at (1, 1)."""
    grid.save(folder / "grid.h5")
    with h5py.File(folder / "grid.h5", "r") as file:
        return {name: file[name][1, 1] for name in file if name.startswith(("train_", "test_"))}


def test_a_metric_of_another_name_is_no_accuracy_of_the_peers(tmp_path: Path) -> None:
    make_grid(quantities={"test/accuracy": np.ones((3, 4)), "Accuracy": np.ones((3, 4))}).save(
        tmp_path / "g.h5"
    )
    with h5py.File(tmp_path / "g.h5", "r") as file:
        assert "train_acc" not in file
