"""Small networks and data sets of MindSpore, and what a directory of event files holds, decoded."""

import io
from typing import Any

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import nn, ops
from PIL import Image as Picture

from distsummary.events.reader import read_directory, read_lineage
from distsummary.format.pb.mindspore_anf_ir_pb2 import GraphProto
from distsummary.format.records import Histogram, Image


class Lenet(nn.Cell):
    """A small LeNet with the four operators."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="valid", has_bias=True)
        self.flat, self.relu = nn.Flatten(), nn.ReLU()
        self.fc1, self.fc2 = nn.Dense(4 * 6 * 6, 16), nn.Dense(16, 10)
        self.image, self.scalar = ops.ImageSummary(), ops.ScalarSummary()
        self.tensor, self.histogram = ops.TensorSummary(), ops.HistogramSummary()

    def construct(self, x):
        self.image("Image", x)
        self.scalar("Mean", x.mean())
        x = self.conv(x)
        self.tensor("Tensor", x)
        self.histogram("Histogram", x)
        return self.fc2(self.relu(self.fc1(self.flat(self.relu(x)))))


class Mlp(nn.Cell):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.relu, self.second = nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 3)

    def construct(self, x):
        return self.second(self.relu(self.first(x)))


class Tapped(nn.Cell):
    """One weight and one operator, for many quick steps."""

    def __init__(self):
        super().__init__()
        self.layer, self.tensor = nn.Dense(2, 1), ops.TensorSummary()

    def construct(self, x):
        self.tensor("Tensor", x)
        return self.layer(x)


def images(rows=40, batch=8):
    random = np.random.default_rng(0)
    x, y = random.random((rows, 1, 8, 8), np.float32), random.integers(0, 10, rows).astype(np.int32)
    return mindspore.dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(batch)


def features(rows=12, batch=4, *, poison=None):
    """Batches of 6 features and 3 classes; the row `poison` is NaN."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(rows, 6)).astype(np.float32), random.integers(0, 3, rows).astype(np.int32)
    if poison is not None:
        x[poison] = np.nan
    return mindspore.dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(batch)


def pairs(steps):
    """As many batches of one row for `Tapped`."""
    x, y = np.ones((steps, 2), np.float32), np.ones((steps, 1), np.float32)
    return mindspore.dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(1)


def model_of(network, *, optimizer=nn.Momentum, loss=None, **more):
    loss = loss or nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    own = optimizer(network.trainable_params(), 0.05, 0.9)
    return mindspore.Model(network, loss, own, metrics={"accuracy"}, **more)


def values_of(directory) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """(plugin, tag) -> (step, value) in the order of the files; values are comparable, with NaN equal."""
    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for event in read_directory(directory, mode="strict"):
        for value in event.values:
            found.setdefault((value.plugin, value.tag), []).append((event.step, _comparable(value.data)))
    return found


def lineage_of(directory):
    """The four messages of the lineage, without the place of the checkpoint."""
    lineage = read_lineage(directory)
    if lineage.train is not None:
        lineage.train.model.path = lineage.train.model.path.replace(str(directory), "")
    return lineage


def _comparable(data: Any) -> Any:
    if isinstance(data, Histogram):
        edges = data.left.tobytes(), data.width.tobytes(), data.counts.tolist()
        counts = data.count, data.nan_count, data.pos_inf_count, data.neg_inf_count
        return edges, counts, repr((data.min, data.max)), None if data.sum is None else round(data.sum, 6)
    if isinstance(data, Image):
        return np.asarray(Picture.open(io.BytesIO(data.encoded))).tobytes()
    if isinstance(data, np.ndarray):
        return data.shape, str(data.dtype), data.tobytes()
    if isinstance(data, bytes):
        nodes = GraphProto.FromString(data).node
        return [(node.op_type, node.name, [source.name for source in node.input]) for node in nodes]
    return np.float32(data).tobytes() if isinstance(data, float) else data
