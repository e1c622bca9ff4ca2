"""SummaryCollector in MindSpore's `Model.train`, `fit` and `eval`, and with parameters of its other loops."""

import json
import logging
import threading
import time
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.amp import FixedLossScaleManager

import distsummary as ds
import distsummary.mindspore
from distsummary.errors import InvalidValueError
from distsummary.events.reader import read_directory
from distsummary.format.records import TENSORBOARD
from distsummary.mindspore import SummaryCollector
from tests.mindspore.loop import Loop
from tests.mindspore.trainings import Lenet, Mlp, features, images, lineage_of, model_of, values_of

pytestmark = pytest.mark.interop

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tensor_ranges.json").read_text())["cases"]


@pytest.fixture(params=["graph", "pynative"])
def mode(request):
    modes = {"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}
    mindspore.set_context(mode=modes[request.param], device_target="CPU")
    yield request.param
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def steps_of(directory, key):
    return [step for step, _ in values_of(directory)[key]]


def numbers_of(directory, tag):
    return [float(np.frombuffer(value, np.float32)[0]) for _, value in values_of(directory)["scalar", tag]]


# --- in MindSpore's loops


@pytest.mark.smoke
def test_train_records_everything_in_both_modes(tmp_path, mode):
    collector = SummaryCollector(str(tmp_path), collect_freq=2)
    losses = []
    keep = mindspore.train.LambdaCallback(
        on_train_step_end=lambda context: losses.append(float(context.original_args().net_outputs.asnumpy()))
    )
    model_of(Lenet()).train(1, images(), callbacks=[keep, collector], dataset_sink_mode=False)
    assert collector.health().dropped == collector.health().errors == {}
    assert numbers_of(tmp_path, "loss/auto") == [losses[0], losses[1], losses[3]]
    found = values_of(tmp_path)
    assert (("graph", "") in found) == (mode == "graph")
    operators = {("scalar", "Mean"), ("image", "Image"), ("histogram", "Histogram"), ("tensor", "Tensor")}
    assert operators <= found.keys()
    for key in operators | {("image", "input_data/auto"), ("histogram", "conv.weight/auto")}:
        assert steps_of(tmp_path, key) == [1, 2, 4], key
    assert steps_of(tmp_path, ("scalar", "zz_perf/step_ms")) == [1, 2, 3, 4, 5]
    assert ("scalar", "learning_rate/auto") in found
    lineage = lineage_of(tmp_path)
    assert lineage.train.hyper_parameters.optimizer == "Momentum"
    assert lineage.dataset_graph.children
    assert ds.open_run(tmp_path).state == "finished"


def test_tensorboards_files_hold_the_graph_and_the_scalars(tmp_path):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    collector = SummaryCollector(str(tmp_path), formats=["tensorboard"])
    model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    found = {
        (value.plugin, value.tag) for event in read_directory(tmp_path, TENSORBOARD) for value in event.values
    }
    assert {("graph", ""), ("scalar", "loss/auto")} <= found
    assert collector.health().dropped == {}


def test_a_request_to_sink_is_recorded_step_by_step_on_a_cpu(tmp_path, mode):
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model_of(Mlp()).train(2, features(), callbacks=collector, dataset_sink_mode=True)
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [1, 2, 3, 4, 5, 6]


def test_fit_records_its_evaluations_at_the_ends_of_epochs(tmp_path):
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model_of(Mlp()).fit(2, features(), features(), callbacks=[collector])
    assert steps_of(tmp_path, ("scalar", "eval/accuracy")) == [3, 6]
    metric = json.loads(lineage_of(tmp_path).evaluation.metric)
    assert metric == {"accuracy": pytest.approx(numbers_of(tmp_path, "eval/accuracy")[-1])}


def test_an_evaluation_is_in_the_bill_whether_or_not_its_hooks_are_called(tmp_path):
    def rows():
        time.sleep(0.3)
        yield np.ones(6, np.float32), np.int32(1)

    slow = mindspore.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(1)
    model_of(Mlp()).fit(1, features(), slow, callbacks=[SummaryCollector(str(tmp_path / "fit"))])
    loop = Loop(SummaryCollector(str(tmp_path / "loop")))
    loop.begin()
    loop.epoch(1, range(1, 10))
    loop.call("on_train_epoch_begin")
    loop.step(10)
    time.sleep(0.3)
    loop.params.metrics = {"accuracy": 0.5}
    loop.call("on_train_epoch_end")
    loop.end()
    for name in ("fit", "loop"):
        parts = ds.open_run(tmp_path / name).cost().parts
        assert sum(one.seconds for one in parts if one.part == "evaluation") >= 0.29, name


def test_an_evaluation_after_the_training_belongs_to_it(tmp_path):
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model = model_of(Mlp())
    model.train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    metrics = model.eval(features(), callbacks=[collector])
    assert steps_of(tmp_path, ("scalar", "eval/accuracy")) == [3]
    assert json.loads(lineage_of(tmp_path).evaluation.metric) == metrics
    assert lineage_of(tmp_path).train is not None


def test_a_collector_records_one_training_after_the_other(tmp_path):
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    for _ in range(2):
        model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    attempts = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert [one["attempt"] for one in attempts] == [0, 1]


def test_a_training_that_mindspore_recorded_in_the_directory_is_announced(tmp_path, capsys):
    options = {"collect_specified_data": {"collect_landscape": None}}
    for kind, is_said in ((mindspore.SummaryCollector, False), (SummaryCollector, True)):
        collector = kind(str(tmp_path), **options)
        model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
        said = "holds a training that MindSpore recorded, and viewers show both as one"
        assert (said in capsys.readouterr().err) == is_said


def test_mixed_precision_and_a_loss_scale_are_recorded(tmp_path):
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    manager = FixedLossScaleManager(1024.0, drop_overflow_update=False)
    network = Mlp()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9, loss_scale=1024.0)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = mindspore.Model(network, loss, optimizer, amp_level="O2", loss_scale_manager=manager)
    model.train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    assert collector.health().dropped == {}
    assert all(0 < loss < 10 for loss in numbers_of(tmp_path, "loss/auto"))
    assert ("histogram", "first.weight/auto") in values_of(tmp_path)


