"""Finds the part of a recorded loss that is affine in the point (x, y), and cuts the graph into three.

A moved tensor (varied parameter) is affine in (x, y): centre + x * u + y * v, with directions u and v. So are
the results of linear operations on it with fixed tensors and data: the output of a first Linear, Conv or
Embedding, or weights into which a fixed BN was folded. The graph is cut where non-affine operations use
affine values. The values at the cut are the *slots*. For each slot, the value at the centre and its changes
du and dv along u and v are computed once per plane; at any point, the slot's value is centre + x du + y dv.

    constants:  fixed tensors, batch      -> inputs of the other two; runs once per plane and batch
    affine:     moved tensors, constants  -> slots for centre, u and v; once per plane and batch, in float64
    point:      slots, constants          -> the results; runs at every point

A moved tensor that non-affine operations use directly (such as a tied weight) is a slot itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.frameworks.torch_private import private_operators
from distsummary.landscapes.engines.graph.torch_fx import (
    Node,
    aten,
    between,
    depends_on,
    is_getitem,
    is_view,
    module_of,
    placeholders,
    results,
)

FIXED, AFFINE, OTHER = 0, 1, 2

# Operations that are linear in their first input, whatever their options, if all other inputs are fixed.
LINEAR = {
    aten.view.default, aten.reshape.default, aten.t.default, aten.transpose.int,
    aten.permute.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.clone.default,
    aten.neg.default, aten.flip.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default,
    aten.mean.dim, aten.avg_pool1d.default, aten.avg_pool2d.default,
    aten.index_select.default, aten.index.Tensor, aten.gather.default, aten.embedding.default,
    aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor, aten.unbind.int, aten.split.Tensor,
    aten.split_with_sizes.default,
    *private_operators(dict.fromkeys(("_unsafe_view", "_adaptive_avg_pool2d"))),
}  # fmt: skip
# Sums and concatenations, whose result is affine if every tensor input is affine or fixed.
ADDITIVE = {
    aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar, aten.cat.default, aten.stack.default,
}  # fmt: skip
# Products, with the positions of their two factors. At most one factor may be affine; other inputs are added.
PRODUCTS = {
    aten.mul.Tensor: (0, 1), aten.mm.default: (0, 1), aten.bmm.default: (0, 1), aten.mv.default: (0, 1),
    aten.dot.default: (0, 1), aten.addmm.default: (1, 2), aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGraph:
    """A graph cut into three graphs; each takes its inputs in the order given below.

    Attributes:
        constants: (fixed tensors, batch) -> the tensors that `affine` and `point` need.
        affine: (moved tensors, constants) -> the slots.
        point: (slots, constants) -> the results.
        slots: the number of slots; the shared slots come first.
        shared: the number of shared slots, which do not depend on data, so that all batches share them.
    """

    constants: fx.GraphModule
    affine: fx.GraphModule
    point: fx.GraphModule
    slots: int
    shared: int


def cut(graph: fx.Graph, moved: Sequence[Node], batch: Iterable[Node], *, with_data: bool = True) -> CutGraph:
    """Cut a graph. Its placeholders `moved` are the moved tensors, the placeholders `batch` are data.

    With `with_data=False` no slot depends on data. Otherwise each batch needs its own copy of those that do.
    """
    moving, data = set(moved), depends_on(graph, batch)
    # A node has the highest kind of its inputs. An affine node becomes OTHER if its operation does not keep
    # it affine, or if it depends on data and slots must not.
    kinds: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            kinds[node] = AFFINE if node in moving else FIXED
            continue
        kinds[node] = max((kinds[n] for n in node.all_input_nodes), default=FIXED)
        if kinds[node] == AFFINE and ((node in data and not with_data) or not _keeps_affine(node, kinds)):
            kinds[node] = OTHER
    # The slots are the affine values that non-affine nodes use. A use of a view counts as one of its base.
    used: dict[Node, None] = {}
    for node in graph.nodes:
        if kinds[node] == AFFINE and any(kinds[n] == OTHER or n.op == "output" for n in node.users):
            while is_view(node) and not is_getitem(node.args[0]):
                node = node.args[0]
            used[node] = None
    # Shared slots come first, as `CutGraph.slots` says. From the results backwards, each graph then contains
    # only what the next one needs.
    slots = [n for n in used if n not in data] + [n for n in used if n in data]
    point, point_inputs = between(graph, results(graph), lambda n: n in used or kinds[n] == FIXED)
    affine, affine_inputs = between(graph, slots, lambda n: n in moving or kinds[n] == FIXED)
    needed = [n for n in graph.nodes if kinds[n] == FIXED and n in point_inputs | affine_inputs]
    constants, _ = between(graph, needed, lambda n: n.op == "placeholder")
    fixed = [n for n in placeholders(graph) if n not in moving]
    return CutGraph(
        constants=module_of(constants, fixed, needed),
        affine=module_of(affine, [*moved, *needed], slots),
        point=module_of(point, [*slots, *needed], results(graph)),
        slots=len(slots),
        shared=sum(n not in data for n in slots),
    )


def hoist(whole: fx.GraphModule, slots: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split off what need not be repeated at every point: taking views, and values that depend on no slot.

    `whole` takes the slots and the constants. Returns (prepare, point): `prepare` takes the same and returns
    the arguments of `point`. Slots must stay at their addresses, since `prepare` takes views of them once.
    """
    graph = whole.graph
    inputs = placeholders(graph)
    moving = depends_on(graph, inputs[:slots])
    early = set(inputs)
    for node in graph.nodes:
        is_call = node.op == "call_function" and all(n in early for n in node.all_input_nodes)
        if is_call and (node not in moving or is_view(node)):
            early.add(node)
    late, given = between(graph, results(graph), lambda n: n in early)
    needed = [n for n in graph.nodes if n in given]
    first, _ = between(graph, needed, lambda n: n.op == "placeholder")
    return module_of(first, inputs, needed), module_of(late, needed, results(graph))


def _keeps_affine(node: Node, kinds: dict[Node, int]) -> bool:
    """Whether the result of a node is affine, given that its inputs are fixed or affine."""
    moving = {n for n in node.all_input_nodes if kinds[n] == AFFINE}
    if isinstance(node.meta["val"], Tensor) and not node.meta["val"].is_floating_point():
        return False
    if node.target in ADDITIVE or is_getitem(node):
        return True
    if node.target in LINEAR:
        return moving == {node.args[0]}
    if node.target in PRODUCTS:
        one, other = PRODUCTS[node.target]
        return not {node.args[one], node.args[other]} <= moving
    return False


class InDouble(fx.Interpreter):
    """Runs a graph in float64, even where the graph names a narrower dtype."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operation with float64 in place of every floating-point dtype."""
        wide: Any = fx.node.map_aggregate((args, kwargs), widened)
        return super().call_function(target, *wide)


def widened(value: Any) -> Any:
    """Floating-point tensors and dtypes as float64; anything else unchanged."""
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
