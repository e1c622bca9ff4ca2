"""A batch in tiles: groups of its rows whose slots stay in a core's cache while the point moves.

Where a reading is a sum over the rows of a batch, or a mean, tiles can be evaluated one after another and
their readings added, in float64: what overflows in a float32 sum over all rows may be finite in tiles. A
batch of any other loss stays whole.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_affine import Parts
from distsummary.landscapes.engines.graph.torch_rows import (
    ADDED,
    LOSSES,
    MEAN,
    MEANS,
    STATE,
    SUM,
    VIEWS,
    common_shape,
    has_rows,
    reduction,
)
from distsummary.landscapes.engines.graph.torch_trace import Node, aten, emit, placeholders, results

CACHE_BYTES = 1 << 20  # of a core's own, that slots may fill: at the centre, along x, at the point
ROWS = 16  # a tile has a multiple of them: where rows begin in the middle of a cache line products are slower
LEAST_GAIN = 2  # slots must be so many times what moves with every tile


class Tile(NamedTuple):
    """Rows of a batch: `size` from `start` on."""

    start: int
    size: int


def tiles(parts: Parts) -> list[Tile]:
    """The tiles that a batch of a marked and cut graph had better be evaluated in; none: keep it whole."""
    own, shared = (
        [n.meta["val"] for n in placeholders(parts.point.graph)[of]]
        for of in (slice(parts.shared, parts.slots), slice(parts.shared))
    )
    if not own or not _is_sum(parts):
        return []
    own_bytes, shared_bytes = (sum(t.numel() * t.element_size() for t in part) for part in (own, shared))
    count = math.ceil(3 * own_bytes / CACHE_BYTES)
    if count < 2 or own_bytes < LEAST_GAIN * count * shared_bytes:
        return []
    slot = placeholders(parts.point.graph)[parts.shared]
    rows = slot.meta["val"].shape[slot.meta[STATE]]
    size = math.ceil(rows / count / ROWS) * ROWS
    return [] if size >= rows else [Tile(start, min(size, rows - start)) for start in range(0, rows, size)]


def _is_sum(parts: Parts) -> bool:
    """Whether the readings are sums over rows of what slots with rows give."""
    nodes = [node for node in parts.point.graph.nodes if node.op != "output"]
    own = placeholders(parts.point.graph)[parts.shared : parts.slots]
    return (
        all(STATE in node.meta for node in nodes if node.users)
        and all(has_rows(node) for node in own)
        and all(node.meta[STATE] == SUM for node in results(parts.point.graph))
    )


def narrowed(tensors: Sequence[Tensor], inputs: Sequence[Node], tile: Tile) -> list[Tensor]:
    """What of the values of marked inputs belongs to a tile."""
    return [
        tensor.narrow(node.meta[STATE], *tile) if has_rows(node) else tensor
        for tensor, node in zip(tensors, inputs, strict=True)
    ]


def resized(whole: fx.GraphModule, size: int) -> fx.GraphModule:
    """A marked graph for tiles of so many rows. Means become sums divided by what the whole batch counts."""
    graph = fx.Graph()
    new: dict[Node, Node] = {}
    for node in whole.graph.nodes:
        if node.op == "placeholder":
            new[node] = graph.placeholder(node.name)
            outline = narrowed([node.meta["val"]], [node], Tile(0, size))[0]
            new[node].meta["val"] = torch.empty_like(outline)
        elif node.op == "call_function":
            new[node] = _resized(graph, node, size, new)
        else:
            graph.output(fx.node.map_arg(node.args[0], new.__getitem__))
    return fx.GraphModule({}, graph)


def _resized(graph: fx.Graph, node: Node, size: int, new: dict[Node, Node]) -> Node:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), new.__getitem__)
    is_sum = node.meta.get(STATE) == SUM
    if has_rows(node) and (node.target in VIEWS or node.target is aten.expand.default):
        shape = list(args[1])
        shape[node.meta[STATE]] = size
        return emit(graph, node.target, args[0], shape, *args[2:], **kwargs)
    if is_sum and node.target in MEANS:
        count = node.args[0].meta["val"].numel() / node.meta["val"].numel()
        return _divided(graph, emit(graph, MEANS[node.target], *args, **kwargs), count)
    if is_sum and node.target in LOSSES and reduction(node) == MEAN:
        at = LOSSES[node.target]
        padded = [*args, *(a.default_value for a in node.target._schema.arguments[len(args) : at])]
        summed = emit(graph, node.target, *padded[:at], ADDED, *padded[at + 1 :], **kwargs)
        return _divided(graph, summed, math.prod(common_shape(node)))
    return emit(graph, node.target, *args, **kwargs)


def _divided(graph: fx.Graph, summed: Node, count: float) -> Node:
    return emit(graph, aten.mul.Scalar, summed, 1 / count)
