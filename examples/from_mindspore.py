"""The samples of MindSpore's pages, on torch: `python examples/from_mindspore.py runs/from_mindspore`

Each function below is the sample of a class. The lines that name a class are MindSpore's own, to the letter;
imports, network, loss, optimizer and data became torch. Each sample has a directory of its own.
"""

import contextlib
import sys
from pathlib import Path

import torch
from torch import nn
from torch import tensor as Tensor

import distsummary as ms
import distsummary as ops
from distsummary import (
    Accuracy,
    Callback,
    CheckpointConfig,
    ConvertModelUtils,
    FixedLossScaleManager,
    History,
    LambdaCallback,
    LearningRateScheduler,
    Loss,
    LossMonitor,
    Model,
    ModelCheckpoint,
    RunContext,
    SummaryCollector,
    SummaryLandscape,
    TimeMonitor,
)
from distsummary.thor import thor


# fmt: off
class LeNet5(nn.Sequential):
    """LeNet-5 for images of 32 x 32."""

    def __init__(self, num_class=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool1 = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool2 = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.fc1 = nn.Sequential(nn.Linear(16 * 5 * 5, 120), nn.ReLU())
        self.fc2 = nn.Sequential(nn.Linear(120, 84), nn.ReLU())
        self.fc3 = nn.Linear(84, num_class)


def create_dataset(usage="train"):
    """Images with labels by their brightest row, in place of MNIST."""
    generator = torch.Generator().manual_seed(len(usage))
    images = torch.rand(40, 1, 32, 32, generator=generator)
    labels = images.sum(dim=(1, 3))[:, :10].argmax(dim=1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=8)


def small_dataset():
    """64 rows of 10 numbers, in batches of 32."""
    x, y = torch.rand(64, 10), torch.randint(0, 5, (64,))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)


def summary_collector():
    """Records a training twice, first everything, then what its settings select."""
    ds_train = create_dataset()
    network = LeNet5(10)
    net_loss = nn.CrossEntropyLoss()
    net_opt = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()}, amp_level="O2")

    # Simple usage:
    summary_collector = SummaryCollector(summary_dir='./summary_dir')
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)

    # Do not collect metric and collect the first layer parameter, others are collected by default
    specified={'collect_metric': False, 'histogram_regular': '^conv1.*'}
    summary_collector = SummaryCollector(summary_dir='./summary_dir', collect_specified_data=specified)
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)


class CrossEntropyLoss(nn.Module):
    """Loss function definition."""

    def __init__(self):
        super().__init__()
        self.cross_entropy = nn.CrossEntropyLoss()

        # Init ScalarSummary
        self.scalar_summary = ops.ScalarSummary()

    def forward(self, logits, label):
        """The loss."""
        loss = self.cross_entropy(logits, label)

        # Record loss
        self.scalar_summary("loss", loss)
        return loss


class Tapped(nn.Module):
    """A network with operators."""

    def __init__(self):
        super().__init__()
        self.network = LeNet5()

        # Init TensorSummary
        self.tensor_summary = ops.TensorSummary()

        # Init ImageSummary
        self.image_summary = ops.ImageSummary()

        # Init HistogramSummary
        self.histogram_summary = ops.HistogramSummary()

    def forward(self, data):
        """The logits."""
        # Record image by Summary operator
        self.image_summary("image", data)
        x = self.network(data)

        # Record tensor by Summary operator
        self.tensor_summary("tensor", x)
        self.histogram_summary("fc3.weight", self.network.fc3.weight)
        return x


def operators():
    """The second way of the tutorial: operators record values from within the network."""
    ds_train = create_dataset()
    network = Tapped()
    net_opt = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    model = Model(network, CrossEntropyLoss(), net_opt, metrics={"Accuracy": Accuracy()})
    summary_collector = SummaryCollector(summary_dir='./summary_dir', collect_freq=1)
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)


def summary_record():
    """Records values by name, without a training."""
    # use in with statement to auto close
    with ms.SummaryRecord(log_dir="./summary_dir") as summary_record:
        pass

    # use in try .. finally .. to ensure closing
    try:
        summary_record = ms.SummaryRecord(log_dir="./summary_dir")
    finally:
        summary_record.close()

    with ms.SummaryRecord(log_dir="./summary_dir", file_prefix="xx_", file_suffix="_yy") \
            as summary_record:
        summary_record.set_mode('eval')
        summary_record.add_value('scalar', 'loss', Tensor(0.1))
        result = summary_record.record(step=2)
        log_dir = summary_record.log_dir
        summary_record.flush()
    print("recorded:", result, "in", Path(log_dir).name)


