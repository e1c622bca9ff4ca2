"""Run by MindSpore's own interpreter: trains a small network and draws its landscapes, live.

usage: PYTHON mindspore_landscape.py DIR

makes DIR/training (SummaryCollector with collect_landscape: events and ckpt_dir), DIR/landscape (what
SummaryLandscape drew), DIR/data.npz and DIR/reported.json. With more than 500 parameters MindSpore takes a
randomised SVD for paths of four checkpoints and more, else a full one: there is a path of either kind.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops
from mindspore.dataset import NumpySlicesDataset

INPUTS, HIDDEN, CLASSES = 12, 40, 3
ROWS, BATCH, EPOCHS = 48, 8, 6
SEED = 20  # of numpy's global generator, which the random directions come from
LANDSCAPE = {
    "landscape_size": 6,  # even: the centre is no point of the grid
    "unit": "epoch",
    "num_samples": 20,  # two batches, the rest is left out
    "create_landscape": {"train": True, "result": True},
    "intervals": [[1, 2, 3, 4, 5], [4, 5, 6]],
}


class MLP(nn.Cell):
    """h = max(x W1' + b1, 0); o = h W2' + b2. No tanh: MindSpore's is off by 1e-4 on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2 = nn.Dense(INPUTS, HIDDEN), nn.Dense(HIDDEN, CLASSES)

    def construct(self, x: Any) -> Any:
        """(n, INPUTS) -> (n, CLASSES)."""
        return self.d2(ops.relu(self.d1(x)))


def loss_fn() -> Any:
    """Mean softmax cross entropy with integer labels."""
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def train(directory: Path, rows: tuple[Any, Any]) -> None:
    """A training under a collector that keeps the checkpoints."""
    mindspore.set_seed(1)
    network = MLP()
    model = mindspore.Model(network, loss_fn(), nn.Momentum(network.trainable_params(), 0.1, 0.9))
    collector = mindspore.SummaryCollector(
        str(directory), collect_freq=1, collect_specified_data={"collect_landscape": LANDSCAPE}
    )
    model.train(EPOCHS, dataset(rows), callbacks=[collector], dataset_sink_mode=False)


def draw(training: Path, output: Path, rows: tuple[Any, Any]) -> None:
    """Draws all landscapes that the settings of the collector name."""
    network, metrics = MLP(), {"Loss": nn.Loss()}
    model = mindspore.Model(network, loss_fn(), metrics=metrics)
    landscape = mindspore.SummaryLandscape(str(training))
    np.random.seed(SEED)  # after the network, whose weights come from the same generator
    landscape.gen_landscapes_with_multi_process(
        lambda: (model, network, dataset(rows), metrics), device_ids=[0], output=str(output)
    )


def dataset(rows: tuple[Any, Any]) -> Any:
    """The rows in their order, in batches."""
    return NumpySlicesDataset(rows, shuffle=False).batch(BATCH)


def main(place: Path) -> None:
    """Makes the data, draws, and writes the report."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    random = np.random.default_rng(8)
    x = random.normal(size=(ROWS, INPUTS)).astype(np.float32)
    labels = (x @ random.normal(size=(INPUTS, CLASSES))).argmax(axis=1).astype(np.int32)
    np.savez(place / "data.npz", x=x, labels=labels)
    train(place / "training", (x, labels))
    draw(place / "training", place / "landscape", (x, labels))
    reported = {"version": mindspore.__version__, "seed": SEED, "batch": BATCH, "spec": LANDSCAPE}
    reported["sizes"] = [INPUTS, HIDDEN, CLASSES]
    (place / "reported.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
