"""SummaryRecord inside MindSpore: its values, its operators, its graph."""

import mindspore
import numpy as np
import pytest
from mindspore import ops
from mindspore.train import lineage_pb2

from distsummary.mindspore import SummaryRecord
from tests.mindspore.trainings import lineage_of, values_of

pytestmark = pytest.mark.interop


def values():
    random = np.random.default_rng(3)
    special = random.normal(size=50).astype(np.float32)
    special[:3] = np.nan, np.inf, -np.inf
    return {
        "scalar": mindspore.Tensor([0.25]),
        "tensor": mindspore.Tensor(random.normal(size=(2, 3)).astype(np.float16)),
        "histogram": mindspore.Tensor(special),
        "image": mindspore.Tensor(random.random((2, 3, 5, 4), np.float32)),
        "parameter": mindspore.Parameter(mindspore.Tensor([1.0, 2.0, 3.0]), name="p"),
    }


def test_its_values_are_those_of_mindspores_own_record(tmp_path):
    given = values()
    for name, make, more in (
        ("theirs", mindspore.SummaryRecord, {}),
        ("ours", SummaryRecord, {"mindspore_compat": True}),
    ):
        with make(str(tmp_path / name), **more) as record:
            for step in (1, 2):
                for plugin in ("scalar", "tensor", "histogram", "image"):
                    record.add_value(plugin, f"a {plugin}", given[plugin])
                record.add_value("histogram", "a parameter", given["parameter"])
                assert record.record(step)
    assert values_of(tmp_path / "ours") == values_of(tmp_path / "theirs")


def test_what_operators_do_in_an_evaluation_is_not_recorded(tmp_path):
    tensor = ops.TensorSummary()
    with SummaryRecord(str(tmp_path)) as record:
        record.set_mode("eval")
        tensor("of an evaluation", mindspore.Tensor([1.0]))
        record.record(1)
        record.set_mode("train")
        tensor("of a training", mindspore.Tensor([2.0]))
        record.record(2)
    assert ("tensor", "of a training") in values_of(tmp_path)
    assert record.health().dropped == {}


def test_several_records_are_open_at_once(tmp_path):
    tensor = ops.TensorSummary()
    with SummaryRecord(str(tmp_path / "a")) as first, SummaryRecord(str(tmp_path / "b")) as second:
        tensor("both", mindspore.Tensor([1.0]))
        first.record(1)
        second.record(1)
    assert ("tensor", "both") in values_of(tmp_path / "a")
    assert ("tensor", "both") in values_of(tmp_path / "b")


def test_a_bad_value_of_an_operator_costs_that_value(tmp_path):
    tensor, image = ops.TensorSummary(), ops.ImageSummary()
    with SummaryRecord(str(tmp_path)) as record:
        image("no picture", mindspore.Tensor(np.ones((2, 3, 4, 5, 6), np.float32)))
        tensor("fine", mindspore.Tensor([1.0]))
        record.record(1)
    assert values_of(tmp_path).keys() == {("tensor", "fine")}
    assert record.health().dropped == {"image": 1}


def test_mindspores_own_lineage_messages_are_taken(tmp_path):
    message = lineage_pb2.TrainLineage()
    message.algorithm.network = "Lenet"
    with SummaryRecord(str(tmp_path)) as record:
        record.add_value("train_lineage", "lineage", message)
        record.record(1)
    assert lineage_of(tmp_path).train.algorithm.network == "Lenet"
