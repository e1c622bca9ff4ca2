"""Rewrites of recorded losses: what they leave, and that the numbers stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, fx, nn  # noqa: E402

from distsummary.landscape.engines.graph.calls import KEPT_BYTES, bind  # noqa: E402
from distsummary.landscape.engines.graph.columns import turn_chains  # noqa: E402
from distsummary.landscape.engines.graph.fusions import (  # noqa: E402
    ADD_CONVOLUTION,
    add_in_convolutions,
    in_place,
    take_relu,
)
from distsummary.landscape.engines.graph.rewrites import ON_CPU, rewrite  # noqa: E402
from distsummary.landscape.engines.graph.slots import RectifiedFlat  # noqa: E402
from distsummary.landscape.engines.graph.trace import CannotTraceError, aten, placeholders, record  # noqa: E402

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

    arguments = values((5, 6), ())
    graph = record(function, arguments)
    in_place(graph, 0, 1)
    assert calls(graph, aten.add.Tensor)
    assert calls(graph, aten.relu_.default)  # the sum has memory of its own
    torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


def test_a_sum_in_place_lies_as_it_was_recorded() -> None:
    def function(slot: Tensor, other: Tensor) -> Tensor:
        return (other + torch.tanh(slot)).view(2, 12)  # of rows, where tanh(slot) lies in columns

    slot, other = values((2, 4, 3), (2, 3, 4))
    arguments = [slot.mT, other]
    graph = record(function, arguments)
    in_place(graph, 0, 1)


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
def test_nothing_is_overwritten_that_is_read_elsewhere_or_of_another_kind(
    function: Callable[..., Tensor],
) -> None:
    arguments = values((5, 6), (5, 6))
    graph = record(function, arguments)
    in_place(graph, 0, 1)
    assert not calls(graph, aten.add_.Tensor, aten.relu_.default)
    for _ in range(2):
        torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


def test_a_view_that_nobody_else_reads_is_overwritten() -> None:
    def function(slot: Tensor) -> Tensor:
        return torch.relu(torch.tanh(slot).view(-1))

    arguments = values((5, 6))
    graph = record(function, arguments)
    in_place(graph, 0, 1)
    assert calls(graph, aten.relu_.default)
    torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


def test_a_sum_with_a_factor_is_added_to_its_first_part_alone() -> None:
    def function(slot: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
        return torch.add(fixed, torch.tanh(slot), alpha=3), torch.add(torch.exp(slot), fixed, alpha=2)

    arguments = values((5, 6), (5, 6))
    graph = record(function, arguments)
    in_place(graph, 0, 1)
    assert len(calls(graph, aten.add.Tensor)) == len(calls(graph, aten.add_.Tensor)) == 1
    torch.testing.assert_close(run(graph, arguments), list(function(*arguments)), **EXACT)


def test_slots_of_half_precision_keep_their_relu() -> None:
    graph = record(lambda slot: torch.relu(slot) + 1, [values((4,))[0].half()])
    assert not take_relu(graph, 0, 1)


def test_slots_take_over_their_relu_only_if_nobody_reads_them_without() -> None:
    def function(shared: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return torch.relu(one) @ shared + torch.relu(other)

    arguments = values((4, 4), (5, 4), (5, 4))
    graph = record(function, arguments)
    assert not take_relu(graph, 0, 3)
    assert len(calls(graph, aten.relu.default)) == 2
    assert take_relu(graph, 1, 3)
    assert not calls(graph, aten.relu.default)
    shared, one, other = arguments
    torch.testing.assert_close(run(graph, [shared, one.relu(), other.relu()]), function(*arguments), **EXACT)
    assert not take_relu(graph, 1, 1)


@pytest.mark.parametrize("far", [1.0, 1e38, np.inf, np.nan])
def test_slots_behind_a_relu_are_what_a_sum_and_a_relu_give(far: float) -> None:
    base, x, y = (v.float() for v in values((6, 4), (6, 4), (6, 4)))
    base[0, 0], x[0, 0], y[1, 1] = 3 * min(far, 1e38), far, -far
    flat = RectifiedFlat({"0": torch.empty((6, 4), device="meta")}, torch.device("cpu"))
    flat.set_plane({"0": base}, {"0": x}, {"0": y})
    (memory,) = (tensor for _, tensor in flat.points())
    for row, column in ((0.5, 0.25), (-1.0, 4.0)):
        flat.set_row(row)
        flat.load([column])
        flat.move()
        torch.testing.assert_close(memory, torch.relu(base + row * y + column * x), equal_nan=True)


def pictures(channels: int = 8, kernels: int = 2) -> list[Tensor]:
    """Channels-last pictures, and kernels that keep their shape, float32."""
    shapes = [(3, channels, 6, 6), *[(channels, channels, 3, 3)] * kernels]
    return [v.float().to(memory_format=torch.channels_last) for v in values(*shapes)]


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.conv2d(x, weight, padding=1)


def convolved_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The pictures as rows of numbers, in one dimension."""
    return nn.functional.conv1d(x.flatten(2), weight[:, :, 0], padding=1)


