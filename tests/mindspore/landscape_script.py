"""Draws the landscape of a training by two processes; its functions are known to this script alone.

usage: PYTHON landscape_script.py DIR
"""

import os
import signal
import sys

import mindspore
from mindspore import nn
from mindspore.train import Loss

from distsummary.errors import LandscapeError
from distsummary.mindspore import SummaryLandscape
from tests.mindspore.trainings import features


class Network(nn.Cell):
    """Two layers, as in the training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 3)

    def construct(self, x):
        """The scores of three classes."""
        return self.second(self.relu(self.first(x)))


if __name__ == "__main__":
    DRIVER = os.getpid()

    def callback_fn():
        """What the landscape needs."""
        network = Network()
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        metrics = {"Loss": Loss()}
        assert os.getpid() != DRIVER
        return mindspore.Model(network, loss, metrics=metrics), network, features(), metrics

    def dies():
        """End the worker."""
        os.kill(os.getpid(), signal.SIGKILL)

    landscape = SummaryLandscape(sys.argv[1])
    try:
        landscape.gen_landscapes_with_multi_process(dies, device_ids=[0, 1])
    except LandscapeError as error:
        print(error, flush=True)
    landscape.gen_landscapes_with_multi_process(callback_fn, device_ids=[0, 1])
    print("drawn", flush=True)
