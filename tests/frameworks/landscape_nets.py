"""Nets that landscape engines must get right, their data, and the float64 loop they are compared with."""

import copy
from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distsummary import Directions, Evaluation
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.planes import PlanePlan
from distsummary.landscapes.directions.recipe import RandomDirections, Weights
from distsummary.landscapes.engines.engine import Task
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.open_engine import open_engine
from distsummary.landscapes.model.user_code import BatchLoss

CRITERION = nn.CrossEntropyLoss()
ON_GPU = [
    EngineChoice(engine="row"),
    EngineChoice(engine="graph"),
    EngineChoice(engine="graph", options=("cuda_graph",)),
    EngineChoice(engine="graph", options=("channels_last", "cuda_graph")),
    EngineChoice(engine="graph", chunk=4),
    EngineChoice(engine="graph", chunk=4, options=("cuda_graph",)),
    EngineChoice(engine="inference"),
]
XS, YS = np.linspace(-0.8, 1.1, 6), (-0.7, 0.9)


class Net(nn.Module):
    """A net with a name, that makes its own batches: three of 8 rows and one of 5."""

    def batch(self, rows: int) -> Any:
        """(inputs, labels)."""
        raise NotImplementedError

    def batches(self) -> list[Any]:
        return [self.batch(rows) for rows in (8, 8, 8, 5)]


class Mlp(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 6), torch.arange(rows) % 3


class Linear(Net):
    """Affine up to its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)

    batch = Mlp.batch


class Cnn(Net):
    """Everything that must not move or must come back: BN, dropout, frozen and tied layers, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1, groups=2)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(24, 12).requires_grad_(False)
        self.middle = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)
        self.register_buffer("shift", torch.full((3,), 0.25), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn(self.conv1(x)))
        h = nn.functional.max_pool2d(self.relu(self.conv2(h)), 2).flatten(1)
        h = self.middle(self.drop(self.frozen(h)))
        return self.head(torch.relu(self.middle(h))) + self.shift

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 1, 4, 4), torch.arange(rows) % 3


class Attending(Net):
    """Attention on the data itself: queries, keys and values are pieces of a layer that is affine in it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2).mean(1))

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 5, 8), torch.arange(rows) % 3


class Pooled(Net):
    """Convolution, pooling, and a linear layer on the flat pictures, as LeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 2, 8, 8), torch.arange(rows) % 3


class Flat(Net):
    """Pictures flattened right behind a pool whose windows lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(nn.functional.max_pool2d(torch.relu(self.conv(x)), 2), 1))

    batch = Pooled.batch


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return torch.relu(out)


class ResNet8(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 8, 2), Block(8, 16, 2))
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean(dim=(2, 3)))

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 3, 8, 8), torch.arange(rows) % 3


class Signal(Net):
    """Conv1d, Linear with BatchNorm1d, and a net without a bias in its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.fc, self.bn = nn.Linear(24, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.gelu(self.conv(x)).flatten(1)
        return self.head(torch.sigmoid(self.bn(self.fc(h))))

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 2, 8), torch.arange(rows) % 3


class Words(Net):
    """Embedding and positions, attention, LayerNorm, and the embedding again as the head (tied weights)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(5, 8) * 0.1)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.words(tokens) + self.places)).mT  # (n, words, places)

    def batch(self, rows: int) -> Any:
        tokens = torch.randint(0, 11, (rows, 5))
        return tokens, tokens.roll(1, 1)


class Recurrent(Net):
    """An LSTM, which keeps a list of its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 5, 4), torch.arange(rows) % 3


