"""A small graph whose inputs stay where they are, as calls without arguments.

Where tensors are small, allocating results, viewing them and looking operations up costs as much as the
arithmetic. Here every result has its memory from the beginning.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_trace import Node, aten, is_view, placeholders, results

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
    for node in {_root(node) for node in results(graph)}:
        memory.pop(node, None)
    places = _places(graph)
    values: dict[Node, Any] = dict(zip(placeholders(graph), arguments, strict=True))
    calls: list[Callable[[], Any]] = []
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
            values[node] = _memory(node, places, memory, arguments[0].device)
            if _is_stack(node):
                calls += _copies(node, values, places)
            else:
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
    is_known = all(node.target in INTO or node.target in WRITES or _is_stack(node) for node in calls)
    return is_known and sum(o.numel() * o.element_size() for o in made) <= KEPT_BYTES


def _is_stack(node: Node) -> bool:
    """Whether a node lays tensors of one type one below another."""
    if node.target is not aten.cat.default or (len(node.args) > 1 and node.args[1] != 0):
        return False
    return len({part.meta["val"].dtype for part in node.args[0]}) == 1


def _places(graph: fx.Graph) -> dict[Node, tuple[Node, int]]:
    """What can be made where it is stacked: the stack and the row it begins at."""
    found = {}
    for node in graph.nodes:
        if not _is_stack(node):
            continue
        start, parts = 0, node.args[0]
        for part in parts:
            if part.target in INTO and len(part.users) == 1 and parts.count(part) == 1:
                found[part] = (node, start)
            start += part.meta["val"].shape[0]
    return found


def _memory(
    node: Node, places: Mapping[Node, tuple[Node, int]], memory: dict[Node, Tensor], device: torch.device
) -> Tensor:
    """Where a result is put."""
    whole, start = places.get(node, (node, 0))
    if whole not in memory:
        like = whole.meta["val"]
        memory[whole] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)
    return memory[whole].narrow(0, start, node.meta["val"].shape[0]) if node in places else memory[whole]


def _copies(
    stack: Node, values: Mapping[Node, Tensor], places: Mapping[Node, Any]
) -> list[Callable[[], Tensor]]:
    """The calls that lay down what was not made in its place."""
    parts = stack.args[0]
    rows = torch.split(values[stack], [part.meta["val"].shape[0] for part in parts])
    return [
        partial(row.copy_, values[part]) for row, part in zip(rows, parts, strict=True) if part not in places
    ]


def _root(node: Node) -> Node:
    """The node whose memory a node's result lies in."""
    while is_view(node) or node.target in WRITES:
        node = node.args[0]
    return node
