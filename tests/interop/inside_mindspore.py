"""Run by MindSpore's own interpreter: a training with all that our collector records.

usage: PYTHON inside_mindspore.py DIR

makes DIR/lenet: operators, pictures, lineage, an evaluation, and the landscape of the training; and
DIR/evaluated: an evaluation alone.
"""

import sys
from pathlib import Path

import mindspore
from mindspore import nn
from mindspore.train import Loss

from distsummary.mindspore import SummaryCollector, SummaryLandscape
from tests.mindspore.trainings import Lenet, images, model_of

LANDSCAPE = {
    "landscape_size": 4, "unit": "step", "num_samples": 16, "intervals": [[1, 2, 3, 4]],
    "create_landscape": {"train": True, "result": True},
}  # fmt: skip


def drawn_from():
    """What SummaryLandscape needs of the training."""
    network, metrics = Lenet(), {"Loss": Loss()}
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return mindspore.Model(network, loss, metrics=metrics), network, images(), metrics


def main(place: Path) -> None:
    """Train, evaluate, draw."""
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="CPU")
    directory = str(place / "lenet")
    collector = SummaryCollector(
        directory,
        collect_freq=2,
        collect_specified_data={"collect_landscape": LANDSCAPE},
        custom_lineage_data={"note": "inside"},
    )
    model = model_of(Lenet())
    model.train(2, images(), callbacks=[collector], dataset_sink_mode=False)
    model.eval(images(), callbacks=[collector])
    model.eval(images(), callbacks=[SummaryCollector(str(place / "evaluated"))])
    SummaryLandscape(directory).gen_landscapes_with_multi_process(drawn_from)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
