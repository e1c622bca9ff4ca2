"""The inference engine: the row engine's losses bit for bit, in the memory of the user's own parameters."""

import copy
import gc
import json
import pickle
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary import Directions, Evaluation
from distsummary.checkpoints.safetensors import map_safetensors, write_safetensors
from distsummary.errors import LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.directions.array_rows import BLOCK, rows_of
from distsummary.landscapes.directions.interpolate import line
from distsummary.landscapes.directions.normals import random_normals
from distsummary.landscapes.directions.pca import pca_plane
from distsummary.landscapes.directions.planes import Settings, prepare_random
from distsummary.landscapes.directions.recipe import RandomDirections, Recipe, Weights
from distsummary.landscapes.directions.torch_parameters import OwnState, filter_axes
from distsummary.landscapes.engines.chunks import plan_chunks
from distsummary.landscapes.engines.engine import Engine, Task
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.open_engine import open_engine
from distsummary.landscapes.engines.torch_inference_engine import TorchInferenceEngine
from distsummary.landscapes.engines.worker import LandscapeWorker
from distsummary.landscapes.model.torch_saved import SavedValues, can_stay
from distsummary.landscapes.model.user_code import BatchLoss
from tests.disks import FULL, room_for
from tests.frameworks import large_models
from tests.frameworks.landscape_nets import (
    CRITERION,
    NETS,
    XS,
    YS,
    Cnn,
    Mlp,
    Net,
    Words,
    engine_task,
    fingerprint,
    make_net,
)
from tests.frameworks.unusual_nets import UNUSUAL
from tests.interrupts import sigint
from tests.programs import run_python

ROW, INFERENCE = EngineChoice(), EngineChoice(engine="inference")


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
    asked = Evaluation(**evaluation)
    engine = open_engine(
        engine_task(net, loss, batches, names or names_of(net), mode=mode, evaluation=asked, choice=choice)
    )
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


@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_the_losses_are_the_row_engines_bit_for_bit(kind: type[Net]) -> None:
    net = make_net(kind)
    assert_equal_bits(net, net.batches(), random_recipe(net), states=(OwnState.of(net),))


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
@pytest.mark.parametrize("name", UNUSUAL)
def test_nets_that_use_their_parameters_in_unusual_ways(name: str) -> None:
    net = make_net(UNUSUAL[name])  # type: ignore[arg-type]  # a function that makes one does as well
    assert_equal_bits(net, net.batches(), random_recipe(net, "none"))  # so that all parameters move