def summary_landscape():
    """Keeps five checkpoints of a training and draws the loss around them."""
    ds_train = create_dataset()
    network = LeNet5()
    net_loss = nn.CrossEntropyLoss()
    net_opt = torch.optim.SGD(network.parameters(), 0.01, 0.9)
    model = Model(network, net_loss, net_opt, metrics={"Accuracy": Accuracy()})
    # Simple usage for collecting landscape information:
    interval_1 = [1, 2, 3, 4, 5]
    summary_collector = SummaryCollector(summary_dir='./summary/lenet_interval_1',
                                         collect_specified_data={'collect_landscape':{"landscape_size": 4,
                                                                                       "unit": "step",
                                                                         "create_landscape":{"train":True,
                                                                                            "result":False},
                                                                         "num_samples": 2048,
                                                                         "intervals": [interval_1]}
                                                                   })
    model.train(1, ds_train, callbacks=[summary_collector], dataset_sink_mode=False)

    # Simple usage for visualizing landscape:
    def callback_fn():
        network = LeNet5()
        net_loss = nn.CrossEntropyLoss()
        metrics = {"Loss": Loss()}
        model = Model(network, net_loss, metrics=metrics)
        ds_eval = create_dataset()
        return model, network, ds_eval, metrics

    summary_landscape = SummaryLandscape('./summary/lenet_interval_1')
    # parameters of collect_landscape can be modified or unchanged
    summary_landscape.gen_landscapes_with_multi_process(callback_fn,
                                                       collect_landscape={"landscape_size": 4,
                                                                        "create_landscape":{"train":False,
                                                                                           "result":False},
                                                                         "num_samples": 2048,
                                                                         "intervals": [interval_1]},
                                                        device_ids=[1])
    # that draws nothing, as the page has both False; unchanged, it draws what the training was given
    grids = summary_landscape.gen_landscapes_with_multi_process(callback_fn, device_ids=[1])
    print("landscapes:", *(grid.tag for grid in grids.values()))


def callback():
    """A callback of one's own, by the older name of its hook."""

    class Print_info(Callback):
        def step_end(self, run_context):
            cb_params = run_context.original_args()
            print("step_num: ", cb_params.cur_step_num)

    print_cb = Print_info()
    dataset = small_dataset()
    net = nn.Linear(10, 5)
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    model = Model(net, loss_fn=loss, optimizer=optim)
    model.train(1, dataset, callbacks=print_cb)


def run_context():
    """What a hook receives."""
    cb_params = {}
    cb_params["cur_epoch_num"] = 4
    cb_params["epoch_num"] = 4
    cb_params["cur_step_num"] = 2
    cb_params["batch_num"] = 2
    cb_params["net_outputs"] = Tensor(2.0)
    run_context = RunContext(cb_params)
    whether_stop = run_context.get_stop_requested()
    print("stop:", whether_stop)


def monitors():
    """Prints losses and times."""
    net = LeNet5()
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    model = Model(net, loss_fn=loss, optimizer=optim)
    dataset = create_dataset()
    loss_monitor = LossMonitor()
    model.train(10, dataset, callbacks=loss_monitor)
    time_monitor = TimeMonitor()
    model.train(10, dataset, callbacks=time_monitor)


def learning_rate_scheduler():
    """Changes the learning rate as the training continues."""

    def learning_rate_function(lr, cur_step_num):
        if cur_step_num%1000 == 0:
            lr = lr*0.1
        return lr

    lr = 0.1
    momentum = 0.9
    net = nn.Linear(10, 5)
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    model = Model(net, loss_fn=loss, optimizer=optim)
    dataset = small_dataset()
    model.train(1, dataset, callbacks=[LearningRateScheduler(learning_rate_function)],
                dataset_sink_mode=False)