class Mixed(Net):
    """Weight normalisation, a transposed convolution, GroupNorm, PReLU, pooling, BN without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(1, 3, 3, padding=1), nn.ConvTranspose2d(3, 2, 2, stride=2)
        self.norm, self.act, self.pool = nn.GroupNorm(1, 2), nn.PReLU(), nn.AvgPool2d(2)
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(32, 5))
        self.bn, self.head = nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.act(self.norm(self.up(self.conv(x)))))
        return self.head(torch.relu(self.bn(self.fc(h.flatten(1)))))

    batch = Cnn.batch


NETS: list[type[Net]] = [
    Mlp, Linear, Cnn, Pooled, Flat, ResNet8, Signal, Words, Recurrent, Mixed, Attending,
]  # fmt: skip


def make_net(kind: type[Net]) -> Net:
    """Made of a seed, in training mode, with running statistics unlike those of a fresh net."""
    torch.manual_seed(0)
    net = kind()
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.2)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        nn.init.normal_(norm.running_mean, std=0.3)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return net.train()


def plane_of(model: nn.Module, normalization: str = "filter") -> tuple[Weights, Directions, list[str]]:
    """A random plane through the model: centre, directions, names that move."""
    centre = framework_of(model).state(model)
    names = [name for name, _ in framework_of(model).named_parameters(model)]
    recipe = RandomDirections(names=tuple(names), seed=3, normalization=normalization)
    return centre, recipe.make({name: centre[name] for name in names}), names


def engine_task(model: nn.Module, loss_fn: Any, batches: Any, names: Sequence[str], **more: Any) -> Task:
    """A task for an engine, which gets its plane later."""
    nothing = np.empty(0)
    plane = PlanePlan(
        states=[], names=tuple(names), recipe=Directions(x={}, y={}), x=nothing, y=nothing, points=nothing
    )
    return Task(model=model, loss_fn=loss_fn, batches=batches, planes=[plane], **more)


def engine_at(
    model: nn.Module,
    batches: Any,
    choice: EngineChoice | None = None,
    *,
    loss_fn: Any = CRITERION,
    batch_loss: Any = None,
    normalization: str = "filter",
    mode: str = "standard",
    **evaluation: Any,
) -> Any:
    """An engine at `plane_of` the model."""
    centre, directions, names = plane_of(model, normalization)
    loss = loss_fn if batch_loss is None else BatchLoss(batch_loss)
    asked = Evaluation(**evaluation)
    engine = open_engine(engine_task(model, loss, batches, names, mode=mode, evaluation=asked, choice=choice))
    engine.set_plane(centre, directions)
    return engine


def float64_losses(
    model: nn.Module,
    batches: list[Any],
    loss_fn: Callable[..., Any] = CRITERION,
    normalization: str = "filter",
    points: Any = None,
) -> Any:
    """The plain loop over XS x YS (or points): a float64 copy, every parameter moved, in eval mode."""
    centre, directions, names = plane_of(model, normalization)
    twin = copy.deepcopy(model).double().eval()
    data = [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]
    own = dict(twin.named_parameters())
    losses = []
    for y, x in points if points is not None else [(y, x) for y in YS for x in XS]:
        with torch.no_grad():
            for name in names:
                u, v = (torch.tensor(d[name], dtype=torch.float64) for d in (directions.x, directions.y))
                own[name].copy_(torch.tensor(centre[name], dtype=torch.float64) + x * u + y * v)
            rows = [float(loss_fn(twin(a), b)) * len(b) for a, b in data]
        losses.append(sum(rows) / sum(len(b) for _, b in data))
    return np.array(losses)


def fingerprint(model: nn.Module) -> list[Any]:
    """Every value bit for bit, where it lies, and the flags."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    values = [
        (name, id(t), t.data_ptr(), t.detach().numpy().tobytes(), t.dtype, t.requires_grad, t.stride())
        for name, t in tensors
    ]
    norms = [m.momentum for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [values, [module.training for module in model.modules()], norms]


class Encoding(UserDict):  # type: ignore[type-arg]
    """As BatchEncoding of transformers: items are attributes too, and `to` writes to itself."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]

    def to(self, device: Any) -> "Encoding":
        self.data = {name: tensor.to(device) for name, tensor in self.data.items()}
        return self


@dataclass(frozen=True)
class Data:
    x: Any
    y: Any
