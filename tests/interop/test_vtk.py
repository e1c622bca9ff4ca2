"""VTK's own reader sees in a .vtp what the grid holds; skipped where there is no venv with vtk (134 MB)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary import LossGrid
from tests.conftest import ROOT
from tests.unit.landscapes.test_grid import full_grid, make_grid, random_grid

pytestmark = pytest.mark.interop

PYTHON = ROOT / ".venv-vtk" / "bin" / "python"


@pytest.fixture(scope="module", autouse=True)
def vtk() -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}: python -m venv .venv-vtk; .venv-vtk/bin/pip install vtk numpy")


def read(grid: LossGrid, path: Path) -> dict[str, Any]:
    """The grid saved as .vtp, as VTK reads it."""
    grid.save(path)
    script = ROOT / "tests" / "interop" / "read_vtp.py"
    done = subprocess.run([PYTHON, script, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["errors"] == [], done.stderr
    return document


def smooth(size: int = 31) -> LossGrid:
    """A PCA grid of 31 x 31 points with losses that no short decimal holds, some of them not finite."""
    x, y = np.linspace(-1.0, 1.0, size), np.linspace(-2.0, 2.0, size)
    z = np.exp(np.add.outer(y**2, x**2)) / 3
    z[0, :3], z[5, 5] = np.nan, np.inf
    return make_grid(x=x, y=y, z=z)


def test_vtk_reads_every_value_of_surface_and_path(nasty_tmp_path: Path) -> None:
    grid = smooth()
    found = read(grid, nasty_tmp_path / "grid.vtp")
    data = {name: np.array(values) for name, values in found["point_data"].items()}
    np.testing.assert_array_equal(data["loss"][: grid.z.size], grid.z.reshape(-1))
    finite = np.isfinite(grid.z.reshape(-1))
    heights = np.array(found["points"])[: grid.z.size, 2]
    np.testing.assert_array_equal(heights[finite], grid.z.reshape(-1)[finite])
    assert np.isfinite(np.array(found["points"])).all()
    vertices = [cell[0] for cell in found["verts"]]
    np.testing.assert_array_equal(data["checkpoint"][vertices], grid.numbers)
    np.testing.assert_array_equal(data["true_loss"][vertices], grid.true_loss)
    np.testing.assert_array_equal(np.array(found["points"])[vertices, :2], grid.path)
    np.testing.assert_array_equal(found["field_data"]["explained_variance"], grid.explained_variance)
    assert found["scalars"] == "loss"


def test_vtk_reads_the_cells_each_with_its_part(nasty_tmp_path: Path) -> None:
    found = read(smooth(), nasty_tmp_path / "grid.vtp")
    counts = [len(found[kind]) for kind in ("verts", "lines", "polys")]
    assert counts[:2] == [3, 1]
    assert counts[2] == 30 * 30 - 3 - 4  # without the cells that have a hole at a corner
    assert found["cell_data"]["part"] == [1] * 4 + [0] * counts[2]


def test_vtk_reads_a_random_plane_and_a_line(nasty_tmp_path: Path) -> None:
    random = read(random_grid(numbers=()), nasty_tmp_path / "random.vtp")
    assert (len(random["verts"]), random["lines"], len(random["polys"])) == (1, [], 6)
    line = make_grid(x=np.arange(3.0), y=np.zeros(1), z=np.array([[1.0, 2.0, 3.0]]))
    found = read(line, nasty_tmp_path / "line.vtp")
    assert found["lines"] == [[3, 4, 5], [0, 1, 2]]
    assert found["polys"] == []


def test_vtk_reads_quantities_and_what_is_said_of_the_whole_grid(nasty_tmp_path: Path) -> None:
    grid = full_grid()
    found = read(grid, nasty_tmp_path / "full.vtp")
    for name, values in grid.quantities.items():
        array = np.array(found["point_data"]["quantity:run" if name == "run" else name])
        np.testing.assert_array_equal(array[:12], values.reshape(-1))
    assert found["point_data"]["computed"][:12] == grid.computed.reshape(-1).tolist()
    assert found["field_data"]["hardware"] == [grid.hardware]
    assert found["field_data"]["rounding"] == [0.23, 0.0]
    assert found["field_data"]["precision_error"] == [2.5e-4]
