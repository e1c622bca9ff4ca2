"""Rewrites of a recorded loss that keep its numbers, to rounding, and cost less.

ON_CPU are those of single operations, made while a graph is recorded; `rewrite` makes those of several.
"""

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_columns import take_in_biases, turn_chains
from distsummary.landscapes.engines.graph.torch_trace import (
    Decompositions,
    Node,
    aten,
    emit,
    is_channels_last,
    is_getitem,
)

NARROW = 32  # columns; below, the CPU's kernels for rows are several times slower than those for columns
TALL = 2  # rows for each of these columns
DOT_ROWS = 2048  # up to which a float32 dot product is as good as a sum in pairs


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Few columns: the transposed product, as a view."""
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
    """Few columns: over the second last axis of the transposed input."""
    if half_to_float or x.dim() < 2 or dim not in (-1, x.dim() - 1) or not _is_tall(x, x):
        return NotImplemented
    return aten._log_softmax.default(x.mT.contiguous(), x.dim() - 2, False).mT


def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    """A selection and a weighted sum; what depends on the targets alone is computed once."""
    if x.dim() != 2 or weight is not None:
        return NotImplemented
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    if x.mT.is_contiguous():
        picked = x.mT.gather(0, index.unsqueeze(0)).squeeze(0)
    else:
        picked = x.gather(1, index.unsqueeze(1)).squeeze(1)
    picked = torch.where(is_counted, picked, 0)  # what does not count may be -inf
    counted = is_counted.to(x.dtype)
    total = counted.sum()
    if reduction == 0:
        return -picked * counted, total * 0
    share = -counted / total if reduction == 1 else -counted
    return (picked.dot(share) if len(target) <= DOT_ROWS else (picked * share).sum()), total


def _is_tall(left: Tensor, right: Tensor) -> bool:
    """Whether a matrix of these rows and columns has so few columns that its transpose is the faster one."""
    return right.shape[-1] <= NARROW and left.shape[-2] >= TALL * right.shape[-1]


def _batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float) -> Any:
    """With the batch's own statistics the running ones are written only; without them it is pure."""
    if not training or mean is None:
        return NotImplemented
    return aten.native_batch_norm.default(x, weight, bias, None, None, True, *rest)


ANYWHERE: Decompositions = {aten.native_batch_norm.default: _batch_norm}
ON_CPU: Decompositions = {
    **ANYWHERE,
    aten.addmm.default: _addmm,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten._log_softmax.default: _log_softmax,
    aten.nll_loss_forward.default: _nll_loss,
}

# Where each operation of a batch normalisation has eps; and `training`, if it has it.
BATCH_NORMS: dict[Any, tuple[int, int | None]] = {
    aten.native_batch_norm.default: (7, 5),
    aten.cudnn_batch_norm.default: (7, 5),
    aten._native_batch_norm_legit.default: (7, 5),
    aten._native_batch_norm_legit_no_training.default: (6, None),
    aten._batch_norm_no_update.default: (6, None),
}


def rewrite(graph: fx.Graph, moved: Collection[Node], *, on_cpu: bool, by_layout: bool) -> None:
    """The rewrites of several operations, in a graph whose placeholders `moved` move.

    `by_layout`: also those for how numbers lie in a CPU's memory.
    """
    fold_batch_norms(graph)
    if by_layout:
        pool_late(graph)
        flatten_as_it_lies(graph)
    if on_cpu:
        turn_chains(graph)
        if by_layout:
            take_in_biases(graph, moved)
        turn_weights(graph, moved)


