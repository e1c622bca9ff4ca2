"""One rank that msrun starts: trains a small network of its own, without collectives, twice.

In the first training, each rank has a directory of its own; in the second, rank 1 is slow.

usage: msrun ... msrun_rank.py DIR

Prints how long `Model.train` took after its last step, in seconds.
"""

import os
import sys
import time

import mindspore
import numpy as np
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.dataset import NumpySlicesDataset

from distsummary.mindspore import SummaryCollector

ROWS, BATCH = 480, 4
WORK_S, EXTRA_S = 0.005, 0.015  # of a step; the latter on rank 1


class Ended(mindspore.train.Callback):
    """Notes when the last step ended."""

    def on_train_step_end(self, run_context):
        self.at_s = time.monotonic()


class Slow(mindspore.train.Callback):
    """Computes something in each step, on rank 1 for longer."""

    def on_train_step_begin(self, run_context):
        until_s = time.thread_time() + WORK_S + EXTRA_S * (get_rank() == 1)
        while time.thread_time() < until_s:
            sum(range(1000))


def main(directory: str) -> None:
    """Train."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    init()  # in msrun's scheduler it does not return
    random = np.random.default_rng(get_rank())
    rows = random.normal(size=(ROWS, 6)).astype(np.float32), random.integers(0, 3, ROWS).astype(np.int32)
    network, ended = nn.Dense(6, 3), Ended()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = mindspore.Model(network, loss, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    data = NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(BATCH)
    apart = SummaryCollector(f"{directory}/apart" + str(get_rank()), collect_freq=5)
    model.train(1, data, callbacks=[apart], dataset_sink_mode=False)
    callbacks = [ended, SummaryCollector(f"{directory}/run", collect_freq=5), Slow()]
    model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    print("took", time.monotonic() - ended.at_s, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    main(sys.argv[1])
