"""What directions keep in memory: blocks of the checkpoints, never the checkpoints."""

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distsummary.checkpoints.landscape_spec import LandscapeSpec
from distsummary.checkpoints.shard_file import ShardRank
from distsummary.checkpoints.trajectory import read
from distsummary.checkpoints.trajectory_writer import TrajectoryWriter
from distsummary.format.records import Shard
from distsummary.landscapes.directions.displacements import BLOCK_BYTES
from distsummary.landscapes.directions.pca import locate, pca_plane
from distsummary.landscapes.directions.planes import Settings, prepare_pca

CHECKPOINTS, SIZE = 10, 800_000
SPEC = LandscapeSpec(intervals=(tuple(range(1, CHECKPOINTS + 1)),))


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most that Python and NumPy allocated while `work` ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def walk() -> Iterator[tuple[int, Any]]:
    """The numbers of a path and its weights (800, 1000)."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(SIZE, np.float32).reshape(800, 1000)
    for number in SPEC.numbers:
        weights += 0.01 * rng.standard_normal(SIZE, np.float32).reshape(800, 1000)
        yield number, weights


def save_shards(ckpt_dir: Path, axis: int) -> None:
    """What four ranks save of the path, cut along an axis."""
    writers = [
        TrajectoryWriter(
            ckpt_dir, SPEC, model_name="m", run_id="0" * 16, shard_rank=ShardRank(rank=rank, ranks=4)
        )
        for rank in range(4)
    ]
    for number, weights in walk():
        for rank, (writer, cut) in enumerate(zip(writers, np.split(weights, 4, axis), strict=True)):
            offset = (200 * rank, 0) if axis == 0 else (0, 250 * rank)
            writer.save(number, {"w": cut}, {"w": Shard(global_shape=weights.shape, offset=offset)})


@pytest.mark.parametrize("saved", ["whole", "rows", "columns"])
def test_the_plane_of_stored_checkpoints_holds_its_directions_and_a_block(nasty_tmp_path: Path, saved: str):
    if saved != "whole":
        save_shards(nasty_tmp_path, axis=("rows", "columns").index(saved))
    else:
        writer = TrajectoryWriter(nasty_tmp_path, SPEC, model_name="m", run_id="0" * 16)
        for number, weights in walk():
            writer.save(number, {"w": weights})
    trajectory = read(nasty_tmp_path)
    states = [trajectory.open(number) for number in trajectory.numbers]
    directions = 2 * SIZE * 4

    def draw() -> None:
        locate(states, ["w"], pca_plane(states, ["w"]).directions)

    assert peak_bytes(draw) < directions + 2 * BLOCK_BYTES < CHECKPOINTS * SIZE * 4
    prepare = peak_bytes(lambda: prepare_pca(states, trajectory.numbers, ["w"], Settings(size=5)))
    assert prepare < directions + 2 * BLOCK_BYTES


@pytest.mark.parametrize("axis", [0, 1])
def test_of_a_model_in_shards_one_array_at_a_time_is_held(nasty_tmp_path: Path, axis: int) -> None:
    save_shards(nasty_tmp_path, axis)
    trajectory, states, whole = read(nasty_tmp_path), [], SIZE * 4
    assert peak_bytes(lambda: states.extend(map(trajectory.open, trajectory.numbers))) < whole / 4
    shard = 0 if axis == 0 else whole / 4  # rows are read to where they belong
    for state in states:
        assert peak_bytes(partial(state.__getitem__, "w")) < whole + shard + 100_000
    assert peak_bytes(lambda: states[0].shape("w")) < 10_000
