import logging
from types import SimpleNamespace

import numpy as np
import pytest

from distsummary.base.failures import Failures
from distsummary.base.health import Health
from distsummary.collect.plan import regular_steps
from distsummary.collect.selection import Selection
from distsummary.collect.values import step_values as gather
from distsummary.collect.values.step_values import Parameters, image_values, learning_rate_values
from distsummary.format.compatibility import AS_MINDSPORE
from distsummary.format.records import Shard
from distsummary.frameworks.numpy import NumpyFramework
from distsummary.rundir.deal import Group
from distsummary.training.callbacks import CallbackParams
from tests.unit.collect.doubles import Model

STEPS = regular_steps(10)


def guard(health=None, **options):
    return Failures(health or Health(), logging.getLogger(__name__), **options)


class HalfSharded(NumpyFramework):
    """Parameters of even size are shards."""

    def shard(self, tensor):
        if tensor.size == 6:
            raise ValueError("a pending sum")
        return Shard(global_shape=(2 * tensor.size,), offset=(0,)) if tensor.size % 2 == 0 else None


def test_shards_are_every_ranks_and_whole_parameters_one_ranks(monkeypatch):
    monkeypatch.setattr(gather, "framework_of", lambda model: HalfSharded())
    health = Health()
    taken = [
        Parameters(
            Model(), Selection(pattern=".*"), group=Group(index=rank, size=2), deal="parameters"
        ).values("tensor", STEPS, 1, guard(health))
        for rank in range(2)
    ]
    shards = [{value.tag for value in values if value.shard is not None} for values in taken]
    assert shards == [{"layer2.weight/auto", "layer4.weight/auto"}] * 2
    whole = [value.tag for values in taken for value in values if value.shard is None]
    assert sorted(whole) == [f"layer{n}.weight/auto" for n in (1, 3, 5)]
    assert health.errors == {"shard of layer6.weight: ValueError: a pending sum": 2}


def test_a_pattern_matches_from_the_start():
    parameters = Parameters(Model(), Selection(pattern="layer[12]"), group=Group(), deal="all")
    tags = [value.tag for value in parameters.values("histogram", STEPS, 1, guard())]
    assert tags == ["layer1.weight/auto", "layer2.weight/auto"]
    assert (
        Parameters(Model(), Selection(pattern="weight"), group=Group(), deal="all").values(
            "histogram", STEPS, 1, guard()
        )
        == []
    )


def test_snapshots_are_of_the_moment():
    model = Model()
    [value] = Parameters(model, Selection(pattern="layer2"), group=Group(), deal="all").values(
        "tensor", STEPS, 1, guard()
    )
    model.parameters["layer2.weight"][:] = 9
    assert value.data.result().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("batch", "count"),
    [(np.zeros((3, 1, 2, 2)), 3), ((np.zeros((20, 3, 2, 2)), 1), 8), ([np.zeros((2, 5, 4, 3))], 2),
     (np.zeros((20, 4, 4, 1)), 8), (np.zeros((3, 20, 2)), 3), (np.zeros((20, 4, 1)), 20),
     (np.zeros((20, 4), np.uint8), 20)],
)  # fmt: skip
def test_images_are_the_first_of_a_batch(batch, count):
    [value] = image_values(batch)
    assert len(value.data.result()) == count


def test_compatibility_takes_all_images_of_one_layout():
    [value] = image_values(np.zeros((20, 1, 2, 2)), compatibility=AS_MINDSPORE)
    assert len(value.data.result()) == 20
    for shape in ((2, 4, 4, 3), (3, 4, 4), (4, 4)):
        assert image_values(np.zeros(shape, np.uint8), compatibility=AS_MINDSPORE) == []


@pytest.mark.parametrize(
    "batch", [None, [], "text", np.zeros((2, 3, 2)), np.zeros((1, 2, 3, 4)), (1, np.zeros((1, 1, 2, 2))),
              np.zeros((0, 1, 2, 2)), {"x": np.zeros((1, 1, 2, 2))}, SimpleNamespace(shape=(1, 1, 2, 2)),
              np.zeros((8, 4)), np.zeros((8, 4), np.int64), np.zeros((1, 1, 2, 2), complex)]
)  # fmt: skip
def test_other_batches_hold_no_images(batch):
    assert image_values(batch) == []


def test_a_learning_rate_on_a_device_is_not_waited_for(monkeypatch):
    class OnDevice(NumpyFramework):
        def learning_rate(self, optimizer):
            return self.snapshot(np.array(0.25, np.float32))

    reported = CallbackParams({"optimizer": object()})
    assert learning_rate_values(reported) == []
    monkeypatch.setattr(gather, "framework_of", lambda optimizer: OnDevice())
    [value] = learning_rate_values(reported)
    assert not isinstance(value.data, float)
    assert value.data.result() == 0.25