def test_a_network_that_trains_itself_has_its_optimizer_loss_and_rate(tmp_path):
    network = Mlp()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.25, 0.9)
    training = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    mindspore.Model(training).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    hyper = lineage_of(tmp_path).train.hyper_parameters
    assert (hyper.optimizer, hyper.learning_rate) == ("Momentum", 0.25)
    assert hyper.loss_function == "SoftmaxCrossEntropyWithLogits"
    histograms = {tag.removesuffix("/auto") for plugin, tag in values_of(tmp_path) if plugin == "histogram"}
    assert histograms == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_the_rates_of_a_schedule_are_those_that_the_steps_take(tmp_path, mode):
    network, schedule = Mlp(), nn.CosineDecayLR(0.0, 0.5, 6)
    taken = [float(schedule(mindspore.Tensor(step, mindspore.int32))) for step in range(6)]
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model = mindspore.Model(network, loss, nn.SGD(network.trainable_params(), schedule))
    model.train(2, features(), callbacks=[collector], dataset_sink_mode=False)
    assert numbers_of(tmp_path, "learning_rate/auto") == pytest.approx(taken, rel=1e-6)
    assert collector.health().errors == {}
    assert not lineage_of(tmp_path).train.hyper_parameters.HasField("learning_rate")  # as MindSpore's


def test_what_ends_a_training_is_recorded_and_raised(tmp_path):
    class Failing(mindspore.train.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 2:
                raise KeyError("the user's own")

    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    with pytest.raises(KeyError, match="the user's own"):
        model_of(Mlp()).train(1, features(), callbacks=[collector, Failing()], dataset_sink_mode=False)
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [1, 2]
    assert ds.open_run(tmp_path).state == "failed"
    assert lineage_of(tmp_path).train is not None


def test_a_requested_stop_ends_the_recording_in_order(tmp_path):
    stop = mindspore.train.LambdaCallback(on_train_step_end=lambda context: context.request_stop())
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model_of(Mlp()).train(3, features(), callbacks=[stop, collector], dataset_sink_mode=False)
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [1]
    assert ds.open_run(tmp_path).state == "finished"


def test_nothing_is_left_running(tmp_path):
    before = set(threading.enumerate())
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith("distsummary")}


# --- what users do with it


