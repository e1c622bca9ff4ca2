"""The last rewrites of a point's graph: fewer passes over memory, the same numbers to rounding."""

from typing import Any

import torch
from torch import fx

from distsummary.landscape.engines.graph.trace import (
    Node,
    aten,
    depends_on,
    is_getitem,
    is_view,
    placeholders,
)

FLOATS = (torch.float32, torch.float64)
IN_PLACE: dict[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.add.Tensor: aten.add_.Tensor,
}
REPEATING = (aten.expand.default, aten.unfold.default, aten.as_strided.default)  # one place, several elements


def take_relu(graph: fx.Graph, shared: int, slots: int) -> bool:
    """Leave the ReLU of the slots from number `shared` on to whoever fills them; False if one has others."""
    own = placeholders(graph)[shared:slots]
    users = [user for slot in own for user in slot.users]
    if not users or any(
        user.target is not aten.relu.default or user.meta["val"].dtype not in FLOATS for user in users
    ):
        return False
    for user in users:
        user.replace_all_uses_with(user.args[0])
        graph.erase_node(user)
    return True


def in_place(graph: fx.Graph, shared: int, slots: int) -> None:
    """Let `relu` and `add` write to an input that nobody else reads: less memory traffic, the same numbers.

    Only to what is made anew at every point: results that slots, the first inputs of the graph, are in; and
    the slots from number `shared` on.
    """
    inputs = placeholders(graph)
    ours = depends_on(graph, inputs[:slots]) - set(inputs[:shared])
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in IN_PLACE:
            continue
        orders = [node.args]
        if len(node.args) == 2 and not node.kwargs:
            orders.append(node.args[::-1])  # a sum
        for args in orders:
            if _may_overwrite(node, args, ours):
                node.args, node.target = args, IN_PLACE[node.target]
                break


def _may_overwrite(node: Node, args: Any, ours: set[Node]) -> bool:
    first = args[0]
    if not isinstance(first, fx.Node) or first in args[1:] or len(first.users) != 1:
        return False
    before, after = first.meta["val"], node.meta["val"]
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    root: Node = first
    while is_view(root) and len(root.users) == 1 and root.target not in REPEATING:
        root = root.args[0]
    return root in ours and len(root.users) == 1 and not is_view(root) and not is_getitem(root)
