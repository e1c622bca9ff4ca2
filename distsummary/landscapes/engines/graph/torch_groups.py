"""Convolutions of several points: one with as many groups, whose pictures are views of the points' pictures.

Points' pictures (points, n, c, h, w) go in as (n, points * c, h, w), as vmap does it. In channels-last memory
that is a view, where the channels of all points lie side by side.
"""

from typing import Any

import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_trace import Node, aten, emit

POINTS_FIRST = [1, 0, 2, 3, 4]  # also the way back


def behind(node: Any) -> Node | None:
    """The convolution of several points whose result, point by point, a node is; it is read once."""
    if getattr(node, "target", None) is not aten.permute.default:
        return None
    split = node.args[0]
    if list(node.args[1]) != POINTS_FIRST or split.target is not aten.view.default:
        return None
    whole = split.args[0]
    is_alone = len(node.users) == len(split.users) == len(whole.users) == 1
    return whole if is_alone and whole.target is aten.convolution.default else None


def take_in_biases(graph: fx.Graph) -> None:
    """What is added to each channel behind a convolution of several points becomes its bias.

    vmap adds biases itself, in a pass of its own.
    """
    for node in list(graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs:
            continue
        for points, bias in (node.args, node.args[::-1]):
            layer = behind(points)
            if layer is not None and layer.args[2] is None and _is_by_channel(bias, points.meta["val"]):
                with graph.inserting_before(node):
                    node.replace_all_uses_with(_with_bias(graph, layer, points, bias))
                break
    graph.eliminate_dead_code()


def _is_by_channel(bias: Any, points: Tensor) -> bool:
    """Whether what is added is the same at all places of a picture, and for all pictures of a point."""
    if not isinstance(bias, fx.Node) or bias.meta["val"].dtype != points.dtype:
        return False
    shape = bias.meta["val"].shape
    count, _, c, _, _ = points.shape
    padded = (1,) * (5 - len(shape)) + tuple(shape)
    return len(shape) <= 5 and all(
        size in (1, limit) for size, limit in zip(padded, (count, 1, c, 1, 1), strict=True)
    )


def _with_bias(graph: fx.Graph, layer: Node, points: Node, bias: Node) -> Node:
    count, n, c, h, w = points.meta["val"].shape
    whole = emit(graph, aten.expand.default, bias, [count, 1, c, 1, 1])
    whole = emit(graph, aten.clone.default, whole, memory_format=torch.contiguous_format)
    whole = emit(graph, aten.view.default, whole, [count * c])
    made = emit(graph, aten.convolution.default, *layer.args[:2], whole, *layer.args[3:])
    made.meta["val"] = layer.meta["val"]  # as it lay: outlines do not tell
    split = emit(graph, aten.view.default, made, [n, count, c, h, w])
    return emit(graph, aten.permute.default, split, POINTS_FIRST)
