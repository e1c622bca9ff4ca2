"""Bad input, given to MindSpore's classes and to ours: both refuse the same, but for what the tables say.

Where the two differ, docs/mindspore.md says why.
"""

import json

import mindspore
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from mindspore import nn, ops
from mindspore.train import lineage_pb2, summary_pb2
from mindspore.train.anf_ir_pb2 import GraphProto, ModelProto

import distsummary as ds
import distsummary.mindspore
from distsummary.mindspore import SummaryCollector, SummaryRecord
from tests.mindspore.trainings import Lenet, features, images, model_of, values_of
from tests.mindspore_pages import APPENDED, BAD, COUNTS, POLICIES

pytestmark = pytest.mark.interop

TENSOR, IMAGE = mindspore.Tensor([1.0]), mindspore.Tensor(np.ones((1, 3, 4, 4), np.float32))
SWITCHES = ("metric", "graph", "train_lineage", "eval_lineage", "input_data", "dataset_graph")
INTERVALS = {"intervals": [[1, 2, 3]]}
LANDSCAPES = [  # collect_landscape and what both raise
    (True, TypeError), ([], TypeError), (None, None), ({}, None), ({"unit": "step"}, TypeError),
    (INTERVALS | {"size": 4}, ValueError),
    *[(INTERVALS | {"landscape_size": size}, ValueError) for size in (2, 257)],
    *[(INTERVALS | {"landscape_size": size}, None) for size in (3, 256)],
    *[(INTERVALS | {"landscape_size": size}, TypeError) for size in (True, 4.0)],
    (INTERVALS | {"unit": "day"}, ValueError), (INTERVALS | {"unit": 1}, TypeError),
    (INTERVALS | {"unit": "epoch"}, None),
    *[(INTERVALS | {"num_samples": number}, None) for number in (0, -1)],
    *[(INTERVALS | {"num_samples": number}, TypeError) for number in (True, 1.5)],
    *[(INTERVALS | {"create_landscape": given}, None) for given in ({}, {"train": True})],
    *[(INTERVALS | {"create_landscape": given}, TypeError) for given in (True, {"train": 1})],
    (INTERVALS | {"create_landscape": {"all": True}}, ValueError),
    ({"intervals": []}, None), ({"intervals": [[True, 2, 3]]}, None), ({"intervals": [[1, 2]]}, ValueError),
    *[
        ({"intervals": given}, TypeError)
        for given in (None, ([1, 2, 3],), [(1, 2, 3)], [[1, 2, "3"]], [[1.0, 2, 3]])
    ],
]  # fmt: skip
COLLECTORS = [  # the arguments and what both raise
    ({"summary_dir": "  "}, ValueError),
    ({"collect_freq": "1"}, TypeError),
    *[({"export_options": given}, None) for given in ({}, {"tensor_format": None})],
    *[({"num_process": number}, None) for number in (0, -1, "a", None)],
    ({"custom_lineage_data": {"a": 1, "b": "x", "c": 1.5, "d": 2**40}}, None),
    ({"collect_specified_data": {"histogram_regular": None}}, None),
    *[({"collect_specified_data": {f"collect_{name}": None}}, TypeError) for name in SWITCHES],
    *[({"collect_specified_data": {"collect_landscape": given}}, error) for given, error in LANDSCAPES],
]
RECORDS = [
    *[({name: given}, ValueError) for name in ("file_prefix", "file_suffix") for given in ("", "a/b", "é")],
    *[({"raise_exception": given}, TypeError) for given in (None, "True")],
    *[({"export_options": given}, TypeError) for given in ([], {3: "npy"}, {"tensor_format": 3})],
    *[({"export_options": given}, ValueError) for given in ({"tensor_format": "csv"}, {"format": "npy"})],
    *[({"log_dir": given}, ValueError) for given in ("", "x" * 5000)],
]
SUMMARIES = [  # plugin, name, value, what MindSpore raises, what ours raises
    *[(plugin, "x", TENSOR, ValueError, ValueError) for plugin in ("unknown", 1, None)],
    *[(plugin, "x", mindspore.Tensor(1.0), ValueError, None) for plugin in ("Scalar", "SCALAR")],
    *[
        (plugin, name, IMAGE, ValueError, ValueError)
        for plugin in ("tensor", "histogram", "image")
        for name in ("", None, 1)
    ],
    *[("scalar", name, TENSOR, ValueError, ValueError) for name in ("", None, 1)],
    *[(plugin, "x", "text", TypeError, TypeError) for plugin in ("scalar", "tensor", "histogram", "image")],
    *[(plugin, "x", None, TypeError, TypeError) for plugin in ("scalar", "tensor", "histogram", "image")],
    *[(plugin, "x", IMAGE.asnumpy(), TypeError, None) for plugin in ("tensor", "histogram", "image")],
    *[("scalar", "x", given, TypeError, None) for given in (1.0, 1, np.float32(1))],
    *[("scalar", "x", mindspore.Tensor(np.ones(shape)), None, None) for shape in ((), (1,), (1, 1, 1))],
    *[
        ("scalar", "x", mindspore.Tensor(np.ones(shape)), ValueError, ValueError)
        for shape in ((0,), (2,), (2, 3))
    ],
    *[
        (plugin, "x", mindspore.Tensor(np.ones(shape)), None, None)
        for plugin in ("tensor", "histogram")
        for shape in ((0,), (1,), (2, 0, 3))
    ],
    *[(plugin, "x", mindspore.Tensor(1.0), ValueError, ValueError) for plugin in ("tensor", "histogram")],
    *[
        ("image", "x", mindspore.Tensor(np.ones(shape)), ValueError, ValueError)
        for shape in ((), (4,), (1, 1, 1, 4, 4))
    ],
    *[
        ("image", "x", mindspore.Tensor(np.ones(shape)), ValueError, None) for shape in ((4, 4), (3, 4, 4))
    ],
    *[  # MindSpore drops them when it writes
        ("image", "x", mindspore.Tensor(np.ones(shape)), None, ValueError)
        for shape in ((1, 2, 4, 4), (0, 3, 4, 4))
    ],
    *[  # they kill its writer
        (plugin, "x", mindspore.Tensor([1j], mindspore.complex64), None, TypeError)
        for plugin in ("scalar", "tensor", "histogram")
    ],
]  # fmt: skip
LINEAGE = {
    "train_lineage": lineage_pb2.TrainLineage,
    "eval_lineage": lineage_pb2.EvaluationLineage,
    "dataset_graph": lineage_pb2.DatasetGraph,
    "custom_lineage_data": lineage_pb2.UserDefinedInfo,
}
GRAPH = ModelProto()
GRAPH.graph.node.add(name="1", op_type="Add")
LANDSCAPE = summary_pb2.LossLandscape()
MESSAGES = [
    *[(plugin, name, kind(), None, None) for plugin, kind in LINEAGE.items() for name in ("x", "", None, 1)],
    *[
        (plugin, "x", other(), TypeError, TypeError)
        for plugin, kind in LINEAGE.items()
        for other in LINEAGE.values()
        if other is not kind
    ],
    *[(plugin, "x", given, TypeError, TypeError) for plugin in LINEAGE for given in (TENSOR, b"x", None)],
    *[("graph", name, GRAPH.SerializeToString(), None, None) for name in ("x", "", None)],
    *[("graph", "x", given, TypeError, None) for given in (GRAPH, GRAPH.graph)],
    *[("graph", "x", given, DecodeError, ValueError) for given in (b"nonsense", b"\xff\xff\xff\xff")],
    *[("graph", "x", given, None, ValueError) for given in (b"", GraphProto().SerializeToString())],
    *[("graph", "x", given, TypeError, TypeError) for given in ("text", None, 3, TENSOR)],
    ("landscape", "x", LANDSCAPE, None, None),
    ("LANDSCAPE", "x", LANDSCAPE, ValueError, None),  # the page's spelling
    *[("landscape", name, LANDSCAPE, None, ValueError) for name in ("", None, 1)],  # its writer fails
    *[("landscape", "x", given, AttributeError, TypeError) for given in (TENSOR, "x", b"x", None)],
]


