"""How results of a recorded loss depend on the rows of a batch: the axis these lie along, or a sum over them.

Known are operations that treat rows one by one, sums and means; with any other on the way nothing is.
Convolutions are left out: their libraries lose more by small batches than caches give.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from distsummary.landscapes.engines.graph.torch_trace import Node, aten, depends_on

STATE = "rows"  # in a node's meta: the axis of the rows, or one of these; no entry where nothing is known
WHOLE = "whole"  # the same for all tiles
SUM = "sum"  # over the rows: what the tiles give is to be added

VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
MEANS = {aten.mean.default: aten.sum.default, aten.mean.dim: aten.sum.dim_IntList}
MEAN, ADDED = 1, 2  # what torch calls reductions
LOSSES = {  # of elements: where the reduction stands among the arguments
    aten.mse_loss.default: 2, aten.huber_loss.default: 2, aten.smooth_l1_loss.default: 2,
    aten.binary_cross_entropy.default: 3, aten.binary_cross_entropy_with_logits.default: 4,
}  # fmt: skip
KEEP_SUMS = {  # of a sum over rows they make the sum over rows of what they make of each
    aten.neg.default, aten.clone.default, aten.mul.Scalar, aten.div.Scalar, aten.unsqueeze.default,
    aten.squeeze.dim, aten.t.default, aten.permute.default, aten.transpose.int, aten._to_copy.default, *VIEWS,
}  # fmt: skip
FLOATS = (torch.float32, torch.float64)


def mark(graph: fx.Graph, moved: Iterable[Node], batch: Sequence[Node]) -> None:
    """Note in every node's meta how its result depends on the rows of the batch, as far as that is known."""
    sizes = {node.meta["val"].shape[0] for node in batch if node.meta["val"].dim()}
    if len(sizes) != 1 or sizes <= {0, 1}:
        return
    data, moving = set(batch), depends_on(graph, moved)
    for node in graph.nodes:
        node.meta.pop(STATE, None)
        if node.op == "placeholder":
            state: Any = 0 if node in data and node.meta["val"].dim() else WHOLE
        elif node.op == "call_function":
            state = _state(node)
        else:
            continue
        if state == SUM:  # constants are computed from the whole batch
            state = _checked_sum(node) if node in moving else WHOLE
        if state is not None:
            node.meta[STATE] = state


def _checked_sum(node: Node) -> Any:
    """SUM where tiles add up to it: narrow integers would wrap around, a mean of nothing is NaN."""
    is_wide = node.meta["val"].dtype in (*FLOATS, torch.int64)
    return SUM if is_wide and all(n.meta["val"].numel() for n in node.all_input_nodes) else None


def has_rows(node: Node) -> bool:
    """Whether the rows of the batch lie along an axis of a node's result."""
    return isinstance(node.meta.get(STATE), int)


def _state(node: Node) -> Any:
    """How the result of a call depends on the rows; None where that is not known."""
    states = [n.meta.get(STATE) for n in node.all_input_nodes]
    if None in states or not isinstance(node.meta["val"], Tensor):
        return None
    if all(state == WHOLE for state in states):
        return WHOLE
    if SUM in states:
        return SUM if _is_linear(node) else None
    if node.target in RULES:
        return RULES[node.target](node)
    if node.target in LOSSES:
        return _loss(node)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return _pointwise(node)
    return None


def _is_linear(node: Node) -> bool:
    """Whether the result for sums over rows is a sum over rows."""
    states = [n.meta[STATE] for n in node.args if isinstance(n, fx.Node)]
    if node.meta["val"].dtype not in FLOATS or not {*states} <= {SUM, WHOLE}:
        return False
    if node.target is aten.mul.Tensor:
        return states.count(SUM) == 1
    if node.target is aten.div.Tensor:
        return node.args[0].meta[STATE] == SUM and states.count(SUM) == 1
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        return states == [SUM, SUM]
    return node.target in KEEP_SUMS


def _pointwise(node: Node) -> int | None:
    """Rows lie along one axis, counted from the last as broadcasting does; whatever is WHOLE has one row."""
    dims = len(common_shape(node))
    places = {_axis(n) - _dim(n) for n in node.all_input_nodes if n.meta[STATE] != WHOLE}
    if len(places) != 1 or node.meta["val"].dim() != dims:
        return None
    place = places.pop()
    whole = [n.meta["val"].shape for n in node.all_input_nodes if n.meta[STATE] == WHOLE]
    if any(len(shape) >= -place and shape[place] != 1 for shape in whole):
        return None
    return dims + place


def common_shape(node: Node) -> tuple[int, ...]:
    """What the shapes of all inputs are broadcast to."""
    return np.broadcast_shapes(*(n.meta["val"].shape for n in node.all_input_nodes))


def _loss(node: Node) -> Any:
    if not reduction(node):
        return _pointwise(node)
    shape = common_shape(node)
    is_even = all(n.meta["val"].shape == shape for n in node.all_input_nodes)
    return SUM if is_even and len({n.meta[STATE] for n in node.all_input_nodes}) == 1 else None


