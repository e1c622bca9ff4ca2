"""The inference engine: the row engine's losses bit for bit, whatever a model does with its parameters."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary.checkpoints.safetensors import map_safetensors, write_safetensors
from distsummary.errors import LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.array_rows import rows_of
from distsummary.landscapes.directions.interpolate import line
from distsummary.landscapes.directions.normals import random_normals
from distsummary.landscapes.directions.pca import pca_plane
from distsummary.landscapes.directions.planes import Settings, prepare_random
from distsummary.landscapes.directions.recipe import RandomDirections, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState, filter_axes
from distsummary.landscapes.engines.chunks import plan_chunks
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.inference import torch_by_rows as rows_of_large
from distsummary.landscapes.engines.inference import torch_filling as filling
from distsummary.landscapes.engines.inference import torch_outlines as outlines
from distsummary.landscapes.engines.inference import torch_point as point
from distsummary.landscapes.engines.open_engine import open_engine
from distsummary.landscapes.engines.worker import LandscapeWorker, Task
from distsummary.landscapes.model.quantities import Evaluation
from distsummary.landscapes.model.user_code import BatchLoss
from tests.frameworks.landscape_nets import (
    CRITERION,
    NETS,
    XS,
    YS,
    Cnn,
    Mlp,
    Net,
    Words,
    fingerprint,
    make_net,
)
from tests.frameworks.unusual_nets import REFUSED, RIGHT

ROW, INFERENCE = EngineChoice(), EngineChoice(engine="inference")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly anything is kept, parameters of the test's size are large, and memory is the system's."""
    monkeypatch.setattr(filling, "KEPT_BYTES", 1 << 10)
    monkeypatch.setattr(rows_of_large, "LARGE_BYTES", 1 << 12)
    monkeypatch.setattr(rows_of_large, "PART_BYTES", 1 << 13)
    monkeypatch.setattr(outlines, "MAPPED_BYTES", 1)


def names_of(net: nn.Module) -> list[str]:
    return [name for name, _ in framework_of(net).named_parameters(net)]


def random_recipe(net: nn.Module, normalization: str = "filter") -> RandomDirections:
    names = tuple(names_of(net))
    return RandomDirections(names=names, seed=3, normalization=normalization, filter_axes=filter_axes(net))


def values_of(
    net: nn.Module,
    batches: Any,
    choice: EngineChoice,
    recipe: Recipe,
    centre: Weights | None = None,
    *,
    names: list[str] | None = None,
    states: tuple[Weights, ...] = (),
    batch_loss: Any = None,
    mode: str = "standard",
    **evaluation: Any,
) -> Any:
    """Everything at XS x (*YS, 0), and of the states between; the centre is what the model holds."""
    centre = OwnState.of(net) if centre is None else centre
    loss = BatchLoss(batch_loss) if batch_loss else CRITERION
    engine = open_engine(
        net, loss, batches, names=names or names_of(net), mode=mode, evaluation=Evaluation(**evaluation),
        choice=choice,
    )  # fmt: skip
    try:
        engine.set_plane(centre, recipe)
        found = [engine.row_values(YS[0], XS)]
        found += [engine.state_values(state)[None] for state in states]
        found += [engine.row_values(y, XS) for y in (YS[1], 0.0)]
        return np.concatenate(found)
    finally:
        engine.close()


def assert_equal_bits(net: nn.Module, batches: Any, recipe: Recipe, *more: Any, **how: Any) -> Any:
    """Both engines give the same, and leave the net as it was."""
    before = fingerprint(net)
    row, inference = (values_of(net, batches, choice, recipe, *more, **how) for choice in (ROW, INFERENCE))
    assert inference.tobytes() == row.tobytes()
    assert len(np.unique(row[:, 0])) > 2 or not np.isfinite(row).all()
    assert fingerprint(net) == before
    return row


@pytest.mark.parametrize("normalization", ["filter", "layer", "none"])
@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_the_losses_are_the_row_engines_bit_for_bit(kind: type[Net], normalization: str) -> None:
    net = make_net(kind)
    assert_equal_bits(net, net.batches(), random_recipe(net, normalization), states=(OwnState.of(net),))


