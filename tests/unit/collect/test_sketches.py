"""Sketches that a collector keeps of a training."""

import numpy as np
import pytest

from distsummary.checkpoints.sketch.count_sketch import Sketcher
from distsummary.checkpoints.sketch.sketch_file import read_sketches
from distsummary.checkpoints.trajectory import read
from distsummary.collect.summary_collector import SummaryCollector
from distsummary.errors import InvalidValueError
from distsummary.rundir.topology import Topology
from distsummary.training.run import Run
from tests.unit.collect.doubles import ListCoordinator, Model, train


def test_a_collector_keeps_sketches_next_to_its_record_and_no_checkpoints(tmp_path, writers):
    network = Model()
    with Run(callbacks=SummaryCollector(tmp_path, collect_landscape={"sketch": 2}), network=network) as run:
        for _ in run.steps([1] * 5):
            network.parameters["layer1.weight"] += 1
    found = read_sketches(tmp_path / "ckpt_dir")
    assert found.steps == (1, 3, 5)
    np.testing.assert_allclose(found.read(5), Sketcher().sketch(network.parameters), atol=1e-3)
    assert [path.suffix for path in (tmp_path / "ckpt_dir").iterdir()] == [".frames"]


def test_a_sketch_that_is_due_when_the_step_was_left_unseen_is_counted(tmp_path, writers):
    network = Model()
    with Run(callbacks=SummaryCollector(tmp_path, collect_landscape={"sketch": 2}), network=network) as run:
        held = run.steps([1] * 5)
        for _ in held:
            run.log(loss=run.step)
            if run.step == 3:
                break
        next(run.steps([1]))
    assert run.health().dropped == {"sketch": 1}
    assert read_sketches(tmp_path / "ckpt_dir").steps == (1,)


def test_a_second_attempt_of_a_run_continues_in_a_file_of_its_own(tmp_path, writers):
    for _ in range(2):
        train(SummaryCollector(tmp_path, collect_landscape={"sketch": 1}), steps=3)
    names = sorted(path.name for path in (tmp_path / "ckpt_dir").iterdir())
    assert names == ["sketch_00000_rank_00000.frames", "sketch_00001_rank_00000.frames"]
    assert read_sketches(tmp_path / "ckpt_dir").header.attempt == 1


def test_of_replicas_rank_zero_keeps_the_sketches(tmp_path, writers):
    for rank in range(2):
        collector = SummaryCollector(
            tmp_path / str(rank), collect_landscape={"sketch": True},
            topology=Topology(rank=rank, world_size=2), coordinator=ListCoordinator(),
        )  # fmt: skip
        train(collector)
        assert collector.health().errors == {}
    assert read_sketches(tmp_path / "0" / "ckpt_dir").header.parts == 1
    assert not (tmp_path / "1" / "ckpt_dir").exists()


def test_where_ranks_may_hold_copies_sketches_are_refused(tmp_path, writers):
    collector = SummaryCollector(
        tmp_path, collect_landscape={"sketch": True}, coordinator=ListCoordinator(),
        topology=Topology(world_size=2, mesh={"tp": (0, 2)}),
    )  # fmt: skip
    with pytest.raises(InvalidValueError, match="rank 0 may hold only a part of the model"):
        train(collector)
    assert not (tmp_path / "ckpt_dir").exists()


def test_arrays_that_take_the_place_of_others_are_sketched(tmp_path, writers):
    network = Model()
    with Run(callbacks=SummaryCollector(tmp_path, collect_landscape={"sketch": 1}), network=network) as run:
        for _ in run.steps([1] * 3):
            network.parameters["layer1.weight"] = network.parameters["layer1.weight"] + 1
    found = read_sketches(tmp_path / "ckpt_dir")
    np.testing.assert_allclose(found.read(3), Sketcher().sketch(network.parameters), atol=1e-3)


def test_a_step_that_cannot_be_sketched_has_its_checkpoint_and_is_reported(tmp_path, writers):
    network = Model()
    collector = SummaryCollector(tmp_path, collect_landscape={"sketch": 1, "intervals": [[1, 2, 3]]})
    with Run(callbacks=collector, network=network) as run:
        for step, _ in enumerate(run.steps([1] * 3), 1):
            if step == 2:
                network.parameters["late"] = np.ones(2)
    assert read_sketches(tmp_path / "ckpt_dir").steps == (1,)
    assert read(tmp_path / "ckpt_dir").numbers == (1, 2, 3)
    (reason,) = collector.health().errors
    assert "sketch" in reason
    assert "late was added" in reason


def test_steps_that_were_taken_again_are_not_those_of_the_attempt_before(tmp_path, writers):
    for every, first, steps in ((1, 0, 40), (10, 15, 3)):
        network = Model()
        collector = SummaryCollector(tmp_path, collect_landscape={"sketch": every})
        with Run(callbacks=collector, network=network, initial_step=first) as run:
            for _ in run.steps([1] * steps):
                network.parameters["layer1.weight"] += 1
    assert read_sketches(tmp_path / "ckpt_dir").steps == tuple(range(1, 17))
