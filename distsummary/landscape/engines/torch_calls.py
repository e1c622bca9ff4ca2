"""A small graph whose inputs stay where they are, as calls without arguments.

Where tensors are small, allocating results, viewing them and looking operations up costs as much as the
arithmetic. Here every result has its memory from the beginning.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.landscape.engines.torch_trace import Node, aten, is_view, placeholders, results

KEPT_BYTES = 64 << 20  # of results; a larger graph had better free what it needs no more

# What writes its result where it is told to; torch's own functions are called faster than aten's.
INTO: dict[Any, Any] = {
    aten.mm.default: torch.mm, aten.addmm.default: torch.addmm, aten.bmm.default: torch.bmm,
    aten.baddbmm.default: torch.baddbmm, aten.mv.default: torch.mv, aten.dot.default: torch.dot,
    aten.add.Tensor: torch.add, aten.sub.Tensor: torch.sub, aten.mul.Tensor: torch.mul,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid, aten._log_softmax.default: aten._log_softmax.out,
    aten._softmax.default: aten._softmax.out, aten.index_select.default: torch.index_select,
    aten.gather.default: torch.gather, aten.where.self: torch.where,
}  # fmt: skip
WRITES: dict[Any, Any] = {aten.relu_.default: torch.relu_, aten.add_.Tensor: Tensor.add_}


def bind(
    graph: fx.Graph, arguments: Sequence[Tensor], memory: dict[Node, Tensor]
) -> Callable[[], tuple[Tensor, ...]] | None:
    """The graph's operations on these arguments; None where one of them must make its result anew.

    `memory` holds what is made on the way to the results: graphs that run one after another may share it.
    """
    if not _fits(graph):
        return None
    own = {_root(node) for node in results(graph)}
    values: dict[Node, Any] = dict(zip(placeholders(graph), arguments, strict=True))
    calls = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if is_view(node):
            values[node] = node.target(*args, **kwargs)
        elif node.target in WRITES:
            values[node] = args[0]
            calls.append(partial(WRITES[node.target], *args, **kwargs))
        else:
            if node in own or node not in memory:
                memory[node] = _empty(node, arguments[0].device)
            values[node] = memory[node]
            calls.append(partial(INTO[node.target], *args, **kwargs, out=values[node]))
    found = tuple(values[node] for node in results(graph))

    def run() -> tuple[Tensor, ...]:
        for call in calls:
            call()
        return found

    return run


def _fits(graph: fx.Graph) -> bool:
    calls = [node for node in graph.nodes if node.op == "call_function" and not is_view(node)]
    made = [node.meta["val"] for node in calls if node.target not in WRITES]
    is_known = all(node.target in INTO or node.target in WRITES for node in calls)
    return is_known and sum(o.numel() * o.element_size() for o in made) <= KEPT_BYTES


def _root(node: Node) -> Node:
    """The node whose memory a node's result lies in."""
    while is_view(node) or node.target in WRITES:
        node = node.args[0]
    return node


def _empty(node: Node, device: torch.device) -> Tensor:
    like = node.meta["val"]
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
