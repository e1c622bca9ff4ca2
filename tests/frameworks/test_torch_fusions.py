"""What a point's graph may overwrite, and what not: fewer passes over memory, the same numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from distsummary.landscapes.engines.graph.torch_fusions import (
    ADD_CONVOLUTION,
    add_in_convolutions,
    in_place,
    take_relu,
)
from distsummary.landscapes.engines.graph.torch_slots import RectifiedFlat
from distsummary.landscapes.engines.graph.torch_trace import aten, record
from tests.frameworks.test_torch_rewrites import EXACT, calls, convolved, pictures, run, values


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


def test_a_sum_in_place_lies_as_it_was_recorded() -> None:
    def function(slot: Tensor, other: Tensor) -> Tensor:
        return (other + torch.tanh(slot)).view(2, 12)  # of rows, where tanh(slot) lies in columns

    slot, other = values((2, 4, 3), (2, 3, 4))
    arguments = [slot.mT, other]
    graph = record(function, arguments)
    in_place(graph, 0, 1)
    torch.testing.assert_close(run(graph, arguments), function(*arguments), **EXACT)


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
