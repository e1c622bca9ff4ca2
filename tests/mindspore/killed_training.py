"""A training that is killed: prints, after each step, the step and how many steps are acknowledged.

usage: PYTHON killed_training.py {ours,theirs} DIR
"""

import os
import sys

import mindspore
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset

from distsummary.mindspore import SummaryCollector

STEPS = 100_000
SCALARS = 4  # of a step: loss, learning rate, and two times


class Reported(mindspore.train.Callback):
    """Prints what is known after each step."""

    def __init__(self, collector):
        super().__init__()
        self.collector = collector

    def on_train_step_end(self, run_context):
        step, acknowledged = run_context.original_args().cur_step_num, 0
        if isinstance(self.collector, SummaryCollector):
            acknowledged = self.collector.health().written.get("scalar", 0) // SCALARS
        print(step, acknowledged, flush=True)


def main(whose: str, directory: str) -> None:
    """Train until it is killed."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    kind = SummaryCollector if whose == "ours" else mindspore.SummaryCollector
    collector = kind(directory, collect_freq=1, collect_specified_data={"collect_landscape": None})
    rows = np.ones((STEPS, 6), np.float32), np.ones((STEPS, 1), np.float32)
    network = nn.Dense(6, 1)
    model = mindspore.Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 1e-3, 0.9))
    data = NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(1)
    model.train(1, data, callbacks=[collector, Reported(collector)], dataset_sink_mode=False)


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    main(*sys.argv[1:])
