"""Run by MindSpore's own interpreter: records every kind of value, live, and keeps its inputs next to them.

usage: PYTHON mindspore_records.py DIR

makes DIR/record (SummaryRecord), DIR/training (SummaryCollector in a small training and its evaluation),
DIR/inputs.npz and DIR/reported.json.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset

BATCH, BATCHES, EPOCHS = 4, 3, 2


def inputs() -> dict[str, Any]:
    """The values of each step: tag -> (steps, ...)."""
    random = np.random.default_rng(5)
    histogram = random.normal(size=(3, 1000)).astype(np.float32)
    histogram[1, :3] = np.nan, np.inf, -np.inf
    return {
        "scalar": np.array([0.25, np.nan, -np.inf], np.float32),
        "tensor": random.normal(size=(3, 2, 3)).astype(np.float16),
        "tensor_ints": random.integers(-9, 9, (3, 4), dtype=np.int32),
        "histogram": histogram,
        "image": random.uniform(size=(3, 5, 3, 6, 7)).astype(np.float32),
        "image_grey": random.uniform(size=(3, 1, 1, 4, 9)).astype(np.float32),
    }


def record(directory: Path, values: dict[str, Any]) -> None:
    """Each step one event; the tag's first word is the plugin."""
    with mindspore.SummaryRecord(str(directory)) as summary:
        for step in range(3):
            for tag, steps in values.items():
                summary.add_value(tag.split("_")[0], tag, mindspore.Tensor(steps[step]))
            summary.record(step + 1)


class Reported(mindspore.Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        """After each step."""
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))


def train(directory: Path) -> dict[str, Any]:
    """Train and evaluate a small network under a collector; returns its results."""
    random = np.random.default_rng(6)
    rows = [(random.normal(size=(6,)).astype(np.float32), np.int32(n % 3)) for n in range(BATCH * BATCHES)]

    def dataset() -> Any:
        return GeneratorDataset(rows, ["data", "label"], shuffle=False, num_parallel_workers=1).batch(BATCH)

    network = nn.Dense(6, 3)
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = mindspore.Model(network, loss, optimizer, metrics={"accuracy"})
    reported = Reported()
    collector = mindspore.SummaryCollector(
        str(directory),
        collect_freq=1,
        collect_specified_data={"histogram_regular": "weight", "collect_landscape": None},
        custom_lineage_data={"note": "live", "k": 3},
    )
    model.train(EPOCHS, dataset(), callbacks=[reported, collector], dataset_sink_mode=False)
    time.sleep(1.1)  # a second file of the same second would empty the first
    metrics = model.eval(dataset(), callbacks=[collector], dataset_sink_mode=False)
    return {"losses": reported.losses, "metrics": metrics, "epochs": EPOCHS, "batch_size": BATCH}


def main(place: Path) -> None:
    """Records, trains, and writes the report."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    values = inputs()
    record(place / "record", values)
    np.savez(place / "inputs.npz", **values)
    reported = train(place / "training") | {"version": mindspore.__version__}
    (place / "reported.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
