"""Weights of convolutions of several points in oneDNN's own order: they move there, so no call reorders them.

A convolution of one point reorders little. Those of several points have as many weights: at 64 channels that
took a third of their time.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_slots import ChunkFlat
from distsummary.landscapes.engines.graph.torch_trace import (
    Node,
    aten,
    is_channels_last,
    placeholders,
    uses_onednn,
)

# All of them are there, or oneDNN is not.
REORDER: Any = getattr(torch.ops.mkldnn, "_reorder_convolution_weight", None)
CONVOLUTION: Any = getattr(torch.ops.mkldnn, "_convolution_pointwise", None)
ADDRESS: Any = getattr(torch.ops.mkldnn, "data_ptr", None)
NBYTES: Any = getattr(torch.ops.mkldnn, "_nbytes", None)
EXACT_IN_FLOAT32 = 1 << 24  # whole numbers


def pack_weights(graph: fx.Graph, arguments: Sequence[Tensor], slots: ChunkFlat) -> dict[int, Tensor]:
    """Let convolutions take packed weights that the slots move; returns what the graph takes, by number."""
    found: dict[int, Tensor] = {}
    if None in (REORDER, CONVOLUTION, ADDRESS, NBYTES) or not uses_onednn():
        return found
    names, layers = [slots.name_of(argument) for argument in arguments], dict[int, Node]()
    for number, (node, name) in enumerate(zip(placeholders(graph), names, strict=True)):
        layer = next(iter(node.users)) if len(node.users) == 1 else None
        if name is None or names.count(name) > 1 or layer is None or not _takes(layer, node):
            continue  # who else reads the slot would find nothing
        packed = _packed(arguments[number], layer, slots, name)
        if packed is not None:
            found[number], layers[number] = packed, layer
    for layer in layers.values():
        picture, weight, bias, stride, padding, dilation, _, _, groups = layer.args
        layer.args = (picture, weight, bias, padding, stride, dilation, groups, "none", [], None)
        layer.target = CONVOLUTION.default
    return found


def _takes(layer: Node, weight: Node) -> bool:
    """Whether oneDNN reads the pictures of a convolution as they lie."""
    if layer.target is not aten.convolution.default or layer.args[1] is not weight or layer.args[6]:
        return False
    picture = layer.args[0].meta["val"]
    return is_channels_last(picture) and picture.dtype == torch.float32


def _packed(weight: Tensor, layer: Node, slots: ChunkFlat, name: str) -> Tensor | None:
    """The weights of all points, whose memory the slot has from now on; None where that cannot be."""
    _, _, _, stride, padding, dilation, _, _, groups = layer.args
    block, size = slots.block(name), list(layer.args[0].meta["val"].shape)
    if not _is_all_of(weight, block):
        return None

    def packed(values: Tensor) -> Tensor:
        as_it_lies = torch.empty_like(weight).copy_(values.reshape(weight.shape))
        made: Tensor = REORDER(as_it_lies, padding, stride, dilation, groups, size)
        return made

    whole = packed(weight)
    order = _order(block, lambda marks: _numbers(packed(marks)))
    if order is None:
        return None
    slots.lay(name, whole, _memory(whole).view(len(block), -1), lambda one: one.reshape(-1)[order])
    return whole


def _is_all_of(weight: Tensor, block: Tensor) -> bool:
    """Whether weights are the points' blocks as they lie, and not turned, as with rows for columns."""
    if block.dim() != 5 or weight.shape != (len(block) * block.shape[1], *block.shape[2:]):
        return False
    return weight.stride() == block.stride()[1:] and weight.data_ptr() == block.data_ptr()


def _order(block: Tensor, packed: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Where the numbers of a point's packed weights come from; None unless each point's are a block."""
    count, each = len(block), block[0].numel()
    if each > EXACT_IN_FLOAT32:
        return None
    points = torch.arange(count, dtype=block.dtype).view(-1, 1, 1, 1, 1).expand_as(block)
    places = torch.arange(each, dtype=block.dtype).view(block.shape[1:]).expand_as(block)
    of_point, from_place = packed(points), packed(places)
    if of_point.numel() != block.numel():  # filled up, to whole blocks of channels
        return None
    of_point, from_place = of_point.view(count, -1), from_place.view(count, -1)
    is_apart = bool((of_point == points[:, :1, 0, 0, 0]).all() and (from_place == from_place[0]).all())
    order = from_place[0].long()
    return order if is_apart and torch.equal(order.sort().values, torch.arange(each)) else None


def _numbers(packed: Tensor) -> Tensor:
    return _memory(packed).clone()


def _memory(packed: Tensor) -> Tensor:
    """What a packed tensor's numbers lie in, while that lives."""
    place = (ctypes.c_char * NBYTES(packed)).from_address(ADDRESS(packed))
    return torch.frombuffer(place, dtype=packed.dtype)
