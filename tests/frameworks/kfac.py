"""How THOR's factors follow from those of curvlinops' KFAC, layer by layer.

With N samples, P positions of a sample (of a convolution's output, or of a sequence), x the input at a
position (of a convolution: the patch) and d the gradient there of the mean loss, curvlinops has

    KFAC-expand  A = mean of x x' over samples and positions       G = N sum(d d') over samples and positions
    KFAC-reduce  A = mean of m m' over samples, m = mean(x)        G = N sum(s s') over samples, s = sum(d)

without a row of A for the bias. From those of THOR, with batch_size = N and no loss scale, expand's are

    Linear     A inputs / (N P)           P G
    Embedding  A / P                      P G                        as a Linear layer of one-hot vectors
    Conv2d     A + mean of Cov(x)         P G + N^2 sum of Cov(d)    means and sums over positions

where Cov is the covariance over the samples at one position, divided by N: E[x x'] = E[x] E[x]' + Cov(x), and
MindSpore averages over the samples first. It is 0 for one sample; with more of them no number alone turns one
into the other, which `least` shows. A group of a convolution is compared with a layer of its own, since
curvlinops averages the groups.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distsummary.thor import THOR
from distsummary.thor.torch_layers import ConvLayer, EmbeddingLayer, Layer

SAMPLES, POSITIONS, IDS, CLASSES = (1, 8), 4, 9, 3
LOSS = nn.CrossEntropyLoss()
Pair = tuple[Tensor, Tensor]  # A and G


class Mean(nn.Module):
    """The mean over a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, P, C) -> (N, C)."""
        return x.mean(1)


class Split(nn.ModuleList):
    """A grouped convolution as one layer for each group."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        channels, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        for weight in conv.weight.detach().chunk(conv.groups):
            one = nn.Conv2d(
                channels, outputs, conv.kernel_size, conv.stride, conv.padding, conv.dilation, bias=False
            )
            one.weight = nn.Parameter(weight.clone())
            self.append(one)

    def forward(self, x: Tensor) -> Tensor:
        """As the convolution."""
        return torch.cat([one(part) for one, part in zip(self, x.chunk(len(self), 1), strict=True)], 1)


class OneHot(nn.Module):
    """Ids to one-hot vectors."""

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., IDS)."""
        return F.one_hot(ids, IDS).double()


class Case(NamedTuple):
    """A network, its twin of the layers that curvlinops knows, and a batch."""

    net: nn.Sequential
    twin: nn.Sequential
    x: Tensor
    y: Tensor


class Compared(NamedTuple):
    """A factor of THOR next to theirs.

    Attributes:
        layer: its name, with the group of a convolution. factor: "A" or "G".
        ours: as THOR has it. related: from it, what theirs should be.
    """

    layer: str
    factor: str
    ours: Tensor
    related: Tensor


def waves(*shape: int, phase: float) -> Tensor:
    """Numbers in [-1, 1] without order, the same on every machine; float64."""
    at = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(at.square() + phase).reshape(shape)


def cases(samples: int) -> Iterator[Case]:
    """Networks of all kinds of layers that THOR has Kronecker factors for."""
    images = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(2, 4, 3, padding=1),
            tanh=nn.Tanh(),
            grouped=nn.Conv2d(4, 6, (3, 2), stride=(1, 2), dilation=(2, 1), groups=2, bias=False),
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            linear=nn.Linear(6, CLASSES),
        )
    )
    words = nn.Sequential(
        OrderedDict(embedding=nn.Embedding(IDS, 5), sequence=nn.Linear(5, CLASSES), mean=Mean())
    )
    ids = (waves(samples, POSITIONS, phase=1).add(1) * IDS / 2.001).long()
    y = torch.arange(samples) % CLASSES
    for net, x in ((images, waves(samples, 2, 6, 6, phase=2)), (words, ids)):
        for number, parameter in enumerate(net.double().parameters()):
            parameter.data = waves(*parameter.shape, phase=number)
        yield Case(
            net, nn.Sequential(OrderedDict((name, twin(of)) for name, of in net.named_children())), x, y
        )


def twin(module: nn.Module) -> nn.Module:
    """The same function by layers that curvlinops knows."""
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return Split(module)
    if isinstance(module, nn.Embedding):
        linear = nn.Linear(IDS, module.embedding_dim, bias=False)
        linear.weight = nn.Parameter(module.weight.detach().mT.clone())
        return nn.Sequential(OneHot(), linear)
    return module


def ours(case: Case) -> Iterator[Compared]:
    """THOR's factors of a step, and what they are related to."""
    net, samples = case.net, len(case.y)
    optimizer = THOR(net, 0.1, 0.1, batch_size=samples)
    seen: dict[str, list[Tensor]] = {}

    def keep(name: str, x: Tensor, output: Tensor) -> None:
        output.retain_grad()
        seen[name] = [x, output]

    handles = [
        net.get_submodule(layer.name).register_forward_hook(
            lambda module, inputs, output, name=layer.name: keep(name, inputs[0].detach(), output)
        )
        for layer in optimizer._layers.values()
    ]
    LOSS(net(case.x), case.y).backward()
    for handle in handles:
        handle.remove()
    for layer in optimizer._layers.values():
        x, output = seen[layer.name]
        sums = layer.take()
        assert sums is not None
        assert output.grad is not None
        factors = layer.factors(sums, batch=samples, scale=samples**2)
        for group in range(layer.groups):
            a = factors.a.diag() if factors.a.dim() == 1 else factors.a[group, 0]
            pair = a, factors.g[group, 0]
            name = f"{layer.name}.{group}" if layer.groups > 1 else layer.name
            found = expanded(layer, net.get_submodule(layer.name), group, pair, (x, output.grad))
            for factor, own, related in zip("AG", pair, found, strict=True):
                yield Compared(name, factor, own, related)


def expanded(layer: Layer, module: nn.Module, group: int, pair: Pair, seen: Pair) -> Pair:
    """KFAC-expand's A and G from those of THOR; `seen` are the layer's inputs and its outputs' gradients."""
    (a, g), (x, d), samples = pair, seen, len(seen[0])
    if isinstance(layer, ConvLayer):
        assert isinstance(module, nn.Conv2d)
        assert not isinstance(module.padding, str)
        patches = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        x = patches.view(samples, layer.groups, layer.inputs, -1)[:, group]
        d = d.reshape(samples, layer.groups, layer.outputs, -1)[:, group]
        positions = x.shape[-1]
        return a + covariance(x) / positions, positions * g + samples**2 * covariance(d)
    positions = d[0].numel() // layer.outputs
    if isinstance(layer, EmbeddingLayer):
        return a / positions, positions * g
    return a * layer.inputs / (samples * positions), positions * g


def covariance(x: Tensor) -> Tensor:
    """The sum over positions of the covariance over samples, (n, n), of x (samples, n, positions)."""
    centred = x - x.mean(0)
    return torch.einsum("sip,sjp->ij", centred, centred) / len(x)


def off(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest element of the other."""
    return float((one - other).abs().max() / other.abs().max())


def least(one: Tensor, other: Tensor) -> float:
    """min over numbers c of |c one - other| / |other|, in the Frobenius norm: 0 for multiples."""
    nearest = one * ((one * other).sum() / one.square().sum())
    return float((nearest - other).norm() / other.norm())