@pytest.mark.parametrize(
    "how",
    [
        {"precision": "float64"},
        {"precision": "bf16"},
        {"mode": "mindspore"},
        {"bn_mode": "recompute"},
        {"streamed": True},
        {"metrics": {"first": lambda outputs, targets: outputs.flatten()[0]}},
    ],
    ids=lambda how: "-".join(how),
)
@pytest.mark.parametrize("kind", [Cnn, Words], ids=lambda kind: kind.__name__)
def test_however_it_is_evaluated(kind: type[Net], how: dict[str, Any]) -> None:
    net = make_net(kind)
    assert_equal_bits(net, net.batches(), random_recipe(net), **how)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:`torch.jit.trace")
@pytest.mark.parametrize("name", RIGHT)
def test_nets_with_ways_of_their_own_are_mapped_right(name: str) -> None:
    for normalization in ("filter", "none"):  # with "filter" some parameters stay, and are not made
        net = make_net(RIGHT[name])  # type: ignore[arg-type]  # a function that makes one does as well
        assert_equal_bits(net, net.batches(), random_recipe(net, normalization))


@pytest.mark.parametrize("name", REFUSED)
def test_nets_that_cannot_be_mapped_are_refused_by_the_name_of_the_parameter(name: str) -> None:
    make, match = REFUSED[name]
    net: Any = make_net(make)  # type: ignore[arg-type]  # as above
    before = fingerprint(net)
    with pytest.raises(LandscapeError, match=rf"{match}.*memory='inference'"):
        values_of(net, net.batches(), INFERENCE, random_recipe(net))
    assert fingerprint(net) == before


class Large(Net):
    """A tied head, a head with a bias, and tables of which few rows are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(400, 16), nn.Embedding(200, 16, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True)
        self.head, self.other = nn.Linear(16, 400, bias=False), nn.Linear(16, 400)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.block(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return (self.head(h) + self.other(h[..., :])).mT

    def batch(self, rows: int) -> Any:
        tokens = torch.randint(0, 400, (rows, 9))
        return tokens, tokens.roll(1, 1)


@pytest.mark.usefixtures("by_rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalization", ["filter", "layer", "none"])
def test_large_parameters_in_parts_and_any_precision(normalization: str, dtype: torch.dtype) -> None:
    net = make_net(Large).to(dtype)
    before = [t.clone() for t in net.parameters()]
    recipe, batches = random_recipe(net, normalization), net.batches()
    own, copied = OwnState.of(net), framework_of(net).state(net)
    found = [
        values_of(net, batches, *how, states=(copied,)).tobytes()
        for how in ((ROW, recipe, copied), (INFERENCE, recipe, own), (INFERENCE, recipe, copied))
    ]
    assert found[0] == found[1] == found[2]
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


@pytest.mark.usefixtures("by_rows")
def test_only_what_is_read_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, str, int]] = []

    def spy(seed: int, axis: int, name: str, start: int, stop: int) -> Any:
        drawn.append((axis, name, stop - start))
        return random_normals(seed, axis, name, start, stop)

    net = make_net(Large)
    batches = [net.batch(2)]
    centre = OwnState.of(net)
    engine = open_engine(net, CRITERION, batches, names=names_of(net), mode="standard", choice=INFERENCE)
    engine.set_plane(centre, random_recipe(net))
    monkeypatch.setattr(point, "rows_on", lambda _, *which: replace(rows_of(*which), draw=spy))
    engine.row_values(0.0, np.array([0.0]))
    assert drawn == []
    engine.row_values(0.0, np.array([0.5]))
    engine.close()
    assert {axis for axis, *_ in drawn} == {0}  # y is 0
    assert {name for _, name, _ in drawn} == {n for n, p in net.named_parameters() if p.dim() > 1}
    looked_up = len(batches[0][0].unique()) * 16
    assert sum(size for _, name, size in drawn if name == "words.weight") == looked_up + 400 * 16
    assert sum(size for _, name, size in drawn if name == "places.weight") == 9 * 16


@pytest.mark.usefixtures("by_rows")
def test_where_parts_have_other_bits_the_whole_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of_large.ByRows, "_try_out", lambda *_: False)
    net = make_net(Large)
    assert_equal_bits(net, net.batches(), random_recipe(net))


@pytest.mark.usefixtures("by_rows")
def test_what_is_no_row_is_torchs_error() -> None:
    net = make_net(Large)
    tokens = torch.tensor([[3, 400]])
    with pytest.raises(IndexError, match="out of range"):
        values_of(net, [(tokens, tokens)], INFERENCE, random_recipe(net))


def test_parameters_that_stay_are_the_users_own_memory() -> None:
    net, seen = make_net(Mlp), []

    def loss_fn(model: Any, batch: Any) -> Any:
        seen.append([p.detach().data_ptr() for p in (model.layers[0].bias, model.layers[0].weight)])
        return CRITERION(model(batch[0]), batch[1])

    own = [p.data_ptr() for p in (net.layers[0].bias, net.layers[0].weight)]
    centre, recipe = OwnState.of(net), random_recipe(net)
    engine = open_engine(
        net, BatchLoss(loss_fn), net.batches()[:1], names=names_of(net), mode="standard", choice=INFERENCE
    )
    engine.set_plane(centre, recipe)
    engine.row_values(0.5, np.array([0.1, 0.2]))
    engine.row_values(0.0, np.zeros(1))
    engine.close()
    assert [bias == own[0] and weight != own[1] for bias, weight in seen[-3:]] == [True, True, False]
    assert seen[-1] == own  # at the centre nothing moves


def test_directions_of_a_path_and_a_subspace() -> None:
    net = make_net(Cnn)
    last = framework_of(net).state(net)
    rng = np.random.default_rng(0)
    path: list[Weights] = [
        {n: a + rng.standard_normal(a.shape).astype(a.dtype) * (3 - k) / 10 for n, a in last.items()}
        for k in range(4)
    ]
    batches = net.batches()
    directions = pca_plane(path, names_of(net)).directions
    assert_equal_bits(net, batches, directions, path[-1], states=tuple(path[:2]))
    assert_equal_bits(net, batches, line(path[0], path[-1], names_of(net)), path[-1])
    few = ["conv2.weight", "head.bias"]
    recipe = RandomDirections(names=tuple(few), normalization="none")
    assert_equal_bits(net, batches, recipe, path[-1], names=few)
    assert_equal_bits(net, batches, recipe, names=few)


@pytest.mark.usefixtures("by_rows")
def test_a_checkpoint_file_is_the_centre_with_its_buffers(nasty_tmp_path: Path) -> None:
    for kind in (Cnn, Large):
        net = make_net(kind)
        state = {n: np.asarray(a * 1.1 + 0.01, a.dtype) for n, a in framework_of(net).state(net).items()}
        write_safetensors(nasty_tmp_path / "a.safetensors", state)
        mapped = map_safetensors(nasty_tmp_path / "a.safetensors")
        found = assert_equal_bits(net, net.batches(), random_recipe(net), mapped, states=(mapped,))
        around = values_of(net, net.batches(), INFERENCE, random_recipe(net))
        assert found[0] != around[0]


def test_moved_buffers_move() -> None:
    class Shifted(Mlp):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.linspace(0.5, 1.0, 3))

        def forward(self, x: Any) -> Any:
            return super().forward(x) + self.shift

    net = make_net(Shifted)
    names = ["shift", "layers.0.weight"]
    recipe = RandomDirections(names=tuple(names), normalization="layer")
    assert_equal_bits(net, net.batches(), recipe, names=names, states=(OwnState.of(net),))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, MemoryError])
def test_whatever_is_raised_leaves_the_model_as_it_was(error: type[BaseException]) -> None:
    net = make_net(Words)
    before, hooks, calls = fingerprint(net), hooks_of(net), []

    def loss_fn(model: Any, batch: Any) -> Any:
        calls.append(model.words.weight.detach())
        if len(calls) > 8:
            raise error("in the loss")
        return CRITERION(model(batch[0]), batch[1])

    with pytest.raises(error, match="in the loss"):
        values_of(net, net.batches(), INFERENCE, random_recipe(net), batch_loss=loss_fn)
    assert not torch.equal(calls[-1], net.words.weight)
    assert fingerprint(net) == before
    assert hooks_of(net) == hooks == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    batch = net.batch(4)
    CRITERION(net(batch[0]), batch[1]).backward()
    assert net.words.weight.grad is not None


def hooks_of(net: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [hook for module in net.modules() for kind in kinds for hook in getattr(module, kind).values()]


def test_small_values_are_made_once_a_point_and_large_ones_for_each_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    whole = point.Point.whole
    monkeypatch.setattr(point.Point, "whole", lambda self, name: made.append(name) or whole(self, name))
    net = make_net(Words)
    names = [name for name, _ in net.named_parameters()]
    batches = net.batches()[:2]
    centre = OwnState.of(net)
    engine = open_engine(net, CRITERION, batches, names=names, mode="standard", choice=INFERENCE)
    engine.set_plane(centre, RandomDirections(names=tuple(names), normalization="none"))
    made.clear()
    engine.row_values(0.3, XS[:1])
    assert sorted(made) == sorted(names)  # two batches, the embedding read twice in each
    monkeypatch.setattr(filling, "KEPT_BYTES", 0)
    made.clear()
    engine.row_values(0.3, XS[:1])
    engine.close()
    assert len(made) == 2 * (len(names) + 1)


def test_a_worker_gives_the_recipe_to_the_engine() -> None:
    net = make_net(Mlp)
    batches, found = net.batches(), []
    plane = prepare_random(OwnState.of(net), None, names_of(net), Settings(size=3)).plane
    for choice in (ROW, INFERENCE):
        task = Task(model=net, loss_fn=CRITERION, batches=batches, planes=[plane], choice=choice)
        worker = LandscapeWorker(task)
        found.append([worker.evaluate(chunk).measured.tobytes() for chunk in plan_chunks([plane])])
        worker.close()
        assert worker.facts.name == choice.label
    assert found[0] == found[1]


def test_the_own_state_is_the_state_without_a_copy() -> None:
    net = make_net(Cnn)
    own, state = OwnState.of(net), framework_of(net).state(net)
    assert list(own) == list(state)
    assert len(own) == len(state)
    assert all(own[name].tobytes() == array.tobytes() for name, array in state.items())
    assert np.shares_memory(own["head.weight"], net.head.weight.detach().numpy())
    with pytest.raises(ValueError, match="read-only"):
        own["head.weight"][0] = 1
    sent = pickle.loads(pickle.dumps(own))
    assert type(sent) is dict
    assert sent["bn.running_var"].tobytes() == state["bn.running_var"].tobytes()
    half = OwnState.of(copy.deepcopy(net).bfloat16())
    assert half["head.weight"].dtype == half.rows("head.weight")(1, 3).dtype == np.float32
    assert half.rows("head.weight")(1, 3).tobytes() == half["head.weight"][1:3].tobytes()


MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
import benchmarks.inference as benchmark
shape = benchmark.Shape(words=20_000, width=512, heads=8, layers=6)
benchmark.XS = np.array([0.4])
print(json.dumps(benchmark.measure(sys.argv[1], shape, 1, 128, Path(sys.argv[2]))))
"""


def test_no_copy_of_the_model_is_made(tmp_path: Path) -> None:
    """Of 29 million parameters, 112 MB; what is needed beside them does not grow with the model."""
    peaks = {}
    for what in ("save", "loss", "inference", "checkpoint"):
        command = [sys.executable, "-W", "ignore", "-c", MEASURE, what, str(tmp_path / "a.safetensors")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks[what] = json.loads(done.stdout)["peak_mb"]
    assert max(peaks["inference"], peaks["checkpoint"]) < peaks["loss"] + 70, peaks
