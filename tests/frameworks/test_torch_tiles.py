"""Batches in tiles: what may be evaluated so, what may not, and that the numbers stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.graph import torch_tiles as tiling
from distsummary.landscapes.engines.graph.torch_affine import cut
from distsummary.landscapes.engines.graph.torch_rewrites import ON_CPU
from distsummary.landscapes.engines.graph.torch_rows import STATE, mark
from distsummary.landscapes.engines.graph.torch_tiles import Tile, tiles
from distsummary.landscapes.engines.graph.torch_trace import placeholders, record
from tests.frameworks.landscape_nets import (
    NETS,
    XS,
    YS,
    Mlp,
    Net,
    engine_at,
    float64_losses,
    make_net,
)
from tests.frameworks.row_losses import KEPT, TILED

GRAPH = EngineChoice(engine="graph")
EXACT = 5e-6


@pytest.fixture
def single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch that may be cut is cut into single rows."""
    monkeypatch.setattr(tiling, "CACHE_BYTES", 1)
    monkeypatch.setattr(tiling, "ROWS", 1)
    monkeypatch.setattr(tiling, "LEAST_GAIN", 0)


def evaluated(net: Net, batches: list[Any], **more: Any) -> tuple[Any, set[int]]:
    """Quantities (points, quantities) at XS x YS, and into how many parts batches were cut."""
    engine = engine_at(net, batches, GRAPH, **more)
    try:
        values = np.concatenate([engine.row_values(y, XS) for y in YS])
        return values, {len(parts) for parts in engine._bound.values()}
    finally:
        engine.close()


@pytest.mark.usefixtures("single_rows")
@pytest.mark.parametrize("loss_fn", TILED, ids=lambda f: getattr(f, "__name__", "criterion"))
def test_sums_and_means_over_rows_are_evaluated_in_tiles(loss_fn: Callable[..., Any]) -> None:
    net = make_net(Mlp)
    batches = net.batches()
    values, parts = evaluated(net, batches, loss_fn=loss_fn)
    assert parts == {8, 5}
    expected = float64_losses(net, batches, scalar(loss_fn))
    np.testing.assert_allclose(values[:, 0], expected, rtol=EXACT, atol=EXACT * np.abs(expected).max())