def history_and_lambda():
    """Keeps losses, and prints them by a function."""
    train_dataset = small_dataset()
    net = nn.Linear(10, 5)
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    history_cb = History()
    model = Model(network=net, optimizer=opt, loss_fn=crit, metrics={"recall"})
    model.train(2, train_dataset, callbacks=[history_cb])
    print(history_cb.epoch)
    print(history_cb.history)

    lambda_callback = LambdaCallback(on_train_epoch_end=
    lambda run_context: print("loss:", run_context.original_args().net_outputs))
    model.train(2, train_dataset, callbacks=[lambda_callback])


def checkpoints():
    """Saves checkpoints by a policy, and by default after every step."""
    net = LeNet5()
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    model = Model(net, loss_fn=loss, optimizer=optim)
    dataset = create_dataset()
    config = CheckpointConfig(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5, saved_network=net)
    print("policy:", {name: kept for name, kept in config.get_checkpoint_policy().items() if kept is not net})
    ckpoint_cb = ModelCheckpoint(prefix='LeNet5', directory='./checkpoint', config=config)
    model.train(10, dataset, callbacks=ckpoint_cb)

    train_dataset = small_dataset()
    net = nn.Linear(10, 5)
    crit = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    ckpt_callback = ModelCheckpoint(prefix="myckpt")
    model = Model(network=net, optimizer=opt, loss_fn=crit)
    model.train(2, train_dataset, callbacks=[ckpt_callback])


def model():
    """Trains, fits, evaluates and predicts."""
    dataset = create_dataset()
    net = LeNet5()
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(params=net.parameters(), lr=0.1, momentum=0.9)
    model = Model(net, loss_fn=loss, optimizer=optim, metrics=None)
    print("networks:", {model.train_network, model.predict_network, model.eval_network} == {net})
    model.train(2, dataset)

    loss_scale_manager = ms.FixedLossScaleManager(1024., False)
    model = Model(net, loss_fn=loss, optimizer=optim, metrics=None,
                  loss_scale_manager=loss_scale_manager)
    model.train(2, dataset)

    train_dataset = create_dataset("train")
    valid_dataset = create_dataset("test")
    model = Model(net, loss_fn=loss, optimizer=optim, metrics={"accuracy"})
    model.fit(2, train_dataset, valid_dataset)

    model = Model(net, loss_fn=loss, optimizer=None, metrics={'acc'})
    acc = model.eval(dataset, dataset_sink_mode=False)

    input_data = torch.randint(0, 255, [1, 1, 32, 32]).float()
    model = Model(LeNet5())
    result = model.predict(input_data)
    print("evaluated:", *acc, "predicted:", tuple(result.shape))


def second_order():
    """Trains with THOR, the second-order optimizer."""
    net = LeNet5()
    dataset = create_dataset()
    temp = Tensor([4e-4, 1e-4, 1e-5, 1e-5])
    opt = thor(net, learning_rate=temp, damping=temp, momentum=0.9, loss_scale=128, frequency=4)
    loss = nn.CrossEntropyLoss()
    loss_scale = FixedLossScaleManager(128, drop_overflow_update=False)
    model = Model(net, loss_fn=loss, optimizer=opt, loss_scale_manager=loss_scale, metrics={'acc'},
                  amp_level="O2", keep_batchnorm_fp32=False)
    model = ConvertModelUtils.convert_to_thor_model(model=model, network=net, loss_fn=loss, optimizer=opt,
                                                    loss_scale_manager=loss_scale, metrics={'acc'},
                                                    amp_level="O2", keep_batchnorm_fp32=False)
    loss_cb = LossMonitor()
    model.train(1, dataset, callbacks=loss_cb, sink_size=4, dataset_sink_mode=True)
    print("second order:", opt.curvature().refreshes, *opt.curvature().layers)


SAMPLES = (
    summary_collector,
    operators,
    summary_record,
    summary_landscape,
    callback,
    run_context,
    monitors,
    learning_rate_scheduler,
    history_and_lambda,
    checkpoints,
    model,
    second_order,
)


def main(directory: str) -> None:
    """Run all samples, each in a directory with its name."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more only cost time with a network this small
    for sample in SAMPLES:
        place = Path(directory) / sample.__name__
        place.mkdir(parents=True, exist_ok=True)
        print("--", sample.__name__, flush=True)
        with contextlib.chdir(place):
            sample()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/from_mindspore")
