"""Convolutions of several points in channels-last memory: biases inside, weights in oneDNN's own order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from distsummary.errors import CannotTraceError
from distsummary.landscapes.engines.engine_choice import EXACT, EngineChoice
from distsummary.landscapes.engines.graph import torch_packed as packed
from distsummary.landscapes.engines.graph import torch_program as program
from distsummary.landscapes.engines.graph import torch_slots as slots
from distsummary.landscapes.engines.graph.torch_groups import take_in_biases
from distsummary.landscapes.engines.graph.torch_trace import aten, record
from tests.frameworks.landscape_nets import XS, YS, Net, engine_at, float64_losses, plane_of
from tests.frameworks.test_torch_rewrites import calls, convolved, run, values

CHUNK = EngineChoice(engine="graph", chunk=4, options=("channels_last",))
HAS_ONEDNN = packed.REORDER is not None and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
needs_avx512 = pytest.mark.skipif(not HAS_ONEDNN, reason="other processors have other orders")


@pytest.fixture
def weights_packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights each program has packed."""
    counts: list[int] = []

    def counting(*arguments: Any) -> dict[int, Tensor]:
        found = packed.pack_weights(*arguments)
        counts.append(len(found))
        return found

    monkeypatch.setattr(program, "pack_weights", counting)
    return counts


