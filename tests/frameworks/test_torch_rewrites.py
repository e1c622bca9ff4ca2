"""Rewrites of recorded losses: what they leave, and that the numbers stay."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402

from distsummary.errors import CannotTraceError  # noqa: E402
from distsummary.landscapes.engines.graph.torch_fx import aten, placeholders  # noqa: E402
from distsummary.landscapes.engines.graph.torch_rewrites import (  # noqa: E402
    BATCH_NORMS,
    DOT_ROWS,
    ON_CPU,
    fold_batch_norms,
    in_place,
    turn_weights,
)
from distsummary.landscapes.engines.graph.torch_trace import record  # noqa: E402

ROWS = 40
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def values(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Random tensors of these shapes, float64."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def run(graph: fx.Graph, arguments: list[Tensor]) -> Any:
    return fx.GraphModule({}, graph).forward(*arguments)


def calls(graph: fx.Graph, *targets: Any) -> list[Any]:
    return [node for node in graph.nodes if node.target in targets]


def test_a_weight_that_moves_and_one_product_reads_is_kept_transposed() -> None:
    def loss(x: Tensor, first: Tensor, second: Tensor, tied: Tensor) -> Tensor:
        hidden = nn.functional.linear(torch.relu(nn.functional.linear(x, first)), second)
        return nn.functional.linear(hidden, tied) + tied.t().sum()

    arguments = values((ROWS, 24), (64, 24), (48, 64), (40, 48))
    for moved, turned in ((slice(1, 4), 2), (slice(1, 2), 1)):
        graph = record(loss, arguments, ON_CPU)
        turn_weights(graph, placeholders(graph)[moved])
        assert len(calls(graph, aten.clone.default)) == turned
        torch.testing.assert_close(run(graph, arguments), loss(*arguments), **EXACT)


LABELS = torch.arange(ROWS) % 3
MANY = torch.arange(DOT_ROWS + 1) % 3


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.addmm, [(3,), (ROWS, 4), (4, 3)]),
        (torch.addmm, [(ROWS, 3), (ROWS, 4), (4, 3)]),
        (torch.addmm, [(64,), (ROWS, 4), (4, 64)]),
        (lambda b, x, w: torch.addmm(b, x, w, beta=2), [(3,), (ROWS, 4), (4, 3)]),
        (lambda b, x, w: torch.addmm(b, x, w, alpha=2), [(3,), (ROWS, 4), (4, 3)]),
        (lambda x, w: x.bmm(w.mT), [(5, ROWS, 4), (5, 3, 4)]),
        (lambda x, w: x.bmm(w.mT), [(5, 4, 4), (5, 16, 4)]),
        *((lambda x, dim=dim: x.log_softmax(dim), [(ROWS, 3)]) for dim in (0, 1, -1, -2)),
        *((lambda x, dim=dim: x.log_softmax(dim), [(2, ROWS, 3)]) for dim in (0, 1, 2)),
        (lambda x: x.log_softmax(0), [(ROWS,)]),
        *(
            (lambda x, how=how: nn.functional.cross_entropy(x, LABELS, reduction=how), [(ROWS, 3)])
            for how in ("none", "mean", "sum")
        ),
        *(
            (lambda x, how=how: nn.functional.nll_loss(x, LABELS, ignore_index=1, reduction=how), [(ROWS, 3)])
            for how in ("none", "mean", "sum")
        ),
        (lambda x, weight: nn.functional.nll_loss(x, LABELS, weight), [(ROWS, 3), (3,)]),
        (lambda x: nn.functional.nll_loss(x.t(), LABELS), [(3, ROWS)]),
        (lambda x: nn.functional.nll_loss(x, MANY), [(DOT_ROWS + 1, 3)]),
    ],
)
def test_single_operations_keep_their_numbers(function: Any, shapes: list[tuple[int, ...]]) -> None:
    arguments = values(*shapes)
    graph = record(lambda *given: function(*given), arguments, ON_CPU)
    torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


def normed(x: Tensor, *statistics: Tensor, **more: Any) -> Tensor:
    mean, var = statistics
    return nn.functional.batch_norm(x, mean, var.exp(), **more)


@pytest.mark.parametrize(
    ("function", "shapes", "is_folded"),
    [
        (lambda x, w, *s: normed(nn.functional.linear(x, w, s[0]), *s), [(9, 4), (8, 4), (8,), (8,)], True),
        (
            lambda x, w, *s: normed(nn.functional.conv1d(x, w), *s, eps=0.3),
            [(2, 4, 7), (8, 4, 3), (8,), (8,)],
            True,
        ),
        (
            lambda x, w, *s: normed(nn.functional.conv1d(x, w, groups=2), *s, weight=s[0], bias=s[1]),
            [(2, 4, 7), (8, 2, 3), (8,), (8,)],
            True,
        ),
        (
            lambda x, w, *s: normed(nn.functional.conv_transpose1d(x, w), *s),
            [(2, 4, 7), (4, 8, 3), (8,), (8,)],
            False,
        ),
        (
            lambda x, w, *s: normed(h := nn.functional.conv1d(x, w), *s) + h,
            [(2, 4, 7), (8, 4, 3), (8,), (8,)],
            False,
        ),
        (lambda x, w, b, v: normed(torch.addmm(b, x, w, alpha=2), b, v), [(9, 4), (4, 8), (8,), (8,)], False),
        (
            lambda x, w: nn.functional.batch_norm(nn.functional.conv1d(x, w), None, None, training=True),
            [(2, 4, 7), (8, 4, 3)],
            False,
        ),
    ],
)
def test_norms_with_running_statistics_are_folded_into_the_layer_before_them_alone(
    function: Any, shapes: list[tuple[int, ...]], is_folded: bool
) -> None:
    arguments = values(*shapes)
    graph = record(lambda *given: function(*given), arguments, ON_CPU)
    before = calls(graph, *BATCH_NORMS)
    fold_batch_norms(graph)
    assert bool(len(before) - len(calls(graph, *BATCH_NORMS))) == is_folded
    torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


def test_rows_that_do_not_count_may_be_infinitely_improbable() -> None:
    logits, labels = torch.tensor([[-2e38, 2e38, 0.0], [0.0, 1.0, 2.0]]), torch.tensor([-100, 1])
    graph = record(nn.functional.cross_entropy, [logits, labels], ON_CPU)
    expected = nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(run(graph, [logits, labels]), expected)


def test_writes_to_what_others_read_are_refused_and_to_own_results_are_not() -> None:
    x = torch.ones(4)

    def to_its_own(x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x[None], torch.tensor([1]), label_smoothing=0.1)

    def to_a_piece(x: Tensor) -> Tensor:
        mask = template.clone()
        first, _ = mask.chunk(2)
        first.mul_(0)
        return (x * mask).sum()

    scale, template = torch.zeros(()), torch.ones(4)

    def to_another_tensor(x: Tensor) -> Tensor:
        scale.fill_(0.0)
        scale.add_(1.0)
        return (x * scale).sum()

    torch.testing.assert_close(run(record(to_its_own, [x]), [x]), to_its_own(x))
    for function in (to_a_piece, to_another_tensor):
        with pytest.raises(CannotTraceError, match="writes to its input"):
            record(function, [x])


def pictures(channels: int = 8, kernels: int = 2) -> list[Tensor]:
    """Channels-last pictures, and kernels that keep their shape, float32."""
    shapes = [(3, channels, 6, 6), *[(channels, channels, 3, 3)] * kernels]
    return [v.float().to(memory_format=torch.channels_last) for v in values(*shapes)]


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.conv2d(x, weight, padding=1)


def test_a_folded_convolution_lies_as_the_one_it_replaces() -> None:
    picture, weight = pictures(kernels=1)
    norm = values((8,), (8,), (8,), (8,))

    def function(x: Tensor, weight: Tensor, mean: Tensor, var: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return nn.functional.batch_norm(convolved(x, weight), mean, var.abs(), gamma, beta)

    arguments = [picture, weight, *[v.float() for v in norm]]
    graph = record(function, arguments)
    fold_batch_norms(graph)
    (folded,) = calls(graph, aten.convolution.default)
    found = run(graph, arguments)
    assert folded.meta["val"].stride() == found.stride()
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, function(*arguments))


def overwritten(function: Callable[..., Any], *arguments: Tensor) -> Any:
    """The graph of a function with its operations in place, which gives the same each time."""
    graph = record(function, [*arguments])
    in_place(graph, 0, 1)
    expected = function(*arguments)
    for _ in range(2):
        found = run(graph, [*arguments])
        torch.testing.assert_close(found, [*expected] if isinstance(expected, tuple) else expected, **EXACT)
    return graph


@pytest.mark.parametrize(
    "view",
    [
        lambda h: h.unsqueeze(1).expand(-1, 3, -1),
        lambda h: h.unfold(1, 3, 1),
        lambda h: h.as_strided((5, 4, 3), (6, 1, 1)),
    ],
)
def test_nothing_is_added_in_place_where_elements_share_memory(view: Callable[[Tensor], Tensor]) -> None:
    def function(slot: Tensor, step: Tensor) -> Tensor:
        return torch.relu(view(torch.tanh(slot)) + step)

    graph = overwritten(function, *values((5, 6), ()))
    assert calls(graph, aten.add.Tensor)
    assert calls(graph, aten.relu_.default)  # the sum has memory of its own


def read_again(slot: Tensor, fixed: Tensor) -> Tensor:
    return torch.relu(h := torch.tanh(slot)) * h


def added_and_read_again(slot: Tensor, fixed: Tensor) -> Tensor:
    return ((h := torch.tanh(slot)) + fixed) * h


def read_again_by_a_view(slot: Tensor, fixed: Tensor) -> Tensor:
    return torch.relu((h := torch.tanh(slot)).view(-1)).view(5, 6) * h


def of_another_shape(slot: Tensor, fixed: Tensor) -> Tensor:
    return torch.tanh(slot[0]) + fixed


def of_another_precision(slot: Tensor, fixed: Tensor) -> Tensor:
    return torch.tanh(slot.float()) + fixed


def of_what_is_fixed(slot: Tensor, fixed: Tensor) -> Tensor:
    return torch.relu(fixed) * torch.tanh(slot)


@pytest.mark.parametrize(
    "function",
    [
        *(read_again, added_and_read_again, read_again_by_a_view, of_another_shape, of_another_precision),
        of_what_is_fixed,
    ],
)
def test_nothing_is_overwritten_that_is_read_elsewhere_or_of_another_kind(function: Callable[..., Tensor]):
    graph = overwritten(function, *values((5, 6), (5, 6)))
    assert not calls(graph, aten.add_.Tensor, aten.relu_.default)


def test_a_view_that_no_one_else_reads_is_overwritten() -> None:
    def function(slot: Tensor) -> Tensor:
        return torch.relu(torch.tanh(slot).view(-1))

    assert calls(overwritten(function, *values((5, 6))), aten.relu_.default)


def test_a_sum_with_a_factor_is_added_to_its_first_part_alone() -> None:
    def function(slot: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        return torch.add(fixed, torch.tanh(slot), alpha=3), torch.add(torch.exp(slot), fixed, alpha=2)

    graph = overwritten(function, *values((5, 6), (5, 6)))
    assert len(calls(graph, aten.add.Tensor)) == len(calls(graph, aten.add_.Tensor)) == 1


def test_a_sum_in_place_lies_as_it_was_recorded() -> None:
    def function(slot: Tensor, other: Tensor) -> Tensor:
        return (other + torch.tanh(slot)).view(2, 12)  # of rows, where tanh(slot) lies in columns

    slot, other = values((2, 4, 3), (2, 3, 4))
    overwritten(function, slot.mT, other)
