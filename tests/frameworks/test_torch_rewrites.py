"""Rewrites of recorded losses: what they leave, and that the numbers stay."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402

from distsummary.errors import CannotTraceError  # noqa: E402
from distsummary.landscapes.engines.graph.torch_calls import KEPT_BYTES, bind  # noqa: E402
from distsummary.landscapes.engines.graph.torch_columns import turn_chains  # noqa: E402
from distsummary.landscapes.engines.graph.torch_fusions import in_place  # noqa: E402
from distsummary.landscapes.engines.graph.torch_rewrites import (  # noqa: E402
    BATCH_NORMS,
    DOT_ROWS,
    ON_CPU,
    fold_batch_norms,
    rewrite,
)
from distsummary.landscapes.engines.graph.torch_trace import aten, placeholders, record  # noqa: E402

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


def layers(x: Tensor, *parameters: Tensor, activation: Callable[[Tensor], Tensor] = torch.relu) -> Tensor:
    """A network of linear layers of weights and biases."""
    *hidden, last = zip(parameters[::2], parameters[1::2], strict=True)
    for weight, bias in hidden:
        x = activation(nn.functional.linear(x, weight, bias))
    return nn.functional.linear(x, *last)


def loss_of_layers(x: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
    return nn.functional.cross_entropy(layers(x, *parameters), labels)


def mlp(classes: int = 10) -> list[Tensor]:
    labels = torch.arange(ROWS) % classes
    x, *parameters = values((ROWS, 24), (64, 24), (64,), (48, 64), (48,), (classes, 48), (classes,))
    return [x, labels, *parameters]


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, lambda x: x + 0.5 * torch.sigmoid(x)])
def test_layers_between_a_fixed_input_and_a_transposed_reader_are_evaluated_in_columns(activation) -> None:
    def loss(x: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
        return nn.functional.cross_entropy(layers(x, *parameters, activation=activation), labels)

    arguments = mlp()
    expected = loss(*arguments)
    graph = record(loss, arguments, ON_CPU)
    rewrite(graph, placeholders(graph)[2:], on_cpu=True, by_layout=True)
    torch.testing.assert_close(run(graph, arguments), expected, **EXACT)
    products = calls(graph, aten.addmm.default, aten.mm.default)
    assert len(products) == 3
    assert all(node.args[-1].meta["val"].is_contiguous() for node in products)  # no side is transposed
    assert all(node.args[-2].meta["val"].is_contiguous() for node in products)


def test_biases_behind_a_relu_are_columns_of_the_weights_in_one_memory() -> None:
    arguments = mlp()
    graph = record(loss_of_layers, arguments, ON_CPU)
    rewrite(graph, placeholders(graph)[2:], on_cpu=True, by_layout=True)
    torch.testing.assert_close(run(graph, arguments), loss_of_layers(*arguments), **EXACT)
    first, *others = calls(graph, aten.addmm.default, aten.mm.default)
    assert first.target is aten.addmm.default  # computed once a plane
    assert [[tuple(n.meta["val"].shape) for n in node.args] for node in others] == [
        [(48, 65), (65, ROWS)],
        [(10, 49), (49, ROWS)],
    ]


@pytest.mark.parametrize("first_moved", range(2, 8))
def test_layers_that_stay_do_not_hinder_those_that_move(first_moved: int) -> None:
    arguments = mlp()
    graph = record(loss_of_layers, arguments, ON_CPU)
    rewrite(graph, placeholders(graph)[first_moved:], on_cpu=True, by_layout=True)
    torch.testing.assert_close(run(graph, arguments), loss_of_layers(*arguments), **EXACT)


def test_a_bias_stays_a_bias_where_others_read_the_relu_or_layout_does_not_matter() -> None:
    def with_shortcut(x: Tensor, *parameters: Tensor) -> Tensor:
        hidden = torch.relu(nn.functional.linear(x, *parameters[:2]))
        return hidden + torch.relu(nn.functional.linear(hidden, *parameters[2:]))

    arguments = values((ROWS, 6), (6, 6), (6,), (6, 6), (6,))
    for loss, given, by_layout in ((with_shortcut, arguments, True), (loss_of_layers, mlp(), False)):
        graph = record(loss, given, ON_CPU)
        rewrite(graph, placeholders(graph)[1:], on_cpu=True, by_layout=by_layout)
        torch.testing.assert_close(run(graph, given), loss(*given), **EXACT)
        assert not calls(graph, aten.cat.default)


def with_norm(x: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
    hidden = nn.functional.layer_norm(nn.functional.linear(x, *parameters[:2]), (64,))
    return nn.functional.cross_entropy(layers(hidden, *parameters[2:]), labels)


def with_sum_over_rows(x: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
    first = torch.relu(nn.functional.linear(x, *parameters[:2]))
    return nn.functional.cross_entropy(layers(first - first.mean(0), *parameters[2:]), labels)


def with_tied_weight(x: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
    return loss_of_layers(x, labels, *parameters) + parameters[2].t().sum(1).square().sum()


@pytest.mark.parametrize("loss", [with_norm, with_sum_over_rows, with_tied_weight])
def test_what_else_reads_rows_or_weights_gets_what_it_had(loss) -> None:
    arguments = mlp()
    expected = loss(*arguments)
    graph = record(loss, arguments, ON_CPU)
    rewrite(graph, placeholders(graph)[2:], on_cpu=True, by_layout=True)
    torch.testing.assert_close(run(graph, arguments), expected, **EXACT)


def test_a_wide_last_layer_keeps_all_rows_and_turns_weights_that_one_product_uses() -> None:
    arguments = mlp(classes=40)
    expected = loss_of_layers(*arguments)
    graph = record(loss_of_layers, arguments, ON_CPU)
    before = len(list(graph.nodes))
    turn_chains(graph)
    assert len(list(graph.nodes)) == before
    rewrite(graph, placeholders(graph)[2:6], on_cpu=True, by_layout=True)
    assert len(calls(graph, aten.clone.default)) == 2  # of the weights that move
    torch.testing.assert_close(run(graph, arguments), expected, **EXACT)


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
        (
            lambda x, w, b, v: normed(torch.addmm(b, x, w, alpha=2), b, v),
            [(9, 4), (4, 8), (8,), (8,)],
            False,
        ),
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
    fold_batch_norms(graph)
    assert bool(calls(graph, *BATCH_NORMS)) != is_folded
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
    rewrite(graph, placeholders(graph)[1:2], on_cpu=True, by_layout=True)
    (folded,) = calls(graph, aten.convolution.default)
    found = run(graph, arguments)
    assert folded.meta["val"].stride() == found.stride()
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, function(*arguments))


def two_layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    hidden = torch.relu(torch.addmm(bias, weight, x))
    return torch.tanh(hidden.t().mm(hidden))


def bound(arguments: list[Tensor], memory: dict[Any, Tensor], graph: fx.Graph) -> Callable[[], Any]:
    found = bind(graph, arguments, memory)
    assert found is not None
    return found


def test_bound_calls_give_what_the_graph_gives_and_follow_their_arguments() -> None:
    arguments = values((5, 6), (7, 5), (7, 1))
    graph = record(two_layers, arguments)
    in_place(graph, 0, 3)
    call = bound(arguments, {}, graph)
    for _ in range(2):
        torch.testing.assert_close(call()[0], two_layers(*arguments), **EXACT)
        arguments[0].mul_(0.5)


def test_bound_calls_of_two_batches_share_memory_but_for_their_results() -> None:
    first, second = values((5, 6), (7, 5), (7, 1)), values((5, 6), (7, 5), (7, 1))
    second[0] *= 3
    graph = record(two_layers, first)
    in_place(graph, 0, 3)
    memory: dict[Any, Tensor] = {}
    one, other = bound(first, memory, graph), bound(second, memory, graph)
    found, another = one(), other()
    torch.testing.assert_close(found[0], two_layers(*first), **EXACT)
    torch.testing.assert_close(another[0], two_layers(*second), **EXACT)
    assert found[0].data_ptr() != another[0].data_ptr()
    assert len(memory) == 3  # two products and the result


def test_bound_calls_make_what_is_stacked_in_its_place_and_copy_the_rest() -> None:
    def stacked(x: Tensor, weight: Tensor, more: Tensor) -> Tensor:
        product, twice, read_elsewhere = weight @ x, torch.tanh(x), torch.sigmoid(x)
        rows = torch.relu(torch.cat([product, more, twice, twice, read_elsewhere]))
        return torch.tanh(rows @ read_elsewhere.t())

    arguments = values((5, 6), (7, 5), (2, 6))
    graph = record(stacked, arguments)
    in_place(graph, 0, 3)
    memory: dict[Any, Tensor] = {}
    call = bound(arguments, memory, graph)
    for _ in range(2):
        torch.testing.assert_close(call()[0], stacked(*arguments), **EXACT)
        arguments[2].mul_(-0.5)
    assert len(memory) == 5  # the stack with the product in it, two that are copied, the last two


def test_a_graph_with_other_operations_or_large_results_is_not_bound() -> None:
    numbers = values((4, 4))
    assert bind(record(lambda a: a.cumsum(0), numbers), numbers, {}) is None
    assert bind(record(lambda a: torch.cat([a, a], 1), numbers), numbers, {}) is None
    wide = [torch.empty(KEPT_BYTES // 4 + 1)]
    assert bind(record(torch.tanh, wide), wide, {}) is None