def test_a_subclass_that_overrides_hooks_is_called(tmp_path):
    called = []

    class Mine(SummaryCollector):
        def begin(self, run_context):
            super().begin(run_context)
            called.append("begin")

        def step_end(self, run_context):
            super().step_end(run_context)
            called.append(run_context.original_args().cur_step_num)

        def end(self, run_context):
            super().end(run_context)
            called.append("end")

    collector = Mine(str(tmp_path), collect_freq=1)
    model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    assert called == ["begin", 1, 2, 3, "end"]
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [1, 2, 3]


def test_a_subclass_is_called_in_the_evaluations_of_fit(tmp_path):
    class Mine(SummaryCollector):
        def on_eval_end(self, run_context):
            super().on_eval_end(run_context)

    collector = Mine(str(tmp_path), collect_freq=1)
    model_of(Mlp()).fit(2, features(), features(), callbacks=[collector])
    assert steps_of(tmp_path, ("scalar", "eval/accuracy")) == [3, 6]
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [1, 2, 3, 4, 5, 6]


def test_all_names_of_mindspore_train_are_there_and_the_others_are_its_own():
    names, ours = (
        set(distsummary.mindspore.__all__),
        {"SummaryCollector", "SummaryRecord", "SummaryLandscape"},
    )
    operators = {"ScalarSummary", "ImageSummary", "TensorSummary", "HistogramSummary"}
    assert names == {*mindspore.train.__all__} | operators
    for name in names - ours:
        own = mindspore.ops if name in operators else mindspore.train
        assert getattr(distsummary.mindspore, name) is getattr(own, name)
    for name in ours:
        assert getattr(distsummary.mindspore, name) is not getattr(mindspore.train, name)


@pytest.mark.parametrize("other", [mindspore.SummaryCollector, SummaryCollector])
@pytest.mark.parametrize("is_first", [True, False])
def test_two_collectors_in_one_list_are_refused(tmp_path, other, is_first):
    ours, theirs = SummaryCollector(str(tmp_path / "a")), other(str(tmp_path / "b"))
    listed = [ours, theirs] if is_first else [theirs, ours]
    with pytest.raises(ValueError, match="SummaryCollector"):
        model_of(Mlp()).train(1, features(), callbacks=listed, dataset_sink_mode=False)
    model_of(Mlp()).train(1, features(), callbacks=[ours], dataset_sink_mode=False)  # the next one records
    assert ("scalar", "loss/auto") in values_of(tmp_path / "a")


def test_a_mode_that_is_neither_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="mode must be 'train' or 'eval', got 'predict'"):
        Loop(SummaryCollector(str(tmp_path)), mode="predict").begin()


def test_what_mindspore_has_changed_costs_its_part_alone(tmp_path, monkeypatch, caplog):
    """If a function of MindSpore's collector is not there, the training continues."""
    monkeypatch.delattr(mindspore.SummaryCollector, "_get_backbone")
    collector = SummaryCollector(str(tmp_path), collect_freq=1)
    with caplog.at_level(logging.WARNING):
        model_of(Mlp()).train(1, features(), callbacks=[collector], dataset_sink_mode=False)
    assert "_get_backbone" in caplog.text
    assert ds.open_run(tmp_path).state == "finished"
    assert ("scalar", "loss/auto") in values_of(tmp_path)


# --- loops that no CPU runs, by their parameters


@pytest.mark.parametrize("case", [one for one in GOLDEN if one["sink_mode"]], ids=lambda c: str(c["epochs"]))
def test_in_sink_mode_epochs_are_counted(tmp_path, case):
    collector = SummaryCollector(
        str(tmp_path),
        collect_freq=case["collect_freq"],
        collect_tensor_freq=case["collect_tensor_freq"],
        mindspore_compat=True,
        collect_specified_data={"collect_landscape": None},
    )
    epochs, batches = case["epochs"], case["batch_num"]
    loop = Loop(collector, epoch_num=epochs, batch_num=batches, dataset_sink_mode=True, sink_size=-1)
    loop.begin()
    tensor = ops.TensorSummary()
    for epoch in range(1, epochs + 1):
        tensor("Tensor", mindspore.Tensor([1.0]))
        loop.epoch(epoch, [epoch * batches])
    loop.end()
    assert steps_of(tmp_path, ("scalar", "loss/auto")) == [epoch * batches for epoch in case["other_set"]]
    assert steps_of(tmp_path, ("tensor", "Tensor")) == [epoch * batches for epoch in case["tensor_set"]]
