"""An oracle: MindSpore's THOR for GPUs in NumPy, float64, with whole matrices, loops and np.linalg.inv.

Written from nn/optim/thor.py and nn/layer/thor_layer.py of MindSpore 2.10, not from distsummary/thor. Two
things are as documented for ours: patches of a convolution are cut out with its own padding and dilation,
and G of an embedding is inverted.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


class Oracle:
    """Trains a copy of a network on the cross entropy; `step` returns its parameters by name.

    Args:
        net: float64. others: as those of THOR; `decays(name)`: whether a parameter decays.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        lr: float,
        damping: float,
        momentum: float,
        batch: int,
        frequency: int,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        nesterov: bool = False,
        clip: bool = False,
        decays: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.net = copy.deepcopy(net)
        self.lr, self.damping, self.momentum, self.batch = lr, damping, momentum, batch
        self.frequency, self.weight_decay, self.loss_scale = frequency, weight_decay, loss_scale
        self.nesterov, self.clip, self.decays = nesterov, clip, decays
        self.count = 0
        self.inverses: dict[str, tuple[list[Array], list[Array]]] = {}
        self.moments: dict[str, Array] = {}

    def step(self, x: Tensor, y: Tensor) -> dict[str, Array]:
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
        handles = []
        for name, module in self.net.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.Embedding):

                def keep(module: nn.Module, inputs: Any, output: Tensor, name: str = name) -> None:
                    output.retain_grad()
                    calls.setdefault(name, []).append((inputs[0], output))

                handles.append(module.register_forward_hook(keep))
        self.net.zero_grad()
        (nn.functional.cross_entropy(self.net(x), y) * self.loss_scale).backward()
        for handle in handles:
            handle.remove()
        if self.count % self.frequency == 0:
            for name, seen in calls.items():
                self.inverses[name] = self.invert(self.net.get_submodule(name), *seen[0])
        for name, parameter in self.net.named_parameters():
            owner, _, kind = name.rpartition(".")
            self.update(name, self.net.get_submodule(owner), kind, parameter)
        self.count += 1
        return {name: parameter.detach().numpy().copy() for name, parameter in self.net.named_parameters()}

    def invert(self, module: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Array], list[Array]]:
        """Inverses of A and G, one of each for each group."""
        d, seen = y.grad.numpy(), x.detach().numpy()
        scale = self.batch**2 / self.loss_scale**2
        if isinstance(module, nn.Embedding):
            a = np.array([(seen == number).sum() for number in range(module.num_embeddings)]) / self.batch
            d = d.reshape(-1, module.embedding_dim)
            g = d.T @ d / len(d) * scale
            root = np.sqrt(self.damping)
            return [1 / (a + root)], [np.linalg.inv(g + root * np.eye(len(g)))]
        if isinstance(module, nn.Linear):
            seen, d = seen.reshape(-1, module.in_features), d.reshape(-1, module.out_features)
            a, g = seen.T @ seen / module.in_features, d.T @ d / len(d) * scale
            root = np.sqrt(self.damping)
            return [blockwise(a, root)], [blockwise(g, root)]
        assert isinstance(module, nn.Conv2d)
        inverses: tuple[list[Array], list[Array]] = ([], [])
        per_in, per_out = module.in_channels // module.groups, module.out_channels // module.groups
        for group in range(module.groups):
            patches = np.mean([cut(module, image[group * per_in :][:per_in]) for image in seen], axis=0)
            positions = patches.shape[1]
            mean = d.mean(0)[group * per_out :][:per_out].reshape(per_out, -1)
            root = np.sqrt(self.damping / positions)
            feature_map = np.sqrt(1 / positions)
            inverses[0].append(blockwise(patches @ patches.T / positions, root) * feature_map)
            inverses[1].append(blockwise(mean @ mean.T / positions * scale, root) * feature_map)
        return inverses

    def update(self, name: str, module: nn.Module, kind: str, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            return
        value, gradient = parameter.detach().numpy(), parameter.grad.numpy() / self.loss_scale
        owner = name.rpartition(".")[0]
        if kind == "weight" and owner in self.inverses:
            all_a, all_g = self.inverses[owner]
            if isinstance(module, nn.Embedding):
                gradient = all_a[0][:, None] * gradient @ all_g[0]
            else:
                parts = np.split(gradient.reshape(len(gradient), -1), len(all_g))
                done = [g @ part @ a for a, g, part in zip(all_a, all_g, parts, strict=True)]
                gradient = np.concatenate(done).reshape(gradient.shape)
        elif isinstance(module, nn.LayerNorm):
            gradient = gradient / (gradient**2 / self.batch + np.sqrt(self.damping))
        if self.weight_decay and self.decays(name):
            gradient = gradient + self.weight_decay * value
        if self.clip:
            gradient = gradient / max(np.linalg.norm(gradient), 1.0)
        moment = self.momentum * self.moments.get(name, np.zeros_like(gradient)) + gradient
        self.moments[name] = moment
        change = gradient + self.momentum * moment if self.nesterov else moment
        value -= self.lr * change  # in the parameter's own memory


def blockwise(matrix: Array, damping: float, width: int = 128) -> Array:
    """The inverse of the damped diagonal blocks, zero elsewhere."""
    whole = np.zeros_like(matrix)
    for begin in range(0, len(matrix), width):
        place = slice(begin, begin + width)
        block = matrix[place, place]
        whole[place, place] = np.linalg.inv(block + damping * np.eye(len(block)))
    return whole


def cut(module: nn.Conv2d, image: Array) -> Array:
    """The patches (channels * kernel, positions) of an image (channels, H, W)."""
    (rows, columns), (down, right) = module.kernel_size, module.stride
    if module.padding == "same":
        total = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
        pads = [(one // 2, one - one // 2) for one in total]
    else:
        assert not isinstance(module.padding, str)
        pads = [(one, one) for one in module.padding]
    mode = {"zeros": "constant", "reflect": "reflect", "replicate": "edge"}[module.padding_mode]
    padded = np.pad(image, [(0, 0), *pads], mode=mode)  # type: ignore[call-overload]
    reach = [step * (size - 1) + 1 for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    patches = []
    for top in range(0, padded.shape[1] - reach[0] + 1, down):
        for left in range(0, padded.shape[2] - reach[1] + 1, right):
            at_rows = top + module.dilation[0] * np.arange(rows)
            at_columns = left + module.dilation[1] * np.arange(columns)
            patches.append(padded[:, at_rows[:, None], at_columns[None]].reshape(-1))
    return np.array(patches).T