def reduction(node: Node) -> Any:
    """How a loss of elements is reduced: 0 not at all, MEAN or ADDED."""
    at = LOSSES[node.target]
    return node.args[at] if len(node.args) > at else MEAN


def _axis(node: Node) -> int:
    return int(node.meta[STATE])


def _dim(node: Node) -> int:
    return int(node.meta["val"].dim())


def _turned(node: Node) -> int:
    """Transposed."""
    one, other = (d % _dim(node) for d in (node.args[1:3] if len(node.args) > 1 else (0, 1)))
    axis = _axis(node.args[0])
    return {one: other, other: one}.get(axis, axis)


def _permuted(node: Node) -> int:
    order = [d % _dim(node) for d in node.args[1]]
    return order.index(_axis(node.args[0]))


def _unsqueezed(node: Node) -> int:
    at: int = node.args[1] % _dim(node)
    axis = _axis(node.args[0])
    return axis + (at <= axis)


def _squeezed(node: Node) -> int | None:
    before, axis = node.args[0], _axis(node.args[0])
    at: int = node.args[1] % _dim(before)
    if at == axis:
        return None
    return axis - (at < axis and before.meta["val"].shape[at] == 1)


def _viewed(node: Node) -> int | None:
    """Rows stay an axis of their own, with as many numbers before it."""
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    axis = _axis(node.args[0])
    ahead = math.prod(before[:axis])
    for at, size in enumerate(after):
        if size == before[axis] and math.prod(after[:at]) == ahead:
            return at
    return None


def _expanded(node: Node) -> int:
    return _dim(node) - _dim(node.args[0]) + _axis(node.args[0])


def _product(node: Node) -> Any:
    """mm, addmm: rows of the left, columns of the right, or summed over."""
    *bias, left, right = node.args
    states = left.meta[STATE], right.meta[STATE]
    if states == (1, 0) and not bias:
        return SUM
    axis = {(0, WHOLE): 0, (WHOLE, 1): 1}.get(states)
    return axis if all(b.meta[STATE] == WHOLE and _repeats(b, axis) for b in bias) else None


def _repeats(bias: Node, axis: int | None) -> bool:
    """Whether a summand of a matrix is the same along the axis."""
    shape = (1, 1, *bias.meta["val"].shape)[-2:]
    return axis is not None and shape[axis] == 1


def _vectors(node: Node) -> Any:
    """dot and mv."""
    left, right = (n.meta[STATE] for n in node.args)
    if right == 0 and left == _dim(node.args[0]) - 1:
        return SUM
    return 0 if (left, right) == (0, WHOLE) and _dim(node.args[0]) == 2 else None


def _along(node: Node) -> int | None:
    """Softmax: over another axis."""
    axis = _axis(node.args[0])
    return axis if node.args[1] % _dim(node) != axis else None


def _joined(node: Node) -> int | None:
    """Side by side along another axis."""
    axes = {n.meta[STATE] for n in node.args[0]}
    axis = axes.pop()
    along = node.args[1] % _dim(node) if len(node.args) > 1 else 0
    return axis if not axes and axis != along else None


def _gathered(node: Node) -> int | None:
    values, dim, index = node.args[:3]
    if values.meta[STATE] != index.meta[STATE] or dim % _dim(node) == _axis(values):
        return None
    return _axis(values)


def _reduced(node: Node) -> Any:
    """Sums and means over rows are sums; over other axes, as other reductions, they leave the rows."""
    before, axis = node.args[0], _axis(node.args[0])
    given = node.args[1] if len(node.args) > 1 else None
    named = given if isinstance(given, list | tuple) else [given]
    dims = [d % _dim(before) for d in named if d is not None] or list(range(_dim(before)))
    if axis not in dims:
        return axis if _dim(node) == _dim(before) else axis - sum(d < axis for d in dims)
    return SUM if node.target in (*MEANS, *MEANS.values()) else None


RULES: dict[Any, Callable[[Node], Any]] = {
    aten.t.default: _turned, aten.transpose.int: _turned, aten.permute.default: _permuted,
    aten.unsqueeze.default: _unsqueezed, aten.squeeze.dim: _squeezed, aten.expand.default: _expanded,
    **dict.fromkeys(VIEWS, _viewed), aten._to_copy.default: _pointwise, aten.fill.Scalar: _pointwise,
    aten.empty_like.default: _pointwise, aten.zeros_like.default: _pointwise,
    aten.ones_like.default: _pointwise, aten.full_like.default: _pointwise,
    aten.mm.default: _product, aten.addmm.default: _product,
    aten.cat.default: _joined, aten.dot.default: _vectors, aten.mv.default: _vectors,
    aten._log_softmax.default: _along, aten._softmax.default: _along, aten.gather.default: _gathered,
    aten.sum.default: _reduced, aten.sum.dim_IntList: _reduced,
    aten.mean.default: _reduced, aten.mean.dim: _reduced,
    aten.amax.default: _reduced, aten.argmax.default: _reduced, aten.logsumexp.default: _reduced,
}  # fmt: skip
