"""The samples of MindSpore's pages, with their own calls: only the import is another one.

Each is run with MindSpore's names and with those of `distsummary.mindspore`, for the same values.
"""

import time

import mindspore
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops, train
from mindspore.train import Accuracy, Loss, Model

import distsummary.mindspore
from distsummary.events.reader import read_values
from distsummary.events.segments import landscape_files
from tests.mindspore.trainings import lineage_of, values_of

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),  # in MindSpore
]

EPOCHS, BATCHES = 2, 6


class Theirs:
    """MindSpore's own names."""

    SummaryCollector, SummaryRecord = mindspore.SummaryCollector, mindspore.SummaryRecord
    SummaryLandscape = mindspore.SummaryLandscape
    LossMonitor, TimeMonitor = train.LossMonitor, train.TimeMonitor
    ModelCheckpoint, CheckpointConfig = train.ModelCheckpoint, train.CheckpointConfig


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class AlexNet(nn.Cell):
    """Small, with the tutorial's operators if `taps` is set."""

    def __init__(self, num_classes=10, taps=False):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, pad_mode="valid")
        self.conv2 = nn.Conv2d(4, 4, 3, pad_mode="valid")
        self.relu, self.flatten, self.fc = nn.ReLU(), nn.Flatten(), nn.Dense(4 * 4 * 4, num_classes)
        self.taps = taps
        # Init TensorSummary
        self.tensor_summary = ops.TensorSummary()
        # Init ImageSummary
        self.image_summary = ops.ImageSummary()

    def construct(self, x):
        if self.taps:
            # Record image by Summary operator
            self.image_summary("Image", x)
        x = self.conv1(x)
        if self.taps:
            # Record tensor by Summary operator
            self.tensor_summary("Tensor", x)
        return self.fc(self.flatten(self.relu(self.conv2(self.relu(x)))))


def create_dataset():
    random = np.random.default_rng(0)
    x = random.random((BATCHES * 4, 1, 8, 8), np.float32)
    y = random.integers(0, 10, BATCHES * 4).astype(np.int32)
    return ms.dataset.NumpySlicesDataset((x, y), ["image", "label"], shuffle=False).batch(4)


def parts(network, rate=0.01, optimizer=nn.Momentum):
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return loss, optimizer(network.trainable_params(), rate, 0.9)


def first_way(names, summary_dir, network=None):
    ds_train = create_dataset()
    network = network or AlexNet()
    net_loss, net_opt = parts(network)
    time_cb = names.TimeMonitor(data_size=ds_train.get_dataset_size())
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})

    # Init a SummaryCollector callback instance, and use it in model.train or model.eval
    specified = {
        "collect_metric": True,
        "histogram_regular": "^conv1.*|^conv2.*",
        "collect_graph": True,
        "collect_dataset_graph": True,
    }

    summary_collector = names.SummaryCollector(
        summary_dir=summary_dir,
        collect_specified_data=specified,
        collect_freq=1,
        keep_default_action=False,
        collect_tensor_freq=200,
    )

    model.train(
        epoch=1,
        train_dataset=ds_train,
        callbacks=[time_cb, names.LossMonitor(), summary_collector],
        dataset_sink_mode=False,
    )


def second_way(names, summary_dir):
    first_way(names, summary_dir, AlexNet(taps=True))


def third_way(names, summary_dir):
    class MyCallback(train.Callback):
        def __init__(self, summary_dir):
            self._summary_dir = summary_dir

        def __enter__(self):
            # init you summary record in here, when the train script run, it will be inited before training
            self.summary_record = names.SummaryRecord(self._summary_dir)
            return self

        def __exit__(self, *exc_args):
            # Note: you must close the summary record, it will release the process pool resource
            # else your training script will not exit from training.
            self.summary_record.close()

        def step_end(self, run_context):
            cb_params = run_context.original_args()

            # create a confusion matric image, and record it to summary file
            self.summary_record.add_value("image", "image0", cb_params.train_dataset_element[0])
            self.summary_record.add_value("scalar", "loss", cb_params.net_outputs)
            self.summary_record.record(cb_params.cur_step_num)

    ds_train, network = create_dataset(), AlexNet(taps=True)
    net_loss, net_opt = parts(network)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})
    specified_callback = MyCallback(summary_dir=summary_dir)
    model.train(
        epoch=1,
        train_dataset=ds_train,
        callbacks=[names.LossMonitor(), specified_callback],
        dataset_sink_mode=False,
    )


def fourth_way(names, summary_dir):
    ds_train, network = create_dataset(), AlexNet(taps=True)
    net_loss, net_opt = parts(network)
    train_net = nn.TrainOneStepCell(nn.WithLossCell(network, net_loss), net_opt)
    train_net.set_train()
    summary_collect_frequency = 4
    # Note1: An instance of the network should be passed to SummaryRecord if you want to record
    # computational graph.
    with names.SummaryRecord(summary_dir, network=train_net) as summary_record:
        for epoch in range(EPOCHS):
            step = 1
            for inputs in ds_train:
                output = train_net(*inputs)
                current_step = epoch * ds_train.get_dataset_size() + step

                # Note2: The output should be a scalar, and use 'add_value' method to record loss.
                # Note3: You must use the 'record(step)' method to record the data of this step.
                if current_step % summary_collect_frequency == 0:
                    summary_record.add_value("scalar", "loss", output)
                    summary_record.record(current_step)

                step += 1