def fold_batch_norms(graph: fx.Graph) -> None:
    """Put BN with running statistics into the convolution or linear layer before it.

    s = gamma / sqrt(var + eps): the weights of output channel c are multiplied by s[c], the bias becomes
    beta + (bias - mean) * s. Nothing is left of the BN at a point where gamma does not move.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in BATCH_NORMS and _is_foldable(node):
            with graph.inserting_before(node):
                _fold(graph, node)
    graph.eliminate_dead_code()


def _is_foldable(norm: Node) -> bool:
    _, training = BATCH_NORMS[norm.target]
    layer, mean, variance = norm.args[0], norm.args[3], norm.args[4]
    if (training is not None and norm.args[training]) or mean is None or variance is None:
        return False
    if len(layer.users) != 1 or any(not is_getitem(user) or user.args[1] != 0 for user in norm.users):
        return False
    if layer.target is aten.convolution.default:
        return not layer.args[6] and _has_one_type(norm)  # not transposed
    return layer.target is aten.addmm.default and not layer.kwargs and _has_one_type(norm)


def _has_one_type(norm: Node) -> bool:
    """Whether a BN computes in its layer's type: under autocast the layer is narrower."""
    return len({node.meta["val"].dtype for node in norm.args[:5] if node is not None}) == 1


def _fold(graph: fx.Graph, norm: Node) -> None:
    layer, gamma, beta, mean, variance = norm.args[:5]
    eps = norm.args[BATCH_NORMS[norm.target][0]]
    scale = emit(graph, aten.rsqrt.default, emit(graph, aten.add.Scalar, variance, eps))
    scale = scale if gamma is None else emit(graph, aten.mul.Tensor, scale, gamma)
    is_conv = layer.target is aten.convolution.default
    left, weight, bias = layer.args[:3] if is_conv else (layer.args[1], layer.args[2], layer.args[0])
    offset = mean if bias is None else emit(graph, aten.sub.Tensor, mean, bias)
    shift = emit(graph, aten.neg.default, emit(graph, aten.mul.Tensor, offset, scale))
    shift = shift if beta is None else emit(graph, aten.add.Tensor, shift, beta)
    if is_conv:
        by_channel = emit(graph, aten.view.default, scale, [-1] + [1] * (weight.meta["val"].dim() - 1))
        scaled = emit(graph, aten.mul.Tensor, weight, by_channel)
        folded = emit(graph, aten.convolution.default, left, scaled, shift, *layer.args[3:])
    else:
        folded = emit(graph, aten.addmm.default, shift, left, emit(graph, aten.mul.Tensor, weight, scale))
    folded.meta["val"] = layer.meta["val"]  # as it lay: an outline of a convolution's inputs does not tell
    for user in list(norm.users):
        user.replace_all_uses_with(folded)


def pool_late(graph: fx.Graph) -> None:
    """ReLU behind a maximum instead of before it, and the maximum of channels-last pictures row by row.

    For windows side by side, the maximum of a window is one of whole rows of numbers, then one of blocks of
    channels: three passes over neighbours in memory, where the pooling kernel also writes indices.
    """
    for node in list(graph.nodes):
        if node.target is not aten.max_pool2d_with_indices.default:
            continue
        if any(not is_getitem(user) or user.args[1] != 0 for user in node.users):
            continue
        picture = node.args[0]
        is_after = picture.target is aten.relu.default and len(picture.users) == 1
        picture = picture.args[0] if is_after else picture
        with graph.inserting_before(node):
            if _is_tiled(picture.meta["val"], *node.args[1:]):
                pooled = _pool(graph, picture, *node.args[1])
            else:
                both = emit(graph, aten.max_pool2d_with_indices.default, picture, *node.args[1:])
                pooled = emit(graph, operator.getitem, both, 0)
            pooled = emit(graph, aten.relu.default, pooled) if is_after else pooled
        for user in list(node.users):
            user.replace_all_uses_with(pooled)
    graph.eliminate_dead_code()


def _is_tiled(picture: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), *rest: Any) -> bool:
    """Whether windows lie side by side and fill a channels-last picture; `rest`: dilation, ceil_mode."""
    if picture.dim() != 4 or len(kernel) != 2 or not is_channels_last(picture):
        return False
    is_full = all(size % k == 0 for size, k in zip(picture.shape[2:], kernel, strict=True))
    is_plain = not any(padding) and (not rest or set(rest[0]) == {1})
    return is_full and is_plain and [*(stride or kernel)] == [*kernel]


