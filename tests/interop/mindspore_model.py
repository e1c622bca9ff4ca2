"""Run by MindSpore's own interpreter: a small training by its Model.

usage: PYTHON mindspore_model.py DIR

makes DIR/inputs.npz (the data, labels and first weights of the training) and DIR/reported.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, train
from mindspore.dataset import NumpySlicesDataset

BATCHES, ROWS, CLASSES, INPUTS = 3, 8, 6, 5
EPOCHS = 3


class Losses(train.Callback):
    """Keeps the loss of each step and the results of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.results: list[dict[str, Any]] = []

    def on_train_step_end(self, run_context: Any) -> None:
        """Keep the loss."""
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Keep the results of the evaluation."""
        results = run_context.original_args().eval_results
        self.results.append({name: np.asarray(value).tolist() for name, value in results.items()})


def trained(weights: dict[str, Any], data: Any, labels: Any) -> dict[str, Any]:
    """The losses of a training, and what fit evaluates after each epoch."""
    net = nn.SequentialCell(nn.Dense(INPUTS, 7), nn.ReLU(), nn.Dense(7, CLASSES))
    for parameter, name in zip(
        net.get_parameters(), ("0.weight", "0.bias", "2.weight", "2.bias"), strict=True
    ):
        parameter.set_data(mindspore.Tensor(weights[name]))
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = train.Model(net, loss, optimizer, metrics={"acc", "recall", "loss"})
    batches = NumpySlicesDataset((data.reshape(-1, INPUTS), labels.reshape(-1)), shuffle=False).batch(ROWS)
    seen = Losses()
    model.fit(EPOCHS, batches, batches, callbacks=seen)
    return {"losses": seen.losses, "results": seen.results}


def main() -> None:
    """Make the files."""
    place = Path(sys.argv[1])
    random = np.random.default_rng(3)
    given = {
        "labels": random.integers(0, CLASSES, (BATCHES, ROWS)).astype(np.int32),
        "data": random.normal(size=(BATCHES, ROWS, INPUTS)).astype(np.float32),
        "0.weight": random.normal(size=(7, INPUTS)).astype(np.float32),
        "0.bias": random.normal(size=7).astype(np.float32),
        "2.weight": random.normal(size=(CLASSES, 7)).astype(np.float32),
        "2.bias": random.normal(size=CLASSES).astype(np.float32),
    }
    np.savez(place / "inputs.npz", **given)
    reported = trained(given, given["data"], given["labels"])
    (place / "reported.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main()
