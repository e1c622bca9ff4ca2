"""The tasks of the landscape benchmark: models, a batch and a plane each, as files that every peer reads."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

SIZE = 51  # points along each side of the grid that a task stands for


class Task(NamedTuple):
    """A model's kind, the rows of its one batch, and how many steps it is trained before it is mapped."""

    model: str
    rows: int
    steps: int


TASKS = {
    "mlp1797": Task("mlp", 1797, 60),
    "mlp32": Task("mlp", 32, 20),
    "cnn512": Task("cnn", 512, 20),
    "cnn16": Task("cnn", 16, 20),
    "resnet20n32": Task("resnet20", 32, 3),
    "resnet20n2": Task("resnet20", 2, 3),
}
LARGE = {"resnet56n256": Task("resnet56", 256, 3)}  # for GPUs


class Block(nn.Module):
    """Two 3 x 3 convolutions with BN next to a shortcut (He et al. 2016, section 4.2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """The CIFAR ResNet of depth 6 n + 2: 16, 32 and 64 channels."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        blocks, inputs = [], 16
        for outputs, stride in ((16, 1), (32, 2), (64, 2)):
            for k in range(n):
                blocks.append(Block(inputs, outputs, stride if k == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, 32, 32) -> (n, 10)."""
        h = self.blocks(torch.relu(self.bn(self.conv(x))))
        return self.fc(h.mean(dim=(2, 3)))


def make_model(kind: str) -> nn.Module:
    """A fresh model: "mlp" 17,226 parameters, "cnn" 38,282, "resnet20" 272,474, "resnet56" 855,770."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
    return ResNet((int(kind.removeprefix("resnet")) - 2) // 6)


def make_batch(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of real digits (8 x 8, zero mean); random pictures of 32 x 32 for the ResNets."""
    if task.model.startswith("resnet"):
        generator = torch.Generator().manual_seed(task.rows)
        pictures = torch.randn(task.rows, 3, 32, 32, generator=generator)
        return pictures, torch.randint(0, 10, (task.rows,), generator=generator)
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data[: task.rows] / 8.0 - 1.0, dtype=torch.float32)
    labels = torch.tensor(digits.target[: task.rows])
    return (x if task.model == "mlp" else x.reshape(-1, 1, 8, 8)), labels


def write_task(name: str, directory: Path) -> Path:
    """Train the task's model a little, draw filter-normalised directions, write all to a file."""
    from distsummary.frameworks.base import framework_of
    from distsummary.landscapes.directions.recipe import RandomDirections

    task = (TASKS | LARGE)[name]
    torch.manual_seed(0)
    model, (x, labels) = make_model(task.model), make_batch(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(task.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    state = framework_of(model).state(model)
    names = tuple(n for n, _ in model.named_parameters())
    axes = RandomDirections(names=names).make({n: state[n] for n in names})
    path = directory / f"{name}.npz"
    arrays: dict[str, Any] = {f"state/{n}": a for n, a in state.items()}
    arrays |= {f"x/{n}": a for n, a in axes.x.items()} | {f"y/{n}": a for n, a in axes.y.items()}
    meta = json.dumps({"model": task.model, "names": names})
    np.savez(path, inputs=x.numpy(), labels=labels.numpy(), meta=np.array(meta), **arrays)
    return path


class Problem:
    """What `write_task` wrote: `state`, `x`, `y` by name (float32), `names` that move, inputs and labels."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path) as saved:
            parts = {key: saved[key] for key in saved.files}
        meta = json.loads(str(parts.pop("meta")))
        self.kind, self.names = meta["model"], tuple(meta["names"])
        self.inputs, self.labels = parts.pop("inputs"), parts.pop("labels")
        groups: dict[str, dict[str, np.ndarray]] = {"state": {}, "x": {}, "y": {}}
        for key, array in parts.items():
            group, _, name = key.partition("/")
            groups[group][name] = array
        self.state, self.x, self.y = groups["state"], groups["x"], groups["y"]

    def torch_parts(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Any, Any]]:
        """The model in eval mode and its batch."""
        model = make_model(self.kind)
        model.load_state_dict({n: torch.tensor(a) for n, a in self.state.items()})
        batch = (torch.tensor(self.inputs, dtype=dtype), torch.tensor(self.labels))
        return model.to(dtype).eval(), batch

    def torch_axes(self, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The directions in the order of the model's parameters."""
        axes = ([torch.tensor(d[n], dtype=dtype) for n in self.names] for d in (self.x, self.y))
        return next(axes), next(axes)


def exact_losses(problem: Problem, points: list[tuple[float, float]]) -> np.ndarray:
    """The float64 loop: losses at points of the plane."""
    model, batch = problem.torch_parts(torch.float64)
    centre = [p.detach().clone() for p in model.parameters()]
    axes = problem.torch_axes(torch.float64)
    with torch.no_grad():
        return np.array([
            _loss_at(model, batch, [c + x * u + y * v for c, u, v in zip(centre, *axes, strict=True)])
            for x, y in points
        ])  # fmt: skip


def _loss_at(model: nn.Module, batch: tuple[Any, Any], values: list[torch.Tensor]) -> float:
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.copy_(value)
    return float(nn.functional.cross_entropy(model(batch[0]), batch[1]))


def flops_per_point(problem: Problem) -> int:
    """Of the unmodified forward over the batch, by torch's own counter (convolutions and matrix products)."""
    from torch.utils.flop_counter import FlopCounterMode

    model, (x, _) = problem.torch_parts()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    return int(counter.get_total_flops())