def _pool(graph: fx.Graph, picture: Node, high: int, wide: int) -> Node:
    n, c, h, w = picture.meta["val"].shape
    rows = emit(graph, aten.permute.default, picture, [0, 2, 3, 1])
    rows = emit(graph, aten.view.default, rows, [n, h // high, high, w * c])
    found = _maximum(graph, rows, 2)
    found = _maximum(graph, emit(graph, aten.view.default, found, [n, h // high, w // wide, wide, c]), 3)
    return emit(graph, aten.permute.default, found, [0, 3, 1, 2])


def _maximum(graph: fx.Graph, values: Node, dim: int) -> Node:
    found, *others = (
        emit(graph, aten.select.int, values, dim, number) for number in range(values.meta["val"].shape[dim])
    )
    for other in others:
        found = emit(graph, aten.maximum.default, found, other)
    return found


def flatten_as_it_lies(graph: fx.Graph) -> None:
    """Channels-last pictures go into a linear layer in the order they have; its weights follow.

    The weights are put there once a plane, the pictures would be copied at every point.
    """
    for node in list(graph.nodes):
        if node.target is not aten.addmm.default or node.kwargs:
            continue
        bias, rows, weight = node.args
        picture = _flattened(rows)
        if picture is None or weight.target is not aten.t.default:
            continue
        if weight.args[0].meta["val"].is_contiguous():
            with graph.inserting_before(node):
                node.replace_all_uses_with(_addmm_as_it_lies(graph, bias, picture, weight.args[0]))
    graph.eliminate_dead_code()


def _addmm_as_it_lies(graph: fx.Graph, bias: Node, picture: Node, weight: Node) -> Node:
    n, c, h, w = picture.meta["val"].shape
    outputs = weight.meta["val"].shape[0]
    blocks = emit(graph, aten.view.default, weight, [outputs, c, h * w])
    blocks = emit(graph, aten.permute.default, blocks, [0, 2, 1])
    blocks = emit(graph, aten.clone.default, blocks, memory_format=torch.contiguous_format)
    turned = emit(graph, aten.t.default, emit(graph, aten.view.default, blocks, [outputs, c * h * w]))
    rows = emit(graph, aten.permute.default, picture, [0, 2, 3, 1])
    rows = emit(graph, aten.view.default, rows, [n, c * h * w])
    return emit(graph, aten.addmm.default, bias, rows, turned)


def _flattened(rows: Node) -> Node | None:
    """The channels-last picture that `rows` (n, c * h * w) is a copy of; None if it is something else."""
    if rows.target not in (aten._unsafe_view.default, aten.view.default):
        return None
    copied = rows.args[0]
    if copied.target is not aten.clone.default:
        return None
    picture, shape = copied.args[0].meta["val"], rows.meta["val"].shape
    is_whole = len(shape) == 2 and picture.dim() == 4 and shape[0] == picture.shape[0]
    return copied.args[0] if is_whole and is_channels_last(picture) else None


def turn_weights(graph: fx.Graph, moved: Collection[Node]) -> None:
    """A weight that moves and is used transposed, and nowhere else, is kept transposed.

    Small matrix products are up to 1.5 times faster by it. Weights that stay are not copied for that.
    """
    for node in list(graph.nodes):
        if node.target is aten.t.default and node.args[0] in moved and _is_right_alone(node):
            with graph.inserting_after(node):
                turned = emit(graph, aten.clone.default, node, memory_format=torch.contiguous_format)
            node.replace_all_uses_with(turned, lambda user, kept=turned: user is not kept)


def _is_right_alone(turned: Node) -> bool:
    """Whether a transposed weight is but the right side of one product."""
    users = list(turned.users)
    is_product = len(users) == 1 and users[0].target in (aten.addmm.default, aten.mm.default)
    return is_product and users[0].args[-1] is turned and len(turned.args[0].users) == 1
