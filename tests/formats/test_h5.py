"""HDF5 files in the layout of Li et al.'s repository, read back with h5py."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.landscape.test_grid import make_grid, random_grid

h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'distsummary[h5]'")


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
