"""Every engine, over nets of all kinds, against the float64 loop; and what an engine must leave as it was."""

import os
import shutil
import sys
import sysconfig
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from distsummary.errors import CannotTraceError, LandscapeError
from distsummary.frameworks.base import framework_of
from distsummary.landscapes.engines.engine_choice import EngineChoice
from distsummary.landscapes.engines.graph.torch_program import ChunkFlat
from distsummary.landscapes.engines.torch_graph_engine import TorchGraphEngine
from tests.frameworks.landscape_nets import (
    CRITERION,
    NETS,
    ON_GPU,
    XS,
    YS,
    Cnn,
    Mlp,
    Net,
    Pooled,
    ResNet8,
    Words,
    engine_at,
    fingerprint,
    float64_losses,
    make_net,
    plane_of,
)
from tests.programs import run_python

EXACT = 5e-6
CHOICES = [
    EngineChoice(engine="naive"), EngineChoice(engine="row"),
    EngineChoice(engine="row", options=("channels_last",)), EngineChoice(engine="graph"),
    EngineChoice(engine="graph", options=("channels_last",)), EngineChoice(engine="graph", chunk=4),
    EngineChoice(engine="inference"),
]  # fmt: skip


def losses_of(engine: Any) -> Any:
    """At XS x YS; the engine is closed."""
    try:
        return np.concatenate([engine.row_values(y, XS)[:, 0] for y in YS])
    finally:
        engine.close()


@cache
def exact_losses(kind: type[Net], normalization: str) -> Any:
    net = make_net(kind)
    return float64_losses(net, net.batches(), normalization=normalization)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_every_engine_agrees_with_the_float64_loop(kind: type[Net], choice: EngineChoice) -> None:
    # With "layer" all moves; with "filter" biases and BN stay, which is no matter of how pictures lie.
    for normalization in ("layer",) if choice.options else ("filter", "layer"):
        net = make_net(kind)
        batches, before = net.batches(), fingerprint(net)
        losses = losses_of(engine_at(net, batches, choice, normalization=normalization))
        np.testing.assert_allclose(losses, exact_losses(kind, normalization), rtol=EXACT)
        assert fingerprint(net) == before


@pytest.mark.parametrize(
    "choice", [choice for choice in ON_GPU if "cuda_graph" in choice.options], ids=lambda choice: choice.label
)
def test_what_was_chosen_on_a_gpu_is_taken_without_capture_where_there_is_none(choice: EngineChoice) -> None:
    net = make_net(Cnn)
    batches = net.batches()
    without = replace(choice, options=tuple(option for option in choice.options if option != "cuda_graph"))
    found, expected = (losses_of(engine_at(net, batches, one)) for one in (choice, without))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [Mlp, Cnn, Words], ids=lambda kind: kind.__name__)
def test_float64_is_the_loop_to_its_last_digits(kind: type[Net]) -> None:
    for engine in ("naive", "row", "graph"):
        net = make_net(kind)
        batches, before = net.batches(), fingerprint(net)
        opened = engine_at(net, batches, EngineChoice(engine=engine), precision="float64")
        np.testing.assert_allclose(losses_of(opened), float64_losses(net, batches), rtol=1e-12)
        assert fingerprint(net) == before


