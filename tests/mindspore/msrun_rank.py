"""One rank that msrun starts: trains a small network of its own, without collectives.

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

ROWS, BATCH = 240, 4


class Ended(mindspore.train.Callback):
    """Notes when the last step ended."""

    def on_train_step_end(self, run_context):
        self.at_s = time.monotonic()


def main(directory: str) -> None:
    """Train."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    init()  # in msrun's scheduler it does not return
    random = np.random.default_rng(get_rank())
    rows = random.normal(size=(ROWS, 6)).astype(np.float32), random.integers(0, 3, ROWS).astype(np.int32)
    network, ended = nn.Dense(6, 3), Ended()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = mindspore.Model(network, loss, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    collector = SummaryCollector(directory, collect_freq=5)
    data = NumpySlicesDataset(rows, ["x", "y"], shuffle=False).batch(BATCH)
    model.train(1, data, callbacks=[ended, collector], dataset_sink_mode=False)
    print("took", time.monotonic() - ended.at_s, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("GLOG_v", "3")
    main(sys.argv[1])
