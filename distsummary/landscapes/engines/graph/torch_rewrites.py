"""Rewrites a recorded loss so that it costs less and gives the same numbers up to rounding.

ON_CPU and ANYWHERE replace single operations during recording; the public functions change recorded graphs.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.frameworks.torch_private import private_operators
from distsummary.landscapes.engines.graph.torch_fx import (
    Decompositions,
    Node,
    aten,
    depends_on,
    emit,
    is_getitem,
    is_view,
    placeholders,
)

NARROW = 32  # columns; up to this many, CPU kernels are several times slower along rows than along columns
TALL = 2  # a tall product has at least this many rows per column
DOT_ROWS = 2048  # up to this many rows a float32 dot product is as accurate as a pairwise sum


def _is_tall(left: Tensor, right: Tensor) -> bool:
    """Whether the product has so few columns for its rows that computing its transpose is faster."""
    return right.shape[-1] <= NARROW and left.shape[-2] >= TALL * right.shape[-1]


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """A view of the transposed product, which is computed faster if there are few columns."""
    if beta != 1 or alpha != 1 or bias.dim() != 1 or not _is_tall(left, right):
        return NotImplemented
    return aten.addmm.default(bias.unsqueeze(1), right.t(), left.t()).t()


def _mm(left: Tensor, right: Tensor) -> Any:
    return aten.mm.default(right.t(), left.t()).t() if _is_tall(left, right) else NotImplemented


def _bmm(left: Tensor, right: Tensor) -> Any:
    if right.is_contiguous() or not _is_tall(left, right):
        return NotImplemented
    return aten.bmm.default(right.mT, left.mT).mT


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """Transposes and reduces over the last axis but one, which is faster if there are few columns."""
    if half_to_float or x.dim() < 2 or dim not in (-1, x.dim() - 1) or not _is_tall(x, x):
        return NotImplemented
    return aten._log_softmax.default(x.mT.contiguous(), x.dim() - 2, False).mT


def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    """A weighted sum of selected elements; its weights depend only on the targets and are computed once."""
    if x.dim() != 2 or weight is not None:
        return NotImplemented
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    # `_log_softmax` above returns a transposed view, from whose memory elements are then picked.
    if x.mT.is_contiguous():
        picked = x.mT.gather(0, index.unsqueeze(0)).squeeze(0)
    else:
        picked = x.gather(1, index.unsqueeze(1)).squeeze(1)
    # Ignored rows may hold -inf, which times a weight of 0 would be NaN.
    picked = torch.where(is_counted, picked, 0)
    counted = is_counted.to(x.dtype)
    total = counted.sum()
    if reduction == 0:
        return -picked * counted, total * 0
    share = -counted / total if reduction == 1 else -counted
    return (picked.dot(share) if len(target) <= DOT_ROWS else (picked * share).sum()), total


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float) -> Any:
    """Leaves out the running statistics: training mode only writes to them, and a graph must not write."""
    if not training or mean is None:
        return NotImplemented
    return aten.native_batch_norm.default(x, weight, bias, None, None, True, *rest)


ANYWHERE: Decompositions = {aten.native_batch_norm.default: _batch_norm}
ON_CPU: Decompositions = {
    **ANYWHERE,
    aten.addmm.default: _addmm,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.nll_loss_forward.default: _nll_loss,
    **private_operators({"_log_softmax": _log_softmax}),
}

# The positions of the arguments `eps` and `training` of each operation; None: it has no `training`.
BATCH_NORMS: dict[Any, tuple[int, int | None]] = {
    aten.native_batch_norm.default: (7, 5),
    aten.cudnn_batch_norm.default: (7, 5),
    **private_operators(
        {
            "_native_batch_norm_legit": (7, 5),
            "_native_batch_norm_legit_no_training": (6, None),
            "_batch_norm_no_update": (6, None),
        }
    ),
}


def fold_batch_norms(graph: fx.Graph) -> None:
    """Fold BN (batch norm) with running statistics into the convolution or linear layer before it.

    With s = gamma / sqrt(var + eps), the layer's weights for output channel c are multiplied by s[c], and its
    bias becomes beta + (bias - mean) * s (gamma, beta: BN's weight and bias). With a fixed gamma, BN then
    takes no time at the points.
    """
    for norm in list(graph.nodes):
        if norm.op != "call_function" or norm.target not in BATCH_NORMS or not _is_foldable(norm):
            continue
        layer, gamma, beta, mean, variance = norm.args[:5]
        eps = norm.args[BATCH_NORMS[norm.target][0]]
        is_conv = layer.target is aten.convolution.default
        left, weight, bias = layer.args[:3] if is_conv else (layer.args[1], layer.args[2], layer.args[0])
        with graph.inserting_before(norm):
            # The s of the docstring, and then the new bias of the layer.
            scale = emit(graph, aten.rsqrt.default, emit(graph, aten.add.Scalar, variance, eps))
            scale = scale if gamma is None else emit(graph, aten.mul.Tensor, scale, gamma)
            offset = mean if bias is None else emit(graph, aten.sub.Tensor, mean, bias)
            shift = emit(graph, aten.neg.default, emit(graph, aten.mul.Tensor, offset, scale))
            shift = shift if beta is None else emit(graph, aten.add.Tensor, shift, beta)
            if is_conv:
                by_channel = emit(
                    graph, aten.view.default, scale, [-1] + [1] * (weight.meta["val"].dim() - 1)
                )
                scaled = emit(graph, aten.mul.Tensor, weight, by_channel)
                folded = emit(graph, aten.convolution.default, left, scaled, shift, *layer.args[3:])
            else:
                scaled = emit(graph, aten.mul.Tensor, weight, scale)
                folded = emit(graph, aten.addmm.default, shift, left, scaled)
        # Outlines do not predict the strides of a convolution's result.
        folded.meta["val"] = layer.meta["val"]
        for user in list(norm.users):
            user.replace_all_uses_with(folded)
    graph.eliminate_dead_code()


def _is_foldable(norm: Node) -> bool:
    """Whether a BN uses running statistics, and is the only user of a layer into which it can be folded."""
    training = BATCH_NORMS[norm.target][1]
    layer, mean, variance = norm.args[0], norm.args[3], norm.args[4]
    if (training is not None and norm.args[training]) or mean is None or variance is None:
        return False
    if len(layer.users) != 1 or any(not is_getitem(user) or user.args[1] != 0 for user in norm.users):
        return False
    if len({node.meta["val"].dtype for node in norm.args[:5] if node is not None}) > 1:
        # Under autocast the layer has a narrower dtype than the batch norm.
        return False
    is_transposed = layer.target is aten.convolution.default and layer.args[6]
    is_linear = layer.target is aten.addmm.default and not layer.kwargs
    return is_linear or (layer.target is aten.convolution.default and not is_transposed)


def turn_weights(graph: fx.Graph, moved: Collection[Node]) -> None:
    """Store a varied weight transposed if it is used only as the transposed right factor of one product.

    This makes small matrix products up to 1.5 times faster. Fixed weights are left as they are.
    """
    for node in list(graph.nodes):
        if node.target is not aten.t.default or node.args[0] not in moved or len(node.args[0].users) != 1:
            continue
        users = list(node.users)
        is_product = len(users) == 1 and users[0].target in (aten.addmm.default, aten.mm.default)
        if is_product and users[0].args[-1] is node:
            with graph.inserting_after(node):
                turned = emit(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
            node.replace_all_uses_with(turned, lambda user, kept=turned: user is not kept)


IN_PLACE: dict[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.add.Tensor: aten.add_.Tensor,
}
REPEATING = (aten.expand.default, aten.unfold.default, aten.as_strided.default)  # elements may share memory


def in_place(graph: fx.Graph, shared: int, slots: int) -> None:
    """Let `relu` and `add` overwrite an input that nothing else reads: faster, with the same numbers.

    The graph's first `slots` inputs are the slots; the first `shared` slots are shared. Only values that are
    computed again at every point are overwritten: the other slots, and results computed from any slots.
    """
    inputs = placeholders(graph)
    ours = depends_on(graph, inputs[:slots]) - set(inputs[:shared])
    for node in graph.nodes:
        if node.target not in IN_PLACE:
            continue
        # Summands may be swapped, unless a keyword such as alpha concerns one of them.
        for args in (node.args,) if node.kwargs else (node.args, node.args[::-1]):
            if _may_overwrite(node, args, ours):
                node.args, node.target = args, IN_PLACE[node.target]
                break


def _may_overwrite(node: Node, args: Any, ours: set[Node]) -> bool:
    """Whether a node may write its result to the first of `args`."""
    first = args[0]
    if not isinstance(first, fx.Node) or first in args[1:] or len(first.users) != 1:
        return False
    before, after = first.meta["val"], node.meta["val"]
    if (before.shape, before.dtype) != (after.shape, after.dtype) or before.stride() != after.stride():
        # Views that come later were recorded for the strides of the result.
        return False
    # A view may be overwritten if nothing else reads its base, unless elements of the view share memory.
    root: Node = first
    while is_view(root) and len(root.users) == 1 and root.target not in REPEATING:
        root = root.args[0]
    return root in ours and len(root.users) == 1 and not is_view(root) and not is_getitem(root)