@pytest.mark.parametrize("kind", [Mlp, ResNet8], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_row_in_pieces_is_the_row_bit_for_bit(chunk: int, kind: type[Net]) -> None:
    net = make_net(kind)
    engine = engine_at(net, net.batches(), EngineChoice(engine="graph", chunk=chunk))
    try:
        for points in (9, 11):  # of 9 one is alone at the end
            xs = np.linspace(-1, 1, points)
            whole = engine.row_values(0.3, xs)
            engine.row_values(0.9, xs[:3])
            pieces = [engine.row_values(0.3, xs[start : start + 4]) for start in (8, 0, 4)]
            assert np.concatenate([pieces[1], pieces[2], pieces[0]]).tobytes() == whole.tobytes()
    finally:
        engine.close()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_a_checkpoint_is_evaluated_with_its_own_buffers_and_the_plane_stays(choice: EngineChoice) -> None:
    net = make_net(Cnn)
    batches = net.batches()
    state = framework_of(net).state(net)
    engine = engine_at(net, batches, choice)
    try:
        row = engine.row_values(0.2, XS)
        other = {name: array * 1.1 + 0.01 * (array.ndim == 1) for name, array in state.items()}
        loss = engine.state_values(other)[0]
        again = engine.row_values(0.2, XS)
    finally:
        engine.close()
    assert again.tobytes() == row.tobytes()
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if name in other:
            tensor.data.copy_(torch.tensor(other[name]))
    assert loss == pytest.approx(float64_losses(net, batches, points=[(0.0, 0.0)])[0], rel=EXACT)


def test_a_second_plane_takes_the_place_of_the_first() -> None:
    net = make_net(Mlp)
    batches = net.batches()
    centre, directions, _ = plane_of(net, "layer")
    for choice in CHOICES:
        engine = engine_at(net, batches, choice)
        try:
            engine.row_values(YS[0], XS)
            engine.set_plane(centre, directions)
            losses = np.concatenate([engine.row_values(y, XS)[:, 0] for y in YS])
        finally:
            engine.close()
        np.testing.assert_allclose(losses, float64_losses(net, batches, normalization="layer"), rtol=EXACT)


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_an_error_in_the_loss_leaves_the_model_as_it_was(choice: EngineChoice) -> None:
    net, armed = make_net(Cnn), []
    batches, before, noise = net.batches(), fingerprint(net), torch.get_rng_state()

    def loss_fn(model: Any, batch: Any) -> Any:
        if armed:
            raise ZeroDivisionError("in the loss")
        return CRITERION(model(batch[0]), batch[1])

    engine = engine_at(net, batches, choice, batch_loss=loss_fn)
    armed.append(True)
    with pytest.raises((ZeroDivisionError, CannotTraceError), match="in the loss"):
        engine.row_values(0.1, XS)
    engine.close()
    engine.close()
    assert fingerprint(net) == before
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.get_num_threads() == 2  # the engine computed with one
    CRITERION(net(net.batch(4)[0]), net.batch(4)[1]).backward()
    assert net.head.weight.grad is not None


def dropped(model: Any, batch: Any) -> Any:
    return CRITERION(nn.functional.dropout(model(batch[0]), 0.5), batch[1])


def branching(model: Any, batch: Any) -> Any:
    loss = CRITERION(model(batch[0]), batch[1])
    return loss if loss < 1.0 else loss.log() + 1


def counting(model: Any, batch: Any) -> Any:
    losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses[losses > 0.5].sum() / 8


def in_numpy(model: Any, batch: Any) -> Any:
    return float(np.mean(model(batch[0]).numpy() ** 2))


@pytest.mark.parametrize("loss_fn", [dropped, branching, counting, in_numpy], ids=lambda f: f.__name__)
def test_a_loss_that_cannot_be_recorded_is_refused_and_the_row_engine_takes_it(loss_fn: Any) -> None:
    net = make_net(Mlp)
    before = fingerprint(net)
    engine = engine_at(net, net.batches(), EngineChoice(engine="graph"), batch_loss=loss_fn)
    with pytest.raises(CannotTraceError):
        engine.row_values(0.1, XS)
    engine.close()
    assert fingerprint(net) == before
    assert np.isfinite(losses_of(engine_at(net, net.batches(), batch_loss=loss_fn))).all()


def test_a_recording_that_holds_a_parameter_by_other_means_is_refused() -> None:
    """Also where the first point is the centre, at which it would look right."""
    net = make_net(Mlp)
    hidden = net.layers[0].weight

    def loss_fn(model: Any, batch: Any) -> Any:
        return CRITERION(model(batch[0]), batch[1]) + hidden.detach().square().mean()

    for metrics in ({}, {"large": lambda *_: torch.tensor(1e9)}):
        engine = engine_at(
            net, net.batches(), EngineChoice(engine="graph"), batch_loss=loss_fn, metrics=metrics
        )
        with pytest.raises(CannotTraceError, match="depends on more than"):
            engine.row_values(0.0, np.array([0.0, 0.5]))
        engine.close()


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_recording_that_was_refused_is_refused_again(chunk: int) -> None:
    """A loss whose scale changes between two planes, where no recording can see it."""
    net, scale = make_net(Mlp), [1.0]
    centre, directions, _ = plane_of(net)
    engine = engine_at(
        net,
        net.batches(),
        EngineChoice(engine="graph", chunk=chunk),
        batch_loss=lambda model, batch: CRITERION(model(batch[0]), batch[1]) * scale[0],
    )
    engine.row_values(YS[0], XS)
    scale[0] = 3.0
    engine.set_plane(centre, directions)
    for _ in range(2):
        with pytest.raises(CannotTraceError, match="depends on more"):
            engine.row_values(YS[0], XS)
    engine.close()


def test_points_that_are_mixed_up_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load = ChunkFlat.load
    monkeypatch.setattr(ChunkFlat, "load", lambda flat, xs: load(flat, xs[::-1]))
    net = make_net(Mlp)
    engine = engine_at(net, net.batches(), EngineChoice(engine="graph", chunk=2))
    with pytest.raises(CannotTraceError, match="depends on more"):
        engine.row_values(YS[0], XS)
    engine.close()


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(value: float, chunk: int) -> None:
    net = make_net(Cnn)
    net.head.weight.data[0, 0] = value
    choice = EngineChoice(engine="graph", chunk=chunk)
    engine = engine_at(net, net.batches(), choice, normalization="none")
    assert not np.isfinite(engine.row_values(YS[0], XS)[:, 0]).any()
    engine.close()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_the_callers_autocast_is_none_of_a_landscape(choice: EngineChoice) -> None:
    net = make_net(Mlp)
    batches = net.batches()
    expected = losses_of(engine_at(net, batches, choice))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = losses_of(engine_at(net, batches, choice))
    np.testing.assert_array_equal(found, expected)


class Leaky(Mlp):
    """Leaves things in itself whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen, self.last = 0, [1.0], None

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(x)
        self.last = super().forward(x)
        self.late = self.last
        return self.last


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.label)
def test_what_a_model_leaves_in_itself_is_taken_away(choice: EngineChoice) -> None:
    net = make_net(Leaky)
    batches = net.batches()
    losses = losses_of(engine_at(net, batches, choice))
    assert (net.calls, net.seen, net.last) == (0, [1.0], None)
    assert not hasattr(net, "late")
    np.testing.assert_allclose(losses, float64_losses(net, batches), rtol=EXACT)


def test_a_random_loss_gets_the_same_numbers_at_every_point(caplog: pytest.LogCaptureFixture) -> None:
    net = make_net(Mlp)
    engine = engine_at(net, net.batches(), batch_loss=dropped)
    first, *_, last = engine.row_values(0.1, np.array([0.5, 0.9, 0.5]))[:, 0]
    engine.close()
    assert first == last
    assert "the loss is random" in caplog.text
    draws = iter(range(100))
    with pytest.raises(LandscapeError, match="different losses for the same parameters"):
        engine_at(net, net.batches(), batch_loss=lambda model, b: CRITERION(model(b[0]), b[1]) + next(draws))
    caplog.clear()
    with pytest.raises(LandscapeError, match="let it write to copies"):
        engine_at(net, net.batches(), batch_loss=lambda model, b: CRITERION(model(b[0].mul_(2)), b[1]))
    assert not caplog.text  # that it would get the same random numbers


def test_dropout_in_training_mode_is_refused_and_batch_statistics_are_not() -> None:
    chosen = EngineChoice(engine="graph")
    engine = engine_at(make_net(Cnn), make_net(Cnn).batches(), chosen, mode="mindspore")
    with pytest.raises(CannotTraceError, match="bernoulli"):
        engine.row_values(0.1, XS)
    engine.close()
    net = make_net(ResNet8)
    batches = net.batches()
    row = losses_of(engine_at(net, batches, mode="mindspore"))
    for choice in (chosen, EngineChoice(engine="graph", chunk=4)):
        np.testing.assert_allclose(
            losses_of(engine_at(net, batches, choice, mode="mindspore")), row, rtol=2e-6
        )


def test_only_what_must_be_is_done_at_a_point() -> None:
    """The first convolution and the folded BN are slots."""

    def done_at_a_point(kind: type[Net], *options: str) -> list[str]:
        net = make_net(kind)
        engine = engine_at(net, net.batches()[:1], EngineChoice(engine="graph", options=options))
        try:
            engine.row_values(0.1, XS)
            (bound,) = engine._bound.values()
            return [str(node.target) for node in bound.program.cut.point.graph.nodes]
        finally:
            engine.close()

    assert sum("convolution" in name for name in done_at_a_point(Pooled, "channels_last")) == 1
    names = done_at_a_point(ResNet8)
    assert sum("convolution" in name for name in names) == 8  # of nine: the first is affine
    assert not any("norm" in name for name in names)


def test_data_without_room_for_slots_is_gone_through_at_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[TorchGraphEngine.__module__], "SLOT_BYTES", 1000)
    net = make_net(Pooled)
    batches = net.batches()
    engine = engine_at(net, batches, EngineChoice(engine="graph"))
    assert engine.row_values(0.1, XS).shape == (len(XS), 1)
    assert all(b.program.cut.slots == b.program.cut.shared for b in engine._bound.values())
    np.testing.assert_allclose(losses_of(engine), float64_losses(net, batches), rtol=EXACT)


def test_parameters_of_mixed_precision_are_refused_by_the_graph_engine_only() -> None:
    net = make_net(Mlp)
    net.layers[2].to(torch.float64)
    with pytest.raises(CannotTraceError, match="in float32 or all in float64"):
        engine_at(net, net.batches(), EngineChoice(engine="graph"))


COMPILED = """
import os, subprocess
import numpy as np, torch
from functools import partial
from distsummary.landscapes.engines import engine_choice
from distsummary.landscapes.engines.timing import choose_engine
from tests.frameworks.landscape_nets import XS, YS, Linear, engine_at, fingerprint, float64_losses, make_net
from tests.frameworks.test_landscape_planning import task_of
engine_choice.LEAST_GAIN = -1e9  # the last one that was timed wins
net = make_net(Linear)
net.batches = partial(lambda batches: batches[:1], net.batches())
before, batches = fingerprint(net), net.batches()
choice = choose_engine(task_of(net), points=10**9).choice
assert choice.engine == "graph" and choice.chunk == 3 and choice.options == ("compile",), choice
engine = engine_at(net, batches, choice)
losses = np.concatenate([engine.row_values(y, XS)[:, 0] for y in YS])
engine.close()
np.testing.assert_allclose(losses, float64_losses(net, batches), rtol=5e-6)
assert fingerprint(net) == before
children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True)
assert children.stdout.split() in ([], ["ps"]), children.stdout
"""


# The compiler is not to try which vector instructions there are, nor to prepare for many kernels: that takes
# three times as long as all the rest where nothing was compiled before.
QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


HAS_COMPILER = shutil.which(os.environ.get("CXX", "g++")) is not None
HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()  # distributions have them apart


@pytest.mark.long
@pytest.mark.skipif(not (HAS_COMPILER and HAS_HEADERS), reason="torch compiles with g++ and Python.h")
def test_a_compiled_graph_gives_the_same_losses() -> None:
    """In a process of its own, since the compiler leaves threads behind; processes it must not."""
    run_python("-W", "ignore", "-c", COMPILED, **QUICK)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("choice", ON_GPU, ids=lambda choice: choice.label)
@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_engines_on_a_gpu_agree_with_the_float64_loop(kind: type[Net], choice: EngineChoice) -> None:
    net = make_net(kind)
    batches = net.batches()
    exact = float64_losses(net, batches)
    losses = losses_of(engine_at(net.cuda(), batches, choice))
    np.testing.assert_allclose(losses, exact, rtol=EXACT)
