"""The row engine for torch models: MindSpore's numbers, a float64 loop's, and the user's model left alone."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary import Compute, Directions, Evaluation, LossGrid, Plane, landscape
from distsummary.checkpoints.trajectory import read
from distsummary.errors import InvalidTypeError, InvalidValueError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.recipe import RandomDirections
from distsummary.landscapes.engines.torch_engines import TorchRowEngine
from distsummary.landscapes.model.torch_loan import portable
from tests.frameworks.landscape_nets import engine_task
from tests.landscape_arguments import grouped
from tests.unit.landscapes import golden_mlp

CRITERION = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same models in each test."""
    torch.manual_seed(0)


class Mlp(nn.Module):
    """The golden run's net."""

    def __init__(self) -> None:
        super().__init__()
        self.d1 = nn.Linear(4, 5)
        self.d2 = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d2(torch.tanh(self.d1(x)))


class ConvNet(nn.Module):
    """A net with everything that must not move or must come back: BN, dropout, frozen and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(16, 3)
        self.tied = self.head
        self.register_buffer("shift", torch.full((3,), 0.25), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.bn(self.conv(x))).flatten(1)
        return self.tied(self.drop(self.frozen(h))) + self.shift


def golden_batches() -> list[Any]:
    return [(torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in golden_mlp.batches()]


def images(rows: int = 24) -> list[Any]:
    x, y = torch.randn(rows, 1, 4, 4), torch.arange(rows) % 3
    return [(x[: rows // 3], y[: rows // 3]), (x[rows // 3 :], y[rows // 3 :])]


def conv_net() -> ConvNet:
    """With running statistics that are not those of a fresh net, in training mode but for its BN."""
    net = ConvNet()
    net(torch.randn(32, 1, 4, 4) * 2 + 1)
    net.train()
    net.bn.eval()
    return net


def engine_for(
    model: nn.Module,
    batches: list[Any],
    *,
    loss_fn: Any = CRITERION,
    seed: int = 1,
    normalization: str = "filter",
    **more: Any,
) -> TorchRowEngine:
    """An engine at a random plane through the model as it is."""
    centre = framework_of(model).state(model)
    names = [name for name, _ in framework_of(model).named_parameters(model)]
    engine = TorchRowEngine(engine_task(model, loss_fn, batches, names, **more))
    recipe = RandomDirections(names=tuple(names), seed=seed, normalization=normalization)
    engine.set_plane(centre, recipe.make({name: centre[name] for name in names}))
    return engine


def fingerprint(model: nn.Module) -> list[Any]:
    """Every value bit for bit, where it lies, and the flags."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    values = [
        (
            name, id(t), t.data_ptr(), t.detach().contiguous().view(torch.uint8).numpy().tobytes(),
            t.requires_grad, t.stride(),
        )
        for name, t in tensors
        if t.dim()
    ]  # fmt: skip
    scalars = [(name, t.item()) for name, t in tensors if not t.dim()]
    return [values, scalars, [module.training for module in model.modules()]]


