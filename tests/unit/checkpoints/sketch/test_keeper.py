"""The pace of sketches, and what the keeper writes."""

import numpy as np
import pytest

from distsummary.checkpoints.sketch.count_sketch import BUCKETS, Sketcher
from distsummary.checkpoints.sketch.keeper import (
    FIRST_STRIDE,
    ROWS,
    SHARE,
    NumpySketching,
    SketchInterval,
    SketchKeeper,
)
from distsummary.checkpoints.sketch.parts import SketchedPart
from distsummary.checkpoints.sketch.sketch_file import SketchHeader, SketchWriter, read_sketches
from tests.unit.collect.doubles import Model


def due(pace, steps, step_s, cost_s):
    """Which of the steps get a sketch, when they and their sketches take so long."""
    taken = []
    for number in steps:
        is_due = pace.is_due(number)
        taken += [number] if is_due else []
        pace.learn(step_s, cost_s if is_due else None)
    return taken


def test_a_number_of_steps_is_kept_to_whatever_it_costs():
    assert due(SketchInterval(every=3), range(1, 11), step_s=1e-3, cost_s=1.0) == [1, 4, 7, 10]


def test_cheap_sketches_are_taken_of_each_step_once_their_cost_is_known():
    taken = due(SketchInterval(), range(1, 41), step_s=1.0, cost_s=0.5 * SHARE)
    assert taken[:3] == [1, 1 + FIRST_STRIDE, 2 + FIRST_STRIDE]
    assert taken[3:] == list(range(3 + FIRST_STRIDE, 41))


@pytest.mark.parametrize("ratio", [0.3, 1.5, 3.0, 11.0, 100.0])
def test_dear_sketches_come_in_powers_of_two_within_their_share(ratio):
    pace = SketchInterval()
    taken = due(pace, range(1, 4001), step_s=1.0, cost_s=ratio * SHARE)
    gaps = np.diff(taken[-8:])
    assert (gaps == gaps[0]).all()
    assert gaps[0] & (gaps[0] - 1) == 0
    assert ratio <= gaps[0] <= 2.5 * max(ratio, 0.4)
    assert len(taken) * ratio * SHARE < 1.2 * SHARE * 4000


def test_the_steps_of_a_slow_rank_are_steps_of_a_fast_one():
    slow = due(SketchInterval(), range(1, 500), step_s=1.0, cost_s=5 * SHARE)
    fast = due(SketchInterval(), range(1, 500), step_s=1.0, cost_s=1.5 * SHARE)
    assert set(slow[5:]) <= set(fast)


def test_sketches_come_closer_together_when_steps_grow_longer():
    pace = SketchInterval()
    due(pace, range(1, 300), step_s=1.0, cost_s=10 * SHARE)
    assert pace.stride == 16
    due(pace, range(300, 900), step_s=10.0, cost_s=10 * SHARE)
    assert pace.stride <= 2


@pytest.mark.parametrize("every", [0, 10])
def test_the_first_step_of_an_attempt_has_a_sketch_wherever_it_begins(every):
    assert due(SketchInterval(every), range(16, 20), step_s=1.0, cost_s=1.0)[0] == 16


class Clock:
    """Every step takes `step_s`, every sketch nothing."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def keeper_in(directory, model, jobs, **more):
    parts = [SketchedPart(name=name, tensor=array) for name, array in model.parameters.items()]
    writer = SketchWriter(directory, SketchHeader(run_id="0" * 16))

    def submit(name, job, *, nbytes=0):
        jobs.append((name, nbytes))
        job()

    return SketchKeeper(NumpySketching(parts), writer, submit, clock=Clock(), **more)


def test_many_sketches_are_written_at_a_time_and_the_rest_at_the_end(tmp_path):
    model, jobs = Model(), []
    keeper = keeper_in(tmp_path, model, jobs, every=1)
    expected = {}
    for step in range(1, ROWS + 4):
        model.parameters["layer1.weight"] += 0.5  # in place: a sketch is of the moment it is taken
        expected[step] = Sketcher().sketch(model.parameters)
        keeper.end_step(step)
    assert [nbytes // (8 * BUCKETS) for _, nbytes in jobs] == [1, ROWS], "the first one at once"
    keeper.flush()
    keeper.flush()
    assert [name for name, _ in jobs] == ["sketches"] * 3
    found = read_sketches(tmp_path)
    assert found.steps == tuple(expected)
    for step, sketch in expected.items():
        np.testing.assert_allclose(found.read(step), sketch, atol=1e-3)
