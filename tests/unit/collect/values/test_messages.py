"""Protobuf messages of another copy of MindSpore's classes, such as its own, are recorded as ours."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import distsummary as ds
from distsummary.collect.values.checked_values import checked_value
from distsummary.errors import InvalidTypeError, InvalidValueError
from distsummary.format import mindspore_format
from distsummary.format.pb import mindspore_anf_ir_pb2 as anf_ir_pb2
from distsummary.format.pb import mindspore_lineage_pb2 as lineage_pb2
from distsummary.format.pb import mindspore_summary_pb2 as summary_pb2
from distsummary.format.pb import norms_pb2
from distsummary.format.records import Value
from tests.unit.format import samples

OURS, THEIRS = "distsummary.format.pb.mindspore", "mindspore_train_package_of_irpb"  # of equal length


def foreign(message: Any) -> Any:
    """The same message of a class of another package, as in MindSpore's lineage_pb2."""
    pool = descriptor_pool.DescriptorPool()
    for module in (norms_pb2, anf_ir_pb2, lineage_pb2, summary_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        pool.AddSerializedFile(file.SerializeToString().replace(OURS.encode(), THEIRS.encode()))
    name = message.DESCRIPTOR.full_name.replace(OURS, THEIRS)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    assert not isinstance(message, made)
    return made.FromString(message.SerializeToString())


MESSAGES = {
    "train_lineage": samples.TRAIN,
    "eval_lineage": samples.EVALUATION,
    "dataset_graph": samples.DATASET,
    "custom_lineage_data": samples.custom(a=1, b="x"),
}


@pytest.mark.parametrize("plugin", MESSAGES)
def test_lineage_of_other_classes_becomes_ours(plugin: str):
    assert checked_value(plugin, None, foreign(MESSAGES[plugin])) == Value(plugin, "", MESSAGES[plugin])


@pytest.mark.parametrize("plugin", MESSAGES)
def test_a_message_is_copied(plugin: str):
    given = type(MESSAGES[plugin])()
    given.CopyFrom(MESSAGES[plugin])
    value = checked_value(plugin, None, given)
    given.Clear()
    assert value.data == MESSAGES[plugin]


def test_a_message_of_another_kind_is_refused():
    for wrong in (samples.EVALUATION, foreign(samples.EVALUATION)):
        with pytest.raises(InvalidTypeError, match="must be a protobuf message TrainLineage, got Evaluation"):
            checked_value("train_lineage", None, wrong)
    with pytest.raises(InvalidTypeError, match=r"got (GeneratedProtocolMessageType|MessageMeta)"):
        checked_value("train_lineage", None, type(samples.TRAIN))


def test_graphs_are_taken_as_objects_of_both_kinds():
    model = anf_ir_pb2.ModelProto(graph=samples.GRAPH)
    for given in (samples.GRAPH, model, foreign(samples.GRAPH), foreign(model)):
        assert checked_value("graph", "net", given) == Value(
            "graph", "net", samples.GRAPH.SerializeToString()
        )
    with pytest.raises(InvalidTypeError, match="a graph must be a ModelProto or GraphProto, or bytes of one"):
        checked_value("graph", "net", samples.TRAIN)


def test_a_landscape_message_is_a_landscape():
    encoded = samples.encoded_value(mindspore_format, Value("landscape", "l", samples.LANDSCAPE))
    message = summary_pb2.Summary.Value.FromString(encoded).loss_landscape
    for given in (message, foreign(message)):
        value = checked_value("Landscape", "l", given)
        assert np.array_equal(value.data.z, samples.LANDSCAPE.z)
        assert value.data.intervals == samples.LANDSCAPE.intervals
        assert samples.encoded_value(mindspore_format, value) == encoded
    message.landscape.z.dims[0] = 7
    with pytest.raises(InvalidValueError, match="the landscape 'l' is not MindSpore's LossLandscape"):
        checked_value("landscape", "l", message)


def test_the_classes_of_messages_have_public_names():
    info = ds.UserDefinedInfo()
    info.user_info.add().map_str["note"] = "x"
    assert checked_value("custom_lineage_data", None, info).data == info
    public = {ds.TrainLineage, ds.EvaluationLineage, ds.DatasetGraph, ds.UserDefinedInfo}
    assert {type(message) for message in MESSAGES.values()} == public
    graph = ds.GraphProto(name="net")
    graph.node.add(name="add", op_type="Add")
    assert checked_value("graph", None, ds.ModelProto(ir_version=1, domain="d", model_version=2, graph=graph))
    assert summary_pb2.LossLandscape is ds.LossLandscape
