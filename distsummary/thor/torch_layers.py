"""What THOR observes of a layer in a step, and the two factors A and G that it makes of it, by kind of layer.

The formulas are those of MindSpore for GPUs (nn/layer/thor_layer.py, nn/optim/thor.py, 2.10), with x the
input of a layer, d the gradient of its output, B the batch size, s the loss scale and l the damping:

    Linear     A = sum(x x') / inputs              G = mean(d d') B^2 / s^2            over the rows
    Conv2d     A = X X' / P, X = mean(patches(x))  G = D D' B^2 / (P s^2), D = mean(d) over the samples
    Embedding  A = diag(counts) / B                G = mean(d d') B^2 / s^2            over the ids

P is the number of output positions. Both factors are damped by sqrt(l), those of Conv2d by sqrt(l / P), and
each inverse of Conv2d is multiplied by sqrt(1 / P). All of them are made of sums over samples, so that a step
of several batches, and a batch that is divided among ranks, have the factors of the whole batch.
"""

import itertools
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distsummary.frameworks.base import CurvatureDirection
from distsummary.thor import torch_blocks as blocks

Size: TypeAlias = tuple[int, int]
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the samples of a step.

    Attributes:
        a, g: what A and G are made of; shapes by kind of layer.
        count: how many rows, ids or samples were added.
        size: height and width of the images of a convolution; (0, 0) for others, (-1, -1) if they differed.
    """

    a: Tensor
    g: Tensor
    count: int
    size: Size = (0, 0)


@dataclass(frozen=True, slots=True)
class Factors:
    """The undamped factors of a layer.

    Attributes:
        a, g: blocks, see `torch_blocks`, or (n,) for a diagonal A.
        positions: P, by which damping and inverses are divided; 1 for other layers than convolutions.
    """

    a: Tensor
    g: Tensor
    positions: int = 1


class Layer:
    """The layer, or tied layers of a kind, that a weight belongs to. Base of the kinds.

    Attributes:
        name: of the first module that has the weight. weight_name: of the weight itself.
        number: the key by which the operators of `torch_taps` find this object.
        is_due: whether the next backward pass is observed.
        inputs, outputs: the sizes of A and G. groups: how many matrices each of them is.
        dtype: of sums and factors: that of the weight, float32 at least.
    """

    kind: ClassVar[type[nn.Module]]
    inputs: int
    outputs: int
    groups = 1

    def __init__(self, name: str, module: nn.Module) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        self.name, self.number = name or type(module).__name__, next(_NUMBERS)
        self.weight_name = f"{name}.weight".removeprefix(".")
        self.is_due = False
        self.dtype = torch.promote_types(weight.dtype, torch.float32)
        self._sums: Sums | None = None
        LAYERS[self.number] = self

    def observe(self, seen: Tensor, gradient: Tensor) -> None:
        """Add the input of a call of the layer and the gradient of its output."""
        if not self.is_due or not gradient.numel():
            return
        # The backward pass may run under autocast, which would compute the products in a lower precision.
        with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
            found, held = self._sums_of(seen, gradient.to(self.dtype)), self._sums
        if held is None:
            self._sums = found
        elif found.size != held.size:
            # Images of several sizes cannot be added up; the size of the sums says so.
            self._sums = Sums(held.a, held.g, held.count + found.count, (-1, -1))
        else:
            self._sums = Sums(held.a + found.a, held.g + found.g, held.count + found.count, held.size)

    def take(self) -> Sums | None:
        """The sums since the last call, None if nothing was observed; begins with none again."""
        sums, self._sums = self._sums, None
        return sums

    def nothing(self, size: Size, device: torch.device) -> Sums:
        """The sums of no samples."""
        shape_a, shape_g = self._shapes(size)
        a, g = (torch.zeros(shape, dtype=self.dtype, device=device) for shape in (shape_a, shape_g))
        return Sums(a, g, 0, size)

    @property
    def shape_a(self) -> tuple[int, ...]:
        """The shape of A and of its inverse."""
        return blocks.shape_of(self.inputs, groups=self.groups)

    @property
    def shape_g(self) -> tuple[int, ...]:
        """The shape of G and of its inverse."""
        return blocks.shape_of(self.outputs, groups=self.groups)

    @property
    def cost(self) -> int:
        """About how much an inversion computes, to divide layers among ranks."""
        cubes = [math.prod(shape) * shape[-1] for shape in (self.shape_a, self.shape_g) if len(shape) > 1]
        return sum(cubes) + (self.inputs if len(self.shape_a) == 1 else 0)

    def factors(self, sums: Sums, *, batch: int, scale: float) -> Factors:
        """The factors of a step.

        Args:
            sums: of all samples.
            batch: how many samples that is. scale: B^2 / s^2, by which G is multiplied.
        """
        raise NotImplementedError

    def matrix(self, gradient: Tensor) -> Tensor:
        """A gradient of the weight as (groups, outputs, inputs); of an embedding, (1, inputs, outputs)."""
        return gradient.reshape(self.groups, self.outputs, self.inputs)

    def largest(
        self, inverse_a: Tensor, inverse_g: Tensor, weight: Tensor, count: int
    ) -> list[CurvatureDirection]:
        """The largest eigenpairs of the Kronecker product of the damped factors, from their inverses."""
        found: list[CurvatureDirection] = []
        for group in range(self.groups):
            pairs_a, pairs_g = (
                blocks.largest(inverse, size, group, count)
                for inverse, size in ((inverse_a, self.inputs), (inverse_g, self.outputs))
            )
            for value_a, a in pairs_a:
                for value_g, g in pairs_g:
                    vector = torch.zeros(weight.shape, dtype=torch.float64, device=weight.device)
                    # `matrix` returns a view, so this writes into the vector.
                    self.matrix(vector)[group] = self._product(a, g)
                    found.append(
                        CurvatureDirection(
                            value_a * value_g, self.name, {self.weight_name: vector.cpu().numpy()}
                        )
                    )
        return sorted(found, key=lambda one: -one.value)[:count]

    def _product(self, a: Tensor, g: Tensor) -> Tensor:
        """The matrix of an eigenvector of A and one of G, as `matrix` arranges gradients."""
        return torch.outer(g, a)

    def _sums_of(self, seen: Tensor, gradient: Tensor) -> Sums:
        raise NotImplementedError

    def _shapes(self, size: Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of the sums for images of a size."""
        return self.shape_a, self.shape_g


