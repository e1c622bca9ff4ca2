"""Linear layers one behind another in columns: weights (outputs, inputs) times activations (inputs, rows).

That is how a CPU multiplies small matrices fastest, since neither side is transposed: no weight has to be
turned, and the fixed input of the first layer is turned once. A chain is taken whole or not at all, from
fixed inputs to where it is read transposed anyway.

Behind a ReLU the bias becomes one more column of the weight, times a row of ones below the activations: a
ReLU leaves one as it is, and to add a bias would be another pass over the product.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from distsummary.landscapes.engines.graph.torch_trace import Node, aten, depends_on, emit, is_view

PRODUCTS = (aten.addmm.default, aten.mm.default)
POINTWISE = {
    aten.relu.default, aten.tanh.default, aten.sigmoid.default, aten.gelu.default, aten.silu.default,
    aten.elu.default, aten.leaky_relu.default, aten.softplus.default, aten.hardtanh.default, aten.neg.default,
    aten.exp.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.clamp_min.default,
}  # fmt: skip


def turn_chains(graph: fx.Graph) -> None:
    """Let chains of linear layers and pointwise operations be evaluated in columns."""
    chains = _chains(graph)
    turned: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if node in chains:
            with graph.inserting_before(node):
                turned[node] = _turned(graph, node, turned)
    for node, columns in turned.items():
        for user in list(node.users):
            if user not in chains:  # it transposes
                user.replace_all_uses_with(columns)
    graph.eliminate_dead_code()


def _chains(graph: fx.Graph) -> set[Node]:
    """The nodes to turn: all they are made of can be, and all that they are read by."""
    found: set[Node] = set()
    for node in graph.nodes:
        if _is_made_of(node, found):
            found.add(node)
    while leaving := {n for n in found if not (_is_made_of(n, found) and _is_read_by(n, found))}:
        found -= leaving
    return found


def _is_made_of(node: Node, turned: set[Node]) -> bool:
    if _is_linear(node):
        return _left(node) in turned or _is_given(_left(node))
    return node.target in POINTWISE and _is_even(node) and turned.issuperset(node.all_input_nodes)


def _is_read_by(node: Node, turned: set[Node]) -> bool:
    return all(user in turned or user.target is aten.t.default for user in node.users)


def _is_linear(node: Node) -> bool:
    """Whether a node is a linear layer: a weight (outputs, inputs) transposed, at most a bias (outputs,)."""
    if node.target not in PRODUCTS or node.kwargs or node.args[-1].target is not aten.t.default:
        return False
    return len(node.args) == 2 or node.args[0].meta["val"].dim() == 1


def _left(product: Node) -> Node:
    return product.args[-2]


def _is_given(node: Node) -> bool:
    """Whether a node is an input of the graph, but for views."""
    while is_view(node):
        node = node.args[0]
    return bool(node.op == "placeholder")


def _is_even(node: Node) -> bool:
    """Whether all inputs have the shape of the result, so that it does not matter which axis is which."""
    return all(n.meta["val"].shape == node.meta["val"].shape for n in node.all_input_nodes)


def _turned(graph: fx.Graph, node: Node, turned: dict[Node, Node]) -> Node:
    if node.target in POINTWISE:
        args: Any = fx.node.map_arg(node.args, lambda n: turned[n])
        return emit(graph, node.target, *args, **node.kwargs)
    left, weight = _left(node), node.args[-1].args[0]
    if left not in turned:
        rows = emit(graph, aten.t.default, left)
        columns = emit(graph, aten.clone.default, rows, memory_format=torch.contiguous_format)
    else:
        columns = turned[left]
    if len(node.args) == 2:
        return emit(graph, aten.mm.default, weight, columns)
    bias = emit(graph, aten.unsqueeze.default, node.args[0], 1)
    return emit(graph, aten.addmm.default, bias, weight, columns)


def take_in_biases(graph: fx.Graph, moved: Iterable[Node]) -> None:
    """W ReLU(h) + b as [W b] ReLU([h; 1]), in columns, where the ones can be computed once a plane."""
    moving = depends_on(graph, moved)
    adding = [node for node in graph.nodes if node in moving and _adds_to_relu(node)]
    found = [(node, _source(node, moving)) for node in adding]
    for node, source in found:
        if source is not None:
            with graph.inserting_before(node):
                node.replace_all_uses_with(_with_ones(graph, node, source))
    graph.eliminate_dead_code()


def _adds_to_relu(node: Node) -> bool:
    """Whether a node is a linear layer in columns, with a bias, that alone reads a ReLU."""
    if node.target is not aten.addmm.default or node.kwargs:
        return False
    bias, weight, relu = node.args
    is_alone = relu.target is aten.relu.default and len(relu.users) == 1
    return is_alone and bias.meta["val"].shape == (weight.meta["val"].shape[0], 1)


def _source(node: Node, moving: set[Node]) -> Node | None:
    """What does not move in a chain that a node is in; None if there is nothing in columns."""
    while node in moving and (node.target in PRODUCTS or node.target in POINTWISE):
        node = node.args[-1] if node.target in PRODUCTS else node.args[0]
    return None if node in moving else node


def _with_ones(graph: fx.Graph, node: Node, source: Node) -> Node:
    bias, weight, relu = node.args
    ones = emit(graph, aten.ones_like.default, emit(graph, aten.sum.dim_IntList, source, [0], True))
    rows = emit(graph, aten.relu.default, emit(graph, aten.cat.default, [relu.args[0], ones]))
    return emit(graph, aten.mm.default, emit(graph, aten.cat.default, [weight, bias], 1), rows)