class Large(Net):
    """A tied head, and tables that are written in several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(18_000, 16), nn.Embedding(200, 16, padding_idx=0)
        self.head = nn.Linear(16, 18_000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))).mT

    def batch(self, rows: int) -> Any:
        tokens = torch.randint(0, 400, (rows, 3))
        return tokens, tokens.roll(1, 1)


@pytest.mark.parametrize(
    ("dtype", "normalization"),
    [
        (torch.float32, "filter"), (torch.float32, "layer"), (torch.float64, "none"),
        (torch.float16, "filter"), (torch.bfloat16, "layer"),
    ],
    ids=str,
)  # fmt: skip
def test_parameters_of_several_blocks_and_any_precision(normalization: str, dtype: torch.dtype) -> None:
    net = make_net(Large).to(dtype)
    assert net.words.weight.numel() > BLOCK
    before = [t.clone() for t in net.parameters()]
    recipe, batches = random_recipe(net, normalization), net.batches()[:1]
    own, copied = OwnState.of(net), framework_of(net).state(net)
    found = [
        values_of(net, batches, *how, states=(copied,)).tobytes()
        for how in ((ROW, recipe, copied), (INFERENCE, recipe, own), (INFERENCE, recipe, copied))
    ]
    assert found[0] == found[1] == found[2]
    assert all(torch.equal(one, other) for one, other in zip(before, net.parameters(), strict=True))


@contextmanager
def inference_engine(net: nn.Module, batches: Any, **how: Any) -> Iterator[Engine]:
    """The engine around the model as it is."""
    more = {"names": names_of(net), "loss_fn": CRITERION} | how
    centre = OwnState.of(net)
    engine = open_engine(engine_task(net, batches=batches, choice=INFERENCE, **more))
    try:
        engine.set_plane(centre, random_recipe(net))
        yield engine
    finally:
        engine.close()


def test_each_point_is_drawn_once_and_only_along_axes_that_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, str]] = []

    def spy(seed: int, axis: int, name: str, start: int, stop: int) -> Any:
        drawn.append((axis, name))
        return random_normals(seed, axis, name, start, stop)

    net = make_net(Mlp)
    module = sys.modules[TorchInferenceEngine.__module__]
    monkeypatch.setattr(module, "rows_on", lambda _, *which: replace(rows_of(*which), draw=spy))
    with inference_engine(net, net.batches()) as engine:  # of several batches
        engine.row_values(0.0, np.array([0.0]))
        assert drawn == []
        engine.row_values(0.0, np.array([0.5]))
        assert sorted(drawn) == [(0, name) for name, p in net.named_parameters() if p.dim() > 1]


def test_points_are_written_to_the_users_own_memory_and_buffers_are_copies() -> None:
    net, seen = make_net(Cnn), []

    def loss_fn(model: Any, batch: Any) -> Any:
        seen.append((places(model), model.conv1.weight.detach().clone()))
        return CRITERION(model(batch[0]), batch[1])

    def places(model: Any) -> list[int]:
        return [t.data_ptr() for t in (model.conv1.weight, model.head.bias, model.bn.running_mean)]

    own, weight = places(net), net.conv1.weight.detach().clone()
    with inference_engine(net, net.batches()[:1], loss_fn=BatchLoss(loss_fn)) as engine:
        engine.row_values(0.5, np.array([0.1, 0.0]))
        engine.row_values(0.0, np.zeros(1))
    assert all(there[:2] == own[:2] and there[2] != own[2] for there, _ in seen)
    assert [torch.equal(value, weight) for _, value in seen[-3:]] == [False, False, True]


@pytest.mark.parametrize("kind", ["unaligned", "with holes", "in another's memory"])
def test_parameters_whose_memory_is_of_no_use_are_copied(kind: str) -> None:
    net = make_net(Mlp)
    first, last = net.layers[0], net.layers[4]
    if kind == "unaligned":
        first.weight.data = torch.cat([torch.zeros(1), first.weight.data.flatten()])[1:].view(9, 6)
    elif kind == "with holes":
        first.weight.data = first.weight.data.repeat_interleave(2, 1)[:, ::2]
    else:
        last.bias.data = first.weight.data.flatten()[16:19]
    staying = can_stay(dict(net.named_parameters()), None)
    gone = {"layers.0.weight", "layers.4.bias"} if "another" in kind else {"layers.0.weight"}
    assert set(names_of(net)) - staying == gone
    assert can_stay(dict(net.named_parameters()), torch.float64) == set()
    assert_equal_bits(net, net.batches(), random_recipe(net, "none"))


def test_centres_and_directions_that_look_at_the_models_memory_stay_what_they_were() -> None:
    net = make_net(Mlp)
    batches = net.batches()
    views = {name: p.detach().numpy() for name, p in net.named_parameters()}
    copied = {name: array.copy() for name, array in views.items()}
    still = {name: np.zeros_like(array) for name, array in views.items()}
    found = [
        values_of(net, batches, choice, Directions(x=values, y=still), values, states=(values,))
        for choice, values in ((ROW, copied), (INFERENCE, copied), (INFERENCE, views))
    ]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_without_room_for_the_models_own_values_nothing_is_touched() -> None:
    net = make_net(Mlp)
    before = fingerprint(net)
    full = pytest.raises(LandscapeError, match=rf"{FULL}.* set TMPDIR to another directory")
    with full, room_for(0):
        values_of(net, net.batches(), INFERENCE, random_recipe(net))
    assert fingerprint(net) == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says it in another way")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_read_only_memory_is_refused_before_it_is_written_to(nasty_tmp_path: Path) -> None:
    net = make_net(Mlp)
    net.layers[0].weight.detach().numpy().tofile(nasty_tmp_path / "weight")
    weight = np.memmap(nasty_tmp_path / "weight", np.float32, mode="r", shape=(9, 6))
    net.layers[0].weight.data = torch.from_numpy(weight)
    before = fingerprint(net)
    with pytest.raises(LandscapeError, match=r"shape \(9, 6\) lies in read-only memory .*clone"):
        values_of(net, net.batches(), INFERENCE, random_recipe(net))
    assert fingerprint(net) == before
    values_of(net, net.batches(), ROW, random_recipe(net))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no /proc")
def test_the_file_of_the_models_own_values_is_gone_afterwards() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("(deleted)")

    gc.collect()
    net, before = make_net(Mlp), mapped()
    with inference_engine(net, net.batches()):
        assert mapped() == before + 1
        assert not list(Path(tempfile.gettempdir()).glob("distsummary-*"))  # it never had a name
    assert mapped() == before


def test_an_interrupt_waits_until_all_values_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    net = make_net(Mlp)
    before = fingerprint(net)
    release = SavedValues.release

    def interrupted(self: SavedValues) -> None:
        signal.raise_signal(signal.SIGINT)
        release(self)

    def draw() -> None:
        with inference_engine(net, net.batches()) as engine:
            engine.row_values(0.5, XS)
            monkeypatch.setattr(SavedValues, "release", interrupted)

    with sigint(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        draw()
    assert fingerprint(net) == before


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
        calls.append(model.words.weight.detach().clone())
        if len(calls) > 8:
            raise error("in the loss")
        return CRITERION(model(batch[0]), batch[1])

    with pytest.raises(error, match="in the loss"):
        values_of(net, net.batches(), INFERENCE, random_recipe(net), batch_loss=loss_fn)
    assert not torch.equal(calls[-1], net.words.weight)
    assert fingerprint(net) == before
    assert hooks_of(net) == hooks == []
    batch = net.batch(4)
    CRITERION(net(batch[0]), batch[1]).backward()
    assert net.words.weight.grad is not None


def hooks_of(net: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return [hook for module in net.modules() for kind in kinds for hook in getattr(module, kind).values()]


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
import json, resource, sys
from pathlib import Path
from tests.frameworks import large_models
found = []
for what in ("loss", "inference", "checkpoint"):
    large_models.evaluate(what, large_models.Shape(*SHAPE), 128, Path(sys.argv[1]))
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(found))
"""
SHAPE = 12_000, 512, 8, 4, 1024


@pytest.mark.long
def test_no_copy_of_the_model_is_made(tmp_path: Path) -> None:
    """Of 19 million parameters, 74 MB; what is needed in addition does not grow with the model."""
    large_models.evaluate("save", large_models.Shape(*SHAPE), 1, tmp_path / "a.safetensors")
    script = MEASURE.replace("SHAPE", repr(SHAPE))
    done = run_python("-W", "ignore", "-c", script, tmp_path / "a.safetensors")
    plain, *others = json.loads(done.stdout)
    assert max(others) < plain + 45, done.stdout