LAYERS: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()


class LinearLayer(Layer):
    """A Linear layer. Its sums are the blocks of sum(x x') and sum(d d')."""

    kind = nn.Linear

    def __init__(self, name: str, module: nn.Linear) -> None:
        super().__init__(name, module)
        self.inputs, self.outputs = module.in_features, module.out_features

    def _sums_of(self, seen: Tensor, gradient: Tensor) -> Sums:
        x = seen.reshape(-1, self.inputs).to(self.dtype)
        d = gradient.reshape(-1, self.outputs)
        return Sums(blocks.outer(x.mT[None]), blocks.outer(d.mT[None]), len(d))

    def factors(self, sums: Sums, *, batch: int, scale: float) -> Factors:
        """See `Layer`. That A is divided by the inputs, not by the rows, is MindSpore's choice for GPUs."""
        return Factors(sums.a / self.inputs, sums.g * (scale / sums.count))


def _padding_of(module: nn.Conv2d) -> list[int]:
    """What is added to an image: left, right, top, bottom."""
    whole = [2 * each for each in module.padding] if isinstance(module.padding, tuple) else [0, 0]
    if module.padding == "same":
        whole = [width * (size - 1) for width, size in zip(module.dilation, module.kernel_size, strict=True)]
    return [part for each in reversed(whole) for part in (each // 2, each - each // 2)]


class ConvLayer(Layer):
    """A Conv2d layer. Its sums are those of the images (C, H, W) and of the gradients (outputs, h, w).

    The mean of patches is the patches of the mean image, so that patches are cut out once. MindSpore cuts
    them out with padding "same" whatever the layer has; here they are those of the layer.
    """

    kind = nn.Conv2d

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        super().__init__(name, module)
        self.groups, self._channels = module.groups, module.in_channels
        self.inputs = math.prod(module.weight.shape[1:])
        self.outputs = module.out_channels // module.groups
        self._window = module.kernel_size, module.dilation, module.stride
        self._mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        self._padding = _padding_of(module)

    def _sums_of(self, seen: Tensor, gradient: Tensor) -> Sums:
        images = seen if seen.dim() == 4 else seen[None]
        d = gradient if gradient.dim() == 4 else gradient[None]
        height, width = images.shape[-2:]
        return Sums(images.to(self.dtype).sum(0), d.sum(0), len(d), (height, width))

    def _shapes(self, size: Size) -> tuple[tuple[int, ...], tuple[int, ...]]:
        (kernel, dilation, stride), pad = self._window, self._padding
        padded = size[0] + pad[2] + pad[3], size[1] + pad[0] + pad[1]
        out = [(padded[at] - dilation[at] * (kernel[at] - 1) - 1) // stride[at] + 1 for at in (0, 1)]
        return (self._channels, *size), (self.groups * self.outputs, *out)

    def factors(self, sums: Sums, *, batch: int, scale: float) -> Factors:
        """See `Layer`."""
        kernel, dilation, stride = self._window
        image = F.pad((sums.a / sums.count)[None], self._padding, mode=self._mode)
        patches = F.unfold(image, kernel, dilation=dilation, stride=stride)
        positions = patches.shape[-1]
        x = patches.reshape(self.groups, self.inputs, positions)
        d = (sums.g / sums.count).reshape(self.groups, self.outputs, positions)
        return Factors(blocks.outer(x) / positions, blocks.outer(d) * (scale / positions), positions)


class EmbeddingLayer(Layer):
    """An Embedding. Its sums are the counts of ids (inputs,) and sum(d d') as one block.

    MindSpore multiplies the Cholesky factor of G by itself without transposing one of them, which is no
    inverse; here G is inverted.
    """

    kind = nn.Embedding

    def __init__(self, name: str, module: nn.Embedding) -> None:
        super().__init__(name, module)
        self.inputs, self.outputs = module.num_embeddings, module.embedding_dim

    @property
    def shape_a(self) -> tuple[int, ...]:
        """See `Layer`: A is diagonal."""
        return (self.inputs,)

    @property
    def shape_g(self) -> tuple[int, ...]:
        """See `Layer`: MindSpore does not divide this G into blocks."""
        return blocks.shape_of(self.outputs, width=self.outputs)

    def _sums_of(self, seen: Tensor, gradient: Tensor) -> Sums:
        counts = torch.bincount(seen.reshape(-1), minlength=self.inputs).to(self.dtype)
        d = gradient.reshape(-1, self.outputs)
        return Sums(counts, blocks.outer(d.mT[None], width=self.outputs), len(d))

    def factors(self, sums: Sums, *, batch: int, scale: float) -> Factors:
        """See `Layer`."""
        return Factors(sums.a / batch, sums.g * (scale / sums.count))

    def matrix(self, gradient: Tensor) -> Tensor:
        """See `Layer`."""
        return gradient[None]

    def _product(self, a: Tensor, g: Tensor) -> Tensor:
        return torch.outer(a, g)


KINDS: tuple[type[Layer], ...] = (LinearLayer, ConvLayer, EmbeddingLayer)


def kind_of(module: nn.Module) -> type[Layer] | None:
    """The kind of a module that THOR has factors for; None for any other module."""
    return next((kind for kind in KINDS if isinstance(module, kind.kind)), None)


def second_order(net: nn.Module) -> Iterator[tuple[str, nn.Module, type[Layer]]]:
    """The modules with a trained weight that THOR has factors for: name, module and kind.

    As in MindSpore, those are left out whose name contains "wide" or "rpn_with_loss.rpn_convs_list.".
    """
    for name, module in net.named_modules():
        kind = kind_of(module)
        if kind is None or any(
            part in f"{name}.".lower() for part in ("rpn_with_loss.rpn_convs_list.", "wide")
        ):
            continue
        if isinstance(weight := getattr(module, "weight", None), Tensor) and weight.requires_grad:
            yield name, module, kind
