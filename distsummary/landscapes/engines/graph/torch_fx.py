"""Helpers for torch.fx graphs of aten operations; every node's meta["val"] is an outline of its result.

The outline of a tensor is an empty tensor of the same shape, strides and dtype, on the device "meta".
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

aten = torch.ops.aten
Operation = type(aten.add.Tensor)  # torch.ops.aten.<name>.<overload>
Node: TypeAlias = Any  # fx.Node; Any, because the type of its arguments is a huge union
Decompositions: TypeAlias = Mapping[Any, Callable[..., Any]]  # operation -> function to record in its place


def outline(tensor: Tensor) -> Tensor:
    """The outline of a tensor."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def outline_of(target: Any, args: Any, kwargs: Any) -> Any:
    """The outline of what `target` returns for these arguments; a `device` argument becomes "meta"."""
    seen: Any = fx.node.map_arg((args, dict(kwargs)), lambda n: n.meta["val"])
    device = {"device": torch.device("meta")} if kwargs.get("device") is not None else {}
    return target(*seen[0], **seen[1] | device)


def emit(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Append a call of `target` to the graph, with the outline of its result; returns the node."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = outline_of(target, args, kwargs)
    return node


def placeholders(graph: fx.Graph) -> list[Node]:
    """The inputs of a graph in order."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def results(graph: fx.Graph) -> list[Node]:
    """The nodes that a graph returns."""
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(found) if isinstance(found, tuple | list) else [found]


def depends_on(graph: fx.Graph, sources: Iterable[Node]) -> set[Node]:
    """The nodes computed from any of the sources, and the sources themselves."""
    found = set(sources)
    for node in graph.nodes:
        if any(n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def between(
    graph: fx.Graph, outputs: Iterable[Node], is_given: Callable[[Node], bool]
) -> tuple[list[Node], set[Node]]:
    """(the nodes that compute `outputs` from given nodes, in graph order; the given nodes that they use)."""
    wanted: set[Node] = set()
    given: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node in wanted or node in given:
            continue
        if is_given(node):
            given.add(node)
        else:
            wanted.add(node)
            waiting += node.all_input_nodes
    return [n for n in graph.nodes if n in wanted], given


def module_of(nodes: Iterable[Node], inputs: Iterable[Node], outputs: Iterable[Node]) -> fx.GraphModule:
    """A module that runs `nodes`: it takes the values of `inputs` and returns the values of `outputs`."""
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(inputs):
        copies[node] = graph.placeholder(f"in{number}")
        copies[node].meta.update(node.meta)
    for node in nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in outputs))
    return fx.GraphModule({}, graph)


def is_operation(node: Node) -> bool:
    """Whether the node calls an operation of torch's dispatcher."""
    return node.op == "call_function" and isinstance(node.target, Operation)


def is_view(node: Node) -> bool:
    """Whether the node's result shares the memory of its first input."""
    return is_operation(node) and node.target.is_view


def is_getitem(node: Node) -> bool:
    """Whether the node picks one of several results of its first input."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