class Pictures(Net):
    """What is done to pictures of 16 channels, between a stem and a head."""

    def __init__(self, body: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.body, self.head = body(), nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(self.stem(x))).flatten(1))

    def batch(self, rows: int) -> Any:
        return torch.randn(rows, 3, 8, 7), torch.arange(rows) % 3


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.Conv2d(32, 32, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(2))
        self.shortcut = nn.Conv2d(16, 32, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.one(x)))
        return torch.relu(self.norms[1](self.two(h)) + self.shortcut(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Shrunk(nn.Module):
    """The weights are read by more than the convolution: as they are, or in part."""

    def __init__(self, part: slice = slice(None)) -> None:
        super().__init__()
        self.layer, self.part = nn.Conv2d(16, 16, 3, padding=1), part

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.tanh(self.layer.weight[self.part]).sum()


class Turned(nn.Module):
    """The kernels with rows for columns, which is a view of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.layer.weight.mT, self.layer.bias, padding=1)


def layer(*arguments: Any, **more: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*arguments, **more)


# What it is, and of how many convolutions the weights are packed (the stem is affine in the point).
BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "residual": (Residual, 3),
    "wide": (layer(16, 64, 3, padding=1), 1),
    "dilated": (layer(16, 32, 3, dilation=2, padding=2), 1),
    "strided": (layer(16, 16, (5, 3), (1, 2), (2, 1)), 1),
    "without a bias": (layer(16, 16, 1, bias=False), 1),
    "in groups": (layer(16, 32, 3, groups=1, padding="same"), 1),
    "turned": (Turned, 0),
    "twice": (Twice, 0),
    "read elsewhere": (Shrunk, 0),
    "read in part": (lambda: Shrunk(slice(3, 7)), 0),
}


def pictured(body: Callable[[], nn.Module]) -> tuple[nn.Module, list[Any]]:
    model = Pictures(body)
    model(model.batch(1)[0])  # the head learns its size
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval(), [model.batch(5), model.batch(4), model.batch(5)]


def check(model: nn.Module, batches: list[Any], choice: EngineChoice = CHUNK) -> None:
    """Every loss is that of the float64 loop."""
    engine = engine_at(model, batches, choice)
    try:
        found = np.array([engine.row_values(y, XS)[:, 0] for y in YS])
        again = np.array([engine.row_values(y, XS)[:, 0] for y in YS])
    finally:
        engine.close()
    exact = np.reshape(float64_losses(model, batches), found.shape)
    np.testing.assert_allclose(found, exact, rtol=EXACT)
    assert again.tobytes() == found.tobytes()


@needs_avx512
@pytest.mark.parametrize("name", BODIES)
def test_packed_weights_give_the_losses(name: str, weights_packed: list[int]) -> None:
    body, count = BODIES[name]
    check(*pictured(body))
    assert weights_packed == [count, count]  # for batches of five and of four rows


@pytest.mark.parametrize(
    "body", [layer(16, 6, 3), layer(16, 16, 3, groups=16), layer(16, 32, 3, groups=4), layer(16, 24, 1)]
)
def test_other_numbers_of_channels_give_the_losses(body: Callable[[], nn.Module]) -> None:
    check(*pictured(body))


def test_each_plane_has_its_own_weights(weights_packed: list[int]) -> None:
    model, batches = pictured(Residual)
    planes = [plane_of(model, normalization)[:2] for normalization in ("filter", "none", "filter")]
    engine, found = engine_at(model, batches[:1], CHUNK), []
    for plane in planes:
        engine.set_plane(*plane)
        found.append(engine.row_values(YS[0], XS))
    engine.close()
    assert found[0].tobytes() == found[2].tobytes()
    assert not np.allclose(found[0], found[1])
    assert len(weights_packed) == 3


@needs_avx512
def test_channels_that_fill_no_block_are_not_packed(weights_packed: list[int]) -> None:
    check(*pictured(layer(16, 6, 3)))
    assert weights_packed == [0, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(value: float) -> None:
    model, batches = pictured(Residual)
    with torch.no_grad():
        model.body.two.weight[0, 0, 0, 0] = value
    engine = engine_at(model, batches, CHUNK, normalization="none")
    assert np.isnan(engine.row_values(YS[0], XS)[:, 0]).all()
    engine.close()


def test_nothing_is_packed_where_onednn_is_off(weights_packed: list[int]) -> None:
    torch._C._set_mkldnn_enabled(False)
    try:
        check(*pictured(Residual))
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert set(weights_packed) == {0}


def test_nothing_is_packed_in_double_precision(weights_packed: list[int]) -> None:
    model, batches = pictured(Residual)
    check(model.double(), [(x.double(), y) for x, y in batches])
    assert set(weights_packed) == {0}


def test_nor_where_torch_has_no_such_operation(
    weights_packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "REORDER", None)
    check(*pictured(Residual))
    assert set(weights_packed) == {0}


def test_nor_where_points_are_in_another_order_together(
    weights_packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_order", lambda *_: None)
    check(*pictured(Residual))
    assert set(weights_packed) == {0}


class Scaled(nn.Module):
    """What else it reads may change behind the engine's back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Conv2d(16, 16, 3, padding=1), [1.0]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale[0]


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_recording_that_was_refused_is_refused_again(chunk: int) -> None:
    model, batches = pictured(Scaled)
    centre, directions, _ = plane_of(model)
    engine = engine_at(model, batches[:1], EngineChoice(engine="graph", chunk=chunk))
    engine.row_values(YS[0], XS)
    model.body.scale[0] = 3.0
    engine.set_plane(centre, directions)
    for _ in range(2):
        with pytest.raises(CannotTraceError, match="depends on more"):
            engine.row_values(YS[0], XS)
    engine.close()


@needs_avx512
def test_memory_that_is_too_small_while_weights_are_packed_leaves_nothing_half_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batches = pictured(Residual)
    exact = float64_losses(model, batches[:1])[: len(XS)]
    asked: list[None] = []

    def full_once(*arguments: Any) -> Tensor:
        asked.append(None)
        if len(asked) == 5:  # for the second layer
            raise MemoryError
        return reorder(*arguments)

    reorder = packed.REORDER
    monkeypatch.setattr(packed, "REORDER", full_once)
    engine = engine_at(model, batches[:1], CHUNK)
    with pytest.raises(MemoryError):
        engine.row_values(YS[0], XS)
    found = engine.row_values(YS[0], XS)[:, 0]
    engine.close()
    np.testing.assert_allclose(found, exact, rtol=EXACT)


@needs_avx512
def test_points_that_are_mixed_up_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lay = slots.ChunkFlat.lay

    def turned(self: Any, name: str, owner: object, memory: Tensor, order: Any) -> None:
        lay(self, name, owner, memory, order)
        row, along_x, steps, block = self._moves[name]
        self._moves[name] = (row, along_x, steps.flip(0), block)

    monkeypatch.setattr(slots.ChunkFlat, "lay", turned)
    model, batches = pictured(Residual)
    engine = engine_at(model, batches[:1], EngineChoice(engine="graph", chunk=2, options=CHUNK.options))
    with pytest.raises(CannotTraceError, match="depends on more"):
        engine.row_values(YS[0], XS)
    engine.close()


def by_channel(h: Tensor, bias: Tensor) -> Tensor:
    return h + bias[:, None, None]


def from_the_left(h: Tensor, bias: Tensor) -> Tensor:
    return bias[None, :, None, None] + h


def one_number(h: Tensor, bias: Tensor) -> Tensor:
    return h + bias[:1, None, None]


def without_an_axis(h: Tensor, bias: Tensor) -> Tensor:
    return h + bias.sum()


@pytest.mark.parametrize("add", [by_channel, from_the_left, one_number, without_an_axis])
@pytest.mark.parametrize("moves", [False, True])
def test_what_is_added_to_channels_becomes_the_bias(
    add: Callable[[Tensor, Tensor], Tensor], moves: bool
) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return add(convolved(x, weight), bias)

    arguments = values((3, 2, 4, 5, 5), (3, 6, 4, 3, 3), (3, 6) if moves else (6,))
    over = vmap(function, in_dims=(0, 0, 0 if moves else None))
    graph = record(over, arguments)
    take_in_biases(graph)
    assert not calls(graph, aten.add.Tensor)
    assert all(node.args[2] is not None for node in graph.nodes if node.target is aten.convolution.default)
    torch.testing.assert_close(run(graph, arguments), over(*arguments), rtol=1e-5, atol=1e-5)


def by_place(h: Tensor, other: Tensor) -> Tensor:
    return h + other


def doubled(h: Tensor, other: Tensor) -> Tensor:
    return torch.add(h, other[:, :1, :1], alpha=2)


def read_before(h: Tensor, other: Tensor) -> Tensor:
    return (h + other[:, :1, :1]) * h


def in_single(h: Tensor, other: Tensor) -> Tensor:
    return h + other[:, :1, :1].float()


def added_twice(h: Tensor, other: Tensor) -> Tensor:
    return h + other[:, :1, :1] + other[:, 1:2, 1:2]


@pytest.mark.parametrize("add", [by_place, doubled, read_before, in_single, added_twice])
def test_what_is_no_bias_stays_a_sum(add: Callable[[Tensor, Tensor], Tensor]) -> None:
    def function(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
        return add(convolved(x, weight), other)

    arguments = values((3, 2, 4, 5, 5), (3, 6, 4, 3, 3), (6, 5, 5))
    over = vmap(function, in_dims=(0, 0, None))
    graph = record(over, arguments)
    take_in_biases(graph)
    assert calls(graph, aten.add.Tensor)
    torch.testing.assert_close(run(graph, arguments), over(*arguments), rtol=1e-5, atol=1e-5)