def check(error, call):
    """`call` raises this error, or nothing if it is None; returns the error."""
    if error is None:
        return call()
    with pytest.raises(error) as raised:
        call()
    return raised.value


def named(values):
    return [f"{number}-{str(value)[:60]}" for number, value in enumerate(values)]


# --- arguments


@pytest.mark.parametrize(
    "bad",
    [bad for bad in BAD if bad.name in ("SummaryCollector", "SummaryRecord")],
    ids=lambda bad: f"{bad.name}-{bad.arguments}",
)
def test_bad_arguments_raise_what_mindspore_raises_in_the_constructor(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [error] = bad.errors
    raised = check(error, lambda: getattr(distsummary.mindspore, bad.name)(**bad.arguments))
    assert isinstance(raised, ds.DistSummaryError)
    assert not list(tmp_path.iterdir())
    check(error, lambda: getattr(mindspore, bad.name)(**bad.arguments))


@pytest.mark.parametrize(("arguments", "error"), COLLECTORS, ids=named(given for given, _ in COLLECTORS))
@pytest.mark.parametrize("kind", [mindspore.SummaryCollector, SummaryCollector], ids=["theirs", "ours"])
def test_both_collectors_take_and_refuse_the_same(tmp_path, kind, arguments, error):
    check(error, lambda: kind(**{"summary_dir": str(tmp_path / "run")} | arguments))


@pytest.mark.parametrize(("arguments", "error"), RECORDS, ids=named(given for given, _ in RECORDS))
@pytest.mark.parametrize("kind", [mindspore.SummaryRecord, SummaryRecord], ids=["theirs", "ours"])
def test_both_records_refuse_the_same(tmp_path, kind, arguments, error):
    check(error, lambda: kind(**{"log_dir": str(tmp_path / "run")} | arguments))


@pytest.mark.parametrize("kind", [mindspore.SummaryCollector, SummaryCollector], ids=["theirs", "ours"])
def test_a_file_is_no_summary_dir(tmp_path, kind):
    (tmp_path / "file").write_text("")
    for below in ("file", "file/below"):
        check(NotADirectoryError, lambda below=below: kind(str(tmp_path / below)))


def test_a_summary_dir_may_be_longer_than_mindspores(tmp_path):
    directory = tmp_path.joinpath(*["long" * 50] * 6)
    assert len(str(directory)) > 1024
    check(ValueError, lambda: mindspore.SummaryCollector(str(directory)))
    with SummaryRecord(str(directory)) as record:
        record.add_value("scalar", "loss", mindspore.Tensor(1.5))
        assert record.record(1)
    assert values_of(directory)[("scalar", "loss")] == [(1, np.float32(1.5).tobytes())]


@pytest.mark.parametrize(
    "bad",
    [bad for bad in BAD if bad.name in ("CheckpointConfig", "ModelCheckpoint")],
    ids=lambda bad: f"{bad.name}-{bad.arguments}",
)
def test_checkpoints_refuse_what_they_refuse_on_torch(bad):
    for error in bad.errors:
        check(error, lambda: getattr(distsummary.mindspore, bad.name)(**bad.arguments))


def test_checkpoints_have_the_rules_that_they_have_on_torch():
    for given, kept in POLICIES.items():
        config = distsummary.mindspore.CheckpointConfig(*given)
        assert tuple(getattr(config, name) for name in COUNTS) == kept
    for info, appended in APPENDED:
        assert distsummary.mindspore.CheckpointConfig(append_info=info).append_dict == appended


# --- values


@pytest.fixture(scope="class")
def both(tmp_path_factory):
    """An open record of each."""
    theirs = mindspore.SummaryRecord(str(tmp_path_factory.mktemp("theirs")))
    with SummaryRecord(str(tmp_path_factory.mktemp("ours"))) as ours:
        yield theirs, ours
    theirs._consume_data_pool(1)  # or its writer would die of what it took
    theirs.close()


class TestValues:
    """What `add_value`, `record` and `set_mode` take and refuse."""

    @pytest.mark.parametrize(
        ("plugin", "name", "value", "their_error", "our_error"),
        [*SUMMARIES, *MESSAGES],
        ids=named((plugin, name, type(value).__name__) for plugin, name, value, *_ in SUMMARIES + MESSAGES),
    )
    def test_add_value(self, both, plugin, name, value, their_error, our_error):
        theirs, ours = both
        check(their_error, lambda: theirs.add_value(plugin, name, value))
        raised = check(our_error, lambda: ours.add_value(plugin, name, value))
        assert raised is None or isinstance(raised, ds.DistSummaryError)

    def test_record_and_set_mode(self, both):
        theirs, ours = both
        theirs._consume_data_pool(1)
        for record in (theirs, ours):
            for step in (1.0, True, "1", None):
                check(TypeError, lambda record=record, step=step: record.record(step))
            for network in ("x", 1, object()):
                check(TypeError, lambda record=record, network=network: record.record(1, network))
            for mode in ("x", 1, None, "TRAIN"):
                check(ValueError, lambda record=record, mode=mode: record.set_mode(mode))
            assert record.record(-1)


@pytest.mark.parametrize("compat", [True, False])
def test_with_compatibility_pictures_are_those_of_mindspore(tmp_path, compat):
    with SummaryRecord(str(tmp_path), mindspore_compat=compat) as record:
        for shape in ((4, 4), (3, 4, 4)):
            check(
                ValueError if compat else None,
                lambda shape=shape: record.add_value("image", "x", mindspore.Tensor(np.ones(shape))),
            )


@pytest.mark.parametrize("number", [0, -1, "a", None])
def test_any_number_of_processes_is_taken(tmp_path, number):
    """At 0, MindSpore's writer dies."""
    with SummaryRecord(str(tmp_path), num_process=number) as record:
        record.add_value("scalar", "loss", mindspore.Tensor(0.5))
        assert record.record(1)
        assert record.flush()
    assert ("scalar", "loss") in values_of(tmp_path)


# --- values that kill MindSpore's writer, after which its training hangs


def test_what_kills_mindspores_writer_is_recorded(tmp_path):
    with SummaryRecord(str(tmp_path)) as record:
        record.add_value("histogram", "bools", mindspore.Tensor([True, False, True]))
        record.add_value("tensor", "small", mindspore.Tensor([1.5, 2.5], mindspore.bfloat16))
        record.record(1)
        assert record.flush()
    assert values_of(tmp_path).keys() == {("histogram", "bools"), ("tensor", "small")}


class Poisoned(Lenet):
    """Its operators get what kills MindSpore's writer."""

    def construct(self, x):
        self.histogram("bools", x > 0.5)
        self.tensor("small", ops.cast(x, mindspore.bfloat16))
        return super().construct(x)


@pytest.mark.parametrize("mode", [mindspore.GRAPH_MODE, mindspore.PYNATIVE_MODE])
def test_poison_of_operators_is_recorded_and_ends_no_training(tmp_path, mode):
    mindspore.set_context(mode=mode, device_target="CPU")
    try:
        collector = SummaryCollector(str(tmp_path), collect_freq=1)
        model_of(Poisoned()).train(1, images(), callbacks=[collector], dataset_sink_mode=False)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    found = values_of(tmp_path)
    for key in (("histogram", "bools"), ("tensor", "small")):
        assert [step for step, _ in found[key]] == [1, 2, 3, 4, 5]
    assert collector.health().dropped == collector.health().errors == {}


def test_a_value_that_cannot_be_recorded_costs_itself_alone(tmp_path):
    class Complex(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layer, self.tensor = nn.Dense(6, 3), ops.TensorSummary()

        def construct(self, x):
            self.tensor("complex", ops.cast(x, mindspore.complex64))
            self.tensor("fine", x)
            return self.layer(x)

    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model_of(Complex()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    assert [step for step, _ in values_of(tmp_path)["tensor", "fine"]] == [1, 2, 3]
    assert collector.health().dropped == {"tensor": 3}
    assert json.loads((tmp_path / "run.json").read_text())