def residual(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.relu(convolved(torch.relu(convolved(x, one)), other) + x)


def with_additions(function: Callable[..., Tensor], arguments: list[Tensor], shared: int = 0) -> fx.Graph:
    """The recorded function with sums in place and in convolutions; `shared` of its slots are not its own."""
    graph = record(function, arguments)
    in_place(graph, shared, len(arguments))
    add_in_convolutions(graph, shared, len(arguments))
    return graph


@pytest.mark.skipif(
    ADD_CONVOLUTION is None or not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="oneDNN's convolutions are for x86 here",
)
class TestSumsInConvolutions:
    @pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
    def test_a_convolution_adds_to_what_nobody_reads_afterwards(self, bad: float | None) -> None:
        arguments = pictures()
        if bad is not None:
            arguments[0][0, 0, 0, 0] = bad
        graph = with_additions(residual, arguments)
        assert len(calls(graph, ADD_CONVOLUTION)) == 1
        assert not calls(graph, aten.add.Tensor, aten.add_.Tensor)
        expected = residual(*arguments)
        torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), expected, equal_nan=True)

    def test_it_does_not_matter_on_which_side_of_the_sum_a_convolution_stands(self) -> None:
        def function(x: Tensor, weight: Tensor) -> Tensor:
            return torch.tanh(x) + convolved(torch.relu(x), weight)

        arguments = pictures(kernels=1)
        graph = with_additions(function, arguments)
        assert len(calls(graph, ADD_CONVOLUTION)) == 1
        torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), function(*arguments))

    def test_sums_of_sums_are_made_in_one_memory(self) -> None:
        def function(x: Tensor, *weights: Tensor) -> Tensor:
            for weight in weights:
                x = x + convolved(torch.relu(x), weight)
            return x.sum()

        arguments = pictures(kernels=3)
        graph = with_additions(function, arguments)
        assert len(calls(graph, ADD_CONVOLUTION)) == 3
        torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), function(*arguments))

    @pytest.mark.parametrize(
        ("function", "shared"),
        [
            (residual, 1),  # the slot is read at other batches too
            (lambda x, one, other: residual(x, one, other) + x, 0),
            (lambda x, one, _: convolved(x, one) + x, 0),
            (lambda x, one, _: convolved(torch.relu(x), one) + x[:, :, :1], 0),
            (lambda x, one, _: (convolved(torch.relu(x), one) + x).sum() + x.flatten()[1], 0),
            (lambda x, one, _: torch.relu(h := convolved(x, one)) + torch.tanh(h), 0),
            (lambda x, one, _: convolved(torch.relu(x), one).contiguous() + x.contiguous(), 0),
            (lambda x, one, _: torch.add(convolved(torch.relu(x), one), x, alpha=2.0).sin(), 0),
            (lambda x, one, _: torch.relu(torch.tanh(x) + (h := convolved(torch.relu(x), one))) + h, 0),
            (lambda x, one, _: (convolved(x.relu(), one) + (t := x.tanh())[:, :8]).sin() + t, 0),
            (lambda x, one, _: (convolved(x.relu(), one) + (t := x.tanh()).split(8, 1)[0]).sin() + t, 0),
            (lambda x, one, _: (x[:1], convolved(x.relu(), one) + x), 0),
            (lambda x, one, _: nn.functional.conv_transpose2d(torch.relu(x), one, padding=1) + x.tanh(), 0),
            (lambda x, one, _: convolved_rows(torch.relu(x), one) + x.flatten(2).tanh(), 0),
        ],
    )
    def test_and_to_nothing_else(self, function: Callable[..., Tensor], shared: int) -> None:
        arguments = pictures()
        graph = with_additions(function, arguments, shared)
        assert not calls(graph, ADD_CONVOLUTION)
        torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), function(*arguments))

    def test_pictures_in_another_order_or_precision_are_added_by_themselves(self) -> None:
        for change in (Tensor.double, Tensor.contiguous):
            arguments = [change(a) for a in pictures()]
            graph = with_additions(residual, arguments)
            assert not calls(graph, ADD_CONVOLUTION)
            torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), residual(*arguments))

    @pytest.mark.parametrize(("side", "fused"), [(16, 0), (64, 1)])
    def test_one_small_picture_is_left_to_torch(self, side: int, fused: int) -> None:
        arguments = [v.float() for v in values((1, 8, side, side), (8, 8, 3, 3), (8, 8, 3, 3))]
        arguments = [a.to(memory_format=torch.channels_last) for a in arguments]
        assert len(calls(with_additions(residual, arguments), ADD_CONVOLUTION)) == fused

    def test_where_onednn_is_switched_off_sums_are_made_by_themselves(self) -> None:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            assert not calls(with_additions(residual, pictures()), ADD_CONVOLUTION)
        finally:
            torch._C._set_mkldnn_enabled(before)

    def test_what_a_later_convolution_reads_is_not_overwritten_before_it(self) -> None:
        def function(x: Tensor, one: Tensor, other: Tensor) -> Tensor:
            early = convolved(x, one)
            summed = x + convolved(torch.relu(x), other)
            return torch.relu(torch.tanh(summed) + early)

        arguments = pictures()
        graph = with_additions(function, arguments)
        assert len(calls(graph, ADD_CONVOLUTION)) == 1
        torch.testing.assert_close(run(graph, [a.clone() for a in arguments]), function(*arguments))


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
