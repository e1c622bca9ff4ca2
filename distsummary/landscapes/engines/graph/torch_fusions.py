"""The last rewrites of a point's graph: fewer passes over memory, the same numbers to rounding."""

from typing import Any

import torch
from torch import fx

from distsummary.landscapes.engines.graph.torch_trace import (
    Node,
    aten,
    depends_on,
    is_getitem,
    is_view,
    placeholders,
    uses_onednn,
)

FLOATS = (torch.float32, torch.float64)
IN_PLACE: dict[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.add.Tensor: aten.add_.Tensor,
}
ADD_CONVOLUTION: Any = getattr(getattr(torch.ops.mkldnn, "_convolution_pointwise_", None), "binary", None)
FEW = 20480  # numbers of one picture up to which torch has a faster kernel than oneDNN's
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
        if node.target not in IN_PLACE:
            continue
        for args in (node.args,) if node.kwargs else (node.args, node.args[::-1]):  # a sum has no order
            if _may_overwrite(node, args, ours):
                node.args, node.target = args, IN_PLACE[node.target]
                break


def add_in_convolutions(graph: fx.Graph, shared: int, slots: int) -> None:
    """Let a convolution add to what nobody reads afterwards, in the pass that writes its result.

    For the `x + convolution` of residual networks on x86, behind `in_place`. oneDNN could do the ReLU behind
    it as well, but its ReLU makes NaN 0.
    """
    if ADD_CONVOLUTION is None or not uses_onednn():
        return
    inputs = placeholders(graph)
    ours = depends_on(graph, inputs[:slots]) - set(inputs[:shared])
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is not aten.add_.Tensor or node.kwargs:
            continue
        for convolution, other in (node.args, node.args[::-1]):
            if not _is_like_convolution(convolution, other) or other not in ours or not _is_whole(other):
                continue
            readers = {other, *other.users} - {node}
            if len(convolution.users) == 1 and max(place[n] for n in readers) < place[convolution]:
                _add(graph, node, convolution, other)
                break


def _is_like_convolution(convolution: Any, other: Any) -> bool:
    """Whether oneDNN can add the result of a convolution to `other` without copies."""
    if not isinstance(other, fx.Node) or getattr(convolution, "target", None) is not aten.convolution.default:
        return False
    made, to, is_transposed = convolution.meta["val"], other.meta["val"], convolution.args[6]
    if is_transposed or made.dim() != 4 or not made.numel() or made.dtype != torch.float32:
        return False
    picture = convolution.args[0].meta["val"]
    if len(picture) == 1 and picture.numel() <= FEW:
        return False
    is_last = all(t.is_contiguous(memory_format=torch.channels_last) for t in (made, to))
    return is_last and (made.shape, made.dtype) == (to.shape, to.dtype)


def _is_whole(node: Node) -> bool:
    """Whether a result or a slot has memory of its own that is read through no view."""
    if is_view(node) or is_getitem(node) or any(map(is_view, node.users)):
        return False
    return node.target not in IN_PLACE.values() or _is_whole(node.args[0])


def _add(graph: fx.Graph, node: Node, convolution: Node, other: Node) -> None:
    picture, weight, bias, stride, padding, dilation, _, _, groups = convolution.args
    layer = (picture, weight, bias, padding, stride, dilation, groups)
    convolution.target, convolution.args = ADD_CONVOLUTION, (other, *layer, "add", 1.0, None, [], None)
    node.replace_all_uses_with(convolution)
    graph.erase_node(node)


def _may_overwrite(node: Node, args: Any, ours: set[Node]) -> bool:
    first = args[0]
    if not isinstance(first, fx.Node) or first in args[1:] or len(first.users) != 1:
        return False
    before, after = first.meta["val"], node.meta["val"]
    if (before.shape, before.dtype) != (after.shape, after.dtype) or before.stride() != after.stride():
        return False  # views of a result that lay in another order would not be recorded so
    root: Node = first
    while is_view(root) and len(root.users) == 1 and root.target not in REPEATING:
        root = root.args[0]
    return root in ours and len(root.users) == 1 and not is_view(root) and not is_getitem(root)