def gradients(names, summary_dir):
    # Define a new optimizer class by inheriting your original optimizer.
    class MyOptimizer(nn.Momentum):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._original_construct = super().construct
            self.histogram_summary = ops.HistogramSummary()
            self.gradient_names = [param.name + ".gradient" for param in self.parameters]

        def construct(self, grads):
            # Record gradient.
            l = len(self.gradient_names)  # noqa: E741
            for i in range(l):
                self.histogram_summary(self.gradient_names[i], grads[i])
            return self._original_construct(grads)

    ds_train, network = create_dataset(), AlexNet()
    lr = Tensor(np.linspace(0.002, 0.001, 10 * BATCHES).astype(np.float32))
    net_loss, net_opt = parts(network, lr, MyOptimizer)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})
    summary_collector = names.SummaryCollector(
        summary_dir=summary_dir, collect_freq=4, keep_default_action=False, collect_tensor_freq=200
    )
    model.train(
        epoch=1,
        train_dataset=ds_train,
        callbacks=[names.LossMonitor(), summary_collector],
        dataset_sink_mode=False,
    )


def collector_of_its_page(names, summary_dir):
    ds_train, network = create_dataset(), AlexNet()
    net_loss, net_opt = parts(network)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})

    # Do not collect metric and collect the first layer parameter, others are collected by default
    specified = {"collect_metric": False, "histogram_regular": "^conv1.*"}
    summary_collector = names.SummaryCollector(summary_dir=summary_dir, collect_specified_data=specified)
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)


def record_of_its_page(names, summary_dir):
    with names.SummaryRecord(log_dir=summary_dir, file_prefix="xx_", file_suffix="_yy") as summary_record:
        summary_record.add_value("scalar", "loss", Tensor(0.1))
        summary_record.flush()
        assert summary_record.record(step=2)
        summary_record.set_mode("eval")
        assert summary_record.log_dir.endswith("_yy")


def landscape_of_its_page(names, summary_dir):
    ds_train, network = create_dataset(), AlexNet()
    net_loss, net_opt = parts(network)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})
    # Simple usage for collect landscape information:
    interval_1 = [1, 2, 3, 4, 5]
    summary_collector = names.SummaryCollector(
        summary_dir=summary_dir,
        collect_specified_data={
            "collect_landscape": {
                "landscape_size": 4, "unit": "step", "create_landscape": {"train": True, "result": False},
                "num_samples": 2048, "intervals": [interval_1],
            }
        },
    )  # fmt: skip
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)

    # Simple usage for visualization landscape:
    def callback_fn():
        network = AlexNet()
        net_loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        metrics = {"Loss": Loss()}
        model = Model(network, net_loss, metrics=metrics)
        ds_eval = create_dataset()
        return model, network, ds_eval, metrics

    if names is Theirs:
        time.sleep(1.1)  # its record would empty the collector's file, which has the same second in its name
    summary_landscape = names.SummaryLandscape(summary_dir)
    # parameters of collect_landscape can be modified or unchanged
    summary_landscape.gen_landscapes_with_multi_process(
        callback_fn,
        collect_landscape={
            "landscape_size": 4,
            "create_landscape": {"train": True, "result": False},  # the page's False draws nothing
            "num_samples": 2048,
            "intervals": [interval_1],
        },
        device_ids=[1],
    )


SAMPLES = [first_way, second_way, third_way, fourth_way, gradients, collector_of_its_page, record_of_its_page]
SAMPLES += [landscape_of_its_page]


def landscapes_of(directory):
    """Those in a file of ours, as `values_of` has those of MindSpore's."""
    values = [value for file in landscape_files(directory) for value in read_values(file)]
    return {("landscape", one.tag): [(0, one.value)] for one in values if one.tag.startswith("landscape_")}


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES, key=lambda one: one.__name__), ids=lambda one: one.__name__
)
def test_only_the_import_changes(tmp_path, sample):
    for name, names in (("theirs", Theirs), ("ours", distsummary.mindspore)):
        ms.set_seed(1)
        sample(names, str(tmp_path / name))
    expected, found = values_of(tmp_path / "theirs"), values_of(tmp_path / "ours")
    found |= landscapes_of(tmp_path / "ours")
    for key, values in expected.items():
        steps = sorted({step for step, _ in values})  # MindSpore records some twice
        assert [step for step, _ in found[key]] == steps, key
        if key[0] in ("scalar", "tensor", "graph"):
            assert found[key] == sorted(set(values)) if key[0] != "graph" else found[key] == values
        if key[0] == "landscape":
            [[(_, drawn)], [(_, own)]] = found[key], values
            for points in ("x", "y", "z", "path_x", "path_y", "path_z"):
                np.testing.assert_allclose(getattr(drawn, points), getattr(own, points), atol=1e-6)
    is_drawn = sample is landscape_of_its_page
    assert any(key[0] == "landscape" for key in expected) == is_drawn
    mine = {key for key in found.keys() - expected.keys() if not key[1].startswith("zz_perf/")}
    assert mine <= {("scalar", "learning_rate/auto"), *(key for key in mine if key[0] == "text")}
    theirs, ours = lineage_of(tmp_path / "theirs"), lineage_of(tmp_path / "ours")
    assert (ours.train is None, ours.dataset_graph) == (theirs.train is None, theirs.dataset_graph)
