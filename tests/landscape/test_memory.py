"""What directions keep in memory: blocks of the checkpoints, never the checkpoints."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.checkpoints.trajectory import LandscapeSpec, TrajectoryWriter, read
from distsummary.landscape.displacements import BLOCK_BYTES
from distsummary.landscape.pca import locate, pca_plane
from distsummary.landscape.planes import Settings, prepare_pca

CHECKPOINTS, SIZE = 10, 800_000


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that Python and NumPy allocated while `work` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("format", ["mindspore", "safetensors"])
def test_the_plane_of_mapped_checkpoints_holds_its_directions_and_a_block(
    nasty_tmp_path: Path, format: str
) -> None:
    spec = LandscapeSpec(intervals=(tuple(range(1, CHECKPOINTS + 1)),))
    writer = TrajectoryWriter(nasty_tmp_path, spec, model_name="m", run_id="0" * 16, format=format)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(SIZE, np.float32).reshape(800, 1000)
    for number in spec.numbers:
        weights += 0.01 * rng.standard_normal(SIZE, np.float32).reshape(800, 1000)
        writer.save(number, {"w": weights})
    trajectory = read(nasty_tmp_path)
    states = [trajectory.open(number) for number in trajectory.numbers]
    directions = 2 * SIZE * 4

    def draw() -> None:
        locate(states, ["w"], pca_plane(states, ["w"]).directions)

    assert peak_bytes(draw) < directions + 2 * BLOCK_BYTES < CHECKPOINTS * SIZE * 4
    prepare = peak_bytes(lambda: prepare_pca(states, trajectory.numbers, ["w"], Settings(size=5)))
    assert prepare < directions + 2 * BLOCK_BYTES