def test_the_golden_landscapes_of_mindspore() -> None:
    stored, trajectory = golden_mlp.stored(), read(golden_mlp.CKPT_DIR)
    grids = landscape(
        Mlp(),
        CRITERION,
        golden_batches(),
        around=trajectory,
        plane=Plane(size=7),
        directions=("pca", golden_mlp.legacy_directions(trajectory.load(6))),
        mode="mindspore",
        progress=False,
    )
    assert {grid.tag for grid in grids.values()} == stored.keys()
    for grid in grids.values():
        expected = stored[grid.tag]
        np.testing.assert_allclose(grid.z, expected["z"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(grid.convergence_point, expected["convergence"], rtol=0, atol=1e-5)
        if grid.decomposition == "PCA":
            np.testing.assert_allclose(grid.path[:, 0], expected["px"], rtol=0, atol=1e-7)
            np.testing.assert_allclose(grid.path[:, 1], expected["py"], rtol=0, atol=1e-7)
            np.testing.assert_allclose(grid.path_loss, expected["pz"], rtol=0, atol=1e-5)


def naive_float64(
    model: nn.Module, centre: Any, axes: Directions, x: float, y: float, batches: list[Any]
) -> float:
    """The plain loop: a float64 copy of the model, moved, in eval mode."""
    state = {name: torch.tensor(a, dtype=torch.float64) for name, a in centre.items()}
    for name in axes.x:
        state[name] += x * torch.tensor(axes.x[name], dtype=torch.float64)
        state[name] += y * torch.tensor(axes.y[name], dtype=torch.float64)
    model.double().eval()
    model.load_state_dict(state, strict=False)
    rows = sum(len(labels) for _, labels in batches)
    with torch.no_grad():
        return (
            sum(float(CRITERION(model(data.double()), labels)) * len(labels) for data, labels in batches)
            / rows
        )


@pytest.mark.parametrize("make", [Mlp, conv_net])
def test_the_row_engine_agrees_with_a_float64_loop(make: Callable[[], nn.Module]) -> None:
    model = make()
    batches = golden_batches() if isinstance(model, Mlp) else images()
    centre = framework_of(model).state(model)
    names = tuple(name for name, _ in framework_of(model).named_parameters(model))
    axes = RandomDirections(names=names, seed=9).make(centre)
    grid = landscape(model, CRITERION, batches, plane=Plane(size=5, seed=9), progress=False)
    reference = np.array(
        [[naive_float64(make(), centre, axes, x, y, batches) for x in grid.x] for y in grid.y]
    )
    np.testing.assert_allclose(grid.z, reference, rtol=5e-6)
    assert grid.engine == "torch-row"
    assert grid.bn_mode == "eval"


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("mode", ["standard", "mindspore"])
def test_the_model_and_the_generators_are_left_as_they_were(mode: str) -> None:
    def loss_fn(outputs: Any, labels: Any) -> Any:
        return CRITERION(outputs, labels) + 0 * (random.random() + np.random.rand())

    model, batches = conv_net(), images()
    others = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()
    before, noise, threads = fingerprint(model), torch.get_rng_state(), torch.get_num_threads()
    grid = landscape(model, loss_fn, batches, plane=Plane(size=3), mode=mode, progress=False)
    assert isinstance(grid, LossGrid)
    assert fingerprint(model) == before
    assert (random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()) == others
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.get_num_threads() == threads
    model.train()
    CRITERION(model(images()[0][0]), images()[0][1]).backward()
    assert model.conv.weight.grad is not None


@pytest.mark.parametrize("engine", ["row", "graph", "inference"])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_in_the_loss_is_reported_with_its_batch(engine: str, streamed: bool) -> None:
    (x, labels), *more = images()
    data = {"train": images(), "test": [*more, (x, labels + 1000)]}
    evaluation, batch = Evaluation(streamed=streamed), f"batch {len(more) + 1} of test"
    with pytest.raises(LandscapeError, match=rf"raised IndexError: Target .* in {batch}"):
        landscape(
            conv_net(), CRITERION, data, plane=Plane(size=3), evaluation=evaluation,
            compute=Compute(engine=engine), progress=False,
        )  # fmt: skip


def test_an_error_in_the_hessian_is_reported_with_its_batch() -> None:
    (x, labels), *more = images()
    data = [*more, (x, labels + 1000)]
    with pytest.raises(LandscapeError, match=rf"in batch {len(data)} in a product with the Hessian"):
        landscape(conv_net(), CRITERION, data, plane=Plane(size=3), directions="hessian", progress=False)


def test_training_mode_is_mindspores_and_gives_the_same_dropout_at_every_point() -> None:
    model = conv_net()
    engine = engine_for(model, images(), mode="mindspore")
    try:
        twice = engine.row_values(0.5, np.array([0.0, 0.7, 0.0]))
        again = engine.row_values(0.5, np.array([0.7]))
    finally:
        engine.close()
    assert twice[0] == twice[2] != twice[1]
    assert again[0] == twice[1]
    assert engine.bn_mode == "batch"
    standard = engine_for(model, images())
    assert standard.row_values(0.5, np.array([0.0]))[0] != twice[0]
    standard.close()


def test_a_points_loss_does_not_depend_on_what_was_evaluated_before_it() -> None:
    engine = engine_for(conv_net(), images())
    try:
        xs = np.linspace(-1, 1, 7)
        row = engine.row_values(0.3, xs)
        other = {name: array + 1 for name, array in framework_of(nn.Linear(2, 2)).state(Mlp()).items()}
        engine.state_values(other)
        parts = [engine.row_values(0.9, xs[:1]), *(engine.row_values(0.3, xs[k : k + 1]) for k in (6, 0, 3))]
    finally:
        engine.close()
    assert [p[0] for p in parts[1:]] == [row[6], row[0], row[3]]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
def test_models_of_other_precisions(dtype: torch.dtype, tolerance: float) -> None:
    model = Mlp().to(dtype)
    batches = [(x.to(dtype), y) for x, y in golden_batches()]
    before = fingerprint(model)
    centre = framework_of(model).state(model)
    grid = landscape(model, CRITERION, batches, plane=Plane(size=3, normalization="layer"), progress=False)
    axes = RandomDirections(names=tuple(centre), normalization="layer").make(centre)
    exact = np.array([[naive_float64(Mlp(), centre, axes, x, y, batches) for x in grid.x] for y in grid.y])
    np.testing.assert_allclose(grid.z, exact, rtol=tolerance)
    assert fingerprint(model) == before


def test_what_cannot_be_evaluated_is_refused_by_name() -> None:
    model = Mlp()
    before = fingerprint(model)
    with pytest.raises(LandscapeError, match=r"one number.*\(8, 3\)"):
        landscape(model, lambda out, _: out, golden_batches(), plane=Plane(size=3), progress=False)
    for more in ({}, {"parameters": "weight"}):
        with pytest.raises(LandscapeError, match=r"no trainable parameters.*requires_grad_\(True\)"):
            landscape(
                Mlp().requires_grad_(False),
                CRITERION,
                golden_batches(),
                **grouped(size=3, progress=False, **more),
            )
    with pytest.raises(InvalidValueError, match="no_such"):
        TorchRowEngine(engine_task(model, CRITERION, golden_batches(), ["no_such"]))
    with pytest.raises(InvalidTypeError, match="floating-point"):
        TorchRowEngine(engine_task(conv_net(), CRITERION, images(), ["bn.num_batches_tracked"]))
    assert fingerprint(model) == before


def test_frozen_parameters_move_in_mindspores_mode_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    landscape(conv_net(), CRITERION, images(), plane=Plane(size=3), mode="mindspore", progress=False)
    assert "moves frozen parameters" in caplog.text
    assert "frozen.bias" in caplog.text


def test_what_is_sent_to_workers_is_the_bare_model_on_the_host() -> None:
    model = Mlp()
    bare, batches = portable(nn.DataParallel(model), golden_batches())
    assert bare is model
    assert all(t.device.type == "cpu" for batch in batches for t in batch)


@pytest.mark.parametrize("engine", ["fast", "torch-graph fast", ""])
def test_an_engine_that_is_none_is_refused_with_what_there_is(engine: str) -> None:
    batch = torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(InvalidValueError, match=r"or the `engine` of an earlier LossGrid: .* one of"):
        landscape(nn.Linear(2, 2), nn.MSELoss(), [batch], compute=Compute(engine=engine, workers=0))
