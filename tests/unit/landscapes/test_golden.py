"""The landscapes of a real MindSpore run, recomputed from its checkpoints."""

from typing import Any

import numpy as np
import pytest

from distsummary import LossGrid, Plane, landscape
from distsummary.checkpoints.trajectory import read
from distsummary.landscapes.output.write import landscape_record
from tests.unit.landscapes import golden_mlp

STORED = golden_mlp.stored()


@pytest.fixture(scope="module")
def recomputed() -> dict[str, LossGrid]:
    trajectory = read(golden_mlp.CKPT_DIR)
    given = golden_mlp.legacy_directions(trajectory.load(6))
    grids = landscape(
        golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches(), around=trajectory,
        plane=Plane(size=7), directions=("pca", given), mode="mindspore", progress=False,
    )  # fmt: skip
    assert list(grids) == ["pca[1, 4]", "pca[3, 6]", "given"]
    return {grid.tag: grid for grid in grids.values()}


def test_there_is_a_grid_for_each_that_mindspore_stored(recomputed: dict[str, LossGrid]) -> None:
    assert recomputed.keys() == STORED.keys() == {"landscape_[1, 4]", "landscape_[3, 6]", "landscape_[6]"}


@pytest.mark.parametrize("tag", STORED)
def test_losses_and_axes_are_mindspores(recomputed: dict[str, LossGrid], tag: str) -> None:
    grid, stored = recomputed[tag], STORED[tag]
    np.testing.assert_allclose(grid.z, stored["z"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(grid.x, stored["x"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(grid.y, stored["y"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(grid.convergence_point, stored["convergence"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("tag", ["landscape_[1, 4]", "landscape_[3, 6]"])
def test_the_path_is_mindspores(recomputed: dict[str, LossGrid], tag: str) -> None:
    grid, stored = recomputed[tag], STORED[tag]
    assert grid.numbers == stored["numbers"]
    np.testing.assert_allclose(grid.path[:, 0], stored["px"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(grid.path[:, 1], stored["py"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(grid.path_loss, stored["pz"], rtol=0, atol=1e-5)


def test_the_true_loss_of_a_checkpoint_is_not_its_loss_in_the_plane(recomputed: dict[str, LossGrid]) -> None:
    grid = recomputed["landscape_[1, 4]"]
    assert grid.path_loss[0] == pytest.approx(1.04424, abs=1e-5)
    assert grid.true_loss[0] == pytest.approx(1.04914, abs=1e-5)
    assert grid.true_loss[-1] == pytest.approx(grid.path_loss[-1], abs=1e-7)


def test_the_metadata_is_mindspores(recomputed: dict[str, LossGrid]) -> None:
    for tag, grid in recomputed.items():
        record, stored = landscape_record(grid), STORED[tag]["metadata"]
        assert record.decomposition == stored["decomposition"]
        assert record.unit == stored["unit"]
        assert record.step_per_epoch == stored["step_per_epoch"]
        assert grid.bn_mode == "batch"
        assert grid.samples == 16


def test_an_even_random_grid_converges_next_to_its_centre_as_mindspores_does(tmp_path: Any) -> None:
    grid = landscape(
        golden_mlp.Mlp(), golden_mlp.cross_entropy, golden_mlp.batches(), plane=Plane(size=4),
        directions="random", mode="mindspore", progress=False,
    )  # fmt: skip
    assert grid.convergence_point[:2] == pytest.approx((1 / 3, 1 / 3))
    assert grid.convergence_point[2] == grid.z[2, 2]