def scalar(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A loss as one number."""
    return lambda logits, labels: loss_fn(logits, labels).mean()


@pytest.mark.usefixtures("single_rows")
@pytest.mark.parametrize("loss_fn", KEPT, ids=lambda f: f.__name__)
def test_what_is_no_sum_over_rows_stays_whole(loss_fn: Callable[..., Any]) -> None:
    net = make_net(Mlp)
    batches = net.batches()
    values, parts = evaluated(net, batches, loss_fn=loss_fn)
    assert parts == {1}
    np.testing.assert_allclose(values[:, 0], float64_losses(net, batches, scalar(loss_fn)), rtol=2 * EXACT)


def decayed(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels) + sum(p.square().sum() for p in model.parameters())


@pytest.mark.usefixtures("single_rows")
def test_what_counts_once_a_batch_is_not_counted_once_a_tile() -> None:
    net = make_net(Mlp)
    batches = net.batches()
    values, parts = evaluated(net, batches, batch_loss=decayed)
    row = engine_at(net, batches, EngineChoice(engine="row"), batch_loss=decayed)
    np.testing.assert_allclose(values[: len(XS)], row.row_values(YS[0], XS), rtol=EXACT)
    row.close()
    assert parts == {1}


@pytest.mark.usefixtures("single_rows")
@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_all_nets_agree_with_the_float64_loop(kind: type[Net]) -> None:
    for normalization in ("filter", "layer"):
        net = make_net(kind)
        batches = net.batches()
        values, _ = evaluated(net, batches, normalization=normalization)
        expected = float64_losses(net, batches, normalization=normalization)
        np.testing.assert_allclose(values[:, 0], expected, rtol=EXACT)


def right(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).float().mean()


def how_many_right(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).sum()


@pytest.mark.usefixtures("single_rows")
def test_metrics_classes_and_errors_are_those_of_the_row_engine() -> None:
    metrics = {"accuracy": right, "count": how_many_right}
    asked: dict[str, Any] = {"metrics": metrics, "stderr": True, "classes": 3}
    net = make_net(Mlp)
    batches = net.batches()
    values, parts = evaluated(net, batches, **asked)
    row = engine_at(net, batches, EngineChoice(engine="row"), **asked)
    expected = np.concatenate([row.row_values(y, XS) for y in YS])
    row.close()
    assert parts == {8, 5}
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_a_large_batch_is_cut_into_tiles_that_fit_the_cache_and_a_small_one_is_not() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    rows = 3001  # 768 kB of slots: three tiles, the last of another size
    batches = [(torch.randn(rows, 20), torch.arange(rows) % 3), (torch.randn(100, 20), torch.arange(100) % 3)]
    engine = engine_at(net, batches, GRAPH)
    row = engine.row_values(0.3, XS)[:, 0]
    sizes = [[part._own.nbytes for part in parts] for parts in engine._bound.values()]
    engine.close()
    assert [len(parts) for parts in sizes] == [3, 1]
    assert max(sizes[0]) <= tiling.CACHE_BYTES / 3
    expected = float64_losses(net, batches, points=[(0.3, x) for x in XS])
    np.testing.assert_allclose(row, expected, rtol=EXACT)


def test_tiles_in_pieces_of_a_row_and_after_another_row_give_the_same_bits() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    engine = engine_at(net, [(torch.randn(3001, 20), torch.arange(3001) % 3)], GRAPH)
    whole = engine.row_values(0.3, XS)
    engine.row_values(0.9, XS[:2])
    pieces = [engine.row_values(0.3, XS[start : start + 2]) for start in range(0, len(XS), 2)]
    repeated = engine.row_values(0.3, np.repeat(XS, 2))  # the step writes into its slots
    engine.close()
    assert np.concatenate(pieces).tobytes() == whole.tobytes()
    assert repeated[::2].tobytes() == repeated[1::2].tobytes() == whole.tobytes()


def test_many_tiles_in_float64_add_up_to_the_same_bits_for_any_piece_of_a_row() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    batches = [(torch.randn(6001, 20), torch.arange(6001) % 3)]
    engine = engine_at(net, batches, GRAPH, precision="float64")
    xs = np.linspace(-0.8, 1.1, 12)
    whole = engine.row_values(0.3, xs)
    pieces = [engine.row_values(0.3, xs[start : start + 5]) for start in range(0, 12, 5)]
    (parts,) = engine._bound.values()
    engine.close()
    assert len(parts) == 9
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def narrow_count(logits: Tensor, labels: Tensor) -> Tensor:
    small = (logits.argmax(1) < 3).to(torch.uint8)
    return torch.dot(small, small)


@pytest.mark.usefixtures("single_rows")
def test_counts_that_wrap_around_stay_whole() -> None:
    net = make_net(Mlp)
    batches = [net.batch(300)]
    _, parts = evaluated(net, batches, metrics={"count": narrow_count})
    assert parts == {1}


def parts_of(inputs: int, hidden: int, rows: int) -> Any:
    """A marked and cut graph of a layer before a fixed one."""

    def loss(first: Tensor, x: Tensor, labels: Tensor, second: Tensor) -> Tensor:
        return functional.cross_entropy(torch.relu(x @ first) @ second, labels)

    first, x, second = torch.randn(inputs, hidden), torch.randn(rows, inputs), torch.randn(hidden, 3)
    arguments = [first, x, torch.arange(rows) % 3, second]
    graph = record(loss, arguments, ON_CPU)
    moved, data = placeholders(graph)[:1], placeholders(graph)[1:3]
    mark(graph, moved, data)
    return cut(graph, moved, data)


def test_how_many_tiles() -> None:
    assert tiles(parts_of(4, 64, 1365)) == []  # three times 349,440 bytes fit
    assert tiles(parts_of(4, 64, 1366)) == [Tile(0, 688), Tile(688, 678)]
    assert [tile.size for tile in tiles(parts_of(4, 64, 5000))] == [1264, 1264, 1264, 1208]


def test_a_graph_is_marked_anew_where_something_else_moves() -> None:
    arguments = [torch.randn(4), torch.randn(4), torch.randn(8, 4)]
    marks = []
    for _ in range(2):
        graph = record(lambda v, w, x: (x * v).sum().sqrt() * (x * w).sum(), arguments)
        v, w, x = placeholders(graph)
        if not marks:
            mark(graph, [w], [x])
        mark(graph, [v], [x])
        marks.append([node.meta.get(STATE) for node in graph.nodes])
    assert marks[0] == marks[1]


@pytest.mark.usefixtures("single_rows")
def test_a_number_beside_the_rows_is_that_of_every_tile() -> None:
    def weighted(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1]) * batch[2]

    net = make_net(Mlp)
    batches = [(*batch, torch.tensor(1.5 + n)) for n, batch in enumerate(net.batches())]
    values, parts = evaluated(net, batches, batch_loss=weighted)
    row = engine_at(net, batches, EngineChoice(engine="row"), batch_loss=weighted)
    np.testing.assert_allclose(values[: len(XS)], row.row_values(YS[0], XS), rtol=EXACT)
    row.close()
    assert parts == {8, 5}


def test_a_graph_without_rows_is_not_marked() -> None:
    for shapes in ([(1, 4)], [(3, 4), (5, 4)], [()]):
        arguments = [torch.randn(4), *(torch.randn(shape) for shape in shapes)]
        graph = record(lambda w, *xs: sum((x * w).mean() for x in xs), arguments)
        mark(graph, placeholders(graph)[:1], placeholders(graph)[1:])
        assert not any(STATE in node.meta for node in graph.nodes)
